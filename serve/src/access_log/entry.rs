//! What the log says of a request.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::header::{self, HeaderName};
use http::{Method, StatusCode, Version};

use crate::application::End;
use crate::metrics::{RouteMetrics, ServerMetrics};
use crate::tunnel::Summary;
use crate::{ConnectionInfo, Exchange, Outcome};

/// What is copied of a request's head. One allocation for all text: the head's own buffer is not held on to.
#[derive(Debug)]
pub struct Entry {
    pub(super) method: Method,
    pub(super) version: Version,
    text: Box<[u8]>,
    /// Where each [`Field`] ends in `text`.
    ends: [u16; FIELDS],
    /// The fields that were there, a bit each.
    present: u8,
}

/// A piece of a head.
#[derive(Clone, Copy, Debug)]
pub(super) enum Field {
    Target,
    Host,
    Referer,
    UserAgent,
    RequestId,
}

impl Entry {
    pub(super) fn capture(exchange: &Exchange) -> Self {
        let request = &exchange.request;
        let (uri, headers) = (request.uri(), request.headers());
        let field = |name: &HeaderName| headers.get(name).map(|value| value.as_bytes());
        let authority = uri.authority().map(|authority| authority.as_str().as_bytes());
        let values: [Option<&[u8]>; FIELDS] = [
            // The authority-form (CONNECT) has no path.
            uri.path_and_query().map(|target| target.as_str().as_bytes()).or(authority),
            // RFC 9112 §3.2.2: an authority in the target wins.
            authority.or_else(|| field(&header::HOST)),
            field(&header::REFERER),
            field(&header::USER_AGENT),
            field(&REQUEST_ID),
        ];
        let values = std::array::from_fn::<_, FIELDS, _>(|index| {
            let limit = if index == Field::Target as usize { TARGET } else { FIELD };
            values[index].map(|value| &value[..value.len().min(limit)])
        });

        let mut text = Vec::with_capacity(values.iter().flatten().map(|value| value.len()).sum());
        let (mut ends, mut present) = ([0; FIELDS], 0);
        for (index, value) in values.into_iter().enumerate() {
            if let Some(value) = value {
                text.extend_from_slice(value);
                present |= 1 << index;
            }
            // The limits' sum is far below.
            ends[index] = text.len() as u16;
        }
        Entry {
            method: request.method().clone(),
            version: request.version(),
            text: text.into_boxed_slice(),
            ends,
            present,
        }
    }

    /// The field as it was sent, cut at its limit.
    pub(super) fn field(&self, field: Field) -> Option<&[u8]> {
        let index = field as usize;
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        (self.present & (1 << index) != 0)
            .then(|| &self.text[usize::from(start)..usize::from(self.ends[index])])
    }
}

/// All that one line needs, on its way to the writer.
#[derive(Debug)]
pub(super) struct Line {
    /// `None` where no head was complete.
    pub(super) entry: Option<Arc<Entry>>,
    pub(super) connection: Arc<ConnectionInfo>,
    pub(super) route: Option<Arc<RouteMetrics>>,
    pub(super) server: Option<Arc<ServerMetrics>>,
    pub(super) tunnel: Option<Box<Summary>>,
    pub(super) end: End,
    pub(super) ended: SystemTime,
}

impl Line {
    pub(super) fn refused(
        connection: &ConnectionInfo,
        status: Option<StatusCode>,
        ended: SystemTime,
    ) -> Self {
        let ConnectionInfo {
            id,
            listener,
            listener_index,
            peer,
            local,
            proxied,
            tls,
            rate: _,
            alternative: _,
        } = connection;
        let connection = Arc::new(ConnectionInfo {
            id: *id,
            listener: listener.clone(),
            listener_index: *listener_index,
            peer: *peer,
            local: *local,
            proxied: proxied.clone(),
            tls: tls.clone(),
            rate: None,
            alternative: None,
        });
        let end = End { outcome: Outcome::Rejected, status, bytes_sent: 0, duration: Duration::ZERO };
        Line { entry: None, connection, route: None, server: None, tunnel: None, end, ended }
    }
}

const FIELDS: usize = 5;

static REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Bytes of a target that are logged.
pub const TARGET: usize = 2048;

/// Bytes of any other field that are logged.
pub const FIELD: usize = 512;

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::RequestBody;
    use crate::exchange::{Informational, Peer, Record};

    pub(in crate::access_log) const END: End = End {
        outcome: Outcome::Answered,
        status: Some(StatusCode::OK),
        bytes_sent: 512,
        duration: Duration::from_micros(1234),
    };

    pub(in crate::access_log) fn exchange(target: &str, fields: &[(&'static str, &[u8])]) -> Exchange {
        let mut request = http::Request::builder().uri(target).body(RequestBody::Empty).unwrap();
        for (name, value) in fields {
            request
                .headers_mut()
                .insert(HeaderName::from_static(name), http::HeaderValue::from_bytes(value).unwrap());
        }
        Exchange {
            request,
            connection: Arc::new(ConnectionInfo {
                id: 7,
                listener: "http".into(),
                listener_index: 0,
                peer: Peer::Tcp("[::ffff:192.0.2.1]:4711".parse().unwrap()),
                local: None,
                proxied: None,
                tls: None,
                rate: None,
                alternative: None,
            }),
            informational: Informational::Unsupported,
            record: Record::new(tokio::time::Instant::now()),
        }
    }

    #[test]
    fn fields_are_copied_and_cut() {
        let long = vec![b'x'; 10_000];
        let target = format!("/{}", "y".repeat(10_000));
        let entry = Entry::capture(&exchange(&target, &[("user-agent", &long), ("host", b"example.org")]));
        assert_eq!(entry.field(Field::Target).unwrap().len(), TARGET);
        assert_eq!(entry.field(Field::Host), Some(&b"example.org"[..]));
        assert_eq!(entry.field(Field::Referer), None);
        assert_eq!(entry.field(Field::UserAgent).unwrap().len(), FIELD);
        assert_eq!(entry.field(Field::RequestId), None);
    }

    #[test]
    fn an_absolute_target_wins_over_host() {
        let entry = Entry::capture(&exchange("http://a.example:81/p?q", &[("host", b"b.example")]));
        assert_eq!(entry.field(Field::Host), Some(&b"a.example:81"[..]));
        assert_eq!(entry.field(Field::Target), Some(&b"/p?q"[..]));
    }

    #[test]
    fn a_field_that_is_empty_is_not_one_that_is_missing() {
        let entry = Entry::capture(&exchange("/", &[("referer", b"")]));
        assert_eq!(entry.field(Field::Referer), Some(&b""[..]));
    }
}
