//! Answers that need nothing but the site file: fixed ones, redirects, and the short text of an error.

use std::time::Duration;

use bytes::Bytes;
use http::uri::Uri;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use playhouse_config::model::{self, Segment, Variable};

use crate::Body;
use crate::router::host;

/// A fixed answer, built once. Any method gets it.
#[derive(Clone, Debug)]
pub struct Respond {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

impl Respond {
    /// Builds the answer. Statuses without content (RFC 9110 §6.4.1) send none.
    pub fn new(config: &model::Respond) -> Self {
        let mut headers = HeaderMap::new();
        let body = match config.status {
            StatusCode::NO_CONTENT | StatusCode::RESET_CONTENT | StatusCode::NOT_MODIFIED => Bytes::new(),
            _ => Bytes::from(config.body.clone()),
        };
        if !body.is_empty() {
            headers.insert(header::CONTENT_TYPE, PLAIN_TEXT);
        }
        Respond { status: config.status, headers, body }
    }

    /// The answer.
    pub fn answer(&self) -> Response<Body> {
        let mut response = Response::new(Body::from(self.body.clone()));
        *response.status_mut() = self.status;
        response.headers_mut().clone_from(&self.headers);
        response
    }
}

/// A redirect, made from the normalised path only. Any method gets it.
#[derive(Clone, Debug)]
pub struct Redirect {
    status: StatusCode,
    location: Location,
}

#[derive(Clone, Debug)]
enum Location {
    Fixed(HeaderValue),
    Template(Box<[Segment]>),
}

impl Redirect {
    /// Compiles the template.
    pub fn new(config: &model::Redirect) -> Self {
        let text = config.location.iter().map(|segment| match segment {
            Segment::Text(text) => Some(text.as_str()),
            Segment::Variable(_) => None,
        });
        let fixed = text.collect::<Option<String>>().and_then(|text| HeaderValue::try_from(text).ok());
        let location = match fixed {
            Some(value) => Location::Fixed(value),
            None => Location::Template(config.location.clone().into()),
        };
        Redirect { status: config.status, location }
    }

    /// The answer for a request whose `uri` has been normalised. 400 where the template needs a host and the request
    /// has none that is valid.
    pub fn answer(&self, uri: &Uri, headers: &HeaderMap) -> Response<Body> {
        let location = match &self.location {
            Location::Fixed(value) => value.clone(),
            Location::Template(template) => match expand(template, uri, headers) {
                Some(value) => value,
                None => return error(StatusCode::BAD_REQUEST),
            },
        };
        redirect(self.status, location)
    }
}

/// A redirect without content.
pub fn redirect(status: StatusCode, location: HeaderValue) -> Response<Body> {
    let mut response = Response::new(Body::Empty);
    *response.status_mut() = status;
    response.headers_mut().insert(header::LOCATION, location);
    response
}

/// The status, with its name as a line of text where it may have content.
pub fn error(status: StatusCode) -> Response<Body> {
    let text = match status {
        StatusCode::BAD_REQUEST => "400 Bad Request\n",
        StatusCode::FORBIDDEN => "403 Forbidden\n",
        StatusCode::NOT_FOUND => "404 Not Found\n",
        StatusCode::METHOD_NOT_ALLOWED => "405 Method Not Allowed\n",
        StatusCode::REQUEST_TIMEOUT => "408 Request Timeout\n",
        StatusCode::PRECONDITION_FAILED => "412 Precondition Failed\n",
        StatusCode::PAYLOAD_TOO_LARGE => "413 Content Too Large\n",
        StatusCode::URI_TOO_LONG => "414 URI Too Long\n",
        StatusCode::RANGE_NOT_SATISFIABLE => "416 Range Not Satisfiable\n",
        StatusCode::TOO_MANY_REQUESTS => "429 Too Many Requests\n",
        StatusCode::INTERNAL_SERVER_ERROR => "500 Internal Server Error\n",
        StatusCode::BAD_GATEWAY => "502 Bad Gateway\n",
        StatusCode::SERVICE_UNAVAILABLE => "503 Service Unavailable\n",
        StatusCode::GATEWAY_TIMEOUT => "504 Gateway Timeout\n",
        _ => "",
    };
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    if !text.is_empty() {
        response.headers_mut().insert(header::CONTENT_TYPE, PLAIN_TEXT);
    }
    response
}

/// 429 to a client that is to wait so long (RFC 6585 §4), in whole seconds (RFC 9110 §10.2.3).
pub fn too_many_requests(wait: Duration) -> Response<Body> {
    retry_after(StatusCode::TOO_MANY_REQUESTS, wait)
}

/// 503 to a client that may come again after so long, in whole seconds (RFC 9110 §15.6.4).
pub fn unavailable(wait: Duration) -> Response<Body> {
    retry_after(StatusCode::SERVICE_UNAVAILABLE, wait)
}

fn retry_after(status: StatusCode, wait: Duration) -> Response<Body> {
    let mut response = error(status);
    let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    response
}

/// 405 with what is allowed instead (RFC 9110 §15.5.6).
pub fn method_not_allowed(allow: &'static str) -> Response<Body> {
    let mut response = error(StatusCode::METHOD_NOT_ALLOWED);
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(allow));
    response
}

/// `None` where the request has no valid host for `{host}`, or the whole is no field value.
fn expand(template: &[Segment], uri: &Uri, headers: &HeaderMap) -> Option<HeaderValue> {
    let mut location = String::with_capacity(64);
    for segment in template {
        match segment {
            Segment::Text(text) => location.push_str(text),
            Segment::Variable(Variable::Path) => location.push_str(uri.path()),
            Segment::Variable(Variable::Query) => push_query(&mut location, uri.query().unwrap_or_default()),
            Segment::Variable(Variable::Uri) => {
                location.push_str(uri.path());
                if let Some(query) = uri.query() {
                    location.push('?');
                    push_query(&mut location, query);
                }
            }
            Segment::Variable(Variable::Host) => {
                let host = host::of_request(uri, headers).ok()??;
                location.push_str(&host::bracketed(&host));
            }
        }
    }
    // A leading `//` names another host (RFC 3986 §4.2). Only the site file may do that, never what was put in.
    let by_design = matches!(template.first(), Some(Segment::Text(text)) if text.starts_with("//"));
    if !by_design {
        let slashes = location.bytes().take_while(|byte| *byte == b'/').count();
        location.drain(..slashes.saturating_sub(1));
    }
    HeaderValue::try_from(location).ok()
}

/// Appends a query as sent, with what may not stand in one (RFC 3986 §3.4) escaped.
fn push_query(location: &mut String, query: &str) {
    location.extend(percent_encoding::utf8_percent_encode(query, NOT_IN_QUERY));
}

const NOT_IN_QUERY: &percent_encoding::AsciiSet = &percent_encoding::CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'<')
    .add(b'>')
    .add(b'\\')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');

const PLAIN_TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Segment {
        Segment::Text(text.to_owned())
    }

    fn location(template: Vec<Segment>, uri: &str, host: Option<&str>) -> Result<String, StatusCode> {
        let redirect =
            Redirect::new(&model::Redirect { status: StatusCode::PERMANENT_REDIRECT, location: template });
        let mut uri: Uri = uri.parse().unwrap();
        crate::router::NormalisedPath::parse(uri.path()).unwrap().rewrite(&mut uri).unwrap();
        let mut headers = HeaderMap::new();
        if let Some(host) = host {
            headers.insert(header::HOST, host.parse().unwrap());
        }
        let response = redirect.answer(&uri, &headers);
        match response.headers().get(header::LOCATION) {
            Some(location) => Ok(location.to_str().unwrap().to_owned()),
            None => Err(response.status()),
        }
    }

    #[test]
    fn a_template_is_filled_from_the_request() {
        let uri = || Segment::Variable(Variable::Uri);
        let host = || Segment::Variable(Variable::Host);
        assert_eq!(location(vec![text("https://b.example/")], "/x", None), Ok("https://b.example/".into()));
        assert_eq!(
            location(vec![text("https://b.example"), uri()], "/a//../%62?q=1&r={}", None),
            Ok("https://b.example/b?q=1&r=%7B%7D".into())
        );
        assert_eq!(
            location(vec![text("https://"), host(), uri()], "/", Some("A.example:8080")),
            Ok("https://a.example/".into())
        );
        assert_eq!(
            location(vec![text("https://"), host(), uri()], "/", Some("[::1]:80")),
            Ok("https://[::1]/".into())
        );
        let pieces = vec![
            text("/new"),
            Segment::Variable(Variable::Path),
            text("?"),
            Segment::Variable(Variable::Query),
        ];
        assert_eq!(location(pieces, "/p?a=b", None), Ok("/new/p?a=b".into()));
    }

    #[test]
    fn a_path_never_becomes_another_host() {
        let uri = || Segment::Variable(Variable::Uri);
        assert_eq!(location(vec![uri()], "//evil.example/", None), Ok("/evil.example/".into()));
        assert_eq!(location(vec![text("/"), uri()], "/evil.example/", None), Ok("/evil.example/".into()));
        assert_eq!(location(vec![uri()], "/\\evil.example/", None), Ok("/%5Cevil.example/".into()));
        assert_eq!(location(vec![uri()], "/%2Fevil.example/", None), Ok("/%2Fevil.example/".into()));
        assert_eq!(location(vec![text("//cdn.example"), uri()], "/x", None), Ok("//cdn.example/x".into()));
    }

    #[test]
    fn a_template_with_a_host_needs_a_valid_one() {
        let template = || vec![text("https://"), Segment::Variable(Variable::Host)];
        assert_eq!(location(template(), "/", None), Err(StatusCode::BAD_REQUEST));
        assert_eq!(location(template(), "/", Some("a/b")), Err(StatusCode::BAD_REQUEST));
    }

    #[test]
    fn a_fixed_answer_has_no_content_where_its_status_allows_none() {
        let respond = |status| Respond::new(&model::Respond { status, body: "ok\n".to_owned() }).answer();
        let response = respond(StatusCode::OK);
        assert_eq!(response.headers()[header::CONTENT_TYPE], "text/plain; charset=utf-8");
        assert_eq!(http_body::Body::size_hint(response.body()).exact(), Some(3));
        let response = respond(StatusCode::NO_CONTENT);
        assert!(response.headers().is_empty());
        assert_eq!(http_body::Body::size_hint(response.body()).exact(), Some(0));
    }
}
