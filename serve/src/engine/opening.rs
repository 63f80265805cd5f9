//! The first bytes of a connection: the TLS handshake, or which version of HTTP is spoken in the clear.

use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::task::{Poll, ready};
use std::time::Duration;

use bytes::BytesMut;
use http::StatusCode;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadBuf};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::Settings;
use super::rewind::Rewind;
use crate::net::Stream;
use crate::tls::{self, ListenerTls};
use crate::{Application, ConnectionInfo, Outcome};

/// The first bytes that the client sends; `None` where it closes or sends nothing before the deadline. Until then the
/// connection holds no buffer.
pub(super) async fn first_bytes(stream: &mut Stream, deadline: Instant) -> Option<BytesMut> {
    let first = poll_fn(|cx| {
        loop {
            if ready!(stream.poll_readable(cx)).is_err() {
                return Poll::Ready(None);
            }
            match read_now(stream) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return Poll::Ready(read.ok().filter(|prefix| !prefix.is_empty())),
            }
        }
    });
    timeout_at(deadline, first).await.ok()?
}

/// Closes where the client has not sent anything, and may be about to: what still comes is read for a while, since a
/// reset would tell it less than an end does.
pub(super) async fn farewell(mut stream: Stream, grace: Duration) {
    if stream.shutdown().await.is_err() {
        return;
    }
    let rest = async {
        let mut scrap = [0; 1024];
        let mut left = FAREWELL_BYTES;
        while let Ok(read @ 1..) = stream.read(&mut scrap).await
            && left > read
        {
            left -= read;
        }
    };
    let _ = timeout(grace, rest).await;
}

/// What is there, in a buffer of just that size: thousands may come at once, and then say nothing for long.
fn read_now(stream: &Stream) -> io::Result<BytesMut> {
    let mut space = [MaybeUninit::uninit(); FIRST_READ];
    let mut space = ReadBuf::uninit(&mut space);
    stream.try_read_buf(&mut space)?;
    Ok(BytesMut::from(space.filled()))
}

/// Whether the client speaks HTTP/2 by prior knowledge, which begins with its preface (RFC 9113 §3.3). Everything else
/// is HTTP/1.1, which knows what to answer to a head that ends too early, or never. Reads on only while it is not clear.
pub(super) async fn is_h2(stream: &mut Stream, prefix: &mut BytesMut, settings: &Settings) -> bool {
    let mut deadline = None;
    loop {
        let compared = prefix.len().min(PREFACE.len());
        if prefix[..compared] != PREFACE[..compared] {
            return false;
        }
        if compared == PREFACE.len() {
            return true;
        }
        let deadline = *deadline.get_or_insert_with(|| Instant::now() + settings.timeouts.head);
        match timeout_at(deadline, stream.read_buf(prefix)).await {
            Ok(Ok(1..)) => {}
            Ok(Ok(0) | Err(_)) | Err(_) => return false,
        }
    }
}

/// The TLS handshake within its deadline; fills `info.tls`. `None` where there will be no connection: then the
/// application has been told why.
pub(super) async fn handshake<A: Application>(
    mut stream: Stream,
    prefix: BytesMut,
    deadline: Instant,
    tls: &ListenerTls,
    info: &mut ConnectionInfo,
    application: &A,
) -> Option<TlsStream<Rewind<Stream>>> {
    if prefix.first().is_some_and(u8::is_ascii_uppercase) {
        // A letter is the first byte of a method, and of no TLS record.
        let ticket = application.ledger().accept();
        let sent = stream.write_all(PLAIN_HTTP).await.is_ok() && stream.shutdown().await.is_ok();
        ticket.end(Outcome::Rejected);
        application.refused(info, sent.then_some(StatusCode::BAD_REQUEST));
        // The rest is read, so that the kernel does not take the answer back with a reset.
        let mut scrap = BytesMut::new();
        let rest = async {
            while matches!(stream.read_buf(&mut scrap).await, Ok(1..)) {
                scrap.clear();
            }
        };
        let _ = timeout(LINGER, rest).await;
        return None;
    }
    let handshake = TlsAcceptor::from(tls.config.clone()).accept(Rewind::new(stream, prefix));
    match timeout_at(deadline, handshake).await {
        Ok(Ok(stream)) => {
            info.tls = Some(tls::info(tls, stream.get_ref().1));
            Some(stream)
        }
        Ok(Err(error)) => {
            application.handshake_failed(info, &error.to_string());
            None
        }
        Err(_) => {
            application.handshake_failed(info, "too slow");
            None
        }
    }
}

const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Holds a usual ClientHello, or a usual head.
const FIRST_READ: usize = 4 << 10;

/// More than the heads that a client may send at once.
const FAREWELL_BYTES: usize = 64 << 10;

const LINGER: Duration = Duration::from_secs(1);

const PLAIN_HTTP: &[u8] = b"HTTP/1.1 400 Bad Request\r\n\
    content-type: text/plain; charset=utf-8\r\n\
    content-length: 47\r\n\
    connection: close\r\n\r\n\
    This port speaks HTTPS; the request was plain.\n";
