//! What is answered, by the path and the mode.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::sleep;

use super::Mode;
use super::request::Request;
use crate::pattern;

/// What happens to the connection.
pub(super) enum Then {
    Answered { keep: bool },
    Close,
    Reset,
}

const KEEP: Then = Then::Answered { keep: true };
const CHUNK: usize = 1000;

/// Answers one request.
pub(super) async fn answer<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    request: &Request,
    mode: Mode,
) -> io::Result<Then> {
    match mode {
        Mode::Normal | Mode::CloseOnAccept => {}
        Mode::CloseOnRequest => return Ok(Then::Close),
        Mode::ResetOnRequest => return Ok(Then::Reset),
        Mode::Hang => return hang(stream).await,
        Mode::Fail => return whole(stream, request, 500, "text/plain", b"failed\n").await,
        Mode::Garbage => return garbage(stream).await,
    }
    let (path, query) = request.target.split_once('?').unwrap_or((&request.target, ""));
    let seed = query.strip_prefix("seed=").and_then(|seed| seed.parse().ok()).unwrap_or(0);
    let mut parts = path.trim_start_matches('/').splitn(3, '/');
    let (what, first, second) = (parts.next().unwrap_or_default(), parts.next(), parts.next());
    let n = first.and_then(|n| n.parse::<usize>().ok()).unwrap_or(0);
    let binary = "application/octet-stream";
    match what {
        "bytes" => whole(stream, request, 200, binary, &pattern::bytes(seed, n)).await,
        "flipped" => {
            let mut body = pattern::bytes(seed, n.max(1)).to_vec();
            body[n.max(1) - 1] ^= 1;
            whole(stream, request, 200, binary, &body).await
        }
        "chunked" => chunks(stream, &pattern::bytes(seed, n), Some("")).await,
        "trailers" => chunks(stream, &pattern::bytes(seed, n), Some("x-checksum: 1\r\n")).await,
        "short" => chunks(stream, &pattern::bytes(seed, n.saturating_sub(1)), Some("")).await,
        "cut-chunked" => {
            chunks(stream, &pattern::bytes(seed, n / 2), None).await?;
            Ok(Then::Close)
        }
        "cut" => {
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {n}\r\n\r\n");
            stream.write_all(&[head.as_bytes(), &pattern::bytes(seed, n / 2)].concat()).await?;
            Ok(Then::Close)
        }
        "until-close" => {
            let head = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n";
            stream.write_all(&[head, &pattern::bytes(seed, n)[..]].concat()).await?;
            Ok(Then::Answered { keep: false })
        }
        "id" => whole(stream, request, 200, "text/plain", first.unwrap_or_default().as_bytes()).await,
        "status" => {
            let status = first.and_then(|status| status.parse().ok()).unwrap_or(200);
            whole(stream, request, status, "text/plain", first.unwrap_or_default().as_bytes()).await
        }
        "echo" => whole(stream, request, 200, binary, &request.body).await,
        "head" => whole(stream, request, 200, "text/plain", &request.head).await,
        "slow" => {
            sleep(Duration::from_millis(n as u64)).await;
            whole(stream, request, 200, "text/plain", b"ok\n").await
        }
        "drip" => drip(stream, &pattern::bytes(seed, n), second).await,
        "hints" => {
            stream.write_all(b"HTTP/1.1 103 Early Hints\r\nlink: </x.css>; rel=preload\r\n\r\n").await?;
            whole(stream, request, 200, "text/plain", b"ok\n").await
        }
        "close" => Ok(Then::Close),
        "reset" => Ok(Then::Reset),
        "garbage" => garbage(stream).await,
        "hang" => hang(stream).await,
        _ => whole(stream, request, 200, "text/plain", b"ok\n").await,
    }
}

async fn whole(
    stream: &mut (impl AsyncWrite + Unpin),
    request: &Request,
    status: u16,
    kind: &str,
    body: &[u8],
) -> io::Result<Then> {
    let reason =
        http::StatusCode::from_u16(status).ok().and_then(|s| s.canonical_reason()).unwrap_or("Unknown");
    let mut out = format!("HTTP/1.1 {status} {reason}\r\ncontent-type: {kind}\r\n");
    if !matches!(status, 204 | 304) {
        out += &format!("content-length: {}\r\n", body.len());
    }
    if request.close {
        out += "connection: close\r\n";
    }
    let mut out = (out + "\r\n").into_bytes();
    if request.method != "HEAD" && !matches!(status, 204 | 304) {
        out.extend_from_slice(body);
    }
    stream.write_all(&out).await?;
    Ok(KEEP)
}

/// Chunks, and the last one with these trailers, if any are given.
async fn chunks(
    stream: &mut (impl AsyncWrite + Unpin),
    body: &Bytes,
    last: Option<&str>,
) -> io::Result<Then> {
    stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await?;
    for chunk in body.chunks(CHUNK) {
        let size = format!("{:x}\r\n", chunk.len());
        stream.write_all(&[size.as_bytes(), chunk, b"\r\n"].concat()).await?;
    }
    if let Some(trailers) = last {
        stream.write_all(format!("0\r\n{trailers}\r\n").as_bytes()).await?;
    }
    Ok(KEEP)
}

async fn drip(stream: &mut (impl AsyncWrite + Unpin), body: &Bytes, pause: Option<&str>) -> io::Result<Then> {
    let pause = Duration::from_millis(pause.and_then(|ms| ms.parse().ok()).unwrap_or(1));
    stream.write_all(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len()).as_bytes()).await?;
    for byte in body.chunks(1) {
        stream.write_all(byte).await?;
        sleep(pause).await;
    }
    Ok(KEEP)
}

async fn garbage(stream: &mut (impl AsyncWrite + Unpin)) -> io::Result<Then> {
    stream.write_all(b"\x16\x03\x01 this is no HTTP\r\n\r\n").await?;
    Ok(Then::Close)
}

async fn hang(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Then> {
    while stream.read(&mut [0; 1024]).await? > 0 {}
    Ok(Then::Close)
}
