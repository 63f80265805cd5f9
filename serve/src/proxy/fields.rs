//! What becomes of fields on their way through: the head of the request to the server, and the fields of its answer.
//!
//! Framing is never forwarded, always made anew. Hop-by-hop fields (RFC 9110 §7.6.1) end here: a fixed set and those that
//! `Connection` lists, but for fields that are no sender's to take away. Who the client is, is said by us alone.

use std::io::Write;
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use http::header::{self, HeaderName};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, Version};
use playhouse_protocol::http1::{BodyLength, ResponseHead, encode, list_items};

use crate::ConnectionInfo;
use crate::exchange::Peer;
use crate::tunnel::Upgrade;

/// The head of a request as the client has sent it, after normalisation.
pub(super) struct RequestHead<'a> {
    pub(super) method: &'a Method,
    pub(super) uri: &'a Uri,
    pub(super) version: Version,
    pub(super) headers: &'a HeaderMap,
    pub(super) connection: &'a ConnectionInfo,
}

/// What the head to the server says apart from the client's fields.
pub(super) struct Outbound<'a> {
    pub(super) target: &'a PathAndQuery,
    /// The server's own `Host`.
    pub(super) server: &'a HeaderValue,
    /// Send the client's `Host`, where it has sent one.
    pub(super) preserve_host: bool,
    pub(super) length: BodyLength,
    /// Send `Expect: 100-continue`.
    pub(super) expect: bool,
    /// Send `Connection: close`.
    pub(super) close: bool,
    /// Ask to switch to another protocol.
    pub(super) upgrade: Option<&'a Upgrade>,
}

/// The request has gone through us too often: the server is, by a detour, ourselves.
pub(super) struct Loop;

impl RequestHead<'_> {
    /// Writes the head of the request to the server.
    pub(super) fn write(&self, out: &mut BytesMut, outbound: &Outbound<'_>) -> Result<(), Loop> {
        out.reserve(1024);
        encode::request_line(out, self.method, outbound.target);
        let client_host = self.client_host();
        let host = client_host.filter(|_| outbound.preserve_host).unwrap_or(outbound.server.as_bytes());
        line(out, b"host", host);
        self.write_fields(out, outbound.upgrade)?;
        match outbound.length {
            BodyLength::Length(length) => encode::content_length(out, length),
            BodyLength::Chunked => out.put_slice(encode::CHUNKED),
            // RFC 9110 §8.6: a method that anticipates content says that there is none.
            _ if matches!(*self.method, Method::POST | Method::PUT | Method::PATCH) => {
                encode::content_length(out, 0)
            }
            _ => {}
        }
        if outbound.expect {
            out.put_slice(b"expect: 100-continue\r\n");
        }
        if let Some(upgrade) = outbound.upgrade {
            write_upgrade(out, upgrade, self.headers);
        }
        match (self.accepts_trailers_by_te(), outbound.close) {
            _ if outbound.upgrade.is_some() => {}
            (true, true) => out.put_slice(b"te: trailers\r\nconnection: te, close\r\n"),
            (true, false) => out.put_slice(b"te: trailers\r\nconnection: te\r\n"),
            (false, true) => out.put_slice(encode::CLOSE),
            (false, false) => {}
        }
        self.write_forwarded(out, client_host);
        out.put_slice(encode::END_OF_HEAD);
        Ok(())
    }

    /// Whether trailers of the answer reach the client (RFC 9110 §6.5.1): it has said so, or HTTP/2 or HTTP/3 has.
    pub(super) fn accepts_trailers(&self) -> bool {
        matches!(self.version, Version::HTTP_2 | Version::HTTP_3) || self.accepts_trailers_by_te()
    }

    /// Whether the client waits for a 100 before it sends its content.
    pub(super) fn expects_continue(&self) -> bool {
        self.version >= Version::HTTP_11
            && self
                .headers
                .get(header::EXPECT)
                .is_some_and(|v| v.as_bytes().eq_ignore_ascii_case(b"100-continue"))
    }

    fn accepts_trailers_by_te(&self) -> bool {
        self.headers.contains_key(header::TE)
            && self.headers.get_all(header::TE).iter().flat_map(list_items).any(|coding| {
                coding
                    .split(|byte| *byte == b';')
                    .next()
                    .is_some_and(|name| name.trim_ascii().eq_ignore_ascii_case(b"trailers"))
            })
    }

    /// The host that the client has asked for, with its port: the URI's goes before the field's (RFC 9112 §3.2.2,
    /// RFC 9113 §8.3.1).
    fn client_host(&self) -> Option<&[u8]> {
        match self.uri.authority() {
            // Never with user information, should an engine have let it pass.
            Some(authority) => authority.as_str().rsplit('@').next().map(str::as_bytes),
            None => self.headers.get(header::HOST).map(HeaderValue::as_bytes),
        }
    }

    fn write_fields(&self, out: &mut BytesMut, upgrade: Option<&Upgrade>) -> Result<(), Loop> {
        let listed = Listed::new(self.headers);
        let mut hops = 0;
        let mut cookies = false;
        for (name, value) in self.headers {
            if ends_here(name) || listed.has(name) {
                continue;
            }
            match *name {
                // Over HTTP/2 it has no meaning (RFC 8441 §5): there is one of ours.
                header::SEC_WEBSOCKET_KEY if upgrade.is_some_and(|upgrade| upgrade.own_key().is_some()) => {}
                // RFC 9113 §8.2.3: crumbs become one field again.
                header::COOKIE => {
                    if !std::mem::replace(&mut cookies, true) {
                        self.write_cookies(out);
                    }
                }
                // RFC 9110 §7.6.2.
                header::MAX_FORWARDS if *self.method == Method::OPTIONS => {
                    if let Some(left) = max_forwards(value).and_then(|left| left.checked_sub(1)) {
                        line(out, b"max-forwards", HeaderValue::from(left).as_bytes());
                    }
                }
                header::VIA => {
                    hops += list_items(value).filter(|hop| hop.ends_with(PSEUDONYM)).count();
                    encode::field(out, name, value);
                }
                _ => encode::field(out, name, value),
            }
        }
        if hops >= MOST_HOPS { Err(Loop) } else { Ok(()) }
    }

    fn write_cookies(&self, out: &mut BytesMut) {
        out.put_slice(b"cookie: ");
        for (index, crumb) in self.headers.get_all(header::COOKIE).iter().enumerate() {
            if index > 0 {
                out.put_slice(b"; ");
            }
            out.put_slice(crumb.as_bytes());
        }
        out.put_slice(b"\r\n");
    }

    fn write_forwarded(&self, out: &mut BytesMut, client_host: Option<&[u8]>) {
        if let Peer::Tcp(_) = self.connection.peer {
            out.put_slice(b"x-forwarded-for: ");
            // Into memory: cannot fail.
            let _ = write!(out.writer(), "{}", self.connection.peer);
            out.put_slice(b"\r\n");
        }
        line(out, b"x-forwarded-proto", self.connection.scheme().as_bytes());
        if let Some(host) = client_host {
            line(out, b"x-forwarded-host", host);
        }
        out.put_slice(match self.version {
            Version::HTTP_10 => b"via: 1.0 playhouse\r\n".as_slice(),
            Version::HTTP_2 => b"via: 2 playhouse\r\n",
            Version::HTTP_3 => b"via: 3 playhouse\r\n",
            _ => b"via: 1.1 playhouse\r\n",
        });
    }
}

/// Asks for another protocol; what a WebSocket's handshake needs and HTTP/2 leaves out is put in.
fn write_upgrade(out: &mut BytesMut, upgrade: &Upgrade, headers: &HeaderMap) {
    out.put_slice(b"connection: upgrade\r\n");
    encode::field(out, &header::UPGRADE, upgrade.token());
    if let Some(key) = upgrade.own_key() {
        encode::field(out, &header::SEC_WEBSOCKET_KEY, key);
        if !headers.contains_key(header::SEC_WEBSOCKET_VERSION) {
            out.put_slice(b"sec-websocket-version: 13\r\n");
        }
    }
}

/// How often an `OPTIONS` may still be forwarded.
pub(super) fn max_forwards(value: &HeaderValue) -> Option<u64> {
    value.to_str().ok()?.trim().parse().ok()
}

/// Takes off an answer what ends here. What the server says about how long it keeps the connection is returned.
pub(super) fn strip_answer(head: &mut ResponseHead, trailers: bool) -> Option<Duration> {
    let headers = &mut head.headers;
    let keep = headers.get(&KEEP_ALIVE).and_then(keep_alive_timeout);
    if headers.contains_key(header::CONNECTION) {
        let listed = Listed::new(headers);
        let names: Vec<HeaderName> = match listed.any {
            true => headers.keys().filter(|name| listed.has(name)).cloned().collect(),
            false => Vec::new(),
        };
        names.iter().for_each(|name| {
            headers.remove(name);
        });
        headers.remove(header::CONNECTION);
    }
    for name in [&KEEP_ALIVE, &PROXY_CONNECTION, &header::PROXY_AUTHENTICATE, &header::TE, &header::UPGRADE] {
        headers.remove(name);
    }
    if headers.remove(header::TRANSFER_ENCODING).is_none() || !trailers {
        headers.remove(header::TRAILER);
    }
    // RFC 9110 §8.6.
    if head.status == StatusCode::NO_CONTENT || head.status.is_informational() {
        headers.remove(header::CONTENT_LENGTH);
    }
    keep
}

/// Fields of a request that are not forwarded, or are made anew.
pub(crate) fn ends_here(name: &HeaderName) -> bool {
    let name = name.as_str();
    match name {
        "connection" | "keep-alive" | "proxy-connection" | "te" | "transfer-encoding" | "upgrade"
        | "http2-settings" => true,
        "host" | "content-length" | "expect" => true,
        // For the next proxy, which is us; `proxy` is httpoxy.
        "proxy-authorization" | "proxy-authenticate" | "proxy" => true,
        // Nobody is trusted to say these yet.
        "forwarded" | "x-real-ip" => true,
        // What CGI-like servers cannot tell from a dash would bring the above back in.
        _ => name.starts_with("x-forwarded-") || name.bytes().any(|byte| byte == b'_'),
    }
}

/// The fields that `Connection` lists.
pub(crate) struct Listed<'a> {
    headers: &'a HeaderMap,
    /// Whether there are any but the usual, which end here in any case.
    any: bool,
}

impl<'a> Listed<'a> {
    pub(crate) fn new(headers: &'a HeaderMap) -> Self {
        let usual = |item: &[u8]| {
            [b"keep-alive".as_slice(), b"close", b"te", b"upgrade"]
                .iter()
                .any(|u| item.eq_ignore_ascii_case(u))
        };
        let any = headers.contains_key(header::CONNECTION)
            && !headers.get_all(header::CONNECTION).iter().flat_map(list_items).all(usual);
        Listed { headers, any }
    }

    pub(crate) fn has(&self, name: &HeaderName) -> bool {
        let listed = |item: &[u8]| item.eq_ignore_ascii_case(name.as_str().as_bytes());
        self.any
            && self.headers.get_all(header::CONNECTION).iter().flat_map(list_items).any(listed)
            && !is_end_to_end(name.as_str())
    }
}

/// Fields that are meant for the other end whatever `Connection` says: a client must not be able to take away what the
/// server decides by.
fn is_end_to_end(name: &str) -> bool {
    matches!(
        name,
        "authorization"
            | "cookie"
            | "set-cookie"
            | "cache-control"
            | "early-data"
            | "origin"
            | "referer"
            | "via"
            | "date"
            | "host"
            | "vary"
            | "etag"
            | "location"
            | "range"
            | "expires"
            | "age"
            | "www-authenticate"
            | "strict-transport-security"
            | "x-frame-options"
    ) || ["content-", "if-", "sec-", "access-control-", "x-forwarded-"].iter().any(|p| name.starts_with(p))
}

/// `timeout=5`, less a margin for what is under way.
fn keep_alive_timeout(value: &HeaderValue) -> Option<Duration> {
    let timeout = list_items(value).find_map(|item| item.strip_prefix(b"timeout="))?;
    let seconds: u32 = std::str::from_utf8(timeout).ok()?.trim().parse().ok()?;
    let timeout = Duration::from_secs(seconds.into());
    Some(timeout.saturating_sub(KEEP_ALIVE_MARGIN).max(timeout / 2))
}

fn line(out: &mut BytesMut, name: &[u8], value: &[u8]) {
    out.put_slice(name);
    out.put_slice(b": ");
    out.put_slice(value);
    out.put_slice(b"\r\n");
}

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// How we are named in `Via`.
const PSEUDONYM: &[u8] = b" playhouse";

/// A chain of this many is a circle.
const MOST_HOPS: usize = 16;

/// A server counts from when it has sent, we from when we have read; and a request takes a moment to arrive.
const KEEP_ALIVE_MARGIN: Duration = Duration::from_secs(1);

#[cfg(test)]
#[path = "fields_tests.rs"]
mod tests;
