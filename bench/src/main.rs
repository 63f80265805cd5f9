//! `playhouse-bench`: Playhouse beside its peers on one machine, in CPU time per request of the whole process tree.
//!
//! Machines change their speed for tens of seconds at a time. So all variants of a scenario run in one go, in slices that
//! take turns (A B C A B C …), bare hyper among them as the yardstick, and what counts is the ratio within a round: a
//! difference is to be believed when it holds in every round. Servers run on one CPU, load and upstreams on another.
#![forbid(unsafe_code)]
// It stands outside of the server: it measures with the real clock over real sockets.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod h3_load;
mod idle;
mod load;
mod machine;
mod peers;
mod process;
mod results;
mod run;
mod scenario;
mod websocket;
mod yardstick;

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

use results::Results;
use scenario::Scenario;

/// Measures Playhouse beside nginx, HAProxy and bare hyper, in slices that take turns.
#[derive(Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    run: Run,
}

/// What is measured.
#[derive(Parser)]
struct Run {
    /// A scenario; may be given several times. Without it, all
    #[arg(long, value_enum)]
    scenario: Vec<Scenario>,
    /// Rounds; in each, every variant has one slice
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds of each slice
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// A binary of Playhouse, as PATH or NAME=PATH; several are compared with each other
    #[arg(long, value_name = "PATH")]
    playhouse: Vec<String>,
    /// Only these peers: hyper, nginx, haproxy
    #[arg(long, value_delimiter = ',')]
    peers: Option<Vec<String>>,
    /// The CPU of the servers
    #[arg(long, default_value_t = 0)]
    server_cpu: usize,
    /// The CPU of load generators and upstreams
    #[arg(long, default_value_t = 1)]
    load_cpu: usize,
    /// Connections of the idle scenarios
    #[arg(long, default_value_t = 10_000)]
    connections: usize,
    /// Keep the numbers in DIR/DATE.json; scenarios measured again on a day replace those of before
    #[arg(long, value_name = "DIR", num_args = 0..=1, default_missing_value = "bench/results")]
    save: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Command {
    /// Print the tables of a file of results as Markdown
    Table {
        /// A file that --save has written
        file: PathBuf,
    },
    /// The yardstick: hyper with a task per connection on one thread, answering a fixed body
    #[command(hide = true)]
    ServeHyper(yardstick::Args),
    /// Open connections, send one request on each, and hold them until the standard input ends
    #[command(hide = true)]
    IdleClient(idle::Args),
    /// Ask over HTTP/3 for some seconds, and say how many answers there were
    #[command(hide = true)]
    H3Load(h3_load::Args),
    /// An echo over WebSockets, on one thread
    #[command(hide = true)]
    ServeWebsocket {
        /// Where it listens
        address: SocketAddr,
    },
    /// Send messages over WebSockets for some seconds, and say how many came back
    #[command(hide = true)]
    WebsocketLoad(websocket::Args),
}

fn main() -> Result<()> {
    let args = Args::parse();
    match args.command {
        Some(Command::Table { file }) => {
            print!("{}", Results::read(&file)?.markdown());
            Ok(())
        }
        Some(Command::ServeHyper(args)) => yardstick::serve(args),
        Some(Command::IdleClient(args)) => idle::client(args),
        Some(Command::H3Load(args)) => h3_load::run(args),
        Some(Command::ServeWebsocket { address }) => websocket::serve(address),
        Some(Command::WebsocketLoad(args)) => websocket::load(args),
        None => measure(args.run),
    }
}

fn measure(args: Run) -> Result<()> {
    process::raise_file_limit();
    let results = run::run(&args)?;
    print!("{}", results.markdown());
    if let Some(dir) = &args.save {
        let file = results.save(dir).with_context(|| format!("saving into {}", dir.display()))?;
        eprintln!("saved in {}", file.display());
    }
    Ok(())
}
