//! Short ways to write records in code, as short as the file's own.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::{
    Admin, App, FastCgi, Handler, Instances, Listener, Proxy, Redirect, Respond, Route, Server, Static,
    Target, ToApp, Upstream,
};

impl Route {
    /// A route for all hosts and listeners. The rest by `Route { host: Some(…), ..Route::new(…) }`.
    pub fn new(path: impl Into<String>, to: Target) -> Route {
        Route { path: Some(path.into()), to: Some(to), ..Route::default() }
    }
}

impl Target {
    /// A fixed answer.
    pub fn respond(status: u16, body: impl Into<String>) -> Target {
        Target::Respond(Respond { status: Some(status), body: Some(body.into()) })
    }

    /// A redirect; `location` may have variables.
    pub fn redirect(status: u16, location: impl Into<String>) -> Target {
        Target::Redirect(Redirect { status: Some(status), location: Some(location.into()) })
    }

    /// Files beneath a directory.
    pub fn files(root: impl Into<PathBuf>) -> Target {
        Target::Static(Static { root: Some(root.into()), ..Static::default() })
    }

    /// An upstream of the site.
    pub fn proxy(upstream: impl Into<String>) -> Target {
        Target::Proxy(Proxy { upstream: Some(upstream.into()), ..Proxy::default() })
    }

    /// Scripts of a FastCGI upstream beneath a directory, and the files beside them.
    pub fn fastcgi(upstream: impl Into<String>, root: impl Into<PathBuf>) -> Target {
        let (upstream, root) = (Some(upstream.into()), Some(root.into()));
        Target::FastCgi(FastCgi { upstream, root, ..FastCgi::default() })
    }

    /// Scripts beneath a directory that an app of the site runs, and the files beside them.
    pub fn fastcgi_app(app: impl Into<String>, root: impl Into<PathBuf>) -> Target {
        let (app, root) = (Some(app.into()), Some(root.into()));
        Target::FastCgi(FastCgi { app, root, ..FastCgi::default() })
    }

    /// An app of the site.
    pub fn app(app: impl Into<String>) -> Target {
        Target::App(ToApp { app: Some(app.into()), ..ToApp::default() })
    }

    /// A handler of the embedding program.
    pub fn handler(name: impl Into<String>) -> Target {
        Target::Handler(Handler { name: Some(name.into()) })
    }
}

impl From<String> for Listener {
    fn from(bind: String) -> Self {
        Listener { bind: Some(bind), ..Listener::default() }
    }
}

impl From<&str> for Listener {
    fn from(bind: &str) -> Self {
        bind.to_owned().into()
    }
}

impl From<SocketAddr> for Listener {
    fn from(bind: SocketAddr) -> Self {
        bind.to_string().into()
    }
}

/// At least and at most so many.
impl From<(u64, u64)> for Instances {
    fn from((min, max): (u64, u64)) -> Self {
        Instances { min: Some(min), max: Some(max), ..Instances::default() }
    }
}

impl From<&str> for Admin {
    fn from(bind: &str) -> Self {
        Admin { bind: Some(bind.to_owned()), ..Admin::default() }
    }
}

impl From<String> for Server {
    fn from(address: String) -> Self {
        Server { address: Some(address), weight: None }
    }
}

impl From<&str> for Server {
    fn from(address: &str) -> Self {
        address.to_owned().into()
    }
}

impl From<SocketAddr> for Server {
    fn from(address: SocketAddr) -> Self {
        address.to_string().into()
    }
}

impl From<(&str, u64)> for Server {
    fn from((address, weight): (&str, u64)) -> Self {
        Server { address: Some(address.to_owned()), weight: Some(weight) }
    }
}

impl<T: Into<Server>> From<Vec<T>> for Upstream {
    fn from(servers: Vec<T>) -> Self {
        let servers = servers.into_iter().map(Into::into).collect();
        Upstream { servers: Some(servers), ..Upstream::default() }
    }
}

impl<T: Into<Server>, const N: usize> From<[T; N]> for Upstream {
    fn from(servers: [T; N]) -> Self {
        Vec::from(servers).into()
    }
}

/// A program with its arguments.
impl<T: Into<String>, const N: usize> From<[T; N]> for App {
    fn from(command: [T; N]) -> Self {
        App { command: Some(command.into_iter().map(Into::into).collect()), ..App::default() }
    }
}

impl From<&str> for Upstream {
    fn from(server: &str) -> Self {
        [server].into()
    }
}

impl<P: Into<String>> From<(P, Target)> for Route {
    fn from((path, to): (P, Target)) -> Self {
        Route::new(path, to)
    }
}
