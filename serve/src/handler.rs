//! Answers from the embedding program.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use http::Response;

use crate::{Body, Exchange};

/// A route's answer, given by the embedding program. Implemented for any function from `&mut Exchange` to a boxed
/// future; runs on the connection's own task, where a panic costs that one request.
pub trait Handler: Send + Sync + 'static {
    /// Answers one request.
    fn handle<'a>(&'a self, exchange: &'a mut Exchange) -> BoxFuture<'a, Response<Body>>;
}

impl<F> Handler for F
where
    F: for<'a> Fn(&'a mut Exchange) -> BoxFuture<'a, Response<Body>> + Send + Sync + 'static,
{
    fn handle<'a>(&'a self, exchange: &'a mut Exchange) -> BoxFuture<'a, Response<Body>> {
        self(exchange)
    }
}

/// A handler from a function.
///
/// ```
/// use playhouse_serve::{Body, handler};
///
/// let greet = handler::from_fn(|exchange| {
///     Box::pin(async move { http::Response::new(Body::from(format!("{}\n", exchange.request.uri()))) })
/// });
/// # let _ = greet;
/// ```
pub fn from_fn<F>(answer: F) -> Arc<dyn Handler>
where
    F: for<'a> Fn(&'a mut Exchange) -> BoxFuture<'a, Response<Body>> + Send + Sync + 'static,
{
    Arc::new(answer)
}
