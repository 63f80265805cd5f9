//! `playhouse-load`: load on a server from the command line, with the account of every failure.
#![forbid(unsafe_code)]

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Parser, ValueEnum};
use playhouse_chaos::{Expect, Load, Protocol, Stream, Target, Tls};

/// Sends requests, checks every byte of every answer, and says what became of each that failed.
#[derive(Parser)]
struct Args {
    /// `http://host:port/path`, `https://host:port/path` or `unix:/path/of/socket`
    url: String,
    /// How requests travel
    #[arg(long, value_enum, default_value = "keep-alive")]
    protocol: Kind,
    /// Connections at a time
    #[arg(short, long, default_value_t = 8)]
    connections: usize,
    /// Requests at a time on each connection of HTTP/2 and HTTP/3
    #[arg(short = 'm', long, default_value_t = 32)]
    streams: usize,
    /// Seconds until the end
    #[arg(short, long, default_value_t = 10.0)]
    seconds: f64,
    /// Requests a second over all connections; without it, as fast as answers come
    #[arg(short, long)]
    rate: Option<f64>,
    /// The status that counts as answered
    #[arg(long, default_value_t = 200)]
    status: u16,
    /// A file with the content that counts as answered; without it any does
    #[arg(long)]
    expect: Option<PathBuf>,
    /// The path, where the URL is a Unix socket
    #[arg(long, default_value = "/")]
    path: String,
    /// Threads
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// The report as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Kind {
    /// HTTP/1.1, connections kept
    KeepAlive,
    /// HTTP/1.1, a connection per request
    NewConnection,
    /// HTTP/2
    H2,
    /// HTTP/3
    H3,
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let protocol = match args.protocol {
        Kind::KeepAlive => Protocol::Http1KeepAlive,
        Kind::NewConnection => Protocol::Http1NewConnection,
        Kind::H2 => Protocol::Http2 { streams: args.streams },
        Kind::H3 => Protocol::Http3 { streams: args.streams },
    };
    let (target, tls, path, authority) = target(&args)?;
    let mut expect = match &args.expect {
        Some(file) => Expect::body(std::fs::read(file).with_context(|| file.display().to_string())?),
        None => Expect::status(args.status),
    };
    expect.status = args.status;
    let exchange = playhouse_chaos::Exchange::get(path, expect)
        .header(http::header::HOST, authority.parse().context("the host is no field value")?);
    let mut stream = Stream::repeat(protocol, exchange)
        .concurrency(args.connections)
        .duration(Duration::try_from_secs_f64(args.seconds)?);
    if let Some(tls) = tls {
        stream = stream.tls(tls);
    }
    if let Some(rate) = args.rate {
        stream = stream.rate(rate);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let report = runtime.block_on(async {
        Ok::<_, std::io::Error>(
            Load::new(target).stream(stream).threads(args.threads).start()?.finished().await,
        )
    })?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{report}");
    }
    Ok(if report.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Where to connect, whether with TLS, the path, and what stands in `Host`.
fn target(args: &Args) -> Result<(Target, Option<Tls>, String, String)> {
    if let Some(path) = args.url.strip_prefix("unix:") {
        return Ok((Target::Unix(path.into()), None, args.path.clone(), "localhost".into()));
    }
    let uri: http::Uri = args.url.parse().context("the URL")?;
    let host = uri.host().context("the URL has no host")?.to_owned();
    let (default, secure) = match uri.scheme_str() {
        Some("http") => (80, false),
        Some("https") => (443, true),
        _ => bail!("the URL begins with neither http:// nor https:// nor unix:"),
    };
    let bare = host.trim_matches(['[', ']']);
    let address: SocketAddr = (bare, uri.port_u16().unwrap_or(default))
        .to_socket_addrs()
        .with_context(|| format!("looking up {host}"))?
        .next()
        .with_context(|| format!("{host} has no address"))?;
    let tls = if secure { Some(Tls::accepting_any(bare)?) } else { None };
    let path = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
    let authority = uri.authority().map_or(host, ToString::to_string);
    Ok((Target::Tcp(address), tls, path, authority))
}
