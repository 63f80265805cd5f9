//! Chromium without a window, driven over W3C WebDriver by Debian's chromedriver.

use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::process::{Process, tool};
use super::wait::PATIENCE;
use super::wire::Wire;

/// A browser with a profile of its own and one tab.
pub struct Browser {
    driver: Process,
    address: SocketAddr,
    session: String,
    /// The profile, and what is downloaded.
    _folder: TempDir,
}

impl Browser {
    /// Starts one. It takes any certificate, and finds every name that ends in `.test` on 127.0.0.1; `flags` are further ones
    /// of Chromium's command line.
    #[track_caller]
    pub fn start(flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut command = Command::new(tool("chromedriver", "chromium-driver"));
        // A group of their own, so that no process of the browser's is left.
        command.args(["--port=0"]).process_group(0).env("HOME", folder.path()).env("TMPDIR", folder.path());
        let mut driver = Process::start("chromedriver", &mut command);
        let port: u16 = driver.line("its port", |line| {
            let (_, port) = line.split_once("started successfully on port ")?;
            port.trim_end_matches('.').parse().ok()
        });
        let profile = format!("--user-data-dir={}", folder.path().join("profile").display());
        let arguments: Vec<&str> = FLAGS.iter().chain(flags).copied().chain([profile.as_str()]).collect();
        let capabilities = json!({"capabilities": {"alwaysMatch": {
            "acceptInsecureCerts": true,
            "timeouts": {"script": PATIENCE.as_millis() as u64, "pageLoad": PATIENCE.as_millis() as u64},
            "goog:chromeOptions": {"args": arguments, "binary": chromium()},
        }}});
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let mut browser = Browser { driver, address, session: String::new(), _folder: folder };
        let session = browser.ask("POST", "/session", &capabilities);
        let session = session.unwrap_or_else(|error| panic!("Chromium does not start: {error}"));
        browser.session = session["sessionId"].as_str().expect("a session has a name").to_owned();
        browser
    }

    /// Goes to a page, and returns when it is loaded.
    #[track_caller]
    pub fn open(&self, url: &str) -> &Self {
        self.expect("POST", "/url", &json!({"url": url}));
        self
    }

    /// The body of an asynchronous function, which is run in the page; gives what it returns.
    #[track_caller]
    pub fn run(&self, script: &str, arguments: &[Value]) -> Value {
        let script = format!("return (async function() {{ {script} }}).apply(null, arguments)");
        self.expect("POST", "/execute/sync", &json!({"script": script, "args": arguments}))
    }

    /// Waits until a part of the page says this.
    #[track_caller]
    pub fn sees(&self, selector: &str, text: &str) -> &Self {
        self.until(&format!("{selector} says {text:?}"), || {
            let script = "return [...document.querySelectorAll(arguments[0])].some(\
                              element => element.innerText.includes(arguments[1]))";
            let arguments = json!({"script": script, "args": [selector, text]});
            self.ask("POST", &self.at("/execute/sync"), &arguments).is_ok_and(|found| found == true)
        })
    }

    /// Waits until the page's address has this in it.
    #[track_caller]
    pub fn arrives(&self, part: &str) -> &Self {
        self.until(&format!("it is at {part}"), || {
            let url = self.ask("GET", &self.at("/url"), &Value::Null);
            url.is_ok_and(|url| url.as_str().is_some_and(|url| url.contains(part)))
        })
    }

    /// Clicks as a person does, and waits for a page that is loaded by it.
    #[track_caller]
    pub fn click(&self, selector: &str) -> &Self {
        self.with(selector, |element| self.ask("POST", &format!("{element}/click"), &json!({})));
        self
    }

    /// Types into a field, in place of what it has.
    #[track_caller]
    pub fn fill(&self, selector: &str, text: &str) -> &Self {
        self.with(selector, |element| {
            self.ask("POST", &format!("{element}/clear"), &json!({}))?;
            self.ask("POST", &format!("{element}/value"), &json!({"text": text}))
        });
        self
    }

    /// Chooses a file in a field for files.
    #[track_caller]
    pub fn choose(&self, selector: &str, file: &Path) -> &Self {
        let path = file.to_str().expect("a path of the tests is UTF-8");
        self.with(selector, |element| self.ask("POST", &format!("{element}/value"), &json!({"text": path})));
        self
    }

    /// Goes on trying what is to be done with an element: pages change while they are loaded.
    #[track_caller]
    fn with(&self, selector: &str, mut act: impl FnMut(&str) -> Result<Value, String>) -> Value {
        let (begun, location) = (Instant::now(), json!({"using": "css selector", "value": selector}));
        loop {
            let found = self.ask("POST", &self.at("/element"), &location);
            let done = found.and_then(|element| {
                let name = element[ELEMENT].as_str().expect("an element has a name");
                act(&self.at(&format!("/element/{name}")))
            });
            match done {
                Ok(value) => return value,
                Err(error) if begun.elapsed() > PATIENCE => panic!("{selector}: {error}\n{}", self.page()),
                Err(_) => std::thread::sleep(BETWEEN_LOOKS),
            }
        }
    }

    #[track_caller]
    fn until(&self, what: &str, mut condition: impl FnMut() -> bool) -> &Self {
        let begun = Instant::now();
        while !condition() {
            assert!(begun.elapsed() < PATIENCE, "not yet: {what}\n{}", self.page());
            std::thread::sleep(BETWEEN_LOOKS);
        }
        self
    }

    /// What it shows, for messages.
    fn page(&self) -> String {
        let script = json!({"script": "return location.href + '\\n' + document.body.innerText", "args": []});
        match self.ask("POST", &self.at("/execute/sync"), &script) {
            Ok(text) => text.as_str().unwrap_or_default().chars().take(3000).collect(),
            Err(error) => error,
        }
    }

    fn at(&self, command: &str) -> String {
        format!("/session/{}{command}", self.session)
    }

    #[track_caller]
    fn expect(&self, method: &str, command: &str, content: &Value) -> Value {
        let answer = self.ask(method, &self.at(command), content);
        answer.unwrap_or_else(|error| panic!("{command} {content}: {error}"))
    }

    /// One command (<https://www.w3.org/TR/webdriver2/>): its value, or what went wrong.
    fn ask(&self, method: &str, target: &str, content: &Value) -> Result<Value, String> {
        let content = if content.is_null() { String::new() } else { content.to_string() };
        let request = format!(
            "{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Content-Type: application/json; charset=utf-8\r\nContent-Length: {}\r\n\r\n{content}",
            content.len()
        );
        let mut wire = Wire::connect(self.address);
        // It has deadlines of its own, and says so then.
        wire.patience(2 * PATIENCE);
        let response = wire.try_send(request).and_then(|()| wire.try_response(false));
        let response = response.map_err(|error| format!("chromedriver does not answer: {error}"))?;
        let mut answer: Value = serde_json::from_slice(&response.body).map_err(|error| error.to_string())?;
        match response.status {
            200 => Ok(answer["value"].take()),
            _ => Err(format!("{}: {}", answer["value"]["error"], answer["value"]["message"])),
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() && TcpStream::connect(self.address).is_ok() {
            if std::thread::panicking() {
                eprintln!("the browser shows {}", self.page());
            }
            let _ = self.ask("DELETE", &self.at(""), &Value::Null);
        }
        // The group is chromedriver's, which was made for it and is not reaped yet.
        let _ = rustix::process::kill_process_group(self.driver.pid(), Signal::KILL);
        self.driver.kill();
    }
}

/// Debian's is `chromium`; others have their own names for it.
#[track_caller]
fn chromium() -> std::path::PathBuf {
    let found =
        ["/usr/bin/chromium", "/usr/bin/google-chrome"].iter().map(Path::new).find(|path| path.exists());
    found.map_or_else(|| tool("chromium", "chromium"), Path::to_path_buf)
}

const FLAGS: [&str; 12] = [
    "--headless",
    // As root, in a container, it has no sandbox; and it is shown nothing but our own pages.
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--no-proxy-server",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-search-engine-choice-screen",
    "--window-size=1280,1600",
    "--host-resolver-rules=MAP *.test 127.0.0.1",
];

/// The name of the one member of an element's JSON.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

const BETWEEN_LOOKS: Duration = Duration::from_millis(25);
