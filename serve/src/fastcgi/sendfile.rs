//! Files that a script has us send: it decides who may have them, and need not read them itself.

use http::header::{self, HeaderName};
use http::{HeaderMap, Method, Response, StatusCode};

use super::FastCgiTarget;
use crate::files::Static;
use crate::router::NormalisedPath;
use crate::{Body, CachedAnswer, Exchange, Outcome, respond};

/// The answer that a script has given, or the file that it names in it, if the site file allows that.
pub(super) async fn follow(
    target: &FastCgiTarget,
    exchange: &mut Exchange,
    mut answer: Response<Body>,
) -> Response<Body> {
    // Never the client's: where our files are is no business of its.
    let named = answer.headers_mut().remove(&ACCEL).map(|path| (path, true));
    let named = answer.headers_mut().remove(&SENDFILE).map(|path| (path, false)).or(named);
    let (Some((path, is_accel)), Some(files)) = (named, &target.sendfile) else { return answer };
    let relative = match is_accel {
        true => beneath(path.as_bytes()),
        false => path.as_bytes().strip_prefix(&*target.sendfile_root).map(<[u8]>::to_vec),
    };
    let Some(relative) = relative else {
        tracing::warn!(route = %target.label, ?path, "a script names a file to be sent that is none of the site's");
        exchange.record.outcome = Some(Outcome::UpstreamFailed);
        return respond::error(StatusCode::BAD_GATEWAY);
    };
    let mut response = whole_unless_got(files, exchange, &relative).await;
    if response.status().is_success() || response.status() == StatusCode::NOT_MODIFIED {
        CachedAnswer::spread(&mut response);
        keep(answer.headers(), response.headers_mut());
    }
    response
}

/// The file as it is for who GETs it. What answers another method is all of it: only a GET has ranges (RFC 9110 §14.2), and the
/// conditions were for the script (§13.2.1).
async fn whole_unless_got(files: &Static, exchange: &mut Exchange, relative: &[u8]) -> Response<Body> {
    if matches!(*exchange.request.method(), Method::GET | Method::HEAD) {
        return files.answer_at(exchange, relative).await;
    }
    let method = std::mem::replace(exchange.request.method_mut(), Method::GET);
    let conditions = CONDITIONS.map(|name| (name.clone(), exchange.request.headers_mut().remove(name)));
    let response = files.answer_at(exchange, relative).await;
    *exchange.request.method_mut() = method;
    let headers = exchange.request.headers_mut();
    headers.extend(conditions.into_iter().filter_map(|(name, value)| Some((name, value?))));
    response
}

const CONDITIONS: [&HeaderName; 6] = [
    &header::RANGE,
    &header::IF_RANGE,
    &header::IF_MATCH,
    &header::IF_NONE_MATCH,
    &header::IF_MODIFIED_SINCE,
    &header::IF_UNMODIFIED_SINCE,
];

/// A path as in a URI, beneath the root.
fn beneath(path: &[u8]) -> Option<Vec<u8>> {
    let path = std::str::from_utf8(path).ok()?.split('?').next()?;
    let parsed = NormalisedPath::parse(path).ok().filter(|parsed| !parsed.has_encoded_slash())?;
    let uri = http::Uri::try_from(path).ok()?;
    Some(parsed.decoded(&uri).strip_prefix(b"/")?.to_vec())
}

/// What a script has said of the file stays so, but for what only the file itself can tell.
fn keep(from: &HeaderMap, to: &mut HeaderMap) {
    let of_the_file = [
        header::CONTENT_LENGTH,
        header::CONTENT_RANGE,
        header::ACCEPT_RANGES,
        header::ETAG,
        header::LAST_MODIFIED,
        header::CONTENT_ENCODING,
    ];
    for name in from.keys().filter(|name| !of_the_file.contains(name)) {
        to.remove(name);
        for value in from.get_all(name) {
            to.append(name.clone(), value.clone());
        }
    }
}

static ACCEL: HeaderName = HeaderName::from_static("x-accel-redirect");
static SENDFILE: HeaderName = HeaderName::from_static("x-sendfile");
