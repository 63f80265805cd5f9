//! `playhouse check`

use std::fs::File;
use std::path::{Path, PathBuf};

use clap::Args;
use playhouse::config::model::{Site, Target};
use playhouse::config::{self, Error};

use super::output::{Output, count, safe};

/// Check a site file without running it.
///
/// Says everything that is wrong with it, each with its line and column: syntax, values, names that lead nowhere, and
/// whether certificates, roots and the admin token can be read by this user. Nothing is opened for listening.
#[derive(Debug, Args)]
pub(super) struct Check {
    /// The site file
    site: PathBuf,
}

impl Check {
    pub(super) fn execute(self, output: Output) -> anyhow::Result<()> {
        let (name, errors) = match config::load(&self.site) {
            Ok(site) => (Some(site.name.clone()), surroundings(&site, &self.site)),
            Err(errors) => (None, errors.as_slice().to_vec()),
        };
        if output.is_json() {
            output.json(&serde_json::json!({"valid": errors.is_empty(), "site": name, "errors": errors}))?;
        }
        if !errors.is_empty() {
            for error in &errors {
                eprintln!("{}", safe(&error.to_string()));
            }
            anyhow::bail!("{}: {}", self.site.display(), count(errors.len() as u64, "error"));
        }
        if !output.is_json() {
            output.text(&format!("{}: valid\n", self.site.display()))?;
        }
        Ok(())
    }
}

/// The roots of static routes that cannot be read, and why.
pub(super) fn roots(site: &Site) -> impl Iterator<Item = (&Path, std::io::Error)> {
    unreadable(site).map(|(_, root, error)| (root, error))
}

fn unreadable(site: &Site) -> impl Iterator<Item = (usize, &Path, std::io::Error)> {
    site.routes.iter().enumerate().filter_map(|(index, route)| match &route.to {
        Target::Static(files) => Some((index, &*files.root, std::fs::read_dir(&files.root).err()?)),
        _ => None,
    })
}

/// What the file names and this host should have.
fn surroundings(site: &Site, file: &Path) -> Vec<Error> {
    let mut errors = Vec::new();
    let mut report = |field: String, path: &Path, message: String| {
        let message = format!("{}: {message}", path.display());
        errors.push(Error {
            file: Some(file.display().to_string()),
            line: None,
            column: None,
            field,
            message,
        });
    };
    for app in &site.apps {
        if let Err(error) = std::fs::read_dir(&app.dir) {
            report(format!("apps.{}.dir", app.name), &app.dir, error.to_string());
        }
    }
    for listener in &site.listeners {
        for (index, certificate) in listener.tls.iter().enumerate() {
            let field = format!("listeners.{}.tls[{index}]", listener.name);
            for (part, path) in [("cert", &certificate.cert), ("key", &certificate.key)] {
                if let Err(error) = File::open(path).and_then(std::io::read_to_string) {
                    report(format!("{field}.{part}"), path, error.to_string());
                }
            }
        }
    }
    for (index, root, error) in unreadable(site) {
        report(format!("routes[{index}].to.root"), root, error.to_string());
    }
    if let Some(token) = &site.admin.token_file
        && let Err(error) = std::fs::read_to_string(token)
    {
        report("admin.token_file".into(), token, error.to_string());
    }
    let known = super::echo::handlers();
    for (index, route) in site.routes.iter().enumerate() {
        if let Target::Handler(name) = &route.to
            && !known.contains_key(name)
        {
            errors.push(Error {
                file: Some(file.display().to_string()),
                line: None,
                column: None,
                field: format!("routes[{index}].to"),
                message: format!(
                    "no handler {name:?}: this binary has \"echo\" alone, others are registered by embedding programs"
                ),
            });
        }
    }
    errors
}
