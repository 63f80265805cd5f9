//! curl, as a user runs it.

use std::collections::HashMap;
use std::process::{Command, Stdio};

use super::process::tool;

/// What curl has got.
pub struct Answer {
    /// curl's exit status: 0 is a complete answer.
    pub exit: i32,
    /// Of the last answer; 0 when there was none.
    pub status: u16,
    /// As curl names it: `1.0`, `1.1`, `2`.
    pub version: String,
    /// The fields of the last answer, names in lower case; several of one name are joined with `, `.
    pub headers: HashMap<String, String>,
    /// The status lines and fields of all answers, interim ones and redirects included, as they came.
    pub heads: String,
    /// The content.
    pub body: Vec<u8>,
    /// The connections curl had to open.
    pub connects: u32,
    /// What curl said on stderr.
    pub complaint: String,
}

impl Answer {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    #[track_caller]
    pub fn header(&self, name: &str) -> &str {
        match self.headers.get(name) {
            Some(value) => value,
            None => panic!("no {name} in {self:?}"),
        }
    }

    /// Panics unless the answer is complete and has this status.
    #[track_caller]
    pub fn expect(self, status: u16) -> Self {
        assert_eq!(
            (self.exit, self.status),
            (0, status),
            "{}{}\n{}",
            self.heads,
            self.complaint,
            self.text()
        );
        self
    }
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Answer { exit, status, heads, complaint, body, .. } = self;
        let begin = String::from_utf8_lossy(&body[..body.len().min(500)]);
        write!(f, "exit {exit} status {status} {complaint}\n{heads}{begin}\n({} bytes)", body.len())
    }
}

/// Runs curl with these arguments; the last answer's head and content are taken apart.
///
/// Several URLs and `--http2-prior-knowledge` do not go together: curl 7.88 begins HTTP/2 once more on a connection that
/// it uses again, and fails with exit 16 whatever the server (a defect that is mended in 8.0). Over TLS it works.
#[track_caller]
pub fn curl<I, S>(arguments: I) -> Answer
where
    I: IntoIterator<Item = S>,
    S: AsRef<std::ffi::OsStr>,
{
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (head, body) = (folder.path().join("head"), folder.path().join("body"));
    let output = Command::new(tool("curl", "curl"))
        .args([
            "-q",
            "-sS",
            "--noproxy",
            "*",
            "--max-time",
            "60",
            "-w",
            "%{http_code} %{http_version} %{num_connects}\n",
        ])
        .arg("-D")
        .arg(&head)
        .arg("-o")
        .arg(&body)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("curl runs");
    let written = String::from_utf8_lossy(&output.stdout).into_owned();
    // With several URLs there is a line's worth for each; the last counts, connections are added up.
    let words: Vec<&str> = written.split_whitespace().collect();
    let last = words.len().saturating_sub(3);
    let heads = String::from_utf8_lossy(&std::fs::read(&head).unwrap_or_default()).into_owned();
    Answer {
        exit: output.status.code().unwrap_or(-1),
        status: words.get(last).and_then(|word| word.parse().ok()).unwrap_or(0),
        version: words.get(last + 1).copied().unwrap_or_default().to_owned(),
        connects: words.get(last + 2).and_then(|word| word.parse().ok()).unwrap_or(0),
        headers: fields_of_last(&heads),
        body: std::fs::read(&body).unwrap_or_default(),
        heads,
        complaint: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

fn fields_of_last(heads: &str) -> HashMap<String, String> {
    let mut fields: HashMap<String, String> = HashMap::new();
    let mut after_end = false;
    for line in heads.lines() {
        if line.starts_with("HTTP/") {
            fields.clear();
            after_end = false;
        } else if line.trim().is_empty() {
            after_end = true;
        } else if let Some((name, value)) = line.split_once(':') {
            // curl writes trailers after the blank line; they are in `heads` only.
            if after_end {
                continue;
            }
            let known = fields.entry(name.trim().to_ascii_lowercase()).or_default();
            if !known.is_empty() {
                known.push_str(", ");
            }
            known.push_str(value.trim());
        }
    }
    fields
}
