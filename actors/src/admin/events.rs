//! `/v1/events`: events as they happen, as server-sent events.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http_body::Frame;
use playhouse_serve::BodyError;
use tokio::sync::broadcast::{self, error::RecvError};

use crate::supervision::{Event, Events};

/// The kept events, then each new one; a comment now and then, so that a client that has gone is noticed. Ends when the
/// site does.
pub(super) struct EventStream {
    first: Option<Bytes>,
    next: BoxFuture<'static, (Option<Bytes>, broadcast::Receiver<Event>)>,
    ended: bool,
}

impl EventStream {
    /// Events after the one with this number.
    pub fn new(events: &Events, after: u64) -> Self {
        let (kept, receiver) = events.follow();
        let mut first = String::from(": events of this site\n\n");
        kept.iter().filter(|event| event.sequence > after).for_each(|event| write(&mut first, event));
        EventStream { first: Some(first.into()), next: Box::pin(next(receiver)), ended: false }
    }
}

impl http_body::Body for EventStream {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        if let Some(first) = this.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        if this.ended {
            return Poll::Ready(None);
        }
        let (text, receiver) = std::task::ready!(this.next.as_mut().poll(cx));
        match text {
            Some(text) => {
                this.next = Box::pin(next(receiver));
                Poll::Ready(Some(Ok(Frame::data(text))))
            }
            None => {
                this.ended = true;
                Poll::Ready(None)
            }
        }
    }
}

async fn next(mut receiver: broadcast::Receiver<Event>) -> (Option<Bytes>, broadcast::Receiver<Event>) {
    let text = match tokio::time::timeout(KEEP_ALIVE, receiver.recv()).await {
        Err(_) => Some(Bytes::from_static(b": alive\n\n")),
        Ok(Ok(event)) => {
            let mut text = String::new();
            write(&mut text, &event);
            Some(text.into())
        }
        Ok(Err(RecvError::Lagged(missed))) => Some(format!(": {missed} events were missed\n\n").into()),
        Ok(Err(RecvError::Closed)) => None,
    };
    (text, receiver)
}

fn write(text: &mut String, event: &Event) {
    use std::fmt::Write;
    // JSON escapes line ends, so that an event's text cannot end the field.
    let Ok(data) = serde_json::to_string(event) else { return };
    let _ = write!(text, "id: {}\ndata: {data}\n\n", event.sequence);
}

const KEEP_ALIVE: Duration = Duration::from_secs(15);
