//! Routes to scripts, and what their upstreams speak.

use super::Resolver;
use super::value::shown;
use crate::error::At;
use crate::file::{self, Named, Names};
use crate::model::{FastCgi, ScriptServers, UpstreamProtocol};

/// Default of `buffer`.
const BUFFER: u64 = 1 << 20;
/// Most bytes of a request that are held.
const MAX_BUFFER: u64 = 64 << 20;

impl Resolver<'_, '_> {
    pub(super) fn fastcgi(&mut self, raw: &file::FastCgi, site: &file::Site, at: &At) -> Option<FastCgi> {
        let root_at = at.field("root");
        let root = self
            .required(raw.root.as_deref(), &root_at, "missing; name the directory of the scripts")
            .and_then(|root| self.path(root, &root_at));
        let follow = self.paths(raw.follow.as_deref(), &at.field("follow"));
        let servers = self.script_servers(raw, site, at);
        let script_at = at.field("script_root");
        let script_root = match raw.script_root.as_deref() {
            Some(path) if path.is_absolute() => self.path(path, &script_at).map(Some),
            Some(_) => self.refuse(&script_at, "is a path on the side of the servers; it begins with \"/\""),
            None => Some(None),
        };
        let index = match &raw.index {
            Some(Names(names)) => self.index(Some(names), &at.field("index")),
            None => Some(vec!["index.php".to_owned(), "index.html".to_owned()]),
        };
        let split = self.suffixes(raw.split.as_ref(), &at.field("split"));
        let params = self.params(raw.params.as_ref(), &at.field("params"));
        let buffer =
            self.count_or(raw.buffer.map(|size| size.0), BUFFER, &at.field("buffer"), 0..=MAX_BUFFER);
        let sendfile = self.optional_path(raw.sendfile.as_deref(), &at.field("sendfile"));
        let root = root?;
        Some(FastCgi {
            servers: servers?,
            script_root: script_root?.unwrap_or_else(|| root.clone()),
            root,
            follow: follow?,
            index: index?,
            split: split?,
            front_controller: raw.front_controller.unwrap_or(true),
            params: params?,
            buffer: buffer?,
            sendfile: sendfile?,
        })
    }

    fn script_servers(&mut self, raw: &file::FastCgi, site: &file::Site, at: &At) -> Option<ScriptServers> {
        let app_at = at.field("app");
        match (raw.upstream.as_deref(), raw.app.as_deref()) {
            (Some(_), Some(_)) => self.refuse(
                &app_at,
                "stands beside upstream; scripts are run by one of the two, so leave one out",
            ),
            (None, Some(app)) => self.app_name(Some(app), site.apps.as_ref(), at).map(ScriptServers::App),
            // One that could not be read has its error.
            (None, None) if self.report.failed(&app_at) => None,
            (None, None) => self.required(
                None,
                &at.field("upstream"),
                "missing; name an upstream of the site, or an app of it in app",
            ),
            (upstream, None) => {
                self.upstream_name(upstream, site.upstreams.as_ref(), at).map(ScriptServers::Upstream)
            }
        }
    }

    fn suffixes(&mut self, raw: Option<&Names>, at: &At) -> Option<Vec<String>> {
        let Some(Names(raw)) = raw else { return Some(vec![".php".to_owned()]) };
        if raw.is_empty() {
            return self.refuse(at, "is empty, so that nothing would be a script; write \".php\"");
        }
        let mut valid = Some(());
        for (position, suffix) in raw.iter().enumerate() {
            let rest = suffix.strip_prefix('.').unwrap_or_default();
            if rest.is_empty() || !rest.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
                let message = format!(
                    "{} is no suffix of scripts; write a dot and letters, such as \".php\"",
                    shown(suffix)
                );
                valid = self.refuse(&at.index(position), message);
            }
        }
        valid.map(|()| raw.clone())
    }

    fn params(&mut self, raw: Option<&Named<String>>, at: &At) -> Option<Vec<(String, String)>> {
        let mut valid = Some(());
        for (name, value) in raw.iter().flat_map(|raw| &raw.0) {
            let at = at.key(name);
            let mut bytes = name.bytes();
            let begins = bytes.next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
            if !begins || !bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
                let message = format!("{} is no variable; use letters, digits and '_'", shown(name));
                valid = self.refuse(&at, message);
            } else if name.starts_with("HTTP_") {
                valid = self.refuse(
                    &at,
                    "variables that begin with HTTP_ are the client's fields; choose another name",
                );
            } else if value.contains('\0') {
                valid = self.refuse(&at, "holds a NUL character");
            }
        }
        valid.map(|()| raw.map(|raw| raw.0.clone()).unwrap_or_default())
    }

    /// What the routes that name an upstream speak with it.
    pub(super) fn upstream_protocol(
        &mut self,
        name: &str,
        routes: Option<&[file::Route]>,
        at: &At,
    ) -> Option<UpstreamProtocol> {
        let (mut http, mut fastcgi) = (false, false);
        for route in routes.unwrap_or_default() {
            match &route.to {
                Some(file::Target::Proxy(proxy)) => http |= proxy.upstream.as_deref() == Some(name),
                Some(file::Target::FastCgi(raw)) => fastcgi |= raw.upstream.as_deref() == Some(name),
                _ => {}
            }
        }
        match (http, fastcgi) {
            (true, true) => self.refuse(
                at,
                "is named by Proxy and by FastCgi routes; its servers speak one of the two, so make it two upstreams",
            ),
            (_, false) => Some(UpstreamProtocol::Http),
            (false, true) => Some(UpstreamProtocol::FastCgi),
        }
    }

    /// What the routes that name an app speak with its processes.
    pub(super) fn app_protocol(
        &mut self,
        name: &str,
        routes: Option<&[file::Route]>,
        at: &At,
    ) -> Option<UpstreamProtocol> {
        let (mut http, mut fastcgi) = (false, false);
        for route in routes.unwrap_or_default() {
            match &route.to {
                Some(file::Target::App(to)) => http |= to.app.as_deref() == Some(name),
                Some(file::Target::FastCgi(raw)) => fastcgi |= raw.app.as_deref() == Some(name),
                _ => {}
            }
        }
        match (http, fastcgi) {
            (true, true) => self.refuse(
                at,
                "is named by App and by FastCgi routes; its processes speak one of the two, so make it two apps",
            ),
            (_, false) => Some(UpstreamProtocol::Http),
            (false, true) => Some(UpstreamProtocol::FastCgi),
        }
    }
}
