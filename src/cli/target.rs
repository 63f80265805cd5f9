//! Which running site a command is about.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use clap::Args;
use playhouse::state_dir::{self, StateDir};

use super::admin::Admin;
use super::orphans::Orphans;

/// Which running site this is about; not needed where only one runs.
#[derive(Debug, Args)]
pub(super) struct Target {
    /// The site's state directory
    #[arg(long, value_name = "DIR", conflicts_with = "site")]
    state_dir: Option<PathBuf>,
    /// The site's name, for one whose state directory is where it is by default
    #[arg(long, value_name = "NAME")]
    site: Option<String>,
}

/// The command could not be understood: exit status 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct WrongUse(pub(super) String);

/// What runs a site.
#[derive(Debug)]
pub(super) enum Found {
    /// One process, or a controller: it answers for all of the site.
    Site(Admin),
    /// Instances whose controller is gone.
    Orphans(Orphans),
}

/// Three seconds in all.
const LOOKS: u32 = 150;
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

impl Target {
    /// What runs the site. A process that has it and does not answer is waited for, a while: it starts, or it is becoming
    /// another program, in an upgrade, and has its sockets in a moment.
    pub(super) fn find(&self) -> anyhow::Result<Found> {
        let directory = self.directory()?;
        let admin = Admin::new(&directory);
        for _ in 0..LOOKS {
            // What is wrong with it, if nobody is there either, is said when it is asked.
            if !admin.is_absent() {
                return Ok(Found::Site(admin));
            }
            if !StateDir::is_somebodys(&directory) {
                break;
            }
            thread::sleep(BETWEEN_LOOKS);
        }
        Ok(Orphans::of(&directory).map_or(Found::Site(admin), Found::Orphans))
    }

    /// The admin interface of the site, for what instances cannot do without their controller.
    pub(super) fn controller(&self) -> anyhow::Result<Admin> {
        match self.find()? {
            Found::Site(admin) => Ok(admin),
            Found::Orphans(orphans) => Err(orphans.refuse()),
        }
    }

    fn directory(&self) -> anyhow::Result<PathBuf> {
        match (&self.state_dir, &self.site) {
            (Some(directory), _) => return Ok(directory.clone()),
            (None, Some(name)) if name.is_empty() || name.contains('/') || name.starts_with('.') => {
                return Err(WrongUse(format!("{name:?} is no name of a site")).into());
            }
            (None, Some(name)) => return Ok(state_dir::base()?.join(name)),
            (None, None) => {}
        }
        if let Some(directory) = state_dir::from_environment() {
            return Ok(directory);
        }
        let base = state_dir::base()?;
        let mut running = state_dir::running(&base);
        match running.len() {
            0 => {
                let others = match Path::new(state_dir::ROOTS_BASE) {
                    roots if base != roots && roots.exists() => "; those of root only root can ask (sudo)",
                    _ => "",
                };
                anyhow::bail!(
                    "no site runs with its state in {}; name one by --state-dir, or start one: playhouse run site.ron{others}",
                    base.display()
                )
            }
            1 => Ok(running.remove(0)),
            _ => {
                let names = running.iter().filter_map(|path| path.file_name());
                let names: Vec<_> = names.map(|name| name.to_string_lossy()).collect();
                Err(WrongUse(format!("several sites run here; name one by --site: {}", names.join(", ")))
                    .into())
            }
        }
    }
}
