//! Where a listener listens and where a server is reached.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::Resolver;
use super::value::shown;
use crate::error::At;
use crate::model::Address;

/// `sockaddr_un` has room for this many bytes and a NUL.
const MAX_UNIX_PATH: usize = 107;

impl Resolver<'_, '_> {
    /// `address:port`, both literal.
    pub(super) fn socket_address(&mut self, text: &str, at: &At) -> Option<SocketAddr> {
        if let Ok(address) = text.parse() {
            return Some(address);
        }
        self.refuse(at, not_a_socket_address(text))
    }

    /// The path after `unix:`, joined to the directory.
    pub(super) fn unix_path(&mut self, path: &str, at: &At) -> Option<PathBuf> {
        let path = self.path(Path::new(path), at)?;
        let length = path.as_os_str().len();
        if length > MAX_UNIX_PATH {
            let message = format!(
                "the socket's path has {length} bytes with the site's directory, the system allows {MAX_UNIX_PATH}; choose a shorter one, such as one in /run"
            );
            return self.refuse(at, message);
        }
        Some(path)
    }

    /// Where a server is reached.
    pub(super) fn server_address(&mut self, text: &str, at: &At) -> Option<Address> {
        if let Some(path) = text.strip_prefix("unix:") {
            return self.unix_path(path, at).map(Address::Unix);
        }
        if let Ok(address) = text.parse::<SocketAddr>() {
            if address.port() == 0 {
                return self.refuse(at, "a server has no port 0; write the port it listens on");
            }
            return Some(Address::Tcp(address));
        }
        if text.contains("://") {
            let message = format!(
                "{} is a URL; a server is host:port or unix:/path, over cleartext HTTP/1.1",
                shown(text)
            );
            return self.refuse(at, message);
        }
        if text.parse::<std::net::IpAddr>().is_ok() {
            let host = if text.contains(':') { format!("[{text}]") } else { text.to_owned() };
            return self
                .refuse(at, format!("{} has no port; write it after a colon: \"{host}:80\"", shown(text)));
        }
        let Some((host, port)) = text.rsplit_once(':') else {
            let message = format!(
                "{} has no port; write it after a colon, or unix: before the path of a socket",
                shown(text)
            );
            return self.refuse(at, message);
        };
        let port = match port.parse::<u16>() {
            Ok(port) if port > 0 && !text.ends_with(|c: char| !c.is_ascii_digit()) => port,
            _ => return self.refuse(at, format!("{} is no port; ports are 1 to 65535", shown(port))),
        };
        if !is_host_name(host) || host.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
            let message =
                format!("{} is neither an IP address (IPv6 in brackets) nor a host name", shown(host));
            return self.refuse(at, message);
        }
        Some(Address::Name(host.to_ascii_lowercase().into(), port))
    }
}

/// Says what an address to bind to lacks.
pub(super) fn not_a_socket_address(text: &str) -> String {
    let port = text.strip_prefix(':').or(text.strip_prefix("*:")).unwrap_or(text);
    if let Ok(port) = port.parse::<u16>() {
        return format!(
            "{text:?} has no address; write \"127.0.0.1:{port}\" for this host alone, \"0.0.0.0:{port}\" or \"[::]:{port}\" for all"
        );
    }
    if let Ok(ip) = text.parse::<std::net::IpAddr>() {
        return format!("{text:?} has no port; write it after a colon: \"{}\"", SocketAddr::new(ip, 8080));
    }
    if let Some(port) = text.strip_prefix("localhost:") {
        return format!("a name cannot be bound to; write \"127.0.0.1:{port}\"", port = port.escape_debug());
    }
    format!("{} is no address and port; write it as \"127.0.0.1:8080\" or \"[::1]:8080\"", shown(text))
}

/// Labels of letters, digits, `-` and `_`, as in RFC 1123 §2.1 with the underscore that is found in practice.
pub(super) fn is_host_name(host: &str) -> bool {
    host.len() <= 253
        && host.split('.').all(|label| {
            (1..=63).contains(&label.len())
                && !label.starts_with('-')
                && !label.ends_with('-')
                && label.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
        })
}
