//! A site built in code, checked by the same rules as a file.

use std::path::PathBuf;
use std::time::Duration;

use crate::error::{Errors, Report};
use crate::file;
use crate::model::Site;
use crate::resolve;

/// Collects the parts of a site. [`Builder::build`] checks them all and gives every error at once.
///
/// ```
/// use playhouse_config::Site;
/// use playhouse_config::file::{Listener, Route, Target};
///
/// let site = Site::builder("shop")
///     .listener("http", "127.0.0.1:0")
///     .listener("edge", Listener { http2: Some(false), ..Listener::from("[::1]:0") })
///     .upstream("api", ["127.0.0.1:9000", "127.0.0.1:9001"])
///     .route(("/api/", Target::proxy("api")))
///     .route(Route { host: Some("old.example".into()), ..Route::new("/", Target::redirect(308, "https://shop.example{uri}")) })
///     .route(("/", Target::files("public")))
///     .build()?;
/// assert_eq!(site.routes.len(), 3);
/// # Ok::<(), playhouse_config::Errors>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Builder {
    site: file::Site,
    directory: PathBuf,
}

impl Site {
    /// Begins a site in code. It needs at least a listener.
    pub fn builder(name: impl Into<String>) -> Builder {
        Builder {
            site: file::Site { name: Some(name.into()), ..file::Site::default() },
            directory: PathBuf::new(),
        }
    }
}

impl From<file::Site> for Builder {
    fn from(site: file::Site) -> Self {
        Builder { site, directory: PathBuf::new() }
    }
}

impl Builder {
    /// The directory of relative paths. Without it they are relative to the working directory.
    pub fn directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = directory.into();
        self
    }

    /// Runtime threads of a process, 1 to 1024; without it one per CPU, and a single one with `instances`.
    pub fn threads(mut self, threads: u64) -> Self {
        self.site.threads = Some(threads);
        self
    }

    /// Instance processes under a controller: the fewest and the most, `(1, 4)`, or [`file::Instances`]. A site that is
    /// run within a program of its own stays in that process.
    pub fn instances(mut self, instances: impl Into<file::Instances>) -> Self {
        self.site.instances = Some(instances.into());
        self
    }

    /// Where the admin socket, the lock and the ledger's pages live.
    pub fn state_dir(mut self, directory: impl Into<PathBuf>) -> Self {
        self.site.state_dir = Some(directory.into());
        self
    }

    /// How long a drain waits for requests in flight.
    pub fn drain_timeout(mut self, timeout: Duration) -> Self {
        self.site.drain_timeout = Some(timeout);
        self
    }

    /// The admin interface over TCP.
    pub fn admin(mut self, admin: impl Into<file::Admin>) -> Self {
        self.site.admin = Some(admin.into());
        self
    }

    /// The access log.
    pub fn access_log(mut self, log: file::AccessLog) -> Self {
        self.site.access_log = Some(log);
        self
    }

    /// Adds a listener: an address such as `"127.0.0.1:8080"`, or a [`file::Listener`].
    pub fn listener(mut self, name: impl Into<String>, listener: impl Into<file::Listener>) -> Self {
        let listeners = self.site.listeners.get_or_insert_default();
        listeners.0.push((name.into(), listener.into()));
        self
    }

    /// Adds an upstream: a list of addresses, or a [`file::Upstream`].
    pub fn upstream(mut self, name: impl Into<String>, upstream: impl Into<file::Upstream>) -> Self {
        let upstreams = self.site.upstreams.get_or_insert_default();
        upstreams.0.push((name.into(), upstream.into()));
        self
    }

    /// Adds an app: a program with its arguments, or a [`file::App`].
    pub fn app(mut self, name: impl Into<String>, app: impl Into<file::App>) -> Self {
        let apps = self.site.apps.get_or_insert_default();
        apps.0.push((name.into(), app.into()));
        self
    }

    /// Adds a route: a path and what answers it, or a [`file::Route`].
    pub fn route(mut self, route: impl Into<file::Route>) -> Self {
        self.site.routes.get_or_insert_default().push(route.into());
        self
    }

    /// Checks everything.
    ///
    /// # Errors
    ///
    /// All errors at once, with the fields' paths and without places.
    pub fn build(self) -> Result<Site, Errors> {
        let mut report = Report::default();
        let site = resolve::site(&self.site, &self.directory, &mut report);
        report.finish(site)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::Target;

    #[test]
    fn a_site_in_code_is_checked_by_the_rules_of_the_file() {
        let errors = Site::builder("shop")
            .listener("http", "8080")
            .listener("http", "127.0.0.1:1")
            .upstream("api", ["127.0.0.1:9000"])
            .route(("/", Target::proxy("apii")))
            .threads(0)
            .instances((3, 2))
            .build()
            .unwrap_err();
        let expected = "\
threads: 0 is out of range; 1 to 1024 is allowed
instances.max: 2 is less than min, which is 3
listeners.http: this name stands here twice; names are unique
listeners.http.bind: \"8080\" has no address; write \"127.0.0.1:8080\" for this host alone, \"0.0.0.0:8080\" or \"[::]:8080\" for all
routes[0].to: no upstream \"apii\"; did you mean \"api\"?";
        assert_eq!(errors.to_string(), expected);
    }
}
