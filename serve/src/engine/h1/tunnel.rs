//! A request that becomes a tunnel: the last thing that a connection does.

use std::future::poll_fn;

use http::{HeaderMap, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite};

use super::answer;
use super::connection::Connection;
use super::exchange::{Running, Then};
use crate::engine::drain::Drain;
use crate::tunnel::{Begun, Tunnel};
use crate::{Application, Outcome};

impl<'a, IO: AsyncRead + AsyncWrite + Unpin + Send, A: Application> Connection<'a, IO, A> {
    /// Switches protocols (RFC 9110 §15.2.2) and runs the tunnel to its end. What the client has sent behind its head
    /// already is the tunnel's.
    pub(super) async fn tunnel(
        &mut self,
        drain: &mut Drain<impl Future<Output = ()> + Unpin>,
        running: &mut Running<'_, A>,
        tunnel: Box<Tunnel>,
        headers: HeaderMap,
    ) -> Then {
        running.status = Some(StatusCode::SWITCHING_PROTOCOLS);
        if let Some(shared) = &self.shared {
            for (status, headers) in shared.close_interim(self.request) {
                answer::interim(self.output.buf(), status, &headers);
            }
        }
        answer::switching(self.output.buf(), tunnel.upgrade().token(), &headers);
        drop(headers);
        if poll_fn(|cx| self.poll_flush(cx)).await.is_err() {
            running.end(Outcome::ClientGone);
            return Then::Abort;
        }
        self.output.shrink();
        let begun = Begun { prefix: std::mem::take(&mut self.input), eof: self.eof };
        let record = &mut running.exchange.record;
        let metrics = record.route.as_ref().and_then(|route| route.tunnels(self.info.listener_index));
        let mut side = &mut self.io;
        let run = tunnel.run(
            &mut side,
            begun,
            &self.settings.timeouts,
            |cx| drain.poll(cx),
            metrics,
            &mut record.tunnel,
        );
        let end = Box::pin(run).await;
        running.bytes = record.tunnel.as_ref().map_or(0, |summary| summary.bytes_to_client);
        if let Some(panic) = &end.panic {
            self.app.panicked(&self.info, panic);
        }
        running.end(end.outcome);
        match (end.abort, end.client_open) {
            (true, _) => Then::Abort,
            (false, true) => Then::Linger,
            (false, false) => Then::Close,
        }
    }
}
