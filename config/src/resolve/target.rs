//! What answers a route.

use std::sync::Arc;

use http::{HeaderValue, StatusCode};

use super::Resolver;
use super::value::shown;
use crate::error::{At, unknown};
use crate::file::{self, Named};
use crate::model::{PathPattern, Proxy, Redirect, Respond, Static, Target};

/// Redirects with a defined meaning for every method (RFC 9110 §15.4).
const REDIRECTS: [u16; 5] = [301, 302, 303, 307, 308];
/// Statuses whose answers have no content (RFC 9110 §15.3.5, §15.3.6, §15.4.5).
const WITHOUT_CONTENT: [u16; 3] = [204, 205, 304];

impl Resolver<'_, '_> {
    /// `path` is `None` if it has an error of its own.
    pub(super) fn target(
        &mut self,
        raw: &file::Target,
        path: Option<&PathPattern>,
        site: &file::Site,
        at: &At,
    ) -> Option<Target> {
        match raw {
            file::Target::Respond(raw) => self.respond(raw, at).map(Target::Respond),
            file::Target::Redirect(raw) => self.redirect(raw, at).map(Target::Redirect),
            file::Target::Static(raw) => self.files(raw, at).map(Target::Static),
            file::Target::Proxy(raw) => self.proxy(raw, path, site.upstreams.as_ref(), at).map(Target::Proxy),
            file::Target::FastCgi(raw) => self.fastcgi(raw, site, at).map(Target::FastCgi),
            file::Target::App(raw) => self.app_target(raw, path, site.apps.as_ref(), at).map(Target::App),
            file::Target::Handler(raw) => {
                let name =
                    self.required(raw.name.as_deref(), &at.field("name"), "missing; name a handler")?;
                self.name(name, at)?;
                Some(Target::Handler(name.into()))
            }
        }
    }

    fn respond(&mut self, raw: &file::Respond, at: &At) -> Option<Respond> {
        let at = at.field("status");
        let body = raw.body.clone().unwrap_or_default();
        let status = raw.status.unwrap_or(200);
        if !(200..=599).contains(&status) {
            return self.refuse(&at, format!("{status} is no final status; those are 200 to 599"));
        }
        if WITHOUT_CONTENT.contains(&status) && !body.is_empty() {
            return self
                .refuse(&at, format!("an answer with status {status} has no content; leave the body out"));
        }
        Some(Respond { status: StatusCode::from_u16(status).ok()?, body })
    }

    fn redirect(&mut self, raw: &file::Redirect, at: &At) -> Option<Redirect> {
        let status = match raw.status.unwrap_or(307) {
            status if REDIRECTS.contains(&status) => StatusCode::from_u16(status).ok(),
            status => {
                let message = format!(
                    "{status} is no redirect; choose 301 or 308 (for good), 302 or 307 (for now), or 303 (fetch with GET)"
                );
                self.refuse(&at.field("status"), message)
            }
        };
        let location_at = at.field("location");
        let location = self
            .required(
                raw.location.as_deref(),
                &location_at,
                "missing; write where to, such as \"https://example.org{uri}\"",
            )
            .and_then(|location| self.location(location, &location_at));
        Some(Redirect { status: status?, location: location? })
    }

    fn files(&mut self, raw: &file::Static, at: &At) -> Option<Static> {
        let root_at = at.field("root");
        let root = self
            .required(raw.root.as_deref(), &root_at, "missing; name the directory of the files")
            .and_then(|root| self.path(root, &root_at));
        let follow = self.paths(raw.follow.as_deref(), &at.field("follow"));
        let index = self.index(raw.index.as_deref(), &at.field("index"));
        let mut precompressed = Vec::new();
        for (position, encoding) in raw.precompressed.iter().flatten().enumerate() {
            if precompressed.contains(encoding) {
                self.report
                    .error(&at.field("precompressed").index(position), "stands here twice; leave one out");
            }
            precompressed.push(*encoding);
        }
        let cache_control = match raw.cache_control.as_deref() {
            Some(value) => self.header_value(value, &at.field("cache_control")).map(Some),
            None => Some(None),
        };
        Some(Static {
            root: root?,
            follow: follow?,
            index: index?,
            precompressed,
            cache_control: cache_control?,
        })
    }

    pub(super) fn index(&mut self, raw: Option<&[String]>, at: &At) -> Option<Vec<String>> {
        let Some(raw) = raw else { return Some(vec!["index.html".to_owned()]) };
        let mut valid = Some(());
        for (position, name) in raw.iter().enumerate() {
            if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) {
                let message =
                    format!("{} is no file name; index files lie in the directory itself", shown(name));
                valid = self.refuse(&at.index(position), message);
            }
        }
        valid.map(|()| raw.to_vec())
    }

    fn proxy(
        &mut self,
        raw: &file::Proxy,
        path: Option<&PathPattern>,
        upstreams: Option<&Named<file::Upstream>>,
        at: &At,
    ) -> Option<Proxy> {
        if raw.strip_prefix == Some(true) && matches!(path, Some(PathPattern::Exact(_))) {
            let message = "the route's path is exact and has no prefix to take off; end it with \"/\"";
            self.report.error(&at.field("strip_prefix"), message);
        }
        Some(Proxy {
            upstream: self.upstream_name(raw.upstream.as_deref(), upstreams, at)?,
            strip_prefix: raw.strip_prefix.unwrap_or(false),
            preserve_host: raw.preserve_host.unwrap_or(true),
        })
    }

    /// The name of an upstream that exists.
    pub(super) fn upstream_name(
        &mut self,
        raw: Option<&str>,
        upstreams: Option<&Named<file::Upstream>>,
        at: &At,
    ) -> Option<Arc<str>> {
        let name = self.required(raw, &at.field("upstream"), "missing; name an upstream of the site")?;
        let names =
            || upstreams.into_iter().flat_map(|upstreams| &upstreams.0).map(|(name, _)| name.as_str());
        // If the map itself could not be read, which names it has is not known.
        if !names().any(|known| known == name) && !self.report.failed_itself(&At::root().field("upstreams")) {
            return self.refuse(at, unknown("no upstream", name, names()));
        }
        Some(name.into())
    }

    /// A field value without surrounding white space (RFC 9110 §5.5).
    pub(super) fn header_value(&mut self, text: &str, at: &At) -> Option<HeaderValue> {
        if text.trim() != text {
            return self.refuse(at, "has white space at its begin or end; take it out");
        }
        match HeaderValue::from_str(text) {
            Ok(value) => Some(value),
            Err(_) => self.refuse(
                at,
                format!("{} has a character that a field value cannot carry; use visible ASCII", shown(text)),
            ),
        }
    }
}
