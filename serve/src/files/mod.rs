//! Static files: exactly fresh, never out of their root, small ones from memory.
//!
//! [`Static`] answers; [`open`] finds a file beneath the root; [`cache`] keeps small ones; [`head`] is what is said of a
//! file; [`conditional`], [`range`] and [`accept_encoding`] decide what of it is sent; [`body`] sends it.
//!
//! # Freshness
//! Nothing is remembered without asking the kernel. A cached file is served after one `statx` of its path, as it is
//! resolved now: through the root, whose own symlinks may have been swapped by a deployment, to an inode whose device,
//! number, size, mtime and ctime must all be those of the file that was read. That comparison is not what keeps a request
//! beneath the root: whatever the path resolves to by then, the bytes in memory are those of an inode that was opened
//! beneath it. Anything else is opened anew: the root, then the file beneath that very descriptor, so that a swap in
//! between gives the old release or the new one, never a mixture. Absence is never remembered.
//!
//! A change through a shared memory mapping moves the timestamps late, and is seen only then. On a network file system
//! freshness is that of the kernel's attribute cache.
//!
//! # Confinement
//! `openat2` with `RESOLVE_BENEATH` and `RESOLVE_NO_MAGICLINKS` (Linux 5.6): symlinks may lead anywhere beneath the root,
//! not out of it, and absolute ones nowhere, unless the route names directories that they may lead into; there the same
//! holds. Only regular files are served. Dot files are files like any other.

mod accept_encoding;
mod body;
mod buffer;
mod cache;
mod conditional;
mod head;
mod open;
mod range;

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, Uri, header};
use playhouse_config::model::{self, Encoding, PathPattern};
use rustix::io::Errno;

pub use self::body::FileBody;
pub use self::cache::FileCache;

use self::cache::{Cached, Content};
use self::conditional::Precondition;
use self::head::Head;
pub(crate) use self::open::Kind;
use self::open::{Found, Root};
use self::range::ByteRange;
use crate::exchange::Record;
use crate::router::NormalisedPath;
use crate::{Body, CachedAnswer, Exchange, Outcome, respond};

/// Files beneath a root, compiled from a route.
#[derive(Debug)]
pub struct Static {
    root: Arc<Root>,
    /// Bytes of the route's own path, taken off the request's.
    prefix: usize,
    index: Box<[Box<[u8]>]>,
    precompressed: Box<[Encoding]>,
}

impl Static {
    /// Compiles a route with this path. The root need not exist yet: without it there are no files.
    pub fn new(config: &model::Static, path: &PathPattern, cache: &Arc<FileCache>) -> Self {
        Static {
            root: Arc::new(Root::new(config, cache)),
            prefix: match path {
                PathPattern::Prefix(prefix) => prefix.len(),
                // An exact path is a file's whole path beneath the root.
                PathPattern::Exact(_) => 1,
            },
            index: config.index.iter().map(|name| name.as_bytes().into()).collect(),
            precompressed: config.precompressed.clone().into(),
        }
    }

    /// The answer to a request for a file as it is, when that is in memory and unchanged. `path` is that of the request's
    /// URI. `None` says nothing of whether there is one.
    pub fn at_hand<B>(&self, request: &http::Request<B>, path: &NormalisedPath) -> Option<Arc<CachedAnswer>> {
        let plain = *request.method() == Method::GET && request.headers().keys().all(is_indifferent);
        if !plain || !self.precompressed.is_empty() || path.has_encoded_slash() {
            return None;
        }
        let relative = path.decoded(request.uri()).get(self.prefix..)?;
        if matches!(relative.last(), None | Some(b'/')) || self.root.is_remote() {
            return None;
        }
        Some(self.root.cached(relative, None)?.answer.clone())
    }

    /// Answers a request that this route matches. `path` is that of the request's URI.
    pub async fn answer(&self, exchange: &mut Exchange, path: &NormalisedPath) -> Response<Body> {
        let method = exchange.request.method();
        if *method != Method::GET && *method != Method::HEAD {
            return respond::method_not_allowed("GET, HEAD");
        }
        if path.has_encoded_slash() {
            return respond::error(StatusCode::NOT_FOUND);
        }
        let uri = exchange.request.uri();
        let relative = path.decoded(uri).get(self.prefix..).unwrap_or_default();
        match self.select(relative, exchange.request.headers()).await {
            Ok(Selected::File(content)) => serve(&exchange.request, &content),
            Ok(Selected::Directory) => into_directory(uri),
            Err(error) => failed(&mut exchange.record, relative, error),
        }
    }

    /// Answers with what is at this path beneath the root.
    pub(crate) async fn answer_at(&self, exchange: &mut Exchange, relative: &[u8]) -> Response<Body> {
        let method = exchange.request.method();
        if *method != Method::GET && *method != Method::HEAD {
            return respond::method_not_allowed("GET, HEAD");
        }
        match self.select(relative, exchange.request.headers()).await {
            Ok(Selected::File(content)) => serve(&exchange.request, &content),
            Ok(Selected::Directory) => into_directory(exchange.request.uri()),
            Err(error) => failed(&mut exchange.record, relative, error),
        }
    }

    /// What is at this path beneath the root; it need not be readable.
    ///
    /// # Errors
    /// What the kernel says; `ENOENT` for what is neither a regular file nor a directory.
    pub(crate) async fn kind(&self, relative: &[u8]) -> Result<Kind, Errno> {
        if !self.root.is_remote() {
            return self.root.kind(relative);
        }
        let (root, path) = (self.root.clone(), relative.to_vec());
        pooled(move || root.kind(&path)).await
    }

    /// The representation of what is at `relative`: its index file where it is a directory, a precompressed sibling where
    /// the client prefers one.
    async fn select(&self, relative: &[u8], headers: &HeaderMap) -> Result<Selected, Errno> {
        let mut path = Cow::Borrowed(relative);
        let original = if matches!(relative.last(), None | Some(b'/')) {
            let mut found = Err(Errno::NOENT);
            for name in &self.index {
                path = [relative, name].concat().into();
                found = match self.find(&path, None).await {
                    Err(Errno::NOENT) => continue,
                    // An index that is a directory is none.
                    Ok(Found::Directory) => continue,
                    other => other,
                };
                break;
            }
            found?
        } else {
            self.find(&path, None).await?
        };
        let Found::File(original) = original else { return Ok(Selected::Directory) };
        if self.precompressed.is_empty() {
            return Ok(Selected::File(original));
        }
        for coding in accept_encoding::preferred(headers, &self.precompressed) {
            let sibling = [&*path, head::suffix(coding).as_bytes()].concat();
            // One that is older was made from something else. Whole seconds, since some tools copy no more.
            if let Ok(Found::File(sibling)) = self.find(&sibling, Some(coding)).await
                && sibling.head().stamp.modified.0 >= original.head().stamp.modified.0
            {
                return Ok(Selected::File(sibling));
            }
        }
        Ok(Selected::File(original))
    }

    async fn find(&self, path: &[u8], coding: Option<Encoding>) -> Result<Found, Errno> {
        if !self.root.is_remote() {
            match self.root.find(path, coding, open::Mode::Inline) {
                Err(Errno::AGAIN) => {}
                found => return found,
            }
        }
        let (root, path) = (self.root.clone(), path.to_vec());
        pooled(move || root.find(&path, coding, open::Mode::Blocking)).await
    }
}

/// Runs in the blocking pool.
async fn pooled<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Errno> + Send + 'static,
) -> Result<T, Errno> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is ending.
            Err(_) => Err(Errno::CANCELED),
        },
    }
}

enum Selected {
    File(Content),
    /// Asked for without a final slash.
    Directory,
}

/// Answers with what the preconditions and the range leave of a file (RFC 9110 §13.2.2).
fn serve<B>(request: &http::Request<B>, content: &Content) -> Response<Body> {
    let get = *request.method() == Method::GET;
    if let (true, Content::Memory(cached)) = (get, content)
        && request.headers().keys().all(is_indifferent)
    {
        return Response::new(Body::Cached(cached.answer.clone()));
    }
    let head = content.head();
    match conditional::evaluate(request.headers(), head) {
        Precondition::Failed => return respond::error(StatusCode::PRECONDITION_FAILED),
        Precondition::NotModified => return not_modified(head),
        Precondition::Passed => {}
    }
    let size = head.stamp.size;
    let range = if get && conditional::range_applies(request.headers(), head) {
        range::of_request(request.headers(), size)
    } else {
        ByteRange::Whole
    };
    let (first, length) = match range {
        ByteRange::Whole => (0, size),
        ByteRange::Part { first, last } => (first, last - first + 1),
        ByteRange::Unsatisfiable => return unsatisfiable(size),
    };
    if let (true, ByteRange::Whole, Content::Memory(cached)) = (get, &range, content) {
        return Response::new(Body::Cached(cached.answer.clone()));
    }
    let mut response = Response::new(if get { content.body(first, length) } else { Body::Empty });
    response.headers_mut().clone_from(&head.fields);
    if let ByteRange::Part { first, last } = range {
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
        if let Ok(value) = HeaderValue::try_from(format!("bytes {first}-{last}/{size}")) {
            response.headers_mut().insert(header::CONTENT_RANGE, value);
        }
        response.headers_mut().insert(header::CONTENT_LENGTH, length.into());
    }
    response
}

/// Whether a field of the request does not decide what is sent of a file: most requests have none that does, and are spared
/// the search for each of those.
fn is_indifferent(name: &HeaderName) -> bool {
    !matches!(
        *name,
        header::IF_MATCH
            | header::IF_NONE_MATCH
            | header::IF_MODIFIED_SINCE
            | header::IF_UNMODIFIED_SINCE
            | header::IF_RANGE
            | header::RANGE
    )
}

/// 304 with the fields that RFC 9110 §15.4.5 asks for.
fn not_modified(head: &Head) -> Response<Body> {
    let mut response = Response::new(Body::Empty);
    *response.status_mut() = StatusCode::NOT_MODIFIED;
    for name in [header::ETAG, header::LAST_MODIFIED, header::VARY, header::CACHE_CONTROL] {
        if let Some(value) = head.fields.get(&name) {
            response.headers_mut().insert(name, value.clone());
        }
    }
    response
}

/// 416 with the size there is (RFC 9110 §15.5.17).
fn unsatisfiable(size: u64) -> Response<Body> {
    let mut response = respond::error(StatusCode::RANGE_NOT_SATISFIABLE);
    if let Ok(value) = HeaderValue::try_from(format!("bytes */{size}")) {
        response.headers_mut().insert(header::CONTENT_RANGE, value);
    }
    response
}

/// To the same path with a final slash. The path is normalised: it begins with one slash, and no more.
pub(crate) fn into_directory(uri: &Uri) -> Response<Body> {
    let location = match uri.query() {
        Some(query) => format!("{}/?{query}", uri.path()),
        None => format!("{}/", uri.path()),
    };
    match HeaderValue::try_from(location) {
        Ok(location) => respond::redirect(StatusCode::MOVED_PERMANENTLY, location),
        Err(_) => respond::error(StatusCode::BAD_REQUEST),
    }
}

/// What cannot be opened, and why.
pub(crate) fn failed(record: &mut Record, relative: &[u8], error: Errno) -> Response<Body> {
    let status = match error {
        // EXDEV: out of the root. ELOOP: too many symlinks, or a magic one. ENXIO: a socket or a device without a driver.
        Errno::NOENT
        | Errno::NOTDIR
        | Errno::LOOP
        | Errno::XDEV
        | Errno::NAMETOOLONG
        | Errno::NXIO
        | Errno::NODEV => StatusCode::NOT_FOUND,
        Errno::ACCESS | Errno::PERM => StatusCode::FORBIDDEN,
        Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::AGAIN | Errno::CANCELED => {
            record.outcome = Some(Outcome::Shed);
            StatusCode::SERVICE_UNAVAILABLE
        }
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    if status.is_server_error() {
        let path = String::from_utf8_lossy(relative);
        tracing::warn!(?path, error = %std::io::Error::from(error), "a file cannot be opened");
    }
    respond::error(status)
}

impl Content {
    fn head(&self) -> &Head {
        match self {
            Content::Memory(cached) => &cached.head,
            Content::File(file) => &file.0,
        }
    }

    fn body(&self, first: u64, length: u64) -> Body {
        match self {
            Content::Memory(cached) => slice(cached, first, length).into(),
            Content::File(_) if length == 0 => Body::Empty,
            Content::File(file) => Body::File(file.1.range(first, length)),
        }
    }
}

/// The range was computed from the size of these very bytes, which are few.
fn slice(cached: &Cached, first: u64, length: u64) -> Bytes {
    let first = usize::try_from(first).unwrap_or(usize::MAX).min(cached.answer.content().len());
    let last = first
        .saturating_add(usize::try_from(length).unwrap_or(usize::MAX))
        .min(cached.answer.content().len());
    cached.answer.content().slice(first..last)
}

#[cfg(test)]
mod tests;
