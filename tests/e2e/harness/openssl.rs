//! `openssl s_client`, as a client that comes back.

use std::process::{Command, Stdio};

use super::process::tool;
use super::site::Running;

/// Connects to a listener with TLS `version` (`-tls1_2`, `-tls1_3`) for `name` and asks for `/`, whose answer is `hello`:
/// offers the session in the file `with`, and keeps the one that it is given in the file `into`, both beside the site file.
/// Whether the session was resumed.
#[track_caller]
pub fn resumes(
    site: &Running,
    listener: &str,
    version: &str,
    name: &str,
    with: Option<&str>,
    into: &str,
) -> bool {
    let address = site.address(listener).to_string();
    let mut command = Command::new(tool("openssl", "openssl"));
    command.args(["s_client", version, "-ign_eof", "-connect", &address, "-servername", name]);
    if let Some(session) = with {
        command.arg("-sess_in").arg(site.path(session));
    }
    command.arg("-sess_out").arg(site.path(into));
    // A ticket of TLS 1.3 comes after the handshake, so the answer is waited for.
    site.write("request", format!("GET / HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n"));
    let request = std::fs::File::open(site.path("request")).expect("the request was written");
    let output = command.stdin(Stdio::from(request)).output().expect("openssl runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("HTTP/1.1 200 OK") && text.contains("hello\n"), "{text}\n{output:?}");
    match (text.contains("\nReused, TLSv1."), text.contains("\nNew, TLSv1.")) {
        (true, false) => true,
        (false, true) => false,
        _ => panic!("openssl says neither: {text}"),
    }
}
