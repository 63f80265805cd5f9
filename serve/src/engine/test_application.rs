//! An application for the tests of the engines: answers by a closure, and notes what it is told.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use http::{Response, StatusCode};
use parking_lot::Mutex;

use crate::application::End;
use crate::exchange::Peer;
use crate::ledger::Totals;
use crate::{Application, Body, ConnectionInfo, Exchange, Ledger};

type Answer = dyn for<'a> Fn(&'a mut Exchange) -> BoxFuture<'a, Response<Body>> + Send + Sync;

/// See the module.
pub(crate) struct TestApplication {
    answer: Box<Answer>,
    ledger: Arc<Ledger>,
    /// How requests with an exchange have ended, in order.
    pub(crate) ends: Mutex<Vec<End>>,
    /// What was refused, in order.
    pub(crate) refusals: Mutex<Vec<Option<StatusCode>>>,
    /// The messages of panics, in order.
    pub(crate) panics: Mutex<Vec<String>>,
}

impl TestApplication {
    pub(crate) fn new<F>(answer: F) -> Arc<Self>
    where
        F: for<'a> Fn(&'a mut Exchange) -> BoxFuture<'a, Response<Body>> + Send + Sync + 'static,
    {
        Arc::new(TestApplication {
            answer: Box::new(answer),
            ledger: Arc::default(),
            ends: Mutex::default(),
            refusals: Mutex::default(),
            panics: Mutex::default(),
        })
    }

    /// The ledger's sums.
    pub(crate) fn totals(&self) -> Totals {
        self.ledger.totals()
    }
}

impl Application for TestApplication {
    async fn handle(&self, exchange: &mut Exchange) -> Response<Body> {
        (self.answer)(exchange).await
    }

    fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    fn ended(&self, _exchange: &Exchange, end: &End) {
        self.ends.lock().push(*end);
    }

    fn refused(&self, _connection: &ConnectionInfo, status: Option<StatusCode>) {
        self.refusals.lock().push(status);
    }

    fn panicked(&self, _connection: &ConnectionInfo, message: &str) {
        self.panics.lock().push(message.to_owned());
    }
}

/// A cleartext connection over a Unix socket.
pub(crate) fn connection_info() -> Arc<ConnectionInfo> {
    Arc::new(info(1))
}

/// The same, with this number.
pub(crate) fn info(id: u64) -> ConnectionInfo {
    ConnectionInfo {
        id,
        listener: "test".into(),
        listener_index: 0,
        peer: Peer::Unix,
        local: None,
        proxied: None,
        tls: None,
        rate: None,
        alternative: None,
    }
}
