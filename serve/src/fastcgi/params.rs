//! What a script is told of a request (RFC 3875 §4, and what PHP applications expect beyond it).

use std::io::Write;

use bytes::{BufMut, BytesMut};
use http::{HeaderMap, HeaderName, Method, Version, header};
use playhouse_protocol::fastcgi::write::param;
use playhouse_protocol::http1::BodyLength;

use super::FastCgiTarget;
use super::script::Script;
use crate::proxy::fields::{Listed, ends_here};
use crate::router::{NormalisedPath, host};
use crate::{ConnectionInfo, Exchange, RequestBody};

/// What a script is told, as it is sent.
pub(super) fn params(
    target: &FastCgiTarget,
    exchange: &Exchange,
    path: &NormalisedPath,
    script: &Script,
    length: BodyLength,
) -> BytesMut {
    let Exchange { request, connection, .. } = exchange;
    let uri = request.uri();
    let mut pairs = Pairs(BytesMut::with_capacity(2048));
    // What the route's own path is has no place beneath the root, and belongs to the name.
    let prefix = path.decoded(uri).get(..target.prefix).unwrap_or(b"/");
    pairs.put("SCRIPT_FILENAME", &[&target.script_root, b"/", &*script.path]);
    pairs.put("SCRIPT_NAME", &[prefix, &script.path]);
    if !script.info.is_empty() {
        pairs.put("PATH_INFO", &[&script.info]);
        pairs.put("PATH_TRANSLATED", &[&target.script_root, &script.info]);
    }
    pairs.put("DOCUMENT_ROOT", &[&target.script_root]);
    pairs.put("DOCUMENT_URI", &[prefix, &script.path, &script.info]);
    pairs.put("REQUEST_URI", &[uri.path_and_query().map_or("/", |target| target.as_str()).as_bytes()]);
    pairs.put("QUERY_STRING", &[uri.query().unwrap_or_default().as_bytes()]);
    pairs.put("REQUEST_METHOD", &[request.method().as_str().as_bytes()]);
    pairs.put("SERVER_PROTOCOL", &[protocol(request.version())]);
    pairs.put("SERVER_SOFTWARE", &[b"playhouse"]);
    pairs.put("GATEWAY_INTERFACE", &[b"CGI/1.1"]);
    // PHP built to insist on it believes that the web server, and not the client, has chosen the script.
    pairs.put("REDIRECT_STATUS", &[b"200"]);
    content(&mut pairs, request, length);
    ends(&mut pairs, connection);
    server_name(&mut pairs, exchange);
    fields(&mut pairs, request.headers());
    pairs.0.put_slice(&target.params);
    pairs.0
}

/// Names and values.
struct Pairs(BytesMut);

impl Pairs {
    /// A value in pieces.
    fn put(&mut self, name: &str, value: &[&[u8]]) {
        match value {
            [value] => param(&mut self.0, name.as_bytes(), value),
            pieces => param(&mut self.0, name.as_bytes(), &pieces.concat()),
        }
    }

    fn put_display(&mut self, name: &str, value: impl std::fmt::Display) {
        let mut text = [0u8; 64];
        let mut rest = &mut text[..];
        // An address or a number: it has room.
        let _ = write!(rest, "{value}");
        let length = 64 - rest.len();
        param(&mut self.0, name.as_bytes(), &text[..length]);
    }
}

fn content(pairs: &mut Pairs, request: &http::Request<RequestBody>, length: BodyLength) {
    let announces = matches!(*request.method(), Method::POST | Method::PUT | Method::PATCH);
    match length {
        BodyLength::Length(length) => pairs.put_display("CONTENT_LENGTH", length),
        _ if announces => pairs.put("CONTENT_LENGTH", &[b"0"]),
        _ => {}
    }
    if let Some(kind) = request.headers().get(header::CONTENT_TYPE) {
        pairs.put("CONTENT_TYPE", &[kind.as_bytes()]);
    }
}

fn ends(pairs: &mut Pairs, connection: &ConnectionInfo) {
    match connection.peer.address() {
        Some(peer) => {
            pairs.put_display("REMOTE_ADDR", peer.ip().to_canonical());
            pairs.put_display("REMOTE_PORT", peer.port());
        }
        // As nginx has it; no program takes it for an address that it trusts.
        None => pairs.put("REMOTE_ADDR", &[b"unix:"]),
    }
    let scheme = connection.scheme();
    match connection.local {
        Some(local) => {
            pairs.put_display("SERVER_ADDR", local.ip().to_canonical());
            pairs.put_display("SERVER_PORT", local.port());
        }
        None => pairs.put_display("SERVER_PORT", if scheme == "https" { 443 } else { 80 }),
    }
    pairs.put("REQUEST_SCHEME", &[scheme.as_bytes()]);
    if scheme == "https" {
        pairs.put("HTTPS", &[b"on"]);
    }
}

/// `SERVER_NAME` without a port, and `HTTP_HOST` with it.
fn server_name(pairs: &mut Pairs, exchange: &Exchange) {
    let (uri, headers) = (exchange.request.uri(), exchange.request.headers());
    // A route was found by it, so that it is valid.
    match host::of_request(uri, headers) {
        Ok(Some(name)) => pairs.put("SERVER_NAME", &[host::bracketed(&name).as_bytes()]),
        _ => match exchange.connection.local {
            Some(local) => pairs.put_display("SERVER_NAME", local.ip().to_canonical()),
            None => pairs.put("SERVER_NAME", &[b"localhost"]),
        },
    }
    let authority =
        uri.authority().map(|authority| authority.as_str().rsplit('@').next().unwrap_or_default());
    let field = || headers.get(header::HOST).map(|field| field.as_bytes());
    if let Some(host) = authority.map(str::as_bytes).or_else(field) {
        pairs.put("HTTP_HOST", &[host]);
    }
}

/// `HTTP_*`. Fields that belong to a connection, that a proxy would not be believed, and whose names have an underscore
/// (which would be that of a dash) do not get here; nor does `Proxy`, which programs take for their own configuration.
fn fields(pairs: &mut Pairs, headers: &HeaderMap) {
    let listed = Listed::new(headers);
    for name in headers.keys() {
        let given = [header::CONTENT_TYPE, header::CONTENT_LENGTH, header::HOST].contains(name);
        if given || ends_here(name) || listed.has(name) || !is_plain(name) {
            continue;
        }
        let mut values = headers.get_all(name).iter();
        let variable = variable(name);
        match (values.next(), values.next()) {
            (Some(value), None) => pairs.put(&variable, &[value.as_bytes()]),
            _ => {
                // RFC 9110 §5.3, and RFC 9113 §8.2.3 for crumbs.
                let separator: &[u8] = if *name == header::COOKIE { b"; " } else { b", " };
                let values: Vec<&[u8]> = headers.get_all(name).iter().map(|value| value.as_bytes()).collect();
                pairs.put(&variable, &[&values.join(separator)]);
            }
        }
    }
}

/// Letters, digits and dashes: what a variable can say of a name without being another's.
fn is_plain(name: &HeaderName) -> bool {
    name.as_str().bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

fn variable(name: &HeaderName) -> String {
    let mut variable = String::with_capacity(5 + name.as_str().len());
    variable.push_str("HTTP_");
    variable.extend(name.as_str().chars().map(|c| if c == '-' { '_' } else { c.to_ascii_uppercase() }));
    variable
}

fn protocol(version: Version) -> &'static [u8] {
    match version {
        Version::HTTP_10 => b"HTTP/1.0",
        Version::HTTP_2 => b"HTTP/2.0",
        Version::HTTP_3 => b"HTTP/3.0",
        _ => b"HTTP/1.1",
    }
}
