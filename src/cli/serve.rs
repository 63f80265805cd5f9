//! `playhouse serve`

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use playhouse::config::Site;
use playhouse::config::file::Target;

use super::output::Output;
use super::run::{Start, start};
use super::target::WrongUse;

/// Serve a directory.
///
/// Files beneath it and nothing else: with ranges, conditional requests and index.html, and with .br, .zst and .gz siblings
/// where the client takes them.
#[derive(Debug, Args)]
pub(super) struct Serve {
    /// The directory
    #[arg(default_value = ".")]
    dir: PathBuf,
    /// Where to listen
    #[arg(long, alias = "listen", value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    bind: String,
    /// Where the admin socket and the lock are
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

impl Serve {
    pub(super) fn execute(self, output: Output) -> anyhow::Result<()> {
        let root = std::path::absolute(&self.dir).context("the directory's path")?;
        if !root.is_dir() {
            anyhow::bail!("{}: no such directory", root.display());
        }
        let site = Site::builder(name("serve", &self.bind))
            .listener("http", self.bind)
            .route(("/", Target::files(root)))
            .build()
            .map_err(|errors| WrongUse(errors.to_string()))?;
        start(site, Start { state_dir: self.state_dir, ..Start::default() }, output)
    }
}

/// A name for a quick site: two of them run side by side as long as their ports differ.
pub(super) fn name(mode: &str, bind: &str) -> String {
    match bind.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok()) {
        Some(port) if port > 0 => format!("{mode}-{port}"),
        _ => format!("{mode}-{}", std::process::id()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quick_site_is_named_for_its_port() {
        assert_eq!(name("serve", "[::1]:8080"), "serve-8080");
        let own = format!("serve-{}", std::process::id());
        assert_eq!(name("serve", "127.0.0.1:0"), own);
        assert_eq!(name("serve", "unix:/run/x"), own);
    }
}
