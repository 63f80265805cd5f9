//! The PROXY protocol: who a client is, said by a proxy in front, and said by us to the servers behind.

mod behind_haproxy;
mod headers;
mod to_servers;

use std::net::{Ipv4Addr, SocketAddr};

use crate::harness::{Running, Scripted, Site, Wire, ok};

/// A server that answers with what it was told of the client: address, scheme, host.
fn told() -> Scripted {
    Scripted::answering(|request| {
        let said = |name| request.header(name).unwrap_or("-").to_owned();
        ok(&format!("{} {} {}", said("x-forwarded-for"), said("x-forwarded-proto"), said("x-forwarded-host")))
    })
}

/// A site with this listener `http`, which forwards everything.
fn site(listener: &str, upstream: &Scripted) -> Running {
    Site::new()
        .field("access_log: (to: \"access.log\")")
        .listener("http", listener)
        .server("up", upstream.address)
        .route(r#"(path: "/", to: Proxy("up"))"#)
        .start()
}

const REQUEST: &str = "GET / HTTP/1.1\r\nHost: shop.test\r\n\r\n";

const REQUIRED: &str = r#"(bind: "127.0.0.1:0", proxy_protocol: Required(trusted: ["127.0.0.1"]))"#;

const OPTIONAL: &str = r#"(bind: "127.0.0.1:0", proxy_protocol: Optional(trusted: ["127.0.0.1"]))"#;

fn v1(client: &str) -> Vec<u8> {
    format!("PROXY TCP4 {client} 198.51.100.7 50000 443\r\n").into_bytes()
}

/// A header of version 2 for this client.
fn v2(client: [u8; 4], tlvs: &[u8]) -> Vec<u8> {
    let mut bytes = SIGNATURE.to_vec();
    bytes.extend([0x21, 0x11]);
    bytes.extend(u16::try_from(12 + tlvs.len()).unwrap().to_be_bytes());
    bytes.extend(client);
    bytes.extend([198, 51, 100, 7, 0xc3, 0x50, 0x01, 0xbb]);
    bytes.extend(tlvs);
    bytes
}

/// The same for one whose address is of no family.
fn unspecified(tlvs: &[u8]) -> Vec<u8> {
    let length = u16::try_from(tlvs.len()).unwrap().to_be_bytes();
    [&SIGNATURE[..], &[0x21, 0x00], &length, tlvs].concat()
}

/// Says that the client has come over TLS 1.3.
const OVER_TLS: &[u8] = b"\x20\x00\x0f\x01\x00\x00\x00\x01\x21\x00\x07TLSv1.3";

const LOCAL: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x20\x00\x00\x00";

const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";

/// What the server was told of the client that this header names.
#[track_caller]
fn asked(mut wire: Wire, header: &[u8]) -> String {
    wire.send([header, REQUEST.as_bytes()].concat());
    wire.response().text()
}

/// A connection from this address of the loopback network.
#[track_caller]
fn from(address: [u8; 4], to: SocketAddr) -> Wire {
    let socket =
        rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &SocketAddr::from((Ipv4Addr::from(address), 0))).unwrap();
    rustix::net::connect(&socket, &to).unwrap();
    Wire::over(std::net::TcpStream::from(socket))
}

fn refused(site: &Running) -> f64 {
    site.admin.metric("playhouse_proxy_headers_refused_total", &["listener=\"http\""])
}
