//! Who asks for a tunnel, and whether the server has agreed to the same (RFC 9110 §7.8, RFC 6455 §4, RFC 8441 §5).

use std::sync::Arc;

use aws_lc_rs::digest;
use http::header::{CONNECTION, EXPECT, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, UPGRADE};
use http::{HeaderMap, Method, Request, Version};
use http_body::Body as _;
use playhouse_protocol::http1::{connection_has, list_items};

use super::Terms;
use crate::RequestBody;
use crate::random::Random;

/// Stands in the extensions of a request that has come as an extended CONNECT for a WebSocket (RFC 8441 §4). It is routed
/// and handled as the GET that it would be over HTTP/1.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtendedConnect;

/// A request that may be answered with a tunnel: what it asks for, and on which terms its route gives it. Stands in the
/// request's extensions.
#[derive(Clone, Debug)]
pub struct Offer {
    pub(crate) upgrade: Upgrade,
    pub(crate) terms: Arc<Terms>,
}

/// What a request asks to become.
#[derive(Clone, Debug)]
pub struct Upgrade {
    /// The token as the client has sent it.
    token: HeaderValue,
    /// The same in lower case.
    protocol: Arc<str>,
    /// Of a WebSocket's handshake; our own where the client needs none.
    key: Option<HeaderValue>,
    connect: bool,
}

impl Offer {
    /// The tunnel that a request asks for, if its route gives it. Whoever asks for something else, or has not asked as
    /// the RFCs say, has made an ordinary request:
    /// - HTTP/1.1 with `Connection: upgrade` and an `Upgrade` that names one of the route's protocols;
    /// - no content, and no wish for a 100: what follows the head can then be nothing but the new protocol;
    /// - for a WebSocket, GET with a valid `Sec-WebSocket-Key`; or an extended CONNECT.
    pub(crate) fn find(request: &Request<RequestBody>, terms: &Arc<Terms>) -> Option<Self> {
        let connect = request.extensions().get::<ExtendedConnect>().is_some();
        let headers = request.headers();
        if !connect && !headers.contains_key(UPGRADE) {
            return None;
        }
        let upgrade = if connect {
            terms.gives(WEBSOCKET).then(|| Upgrade::connect(&terms.random))
        } else {
            Upgrade::find(request, terms)
        };
        upgrade.map(|upgrade| Offer { upgrade, terms: terms.clone() })
    }

    /// What is asked for.
    pub fn upgrade(&self) -> &Upgrade {
        &self.upgrade
    }
}

impl Upgrade {
    fn connect(random: &Random) -> Self {
        let mut nonce = [0; 16];
        for piece in nonce.chunks_mut(4) {
            piece.copy_from_slice(&random_key(random));
        }
        Upgrade {
            token: HeaderValue::from_static(WEBSOCKET),
            protocol: WEBSOCKET.into(),
            key: HeaderValue::from_str(&base64(&nonce)).ok(),
            connect: true,
        }
    }

    fn find(request: &Request<RequestBody>, terms: &Terms) -> Option<Self> {
        let headers = request.headers();
        let asks = request.version() == Version::HTTP_11
            && connection_has(headers, "upgrade")
            && request.body().is_end_stream()
            && !headers.contains_key(EXPECT);
        if !asks {
            return None;
        }
        // In the client's order of preference (RFC 9110 §7.8).
        let tokens = headers.get_all(UPGRADE).iter().flat_map(list_items);
        let (token, protocol) = tokens
            .filter_map(|token| Some((token, std::str::from_utf8(token).ok()?.to_ascii_lowercase())))
            .find(|(_, protocol)| terms.gives(protocol))?;
        let key = if protocol == WEBSOCKET { Some(key(request)?) } else { None };
        let token = HeaderValue::from_bytes(token).ok()?;
        Some(Upgrade { token, protocol: protocol.into(), key, connect: false })
    }

    /// The upgrade token as the client has sent it.
    pub(crate) fn token(&self) -> &HeaderValue {
        &self.token
    }

    /// The upgrade token in lower case.
    pub fn protocol(&self) -> Arc<str> {
        self.protocol.clone()
    }

    /// Whether it is a WebSocket.
    pub fn is_websocket(&self) -> bool {
        &*self.protocol == WEBSOCKET
    }

    /// Whether it has come as an extended CONNECT.
    pub fn is_connect(&self) -> bool {
        self.connect
    }

    /// The key that a server is to be sent, where the client has none of its own.
    pub(crate) fn own_key(&self) -> Option<&HeaderValue> {
        self.key.as_ref().filter(|_| self.connect)
    }

    /// What answers the key of a WebSocket (RFC 6455 §4.2.2).
    pub(crate) fn accept(&self) -> Option<HeaderValue> {
        let mut context = digest::Context::new(&digest::SHA1_FOR_LEGACY_USE_ONLY);
        context.update(self.key.as_ref()?.as_bytes());
        context.update(GUID);
        HeaderValue::from_str(&base64(context.finish().as_ref())).ok()
    }

    /// Whether the fields of a 101 agree to what was asked for, and to nothing else.
    ///
    /// # Errors
    /// What is wrong with them.
    pub(crate) fn check(&self, headers: &HeaderMap) -> Result<(), &'static str> {
        let mut tokens = headers.get_all(UPGRADE).iter().flat_map(list_items);
        let named = matches!((tokens.next(), tokens.next()), (Some(token), None)
            if token.eq_ignore_ascii_case(self.token.as_bytes()));
        if !named || !headers.contains_key(CONNECTION) || !connection_has(headers, "upgrade") {
            return Err("switched to another protocol than was asked for");
        }
        if self.is_websocket() && headers.get(SEC_WEBSOCKET_ACCEPT) != self.accept().as_ref() {
            return Err("has not understood the WebSocket's handshake");
        }
        Ok(())
    }
}

/// The key of a WebSocket's handshake: 16 bytes in base64, in one field of a GET.
fn key(request: &Request<RequestBody>) -> Option<HeaderValue> {
    let mut keys = request.headers().get_all(SEC_WEBSOCKET_KEY).iter();
    let (Some(key), None) = (keys.next(), keys.next()) else { return None };
    let is_base64 = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    let valid = *request.method() == Method::GET
        && key.len() == 24
        && key.as_bytes()[..22].iter().all(is_base64)
        && key.as_bytes().ends_with(b"==");
    valid.then(|| key.clone())
}

/// Four bytes, for a mask.
pub(super) fn random_key(random: &Random) -> [u8; 4] {
    // Below 2^32: fits.
    (random.below(1 << 32) as u32).to_be_bytes()
}

/// RFC 4648 §4.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let bits =
            chunk.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for place in 0..4 {
            let character = ALPHABET[(bits >> (18 - 6 * place) & 0x3f) as usize];
            text.push(if place <= chunk.len() { char::from(character) } else { '=' });
        }
    }
    text
}

const WEBSOCKET: &str = "websocket";

/// RFC 6455 §1.3.
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

#[cfg(test)]
mod tests {
    use super::*;
    use playhouse_config::model;

    fn terms(protocols: &[&str]) -> Arc<Terms> {
        let protocols = protocols.iter().map(|name| (*name).to_owned()).collect();
        let settings = model::Tunnel { protocols, ..model::Tunnel::default() };
        Arc::new(Terms::new(settings, Arc::new(Random::seeded(1)), Arc::default()))
    }

    const KEY: (&str, &str) = ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");

    fn find(method: Method, fields: &[(&str, &str)], protocols: &[&str]) -> Option<Upgrade> {
        let mut request = Request::builder().method(method).uri("/");
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        let request = request.body(RequestBody::Empty).unwrap();
        Offer::find(&request, &terms(protocols)).map(|offer| offer.upgrade)
    }

    #[test]
    fn bytes_are_written_in_base64() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("\u{3ff}", "z78="),
        ] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }

    #[test]
    fn a_websocket_is_asked_for_with_a_key() {
        let fields = [("connection", "keep-alive, Upgrade"), ("upgrade", "h2c, WebSocket"), KEY];
        let upgrade = find(Method::GET, &fields, &["websocket"]).unwrap();
        assert_eq!((upgrade.token.as_bytes(), &*upgrade.protocol), (&b"WebSocket"[..], "websocket"));
        assert_eq!(upgrade.accept().unwrap(), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        assert_eq!(upgrade.own_key(), None);
        for (fields, why) in [
            (&fields[1..], "not named in Connection"),
            (&fields[..2], "no key"),
            (&[fields[0], fields[1], ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ")], "an invalid key"),
            (&[fields[0], ("upgrade", "h2c"), KEY], "another protocol"),
            (&[fields[0], fields[1], KEY, KEY], "two keys"),
            (&[fields[0], fields[1], KEY, ("expect", "100-continue")], "waits for a 100"),
        ] {
            assert!(find(Method::GET, fields, &["websocket"]).is_none(), "{why}");
        }
        assert!(find(Method::POST, &fields, &["websocket"]).is_none());
        assert!(find(Method::GET, &fields, &[]).is_none());
    }

    #[test]
    fn other_protocols_are_given_where_the_route_names_them() {
        let fields = [("connection", "upgrade"), ("upgrade", "SPDY/3.1")];
        assert_eq!(find(Method::POST, &fields, &["websocket", "spdy/3.1"]).unwrap().token, "SPDY/3.1");
        assert!(find(Method::POST, &fields, &["websocket"]).is_none());
    }

    #[test]
    fn a_server_agrees_to_just_what_was_asked_for() {
        let fields = [("connection", "upgrade"), ("upgrade", "websocket"), KEY];
        let upgrade = find(Method::GET, &fields, &["websocket"]).unwrap();
        let answer = |fields: &[(&'static str, &'static str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in fields {
                headers.append(*name, HeaderValue::from_static(value));
            }
            upgrade.check(&headers).is_ok()
        };
        let good = [
            ("connection", "Upgrade"),
            ("upgrade", "WebSocket"),
            ("sec-websocket-accept", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="),
        ];
        assert!(answer(&good));
        assert!(!answer(&good[..2]) && !answer(&good[1..]));
        assert!(!answer(&[good[0], ("upgrade", "h2c"), good[2]]));
        assert!(!answer(&[good[0], ("upgrade", "websocket, h2c"), good[2]]));
        assert!(!answer(&[good[0], good[1], ("sec-websocket-accept", "s3pPLMBiTxaQ9kYGzzhZRbK+xOp=")]));
    }

    #[test]
    fn an_extended_connect_gets_a_key_of_ours() {
        let request = |protocols: &[&str]| {
            let mut request = Request::new(RequestBody::Empty);
            request.extensions_mut().insert(ExtendedConnect);
            Offer::find(&request, &terms(protocols))
        };
        let upgrade = request(&["websocket"]).unwrap().upgrade;
        assert!(upgrade.is_connect() && upgrade.is_websocket());
        assert_eq!(upgrade.own_key().unwrap().len(), 24);
        assert!(request(&["spdy/3.1"]).is_none());
    }
}
