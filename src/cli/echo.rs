//! `playhouse echo`

use std::sync::Arc;

use clap::Args;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use playhouse::config::Site;
use playhouse::config::file::Target;
use playhouse::{Body, Exchange, Handler, Handlers, RequestBody};

use super::output::Output;
use super::run::{Start, start};
use super::serve::name;
use super::target::WrongUse;

/// Run a small server that says what it was asked.
///
/// Something to proxy to while trying things out: each answer is the request's method, path, fields and content as JSON;
/// GET /healthz answers ok.
#[derive(Debug, Args)]
pub(super) struct Echo {
    /// Where to listen
    #[arg(long, alias = "listen", value_name = "ADDRESS", default_value = "127.0.0.1:9000")]
    bind: String,
}

impl Echo {
    pub(super) fn execute(self, output: Output) -> anyhow::Result<()> {
        let site = Site::builder(name("echo", &self.bind))
            .listener("http", self.bind)
            .route(("/", Target::handler("echo")))
            .route(("/healthz", Target::respond(200, "ok\n")))
            .build()
            .map_err(|errors| WrongUse(errors.to_string()))?;
        start(site, Start { handlers: handlers(), stateless: true, ..Start::default() }, output)
    }
}

/// The handlers that a site may name when the binary runs it.
pub(super) fn handlers() -> Handlers {
    let echo: Arc<dyn Handler> = Arc::new(answer);
    Handlers::from([("echo".into(), echo)])
}

fn answer(exchange: &mut Exchange) -> BoxFuture<'_, Response<Body>> {
    say(exchange).boxed()
}

async fn say(exchange: &mut Exchange) -> Response<Body> {
    let body: RequestBody = std::mem::take(exchange.request.body_mut());
    let Ok(content) = Limited::new(body, MAX_CONTENT).collect().await else {
        return with_status(StatusCode::PAYLOAD_TOO_LARGE, "too large, or cut short\n".into());
    };
    let mut headers = serde_json::Map::new();
    for name in exchange.request.headers().keys() {
        let values = exchange.request.headers().get_all(name).iter();
        let values: Vec<_> = values.map(|value| String::from_utf8_lossy(value.as_bytes())).collect();
        headers.insert(name.as_str().to_owned(), values.join(", ").into());
    }
    let said = serde_json::json!({
        "method": exchange.request.method().as_str(),
        "path": exchange.request.uri().path_and_query().map_or("*", |path| path.as_str()),
        "headers": headers,
        "body": String::from_utf8_lossy(&content.to_bytes()),
    });
    let mut response = with_status(StatusCode::OK, format!("{said:#}\n"));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn with_status(status: StatusCode, text: String) -> Response<Body> {
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    response
}

/// Bytes of content that are said back.
const MAX_CONTENT: usize = 1 << 20;
