//! Requests answered by programs that speak FastCGI, such as php-fpm, and by the files beside them.
//!
//! [`script`] decides what answers: a script beneath the root, a file, or the front controller. [`params`] is what a script
//! is told, [`sendfile`] what it may have sent in its place. [`forward`] chooses a server and asks it, by way of [`wire`]; [`body`] gives the content of the answer. As with
//! [`crate::proxy`], all of it happens within the request's own task.
//!
//! # When a request is sent again
//! - When no byte of it has left, or a server has refused it as overloaded: to another server first, as often as `retries`
//!   says.
//! - When it went out on an idle connection that ended without a byte of an answer, the method is idempotent and its
//!   content is still there: once more to the same server, on a new connection.
//! - Otherwise never. A request that must not be sent twice always goes out on a new connection: a program that has had its
//!   share of requests closes at a moment of its own.

mod body;
mod forward;
mod params;
mod script;
mod sendfile;
#[cfg(test)]
mod tests;
mod wire;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::Response;
use playhouse_config::model::{self, PathPattern};
use playhouse_protocol::fastcgi::write;

use crate::apps::App;
use crate::files::{self, FileCache, Static};
use crate::router::NormalisedPath;
use crate::upstream::Upstream;
use crate::{Body, Exchange};

use script::Resolved;

/// Scripts and files beneath a root, compiled from a route.
#[derive(Debug)]
pub struct FastCgiTarget {
    upstream: Arc<Upstream>,
    /// Whose processes the upstream's servers are.
    app: Option<Arc<App>>,
    files: Static,
    /// The route's label, for the log.
    label: Arc<str>,
    /// Bytes of the route's own path, taken off the request's.
    prefix: usize,
    /// The root as the servers see it, without a slash at its end.
    script_root: Box<[u8]>,
    index: Box<[Box<[u8]>]>,
    /// What the names of scripts end with.
    split: Box<[Box<[u8]>]>,
    /// What answers where there is nothing, beneath the root.
    front: Option<Box<[u8]>>,
    /// What the site file adds, as it is sent.
    params: Bytes,
    /// Bytes of content without a length that are held.
    buffer: usize,
    /// Files that scripts may have sent, and where they are, with a slash at the end.
    sendfile: Option<Static>,
    sendfile_root: Box<[u8]>,
}

impl FastCgiTarget {
    /// For a route with this label and path.
    pub fn new(
        config: &model::FastCgi,
        label: &Arc<str>,
        path: &PathPattern,
        upstream: Arc<Upstream>,
        cache: &Arc<FileCache>,
    ) -> Self {
        let files = |root: &Path, follow: &[PathBuf]| model::Static {
            root: root.to_owned(),
            follow: follow.to_owned(),
            index: Vec::new(),
            precompressed: Vec::new(),
            cache_control: None,
        };
        let mut sendfile_root = Vec::new();
        if let Some(root) = &config.sendfile {
            sendfile_root.extend_from_slice(root.as_os_str().as_encoded_bytes());
            if !sendfile_root.ends_with(b"/") {
                sendfile_root.push(b'/');
            }
        }
        let bytes = |names: &[String]| names.iter().map(|name| name.as_bytes().into()).collect();
        let split: Box<[Box<[u8]>]> = bytes(&config.split);
        let index: Box<[Box<[u8]>]> = bytes(&config.index);
        let is_script = |name: &[u8]| split.iter().any(|suffix| name.ends_with(suffix));
        let mut params = BytesMut::new();
        for (name, value) in &config.params {
            write::param(&mut params, name.as_bytes(), value.as_bytes());
        }
        let root = config.script_root.as_os_str().as_encoded_bytes();
        FastCgiTarget {
            upstream,
            app: None,
            files: Static::new(&files(&config.root, &config.follow), path, cache),
            label: label.clone(),
            prefix: match path {
                PathPattern::Prefix(prefix) => prefix.len(),
                PathPattern::Exact(_) => 1,
            },
            script_root: root.strip_suffix(b"/").unwrap_or(root).into(),
            front: index.iter().find(|name| is_script(name)).filter(|_| config.front_controller).cloned(),
            index,
            split,
            params: params.freeze(),
            buffer: usize::try_from(config.buffer).unwrap_or(usize::MAX),
            sendfile: config.sendfile.as_ref().map(|root| Static::new(&files(root, &[]), path, cache)),
            sendfile_root: sendfile_root.into(),
        }
    }

    /// For a route to scripts that an app runs.
    pub fn to_app(
        config: &model::FastCgi,
        label: &Arc<str>,
        path: &PathPattern,
        app: Arc<App>,
        cache: &Arc<FileCache>,
    ) -> Self {
        let target = Self::new(config, label, path, app.upstream().clone(), cache);
        FastCgiTarget { app: Some(app), ..target }
    }

    /// The upstream.
    pub fn upstream(&self) -> &Arc<Upstream> {
        &self.upstream
    }
}

/// Answers a request. `path` is that of its URI.
///
/// Answers 502 when the server fails, 504 when it is too slow, 503 when it cannot be asked at all, and sets
/// `record.outcome` with it.
pub async fn fastcgi(
    target: &FastCgiTarget,
    exchange: &mut Exchange,
    path: &NormalisedPath,
) -> Response<Body> {
    let uri = exchange.request.uri().clone();
    let relative = path.decoded(&uri).get(target.prefix..).unwrap_or_default();
    match target.resolve(relative).await {
        Ok(Resolved::Script(script)) => {
            let answer = forward::forward(target, exchange, path, &script).await;
            sendfile::follow(target, exchange, answer).await
        }
        Ok(Resolved::File(file)) => target.files.answer_at(exchange, &file).await,
        Ok(Resolved::Directory) => files::into_directory(&uri),
        Err(error) => files::failed(&mut exchange.record, relative, error),
    }
}
