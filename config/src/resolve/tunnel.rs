//! What may become a tunnel.

use super::Resolver;
use super::value::shown;
use crate::error::At;
use crate::file;
use crate::model::Tunnel;

impl Resolver<'_, '_> {
    pub(super) fn tunnel(&mut self, raw: Option<&file::Tunnel>, at: &At) -> Option<Tunnel> {
        let default = Tunnel::default();
        let Some(raw) = raw else {
            return if self.report.failed(at) { None } else { Some(default) };
        };
        let protocols = match raw.protocols.as_deref() {
            Some(protocols) => self.protocols(protocols, &at.field("protocols")),
            None => Some(default.protocols),
        };
        let idle = self.duration(raw.idle, default.idle, &at.field("idle"));
        let life = self.optional(raw.life, &at.field("life"));
        let ping = self.optional(raw.ping, &at.field("ping"));
        if let (Some(Some(ping)), Some(idle)) = (ping, idle)
            && ping > idle
        {
            let message = "is longer than idle, so that none would ever be sent; make it shorter";
            return self.refuse(&at.field("ping"), message);
        }
        Some(Tunnel {
            protocols: protocols?,
            idle: idle?,
            life: life?,
            ping: ping?,
            on_reload: raw.on_reload.unwrap_or_default(),
        })
    }

    /// A positive duration, or none.
    fn optional(
        &mut self,
        value: Option<std::time::Duration>,
        at: &At,
    ) -> Option<Option<std::time::Duration>> {
        match value {
            Some(value) => self.duration(Some(value), value, at).map(Some),
            None => Some(None),
        }
    }

    /// In lower case, each once.
    fn protocols(&mut self, raw: &[String], at: &At) -> Option<Vec<String>> {
        let mut protocols: Vec<String> = Vec::with_capacity(raw.len());
        let mut valid = Some(());
        for (index, name) in raw.iter().enumerate() {
            let at = at.index(index);
            let lower = name.to_ascii_lowercase();
            if !is_protocol(&lower) {
                let message = format!("{} is no upgrade token, such as \"websocket\"", shown(name));
                valid = self.refuse(&at, message);
            } else if is_other_http(&lower) {
                let message = format!(
                    "{} would take requests past the routes, unseen; it is never passed on",
                    shown(name)
                );
                valid = self.refuse(&at, message);
            } else if protocols.contains(&lower) {
                valid = self.refuse(&at, format!("{} stands here twice; leave one out", shown(name)));
            } else {
                protocols.push(lower);
            }
        }
        valid.map(|()| protocols)
    }
}

/// `token [ "/" token ]` (RFC 9110 §7.8).
fn is_protocol(name: &str) -> bool {
    let is_token = |part: &str| {
        !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
    };
    match name.split_once('/') {
        Some((name, version)) => is_token(name) && is_token(version),
        None => is_token(name),
    }
}

/// Within such a tunnel there could be requests that no route, limit or log has seen.
fn is_other_http(name: &str) -> bool {
    let name = name.split('/').next().unwrap_or(name);
    matches!(name, "h2c" | "h2" | "h3" | "http" | "https" | "tls")
}
