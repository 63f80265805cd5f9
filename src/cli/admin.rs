//! A client of the admin interface, over the socket in a site's state directory.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use playhouse::state_dir::{self, ADMIN_SOCKET};
use serde::de::DeserializeOwned;

/// An admin interface.
#[derive(Clone, Debug)]
pub(super) struct Admin {
    socket: PathBuf,
    deadline: Duration,
}

impl Admin {
    /// That of the site with this state directory.
    pub(super) fn new(directory: &Path) -> Self {
        Admin { socket: directory.join(ADMIN_SOCKET), deadline: DEADLINE }
    }

    /// The one at this socket, which is to answer within `deadline`.
    pub(super) fn at(socket: PathBuf, deadline: Duration) -> Self {
        Admin { socket, deadline }
    }

    /// Asks for a page.
    pub(super) fn get(&self, path: &str) -> anyhow::Result<serde_json::Value> {
        self.ask("GET", path, "")
    }

    /// Tells it to do something.
    pub(super) fn post(&self, path: &str, body: &serde_json::Value) -> anyhow::Result<serde_json::Value> {
        self.ask("POST", path, &body.to_string())
    }

    /// As [`get`](Self::get), typed.
    pub(super) fn read<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        serde_json::from_value(self.get(path)?).with_context(|| format!("{path}: not what was expected"))
    }

    /// Whether anybody listens.
    pub(super) fn is_there(&self) -> bool {
        UnixStream::connect(&self.socket).is_ok()
    }

    /// Whether nobody listens, for certain: a socket that cannot be reached for another reason is somebody's.
    pub(super) fn is_absent(&self) -> bool {
        let absent = [io::ErrorKind::NotFound, io::ErrorKind::ConnectionRefused];
        UnixStream::connect(&self.socket).is_err_and(|error| absent.contains(&error.kind()))
    }

    /// Why nobody could be asked, and the way out.
    fn absent(&self, error: &io::Error) -> anyhow::Error {
        let directory = self.socket.parent().unwrap_or(Path::new("/"));
        let beside = directory.parent().map(state_dir::running).unwrap_or_default();
        let directory = directory.display();
        match error.kind() {
            io::ErrorKind::NotFound => {
                let names: Vec<_> = beside.iter().filter_map(|path| path.file_name()).collect();
                let names: Vec<_> = names.iter().map(|name| name.to_string_lossy()).collect();
                match names.is_empty() {
                    true => anyhow::anyhow!("no site runs with its state in {directory}"),
                    false => anyhow::anyhow!(
                        "no site runs with its state in {directory}; beside it: {}",
                        names.join(", ")
                    ),
                }
            }
            io::ErrorKind::PermissionDenied => {
                anyhow::anyhow!("{directory}: permission denied; ask as the user who runs the site")
            }
            io::ErrorKind::ConnectionRefused => {
                anyhow::anyhow!(
                    "no site runs with its state in {directory} any more; it has left its socket behind"
                )
            }
            _ => anyhow::anyhow!("{}: {error}", self.socket.display()),
        }
    }

    fn ask(&self, method: &str, path: &str, body: &str) -> anyhow::Result<serde_json::Value> {
        let mut stream = UnixStream::connect(&self.socket).map_err(|error| self.absent(&error))?;
        let answer = exchange(&mut stream, method, path, body, self.deadline)
            .with_context(|| format!("{method} {path} at {}", self.socket.display()))?;
        let value: serde_json::Value = serde_json::from_slice(&answer.content).unwrap_or_else(|_| {
            serde_json::Value::String(String::from_utf8_lossy(&answer.content).trim_end().to_owned())
        });
        if (200..300).contains(&answer.status) {
            return Ok(value);
        }
        match value.get("error").unwrap_or(&value).as_str() {
            Some(message) if !message.is_empty() => bail!("{message}"),
            _ => bail!("{method} {path}: answered with status {}", answer.status),
        }
    }
}

struct Answer {
    status: u16,
    content: Vec<u8>,
}

/// HTTP/1.0, so that the answer ends with its length or with the connection.
fn exchange(
    stream: &mut UnixStream,
    method: &str,
    path: &str,
    body: &str,
    deadline: Duration,
) -> anyhow::Result<Answer> {
    stream.set_read_timeout(Some(deadline))?;
    stream.set_write_timeout(Some(deadline))?;
    write!(
        stream,
        "{method} {path} HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )?;
    let mut bytes = Vec::new();
    match stream.take(MAX_ANSWER).read_to_end(&mut bytes) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => bail!("no answer within {deadline:?}"),
        result => result?,
    };
    parse(bytes)
}

fn parse(mut bytes: Vec<u8>) -> anyhow::Result<Answer> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").context("the answer is cut short")?;
    let content = bytes.split_off(end + 4);
    let head = std::str::from_utf8(&bytes).context("the answer is no HTTP")?;
    let mut lines = head.split("\r\n");
    let status = lines
        .next()
        .filter(|line| line.starts_with("HTTP/1."))
        .and_then(|line| line.split(' ').nth(1)?.parse().ok())
        .context("the answer is no HTTP")?;
    let length = lines
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .and_then(|(_, value)| value.trim().parse::<usize>().ok());
    if length.is_some_and(|length| length != content.len()) {
        bail!("the answer is cut short");
    }
    Ok(Answer { status, content })
}

/// For one answer; a reload may bind, read certificates and write events before it has one.
const DEADLINE: Duration = Duration::from_secs(60);

/// A tree with all connections of a busy site is some 20 MB.
const MAX_ANSWER: u64 = 256 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_its_status_and_its_content() {
        let answer = parse(b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\n{}".to_vec()).unwrap();
        assert_eq!((answer.status, &answer.content[..]), (404, &b"{}"[..]));
        assert_eq!(parse(b"HTTP/1.0 200 OK\r\n\r\nto the end".to_vec()).unwrap().content, b"to the end");
    }

    #[test]
    fn a_cut_or_foreign_answer_is_an_error() {
        for bytes in [
            &b""[..],
            b"HTTP/1.1 200 OK\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{}",
            b"SSH-2.0-x\r\n\r\n",
            b"HTTP/1.1 abc\r\n\r\n",
            b"\xff\r\n\r\n",
        ] {
            assert!(parse(bytes.to_vec()).is_err(), "{}", String::from_utf8_lossy(bytes));
        }
    }
}
