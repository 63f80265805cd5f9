//! `playhouse instance`: one of the processes that a controller starts.

use std::fs::File;
use std::future::Future;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use playhouse::Options;
use playhouse::control::descriptors::raise_descriptor_limit;
use playhouse::control::{self, Identity, Link};
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

use super::build::build;
use super::{log, run};

/// Serve as one instance of a site: started by `playhouse run`, not by hand.
///
/// Its standard input is the link to the controller that has started it. TERM drains it and ends it; INT and HUP are the
/// controller's business.
#[derive(Debug, Args)]
#[command(hide = true)]
pub(super) struct Instance {
    /// The site's state directory
    #[arg(long, value_name = "DIR")]
    state_dir: PathBuf,
    /// Its place, from 1
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    slot: u32,
    /// Counts the processes that the site has started
    #[arg(long, value_name = "G")]
    generation: u64,
    /// The site's name
    #[arg(long, value_name = "NAME")]
    site: String,
    /// Threads that serve
    #[arg(long, value_name = "N", default_value = "1")]
    threads: NonZeroUsize,
}

impl Instance {
    pub(super) fn execute(self) -> anyhow::Result<()> {
        log::to_standard_error(Some(format!("instance-{}", self.slot)));
        run::log_panics();
        raise_descriptor_limit();
        let link = take_standard_input().context("standard input")?;
        let runtime = run::runtime_of(self.threads.get())?;
        let result = runtime.block_on(self.serve(link));
        end(runtime);
        result
    }

    async fn serve(self, link: OwnedFd) -> anyhow::Result<()> {
        let terminated = terminated().context("signal handlers")?;
        let link = Link::from_fd(link).context(
            "standard input is not the link to a controller; `playhouse run` starts instances, and nobody else",
        )?;
        let build = build().to_owned();
        let options =
            Options { handlers: super::echo::handlers(), build: build.clone(), ..Options::default() };
        let Instance { state_dir: directory, slot, generation, site, .. } = self;
        let identity = Identity { directory, site, slot, generation, build };
        Ok(control::run(identity, link, options, terminated).await?)
    }
}

/// What was standard input, which nobody reads from then on.
fn take_standard_input() -> io::Result<OwnedFd> {
    let link = io::stdin().as_fd().try_clone_to_owned()?;
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    Ok(link)
}

/// Completes with TERM. From the call on the other signals that end programs of a terminal do nothing.
fn terminated() -> io::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let ignored = [signal(SignalKind::interrupt())?, signal(SignalKind::hangup())?];
    Ok(async move {
        let _ignored = ignored;
        terminate.recv().await;
        tracing::info!(signal = "TERM", "draining");
    })
}

fn end(runtime: Runtime) {
    // What still blocks on a file system is not waited for.
    runtime.shutdown_timeout(run::SHUTDOWN);
}
