//! Where the requests of a route go.

use std::sync::Arc;

use http::uri::PathAndQuery;
use playhouse_config::model::{self, PathPattern};

use crate::apps::App;
use crate::upstream::Upstream;

/// Where the requests of a route go.
#[derive(Debug)]
pub struct ProxyTarget {
    pub(super) upstream: Arc<Upstream>,
    /// Whose processes the upstream's servers are.
    pub(super) app: Option<Arc<App>>,
    strip: Option<Strip>,
    pub(super) preserve_host: bool,
}

/// What is taken off a path.
#[derive(Clone, Copy, Debug)]
enum Strip {
    /// All of it: the route matches one path.
    All,
    /// As many segments as the route's prefix has. Counted, not compared, since they may be escaped in another way.
    Segments(usize),
}

impl ProxyTarget {
    /// For a route with this path.
    pub fn new(config: &model::Proxy, path: &PathPattern, upstream: Arc<Upstream>) -> Self {
        let strip = match path {
            PathPattern::Exact(_) => Strip::All,
            PathPattern::Prefix(prefix) => {
                Strip::Segments(prefix.split('/').filter(|segment| !segment.is_empty()).count())
            }
        };
        ProxyTarget {
            upstream,
            app: None,
            strip: config.strip_prefix.then_some(strip),
            preserve_host: config.preserve_host,
        }
    }

    /// For a route to an app with this path.
    pub fn to_app(config: &model::ToApp, path: &PathPattern, app: Arc<App>) -> Self {
        let target = Self::new(&config.proxy(), path, app.upstream().clone());
        ProxyTarget { app: Some(app), ..target }
    }

    /// The upstream.
    pub fn upstream(&self) -> &Arc<Upstream> {
        &self.upstream
    }

    /// The path to send in place of this.
    pub(super) fn path(&self, sent: &PathAndQuery) -> PathAndQuery {
        let Some(strip) = self.strip else { return sent.clone() };
        let path = sent.path();
        let rest = match strip {
            Strip::All => "/",
            Strip::Segments(count) => {
                let slash = path.bytes().enumerate().filter(|(_, byte)| *byte == b'/').nth(count);
                slash.map_or("/", |(index, _)| &path[index..])
            }
        };
        let stripped = match sent.query() {
            Some(query) => PathAndQuery::try_from(format!("{rest}?{query}")),
            None => PathAndQuery::try_from(rest),
        };
        // A part of a path is one, as long as it begins with a slash.
        stripped.unwrap_or(PathAndQuery::from_static("/"))
    }
}
