//! A route answered by an actor of the embedding program, asked by message.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use playhouse_serve::handler::Handler;
use playhouse_serve::{Body, Exchange, Outcome};
use ractor::rpc::CallResult;
use ractor::{ActorRef, RpcReplyPort};
use tokio::sync::Semaphore;

/// Asks an actor for each answer. The request's body is gathered first, within the route's `max_body`.
///
/// An actor's mailbox has no bound, so there is one here: beyond `concurrency` requests are answered with 503
/// ([`Outcome::Shed`]). No actor, or one that dies over the question, is a 502; no answer within the deadline a 504.
pub struct AskActor<M> {
    actor: Box<dyn Fn() -> Option<ActorRef<M>> + Send + Sync>,
    message: Box<Message<M>>,
    deadline: Duration,
    room: Semaphore,
}

type Message<M> = dyn Fn(Request<Bytes>, RpcReplyPort<Response<Body>>) -> M + Send + Sync;

impl<M: ractor::Message> AskActor<M> {
    /// `actor` gives the incarnation that lives now; `message` makes its question.
    pub fn new(
        actor: impl Fn() -> Option<ActorRef<M>> + Send + Sync + 'static,
        message: impl Fn(Request<Bytes>, RpcReplyPort<Response<Body>>) -> M + Send + Sync + 'static,
        deadline: Duration,
        concurrency: usize,
    ) -> Self {
        AskActor {
            actor: Box::new(actor),
            message: Box::new(message),
            deadline,
            room: Semaphore::new(concurrency),
        }
    }

    async fn ask(&self, exchange: &mut Exchange) -> Result<Response<Body>, (StatusCode, Outcome)> {
        let _room = self.room.try_acquire().map_err(|_| (StatusCode::SERVICE_UNAVAILABLE, Outcome::Shed))?;
        let body = std::mem::take(exchange.request.body_mut());
        let body = body.collect().await.map_err(|error| (error.status(), Outcome::Rejected))?.to_bytes();
        let mut request = Request::new(body);
        *request.method_mut() = exchange.request.method().clone();
        *request.uri_mut() = exchange.request.uri().clone();
        *request.version_mut() = exchange.request.version();
        *request.headers_mut() = exchange.request.headers().clone();
        let failed = |status| (status, Outcome::UpstreamFailed);
        let actor = (self.actor)().ok_or(failed(StatusCode::BAD_GATEWAY))?;
        match actor.call(|reply| (self.message)(request, reply), Some(self.deadline)).await {
            Ok(CallResult::Success(response)) => Ok(response),
            Ok(CallResult::Timeout) => Err(failed(StatusCode::GATEWAY_TIMEOUT)),
            Ok(CallResult::SenderError) | Err(_) => Err(failed(StatusCode::BAD_GATEWAY)),
        }
    }
}

impl<M: ractor::Message> Handler for AskActor<M> {
    fn handle<'a>(&'a self, exchange: &'a mut Exchange) -> BoxFuture<'a, Response<Body>> {
        Box::pin(async {
            self.ask(exchange).await.unwrap_or_else(|(status, outcome)| {
                exchange.record.outcome = Some(outcome);
                let mut response = Response::new(Body::from(format!("{status}\n")));
                *response.status_mut() = status;
                let plain = header::HeaderValue::from_static("text/plain; charset=utf-8");
                response.headers_mut().insert(header::CONTENT_TYPE, plain);
                response
            })
        })
    }
}
