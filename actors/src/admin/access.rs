//! Who may ask the admin interface for what.

use std::net::IpAddr;

use http::{HeaderMap, StatusCode, Uri, header, uri::Authority};
use playhouse_config::model;
use playhouse_serve::exchange::Peer;
use playhouse_serve::{ConnectionInfo, Exchange};
use subtle::ConstantTimeEq;

/// What a request would do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// `/healthz`, `/readyz`, `/metrics`: anyone who can connect.
    Open,
    /// A read: the token once the bind is not loopback.
    Read,
    /// A change: always the token.
    Change,
}

/// Why a request is refused, and with what status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refusal(pub StatusCode, pub &'static str);

/// The Unix socket is open to whoever may connect to it: its mode and the peer's credentials have been checked.
pub(super) fn check(
    exchange: &Exchange,
    need: Need,
    admin: &model::Admin,
    token: Option<&str>,
) -> Result<(), Refusal> {
    if exchange.connection.peer == Peer::Unix {
        return Ok(());
    }
    let (headers, uri) = (exchange.request.headers(), exchange.request.uri());
    check_host(uri, headers, &exchange.connection, admin)?;
    let loopback = admin.bind.is_some_and(|bind| bind.ip().to_canonical().is_loopback());
    match need {
        Need::Open => Ok(()),
        Need::Read if loopback => Ok(()),
        Need::Read | Need::Change => check_token(headers, token),
    }
}

/// A page of another site that a browser has open must not reach us under a name that it controls (DNS rebinding).
fn check_host(
    uri: &Uri,
    headers: &HeaderMap,
    connection: &ConnectionInfo,
    admin: &model::Admin,
) -> Result<(), Refusal> {
    const REFUSED: Refusal = Refusal(
        StatusCode::MISDIRECTED_REQUEST,
        "Host must be an address of this interface, localhost, or one of admin.hosts\n",
    );
    let authority = match uri.authority() {
        Some(authority) => authority.clone(),
        None => headers
            .get(header::HOST)
            .and_then(|host| Authority::try_from(host.as_bytes()).ok())
            .ok_or(REFUSED)?,
    };
    let host = authority.host().trim_start_matches('[').trim_end_matches(']').trim_end_matches('.');
    let is_listed = admin.hosts.iter().any(|known| known.trim_matches(['[', ']']).eq_ignore_ascii_case(host));
    let is_ours = match host.parse::<IpAddr>() {
        Ok(ip) => [connection.local, admin.bind]
            .iter()
            .flatten()
            .any(|ours| ours.ip().to_canonical() == ip.to_canonical()),
        Err(_) => host.eq_ignore_ascii_case("localhost"),
    };
    if is_ours || is_listed { Ok(()) } else { Err(REFUSED) }
}

fn check_token(headers: &HeaderMap, token: Option<&str>) -> Result<(), Refusal> {
    let Some(token) = token else {
        return Err(Refusal(
            StatusCode::FORBIDDEN,
            "this needs a bearer token, and the site has no admin.token_file; use the admin socket\n",
        ));
    };
    let given = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.as_bytes().split_at_checked(7))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"Bearer "))
        .map(|(_, given)| given.trim_ascii());
    match given {
        Some(given) if bool::from(given.ct_eq(token.as_bytes())) => Ok(()),
        _ => Err(Refusal(StatusCode::UNAUTHORIZED, "the bearer token is missing or wrong\n")),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http::Request;
    use playhouse_serve::RequestBody;
    use playhouse_serve::exchange::{Informational, Record};
    use tokio::time::Instant;

    use super::*;

    fn exchange(peer: Peer, host: Option<&str>, authorization: Option<&str>) -> Exchange {
        let mut request = Request::builder().uri("/v1/tree");
        if let Some(host) = host {
            request = request.header("host", host);
        }
        if let Some(value) = authorization {
            request = request.header("authorization", value);
        }
        Exchange {
            request: request.body(RequestBody::Empty).unwrap(),
            connection: Arc::new(ConnectionInfo {
                id: 1,
                listener: "tcp".into(),
                listener_index: 0,
                peer,
                local: Some("192.0.2.1:9900".parse().unwrap()),
                proxied: None,
                tls: None,
                rate: None,
                alternative: None,
            }),
            informational: Informational::Unsupported,
            record: Record::new(Instant::now()),
        }
    }

    fn status(exchange: &Exchange, need: Need, bind: &str, token: Option<&str>) -> u16 {
        let admin = model::Admin {
            bind: Some(bind.parse().unwrap()),
            hosts: vec!["admin.example".into()],
            ..model::Admin::default()
        };
        check(exchange, need, &admin, token).map_or_else(|refusal| refusal.0.as_u16(), |()| 200)
    }

    const CLIENT: Peer =
        Peer::Tcp(std::net::SocketAddr::V4(std::net::SocketAddrV4::new(std::net::Ipv4Addr::LOCALHOST, 5)));

    #[test]
    fn only_our_own_names_are_hosts() {
        for (host, expected) in [
            (Some("127.0.0.1:9900"), 200),
            (Some("192.0.2.1"), 200),
            (Some("localhost:9900"), 200),
            (Some("LOCALHOST"), 200),
            (Some("admin.example"), 200),
            (Some("rebound.example"), 421),
            (Some("192.0.2.7"), 421),
            (Some("localhost.evil.example"), 421),
            (Some(""), 421),
            (None, 421),
        ] {
            let got = status(&exchange(CLIENT, host, None), Need::Open, "127.0.0.1:9900", None);
            assert_eq!(got, expected, "{host:?}");
        }
    }

    #[test]
    fn changes_need_the_token_and_reads_too_beyond_loopback() {
        let (inside, outside) = ("127.0.0.1:9900", "192.0.2.1:9900");
        let host = Some("localhost");
        let anonymous = exchange(CLIENT, host, None);
        assert_eq!(status(&anonymous, Need::Read, inside, Some("secret")), 200);
        assert_eq!(status(&anonymous, Need::Read, outside, Some("secret")), 401);
        assert_eq!(status(&anonymous, Need::Open, outside, Some("secret")), 200);
        assert_eq!(status(&anonymous, Need::Change, inside, None), 403);
        for (authorization, expected) in
            [("Bearer secret", 200), ("bearer  secret", 200), ("Bearer secre", 401), ("Basic secret", 401)]
        {
            let known = exchange(CLIENT, host, Some(authorization));
            assert_eq!(status(&known, Need::Change, inside, Some("secret")), expected, "{authorization}");
        }
        let unix = exchange(Peer::Unix, None, None);
        assert_eq!(status(&unix, Need::Change, inside, None), 200);
    }
}
