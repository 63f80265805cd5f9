//! The admin interface's routes.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use http::{HeaderValue, Method, Response, StatusCode, header};
use http_body_util::BodyExt;
use playhouse_serve::application::End;
use playhouse_serve::metrics::Scrape;
use playhouse_serve::{Application, Body, ConnectionInfo, Exchange, Ledger, Outcome};
use serde::de::DeserializeOwned;

use super::access::{self, Need, Refusal};
use super::administered::{Administered, Refused, Scale, Value};
use super::events::EventStream;

/// Answers administrators. Its requests are in a ledger of their own.
pub struct AdminApplication {
    over: Arc<dyn Administered>,
    ledger: Arc<Ledger>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Kill {
    path: String,
    #[serde(default = "kill")]
    how: String,
}

fn kill() -> String {
    "kill".to_owned()
}

#[derive(Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Reload {
    site: Option<PathBuf>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct To {
    instances: Scale,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Drain {
    instance: String,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Restart {
    app: String,
}

#[derive(Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Upgrade {
    binary: Option<PathBuf>,
}

impl AdminApplication {
    /// The admin interface of this instance or controller.
    pub fn new(over: Arc<dyn Administered>) -> Self {
        AdminApplication { over, ledger: Arc::default() }
    }

    async fn answer(&self, exchange: &mut Exchange) -> Result<Response<Body>, Refusal> {
        let path = exchange.request.uri().path().to_owned();
        let known = ROUTES.iter().filter(|route| route.path == path);
        let method = exchange.request.method().clone();
        let Some(route) = known.clone().find(|route| route.method == method || is_head(route, &method))
        else {
            return Err(match known.count() {
                0 => Refusal(StatusCode::NOT_FOUND, "no such page\n"),
                _ => Refusal(StatusCode::METHOD_NOT_ALLOWED, "not by this method\n"),
            });
        };
        let (config, token) = (self.over.site_config(), self.over.bearer_token());
        access::check(exchange, route.need, &config.admin, token.as_deref())?;
        let query = exchange.request.uri().query().unwrap_or_default();
        Ok(match route.page {
            Page::Dashboard => page("text/html; charset=utf-8", include_str!("dashboard.html").into()),
            Page::Healthy => page("text/plain; charset=utf-8", "ok\n".into()),
            Page::Ready if self.over.is_site_ready() => page("text/plain; charset=utf-8", "ready\n".into()),
            Page::Ready => return Err(Refusal(StatusCode::SERVICE_UNAVAILABLE, "not ready\n")),
            Page::Metrics => page(Scrape::CONTENT_TYPE, self.over.metrics().await.into()),
            Page::Status => json(StatusCode::OK, &self.over.status().await),
            Page::Tree => {
                let connections = query.split('&').any(|pair| pair == "connections=1");
                page("application/json", self.over.actors(connections).await.into())
            }
            Page::Events => self.events(exchange),
            Page::Kill => self.kill(read(exchange).await?).await,
            Page::Reload => {
                let Reload { site } = read(exchange).await?;
                done(self.over.clone().reload_site(site).await)
            }
            Page::Plan => {
                let Reload { site } = read(exchange).await?;
                done(self.over.clone().plan_reload(site).await)
            }
            Page::Stop => {
                tokio::spawn(self.over.clone().stop_site());
                json(StatusCode::ACCEPTED, &serde_json::json!({"stopping": true}))
            }
            Page::Scale => {
                let To { instances } = read(exchange).await?;
                done(self.over.scale(instances).await)
            }
            Page::Drain => {
                let Drain { instance } = read(exchange).await?;
                done(self.over.drain_instance(instance).await)
            }
            Page::Restart => {
                let Restart { app } = read(exchange).await?;
                done(self.over.restart_app(app).await)
            }
            Page::Upgrade => {
                let Upgrade { binary } = read(exchange).await?;
                done(self.over.clone().upgrade(binary).await)
            }
        })
    }

    fn events(&self, exchange: &Exchange) -> Response<Body> {
        let last = exchange.request.headers().get("last-event-id");
        let after = last.and_then(|id| id.to_str().ok()).and_then(|id| id.parse().ok()).unwrap_or(0);
        let stream = EventStream::new(self.over.own_tree().events(), after);
        page("text/event-stream", Body::Stream(Box::pin(stream)))
    }

    async fn kill(&self, kill: Kill) -> Response<Body> {
        let answer = serde_json::json!({"path": kill.path, "how": kill.how});
        if kill.how == SIGKILL {
            return done(self.over.end_process(kill.path).await.map(|()| answer));
        }
        let fault = match kill.how.parse() {
            Ok(fault) => fault,
            Err(error) => return failure(StatusCode::BAD_REQUEST, error),
        };
        done(self.over.fault(kill.path, fault).await.map(|()| answer))
    }
}

impl Application for AdminApplication {
    async fn handle(&self, exchange: &mut Exchange) -> Response<Body> {
        let mut response = match self.answer(exchange).await {
            Ok(response) => response,
            Err(Refusal(status, text)) => {
                if status.is_client_error() {
                    exchange.record.outcome = Some(Outcome::Rejected);
                }
                let mut response = page("text/plain; charset=utf-8", text.into());
                *response.status_mut() = status;
                if status == StatusCode::UNAUTHORIZED {
                    let challenge = HeaderValue::from_static("Bearer realm=\"playhouse\"");
                    response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
                }
                response
            }
        };
        for (name, value) in &FIELDS {
            response.headers_mut().insert(name, value.clone());
        }
        response
    }

    fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    fn ended(&self, _: &Exchange, _: &End) {}

    fn refused(&self, connection: &ConnectionInfo, status: Option<StatusCode>) {
        tracing::debug!(listener = %connection.listener, ?status, "an admin request was refused");
    }

    fn panicked(&self, _: &ConnectionInfo, message: &str) {
        tracing::error!(message, "an admin request has panicked");
    }
}

enum Page {
    Dashboard,
    Healthy,
    Ready,
    Metrics,
    Status,
    Tree,
    Events,
    Kill,
    Reload,
    Plan,
    Stop,
    Scale,
    Drain,
    Restart,
    Upgrade,
}

struct Route {
    method: Method,
    path: &'static str,
    need: Need,
    page: Page,
}

const ROUTES: &[Route] = &[
    Route { method: Method::GET, path: "/", need: Need::Open, page: Page::Dashboard },
    Route { method: Method::GET, path: "/healthz", need: Need::Open, page: Page::Healthy },
    Route { method: Method::GET, path: "/readyz", need: Need::Open, page: Page::Ready },
    Route { method: Method::GET, path: "/metrics", need: Need::Open, page: Page::Metrics },
    Route { method: Method::GET, path: "/v1/status", need: Need::Read, page: Page::Status },
    Route { method: Method::GET, path: "/v1/tree", need: Need::Read, page: Page::Tree },
    Route { method: Method::GET, path: "/v1/events", need: Need::Read, page: Page::Events },
    Route { method: Method::POST, path: "/v1/kill", need: Need::Change, page: Page::Kill },
    Route { method: Method::POST, path: "/v1/reload", need: Need::Change, page: Page::Reload },
    Route { method: Method::POST, path: "/v1/plan", need: Need::Change, page: Page::Plan },
    Route { method: Method::POST, path: "/v1/stop", need: Need::Change, page: Page::Stop },
    Route { method: Method::POST, path: "/v1/restart", need: Need::Change, page: Page::Restart },
    Route { method: Method::POST, path: "/v1/scale", need: Need::Change, page: Page::Scale },
    Route { method: Method::POST, path: "/v1/drain", need: Need::Change, page: Page::Drain },
    Route { method: Method::POST, path: "/v1/upgrade", need: Need::Change, page: Page::Upgrade },
];

/// Not a fault for an actor, but the end of a process.
const SIGKILL: &str = "sigkill";

fn is_head(route: &Route, method: &Method) -> bool {
    route.method == Method::GET && *method == Method::HEAD
}

/// On every answer: nothing here is for a cache, a frame, or a guessed type; the page loads nothing from elsewhere.
static FIELDS: [(header::HeaderName, HeaderValue); 4] = [
    (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
    (
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static(
            "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; \
             img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        ),
    ),
];

fn page(content_type: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

fn json(status: StatusCode, value: &impl serde::Serialize) -> Response<Body> {
    match serde_json::to_string(value) {
        Ok(text) => {
            let mut response = page("application/json", text.into());
            *response.status_mut() = status;
            response
        }
        Err(error) => failure(StatusCode::INTERNAL_SERVER_ERROR, error),
    }
}

/// The answer to a command.
fn done(result: Result<Value, Refused>) -> Response<Body> {
    match result {
        Ok(value) => json(StatusCode::OK, &value),
        Err(Refused { status, message }) => failure(status, message),
    }
}

fn failure(status: StatusCode, error: impl fmt::Display) -> Response<Body> {
    let text = serde_json::json!({"error": error.to_string()}).to_string();
    let mut response = page("application/json", text.into());
    *response.status_mut() = status;
    response
}

/// The JSON of a request; an empty body is `{}`.
async fn read<T: DeserializeOwned>(exchange: &mut Exchange) -> Result<T, Refusal> {
    let body = std::mem::take(exchange.request.body_mut());
    let bytes = match body.collect().await {
        Ok(collected) => collected.to_bytes(),
        Err(error) => return Err(Refusal(error.status(), "the request's body could not be read\n")),
    };
    let bytes: &[u8] = if bytes.trim_ascii().is_empty() { b"{}" } else { &bytes };
    serde_json::from_slice(bytes).map_err(|error| {
        tracing::debug!(%error, "an admin request's body is not what it should be");
        Refusal(StatusCode::BAD_REQUEST, "the body must be a JSON object with the fields of this command\n")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_page_has_every_route_and_what_it_needs() {
        let reference = include_str!("../../../docs/reference/admin.md");
        for Route { method, path, need, .. } in ROUTES {
            let need = match need {
                Need::Open => "–",
                Need::Read => "read",
                Need::Change => "change",
            };
            let row = format!("| `{method} {path}` | {need} |");
            assert!(reference.contains(&row), "no {row}");
        }
    }
}
