//! The commands, a file each. Nothing is decided here: `run` and its kind start an instance, the others ask one.

mod activation;
mod admin;
mod build;
mod check;
mod children;
mod drain;
mod echo;
mod init;
mod instance;
mod kill;
mod log;
mod orphans;
mod output;
mod plan;
mod proxy;
mod reload;
mod restart;
mod run;
mod scale;
mod serve;
mod status;
mod stop;
mod target;
mod tree;
mod upgrade;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use output::Output;
use target::WrongUse;

/// A web server and reverse proxy that keeps serving while its own parts are killed.
///
/// Everything in it is an actor under a supervisor: `playhouse tree` shows them, `playhouse kill` ends one of them, and
/// what clients lose is what was in flight there, at most.
#[derive(Debug, Parser)]
#[command(version = build::build(), disable_help_subcommand = true, after_help = AFTER_HELP)]
struct Arguments {
    /// Write JSON, as is done without a terminal anyway.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Run),
    Check(check::Check),
    Plan(plan::Plan),
    Status(status::Status),
    Tree(tree::Tree),
    Kill(kill::Kill),
    Reload(reload::Reload),
    Restart(restart::Restart),
    Scale(scale::Scale),
    Drain(drain::Drain),
    Upgrade(upgrade::Upgrade),
    Stop(stop::Stop),
    Serve(serve::Serve),
    Proxy(proxy::Proxy),
    Echo(echo::Echo),
    Instance(instance::Instance),
}

const AFTER_HELP: &str = "\
To begin:
  playhouse serve public                 serve a directory
  playhouse proxy http://127.0.0.1:3000  stand in front of a server
  playhouse run site.ron                 run a whole site

Exit status: 0 done, 1 the answer is no, 2 wrong use.";

/// Runs the command that the arguments say.
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let output = Output::new(arguments.json);
    let result = match arguments.command {
        Command::Run(command) => match command.execute(output) {
            Ok(status) => return status,
            Err(error) => Err(error),
        },
        Command::Check(command) => command.execute(output),
        Command::Plan(command) => command.execute(output),
        Command::Status(command) => command.execute(output),
        Command::Tree(command) => command.execute(output),
        Command::Kill(command) => command.execute(output),
        Command::Reload(command) => command.execute(output),
        Command::Restart(command) => command.execute(output),
        Command::Scale(command) => command.execute(output),
        Command::Drain(command) => command.execute(output),
        Command::Upgrade(command) => command.execute(output),
        Command::Stop(command) => command.execute(output),
        Command::Serve(command) => command.execute(output),
        Command::Proxy(command) => command.execute(output),
        Command::Echo(command) => command.execute(output),
        Command::Instance(command) => command.execute(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output.error(&error);
            ExitCode::from(if error.is::<WrongUse>() { 2 } else { 1 })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    const PAGE: &str = include_str!("../../docs/reference/cli.md");

    #[test]
    fn the_arguments_are_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn the_reference_page_has_every_command_and_option() {
        for command in Arguments::command().get_subcommands() {
            let heading = format!("## playhouse {}\n", command.get_name());
            let (_, section) = PAGE.split_once(&heading).unwrap_or_else(|| panic!("no {heading}"));
            let section = section.split("\n## ").next().unwrap_or_default();
            for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
                match argument.get_long() {
                    Some("help" | "version" | "json") => {}
                    Some(long) => {
                        assert!(section.contains(&format!("`--{long}")), "no --{long} in {heading}");
                    }
                    None => {
                        let name = argument.get_id().as_str().to_uppercase();
                        assert!(section.contains(&format!("`{name}`")), "no {name} in {heading}");
                    }
                }
            }
        }
    }
}
