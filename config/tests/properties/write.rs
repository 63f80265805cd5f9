//! Writes the records of a site as RON, for the round trip.

use std::fmt::Write;
use std::time::Duration;

use playhouse_config::file::{
    Ejection, Instances, Listener, Named, ProxyProtocol, Route, Server, Site, Target, Upstream,
};

/// A record: only what is there is written.
#[derive(Default)]
struct Record(String);

impl Record {
    fn field<T>(mut self, name: &str, value: Option<T>, write: impl FnOnce(T) -> String) -> Self {
        if let Some(value) = value {
            writeln!(self.0, "{name}: {},", write(value)).unwrap();
        }
        self
    }

    fn end(self) -> String {
        format!("({})", self.0)
    }
}

pub fn site(site: &Site) -> String {
    Record::default()
        .field("name", site.name.as_ref(), string)
        .field("threads", site.threads, number)
        .field("instances", site.instances.as_ref(), instances)
        .field("drain_timeout", site.drain_timeout, duration)
        .field("admin", site.admin.as_ref(), |admin| {
            Record::default()
                .field("bind", admin.bind.as_ref(), string)
                .field("hosts", admin.hosts.as_ref(), |hosts| list(hosts, string))
                .end()
        })
        .field("access_log", site.access_log.as_ref(), |log| {
            Record::default().field("to", log.to.as_ref(), string).field("format", log.format, word).end()
        })
        .field("listeners", site.listeners.as_ref(), |listeners| map(listeners, listener))
        .field("upstreams", site.upstreams.as_ref(), |upstreams| map(upstreams, upstream))
        .field("routes", site.routes.as_ref(), |routes| list(routes, route))
        .end()
}

fn instances(instances: &Instances) -> String {
    Record::default()
        .field("min", instances.min, number)
        .field("max", instances.max, number)
        .field("ready_timeout", instances.ready_timeout, duration)
        .field("heartbeat_timeout", instances.heartbeat_timeout, duration)
        .field("min_free_memory", instances.min_free_memory, |size| format!("\"{}B\"", size.0))
        .field("scaling", instances.scaling.as_ref(), |scaling| {
            Record::default()
                .field("up_at", scaling.up_at, float)
                .field("down_at", scaling.down_at, float)
                .field("cooldown", scaling.cooldown, duration)
                .end()
        })
        .end()
}

fn listener(listener: &Listener) -> String {
    Record::default()
        .field("bind", listener.bind.as_ref(), string)
        .field("only_v6", listener.only_v6, number)
        .field("mode", listener.mode.as_ref(), string)
        .field("http2", listener.http2, number)
        .field("proxy_protocol", listener.proxy_protocol.as_ref(), |proxies| {
            let (word, trust) = match proxies {
                ProxyProtocol::Required(trust) => ("Required", trust),
                ProxyProtocol::Optional(trust) => ("Optional", trust),
            };
            let fields = Record::default().field("trusted", trust.trusted.as_ref(), |all| list(all, string));
            format!("{word}{}", fields.end())
        })
        .field("http3", listener.http3, number)
        .end()
}

fn upstream(upstream: &Upstream) -> String {
    Record::default()
        .field("servers", upstream.servers.as_ref(), |servers| list(servers, server))
        .field("balance", upstream.balance, word)
        .field("proxy_protocol", upstream.proxy_protocol, word)
        .field("health", upstream.health.as_ref(), |health| {
            Record::default()
                .field("path", health.path.as_ref(), string)
                .field("interval", health.interval, duration)
                .end()
        })
        .field("ejection", upstream.ejection.as_ref(), |ejection| match ejection {
            Ejection::Off => "Off".into(),
            Ejection::On(on) => Record::default()
                .field("failures", on.failures, number)
                .field("duration", on.duration, duration)
                .end(),
        })
        .field("retries", upstream.retries, number)
        .end()
}

fn server(server: &Server) -> String {
    match (&server.address, server.weight) {
        (Some(address), Some(weight)) => format!("({}, {weight})", string(address)),
        (Some(address), None) => string(address),
        (None, _) => "()".into(),
    }
}

fn route(route: &Route) -> String {
    Record::default()
        .field("listeners", route.listeners.as_ref(), |names| list(names, string))
        .field("host", route.host.as_ref(), string)
        .field("path", route.path.as_ref(), string)
        .field("to", route.to.as_ref(), target)
        .field("max_body", route.max_body, |size| format!("\"{}B\"", size.0))
        .field("headers", route.headers.as_ref(), |headers| map(headers, string))
        .field("tunnel", route.tunnel.as_ref(), |tunnel| {
            Record::default()
                .field("protocols", tunnel.protocols.as_ref(), |names| list(names, string))
                .field("idle", tunnel.idle, duration)
                .field("life", tunnel.life, duration)
                .field("ping", tunnel.ping, duration)
                .field("on_reload", tunnel.on_reload, word)
                .end()
        })
        .end()
}

fn target(target: &Target) -> String {
    match target {
        Target::Respond(respond) => {
            let fields = Record::default().field("status", respond.status, number).field(
                "body",
                respond.body.as_ref(),
                string,
            );
            format!("Respond{}", fields.end())
        }
        Target::Redirect(redirect) => {
            let fields = Record::default().field("status", redirect.status, number).field(
                "location",
                redirect.location.as_ref(),
                string,
            );
            format!("Redirect{}", fields.end())
        }
        Target::Static(files) => {
            let fields = Record::default()
                .field("root", files.root.as_ref(), |root| string(root.display().to_string()))
                .field("precompressed", files.precompressed.as_ref(), |codings| list(codings, word));
            format!("Static{}", fields.end())
        }
        Target::Proxy(proxy) => {
            let fields = Record::default()
                .field("upstream", proxy.upstream.as_ref(), string)
                .field("strip_prefix", proxy.strip_prefix, number)
                .field("preserve_host", proxy.preserve_host, number);
            format!("Proxy{}", fields.end())
        }
        Target::FastCgi(fastcgi) => {
            let fields = Record::default()
                .field("upstream", fastcgi.upstream.as_ref(), string)
                .field("app", fastcgi.app.as_ref(), string)
                .field("root", fastcgi.root.as_ref(), |root| string(root.display().to_string()))
                .field("front_controller", fastcgi.front_controller, number)
                .field("split", fastcgi.split.as_ref(), |split| list(&split.0, string));
            format!("FastCgi{}", fields.end())
        }
        Target::App(app) => {
            let fields = Record::default()
                .field("app", app.app.as_ref(), string)
                .field("strip_prefix", app.strip_prefix, number)
                .field("preserve_host", app.preserve_host, number);
            format!("App{}", fields.end())
        }
        Target::Handler(handler) => {
            format!("Handler({})", string(handler.name.as_deref().unwrap_or_default()))
        }
    }
}

/// RON's escapes are Rust's.
fn string(text: impl AsRef<str>) -> String {
    format!("\"{}\"", text.as_ref().escape_default())
}

fn number(value: impl ToString) -> String {
    value.to_string()
}

/// With a point or an exponent: an integer of this size would be no number of RON's.
fn float(value: f64) -> String {
    format!("{value:?}")
}

fn word(value: impl std::fmt::Debug) -> String {
    format!("{value:?}")
}

fn duration(duration: Duration) -> String {
    format!("\"{}\"", humantime::format_duration(duration))
}

fn list<'t, T>(values: &'t [T], write: impl Fn(&'t T) -> String) -> String {
    format!("[{}]", values.iter().map(write).collect::<Vec<_>>().join(", "))
}

fn map<'t, T>(named: &'t Named<T>, write: impl Fn(&'t T) -> String) -> String {
    let entries = named.0.iter().map(|(name, value)| format!("{}: {}", string(name), write(value)));
    format!("{{{}}}", entries.collect::<Vec<_>>().join(",\n"))
}
