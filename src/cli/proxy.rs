//! `playhouse proxy`

use std::path::PathBuf;

use clap::Args;
use http::Uri;
use playhouse::config::Site;
use playhouse::config::file::Target;

use super::output::Output;
use super::run::{Start, start};
use super::serve::name;
use super::target::WrongUse;

/// Stand in front of a server.
///
/// Requests go on with the client's Host, and with X-Forwarded-For and its kind.
#[derive(Debug, Args)]
pub(super) struct Proxy {
    /// The server: http://HOST:PORT, without a path
    #[arg(value_parser = address)]
    url: String,
    /// Where to listen
    #[arg(long, alias = "listen", value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    bind: String,
    /// Where the admin socket and the lock are
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

impl Proxy {
    pub(super) fn execute(self, output: Output) -> anyhow::Result<()> {
        let site = Site::builder(name("proxy", &self.bind))
            .listener("http", self.bind)
            .upstream("server", &*self.url)
            .route(("/", Target::proxy("server")))
            .build()
            .map_err(|errors| WrongUse(errors.to_string()))?;
        start(site, Start { state_dir: self.state_dir, ..Start::default() }, output)
    }
}

/// A server's address as in a site file.
fn address(url: &str) -> Result<String, String> {
    if url.starts_with("unix:/") {
        return Ok(url.to_owned());
    }
    let uri: Uri = url.parse().map_err(|error| format!("not a URL: {error}"))?;
    let Some(authority) = uri.authority() else { return Err("not a URL: no host".into()) };
    match uri.scheme_str() {
        Some("http") | None => {}
        Some(scheme) => return Err(format!("a server is spoken to by http, not {scheme}")),
    }
    if uri.path_and_query().is_some_and(|path| path.as_str() != "/") {
        return Err("a server's URL has no path: requests keep their own".into());
    }
    if authority.as_str().contains('@') {
        return Err("a server's URL has no user".into());
    }
    Ok(format!("{}:{}", authority.host(), authority.port_u16().unwrap_or(80)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_becomes_an_address() {
        for (url, expected) in [
            ("http://127.0.0.1:3000", "127.0.0.1:3000"),
            ("http://127.0.0.1:3000/", "127.0.0.1:3000"),
            ("http://app.internal", "app.internal:80"),
            ("http://[::1]:81", "[::1]:81"),
            ("localhost:3000", "localhost:3000"),
            ("unix:/run/app.sock", "unix:/run/app.sock"),
        ] {
            assert_eq!(address(url).as_deref(), Ok(expected), "{url}");
        }
    }

    #[test]
    fn what_cannot_be_done_is_refused() {
        for url in ["https://a", "http://a/path", "http://a?q", "http://u:p@a", "/path", ""] {
            assert!(address(url).is_err(), "{url}");
        }
    }
}
