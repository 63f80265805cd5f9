//! Hosts and paths that routes match.

use std::net::{IpAddr, Ipv6Addr};

use super::Resolver;
use super::address::is_host_name;
use super::value::shown;
use crate::error::At;
use crate::model::{HostPattern, PathPattern};

/// Bytes of the longest path pattern.
const MAX_PATH: usize = 1024;

impl Resolver<'_, '_> {
    /// `example.org`, `*.example.org` or an IP literal.
    pub(super) fn host_pattern(&mut self, text: &str, at: &At) -> Option<HostPattern> {
        if text == "*" {
            return self.refuse(at, "a route without a host matches all; leave the field out");
        }
        let Some(suffix) = text.strip_prefix("*.") else {
            return self.host_name(text, at).map(HostPattern::Exact);
        };
        let suffix = suffix.strip_suffix('.').unwrap_or(suffix);
        // `*.` of an address would match nothing.
        if suffix.parse::<IpAddr>().is_ok() || !is_host_name(suffix) {
            return self.refuse(at, not_a_host(text));
        }
        Some(HostPattern::Wildcard(format!(".{}", suffix.to_ascii_lowercase())))
    }

    /// A name in lower case without a final dot, or an IP literal, IPv6 in brackets.
    pub(super) fn host_name(&mut self, text: &str, at: &At) -> Option<String> {
        let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        if let Ok(address) = bare.unwrap_or(text).parse::<Ipv6Addr>() {
            return Some(format!("[{address}]"));
        }
        let name = text.strip_suffix('.').unwrap_or(text);
        if is_host_name(name) {
            return Some(name.to_ascii_lowercase());
        }
        self.refuse(at, not_a_host(text))
    }

    /// A path without encodings and dot segments; with a final `/` it is a prefix.
    pub(super) fn path_pattern(&mut self, text: &str, at: &At) -> Option<PathPattern> {
        let problem = if !text.starts_with('/') {
            "begins with \"/\""
        } else if text.len() > MAX_PATH {
            "has at most 1024 bytes"
        } else if text.contains('%') {
            "is matched against the decoded path, so write it decoded, without \"%\""
        } else if text.contains(['?', '#']) {
            "is matched without the query, so write it without \"?\" and \"#\""
        } else if text.ends_with('*') {
            "needs no \"*\": a final \"/\" takes all beneath it"
        } else if text.chars().any(char::is_control) {
            "has no control characters"
        } else if text.contains("//") {
            "is normalised, so write it without \"//\""
        } else if text.split('/').any(|segment| segment == "." || segment == "..") {
            "is normalised, so write it without \".\" and \"..\" segments"
        } else if text.ends_with('/') {
            return Some(PathPattern::Prefix(text.to_owned()));
        } else {
            return Some(PathPattern::Exact(text.to_owned()));
        };
        self.refuse(at, format!("{} is no path to match: it {problem}", shown(text)))
    }
}

fn not_a_host(text: &str) -> String {
    if let Some((host, port)) = text.rsplit_once(':')
        && !port.is_empty()
        && port.bytes().all(|b| b.is_ascii_digit())
    {
        return format!("{} has a port, and hosts are matched without; write {}", shown(text), shown(host));
    }
    if !text.is_ascii() {
        return format!("{} is not ASCII; write the name in its xn-- form", shown(text));
    }
    if text.contains('*') {
        return format!(
            "{} has a wildcard elsewhere than as its whole first label, as in \"*.example.org\"",
            shown(text)
        );
    }
    format!("{} is no host name or IP address", shown(text))
}
