//! One instance process, led over its link as a controller leads it.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use playhouse_actors::control::link::{Link, Receiver, Sender};
use playhouse_actors::control::process::{ExitStatus, Process};
use playhouse_actors::control::record::Record;
use playhouse_actors::control::{admin_path, control_path, is_instance_of, number, pair};
use playhouse_protocol::control::{Hello, Passed, SiteText, State, ToController, ToInstance, VERSION};
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::harness::{Admin, PATIENCE, curl, eventually};

type Ends = (Sender<ToInstance>, Receiver<ToController>);

/// A controller that does what a test tells it, and the only instance that it has.
struct Controller {
    runtime: Runtime,
    directory: TempDir,
    process: Process,
    ends: Option<Ends>,
    listener: TcpListener,
    address: SocketAddr,
    /// Connects, and never answers.
    silent: TcpListener,
}

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.process.kill(Signal::KILL);
        self.runtime.block_on(self.process.wait());
    }
}

impl Controller {
    /// Starts an instance, and hears its first word.
    // What waits for it is `Process`.
    #[allow(clippy::zombie_processes)]
    fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (process, ends) = runtime.block_on(async {
            let (link, theirs) = Link::pair().unwrap();
            let child = Command::new(env!("CARGO_BIN_EXE_playhouse"))
                .arg("instance")
                .arg("--state-dir")
                .arg(directory.path())
                .args(["--slot", "3", "--generation", "7", "--site", "shop"])
                .stdin(Stdio::from(theirs))
                .process_group(0)
                .spawn()
                .unwrap();
            (Process::of_child(&child).unwrap(), link.split())
        });
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let ends = Some(ends);
        let controller = Controller { runtime, directory, process, ends, listener, address, silent };
        let hello = controller.hello();
        assert_eq!((hello.pid, hello.started), (controller.process.pid(), controller.process.started()));
        assert_eq!((&*hello.site, hello.slot, hello.generation), ("shop", 3, 7));
        assert_eq!((hello.state, hello.revision, hello.version), (Some(State::Starting), 0, VERSION));
        controller
    }

    /// Starts an instance that serves.
    fn serving() -> Self {
        let controller = Self::start();
        controller.configure(1, "one");
        controller.expect("configured", |message| match message {
            ToController::Configured { revision: 1, listeners_added, .. } => Some(listeners_added),
            ToController::Refused { error, .. } => panic!("refused: {error}"),
            _ => None,
        });
        controller.expect_state(State::Ready);
        controller.send(&ToInstance::Activate);
        controller.expect_state(State::Active);
        controller
    }

    fn send(&self, message: &ToInstance) {
        self.send_with(message, Vec::new());
    }

    fn send_with(&self, message: &ToInstance, descriptors: Vec<OwnedFd>) {
        let _guard = self.runtime.enter();
        self.ends.as_ref().unwrap().0.send(message, descriptors).unwrap();
    }

    fn site(&self, revision: u64, body: &str) -> SiteText {
        let text = format!(
            r#"(
                name: "shop",
                drain_timeout: "10m",
                listeners: {{ "http": (bind: "{}") }},
                upstreams: {{ "silent": (servers: ["{}"]) }},
                routes: [
                    (path: "/", to: Respond(status: 200, body: "{body}")),
                    (path: "/slow", to: Proxy("silent")),
                ],
            )"#,
            self.address,
            self.silent.local_addr().unwrap(),
        );
        SiteText { path: self.directory.path().join("site.ron"), text, revision }
    }

    fn configure(&self, revision: u64, body: &str) {
        let duplicate = self.listener.try_clone().unwrap().into();
        let (sockets, descriptors) = number(vec![("http".into(), 0, duplicate)]);
        let site = self.site(revision, body);
        self.send_with(&ToInstance::Configure { site, sockets }, descriptors);
    }

    /// The next message that `pick` takes, with its descriptors; others are passed over.
    fn expect_with<T>(&self, what: &str, mut pick: impl FnMut(ToController, Vec<OwnedFd>) -> Option<T>) -> T {
        let receiver = &self.ends.as_ref().unwrap().1;
        let picked = async {
            loop {
                let (message, descriptors) = receiver.recv().await.unwrap().expect("the link has ended");
                if let Some(picked) = pick(message, descriptors) {
                    return picked;
                }
            }
        };
        let picked = self.runtime.block_on(async { tokio::time::timeout(PATIENCE, picked).await });
        picked.unwrap_or_else(|_| panic!("not in time: {what}"))
    }

    fn expect<T>(&self, what: &str, mut pick: impl FnMut(ToController) -> Option<T>) -> T {
        self.expect_with(what, |message, _| pick(message))
    }

    fn expect_state(&self, expected: State) {
        self.expect(expected.as_str(), |message| {
            matches!(message, ToController::State { state } if state == expected).then_some(())
        });
    }

    fn hello(&self) -> Hello {
        self.expect("hello", |message| match message {
            ToController::Hello(hello) => Some(hello),
            _ => None,
        })
    }

    /// Goes, as a controller that is killed.
    fn vanish(&mut self) {
        let _guard = self.runtime.enter();
        self.ends = None;
    }

    /// Comes back, as the next controller.
    fn connect(&mut self) {
        let path = control_path(self.directory.path(), 3);
        let connect = async { tokio::time::timeout(PATIENCE, Link::connect(&path)).await };
        let ends = self.runtime.block_on(async {
            connect.await.unwrap().map(|link| {
                assert_eq!(link.peer().pid, self.process.pid());
                link.split()
            })
        });
        self.ends = Some(ends.unwrap());
    }

    fn answer(&self) -> String {
        curl(["-sS", &format!("http://{}/", self.address)]).expect(200).text()
    }

    fn exit(&self) -> ExitStatus {
        let wait = async { tokio::time::timeout(PATIENCE, self.process.wait()).await };
        self.runtime.block_on(wait).expect("it ends").expect("a child")
    }

    fn files(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.directory.path()).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    }

    fn admin(&self) -> Admin {
        Admin::new(admin_path(self.directory.path(), 3))
    }
}

#[test]
fn an_instance_lives_from_its_first_word_to_its_drain_through_two_controllers() {
    let mut controller = Controller::start();
    let record = Record::read(controller.directory.path(), 3).unwrap().unwrap();
    assert_eq!((record.pid, record.generation), (controller.process.pid(), 7));
    assert!(is_instance_of(record.pid, controller.directory.path(), 3));

    controller.configure(1, "one");
    let added = controller.expect("configured", |message| match message {
        ToController::Configured { revision: 1, listeners_added, .. } => Some(listeners_added),
        ToController::Refused { error, .. } => panic!("refused: {error}"),
        _ => None,
    });
    assert_eq!(added, ["http"]);
    controller.expect_state(State::Ready);
    let first = controller.expect("a sample", |message| match message {
        ToController::Sample(sample) => Some(sample),
        _ => None,
    });
    assert!(first.cpu_us > 0 && first.rss_bytes > 1 << 20, "{first:?}");

    // Ready, it accepts nobody: a client waits in the kernel's queue until the word is given.
    let waiting = TcpStream::connect(controller.address).unwrap();
    let next = controller.expect("a sample", |message| match message {
        ToController::Sample(sample) if sample.number > first.number => Some(sample),
        _ => None,
    });
    assert_eq!((next.connections, next.accepted), (0, 0));
    controller.send(&ToInstance::Activate);
    controller.expect_state(State::Active);
    assert_eq!(controller.answer(), "one");
    drop(waiting);

    // A configuration that is refused changes nothing, the next is in force.
    let mut broken = controller.site(2, "two");
    broken.text = broken.text.replace("Respond", "Respnd");
    controller.send(&ToInstance::Configure { site: broken, sockets: Vec::new() });
    let error = controller.expect("refused", |message| match message {
        ToController::Refused { revision: 2, error } => Some(error),
        _ => None,
    });
    assert!(error.contains("Respnd"), "{error}");
    assert_eq!(controller.answer(), "one");
    controller.configure(3, "three");
    controller.expect("configured", |message| {
        matches!(message, ToController::Configured { revision: 3, .. }).then_some(())
    });
    assert_eq!(controller.answer(), "three");

    // Its tree has its name, and losing the actor that speaks loses nothing that was said.
    let admin = controller.admin();
    assert!(admin.paths().iter().all(|path| path.starts_with("instance-3")), "{:?}", admin.paths());
    admin.kill_and_see_it_back("instance-3/control", "kill");
    controller.configure(4, "four");
    controller.expect("configured", |message| {
        assert!(!matches!(message, ToController::Hello(_)));
        matches!(message, ToController::Configured { revision: 4, .. }).then_some(())
    });

    // Without a controller it serves on, and speaks to the next.
    controller.vanish();
    assert_eq!(controller.answer(), "four");
    controller.connect();
    let hello = controller.hello();
    assert_eq!((hello.state, hello.revision), (Some(State::Active), 4));
    controller.send(&ToInstance::GiveSockets);
    let given = controller.expect_with("sockets", |message, descriptors| match message {
        ToController::Sockets { sockets, more: false } => Some(pair(sockets, descriptors).unwrap()),
        _ => None,
    });
    let [(Passed { listener, slot: 0, .. }, descriptor)] = <[_; 1]>::try_from(given).unwrap() else {
        panic!("another slot");
    };
    assert_eq!(listener, "http");
    let given = TcpListener::from(descriptor);
    assert_eq!(given.local_addr().unwrap(), controller.address);

    // Others hold the sockets: it takes no more from their queue, and goes.
    controller.send(&ToInstance::Drain { deadline_ms: 5_000, last: false });
    controller.expect_state(State::Draining);
    assert_eq!(controller.exit(), ExitStatus::Exited(0));
    assert_eq!(controller.files(), Vec::<PathBuf>::new());
    given.set_nonblocking(false).unwrap();
    let client = TcpStream::connect(controller.address).unwrap();
    assert_eq!(given.accept().unwrap().1, client.local_addr().unwrap());
}

/// A controller of a later build comes, and says this with these descriptors.
type Later = (Sender<Value>, Receiver<Value>);

impl Controller {
    fn comes_later(&self) -> Later {
        let path = control_path(self.directory.path(), 3);
        self.runtime.block_on(async { Link::connect(&path).await.unwrap().split() })
    }

    fn says_later(&self, later: &Later, message: Value, descriptors: Vec<OwnedFd>) {
        let _guard = self.runtime.enter();
        later.0.send(&message, descriptors).unwrap();
    }

    /// The next message of this type; `None` where the link has ended before it came.
    fn hears_later(&self, later: &Later, kind: &str) -> Option<Value> {
        let heard = async {
            while let Ok(Some((message, _))) = later.1.recv().await {
                if message["type"] == kind {
                    return Some(message);
                }
            }
            None
        };
        self.runtime.block_on(async { tokio::time::timeout(PATIENCE, heard).await }).expect("in time")
    }

    fn later_hello(&self, major: u32) -> Value {
        json!({"type": "hello", "version": {"major": major, "minor": 9, "patch": 4}, "build": "9.0.0",
            "pid": std::process::id(), "started": 1, "site": "shop", "generation": 7, "moon": "full"})
    }
}

#[test]
fn a_controller_of_a_later_build_is_understood_where_it_only_says_more() {
    let mut controller = Controller::serving();
    controller.vanish();
    let later = controller.comes_later();
    assert_eq!(controller.hears_later(&later, "hello").unwrap()["version"]["major"], VERSION.major);
    controller.says_later(&later, controller.later_hello(VERSION.major), Vec::new());
    controller.says_later(&later, json!({"type": "juggle", "balls": 3}), Vec::new());
    let site = controller.site(2, "two");
    let configure = json!({"type": "configure", "how": "gently",
        "site": {"path": site.path, "text": site.text, "revision": 2, "signed": [1]},
        "sockets": [{"listener": "http", "slot": 0, "descriptor": 0, "colour": "red"}]});
    controller.says_later(&later, configure, vec![controller.listener.try_clone().unwrap().into()]);
    assert_eq!(controller.hears_later(&later, "configured").unwrap()["revision"], 2);
    assert_eq!(controller.answer(), "two");
}

#[test]
fn a_controller_of_another_major_version_is_refused_and_the_instance_serves_on() {
    let mut controller = Controller::serving();
    controller.vanish();
    let later = controller.comes_later();
    controller.says_later(&later, controller.later_hello(VERSION.major + 1), Vec::new());
    assert_eq!(controller.hears_later(&later, "never"), None, "the link goes on");
    assert_eq!(controller.answer(), "one");
    // One that it understands is spoken to as if nothing had been.
    controller.connect();
    assert_eq!(controller.hello().state, Some(State::Active));
    controller.configure(3, "three");
    controller.expect("configured", |message| {
        matches!(message, ToController::Configured { revision: 3, .. }).then_some(())
    });
    // Before it serves, there is nothing to go on with.
    let controller = Controller::start();
    let mut hello = controller.later_hello(VERSION.major + 1);
    hello["version"] = json!({"major": VERSION.major + 1});
    let hello = serde_json::from_value(hello).unwrap();
    controller.send(&hello);
    assert_eq!(controller.exit(), ExitStatus::Exited(1));
    assert_eq!(controller.files(), Vec::<PathBuf>::new());
}

#[test]
fn an_instance_that_was_never_told_to_serve_ends_with_its_link() {
    // Before it has a configuration, and when it is ready.
    for configured in [false, true] {
        let mut controller = Controller::start();
        if configured {
            controller.configure(1, "one");
            controller.expect_state(State::Ready);
        }
        controller.vanish();
        assert_eq!(controller.exit(), ExitStatus::Exited(1));
        assert_eq!(controller.files(), Vec::<PathBuf>::new());
    }
}

#[test]
fn an_instance_that_cannot_open_its_first_configuration_says_why_and_ends() {
    let controller = Controller::start();
    // A listener without a socket: an instance binds nothing itself.
    controller.send(&ToInstance::Configure { site: controller.site(1, "one"), sockets: Vec::new() });
    let error = controller.expect("refused", |message| match message {
        ToController::Refused { revision: 1, error } => Some(error),
        _ => None,
    });
    assert!(error.contains("http"), "{error}");
    assert_eq!(controller.exit(), ExitStatus::Exited(1));
    assert_eq!(controller.files(), Vec::<PathBuf>::new());
}

#[test]
fn signals_of_a_terminal_do_nothing_to_an_instance_and_term_drains_it() {
    let controller = Controller::serving();
    for signal in [Signal::INT, Signal::HUP] {
        controller.process.kill(signal).unwrap();
    }
    assert_eq!(controller.answer(), "one");
    controller.process.kill(Signal::TERM).unwrap();
    controller.expect_state(State::Draining);
    assert_eq!(controller.exit(), ExitStatus::Exited(0));
    assert_eq!(controller.files(), Vec::<PathBuf>::new());
}

#[test]
fn a_drain_ends_what_is_left_at_its_deadline() {
    let controller = Controller::serving();
    let mut wire = crate::harness::Wire::connect(controller.address);
    wire.send("GET /slow HTTP/1.1\r\nHost: x\r\n\r\n");
    eventually("the request is in flight", || controller.admin().status()["ledger"]["in_flight"] == 1);
    controller.send(&ToInstance::Drain { deadline_ms: 200, last: true });
    controller.expect_state(State::Draining);
    // Long before the site's own drain timeout.
    assert_eq!(controller.exit(), ExitStatus::Exited(0));
    wire.expect_closed();
}

#[test]
fn by_hand_there_is_no_instance() {
    let directory = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_playhouse"))
        .arg("instance")
        .arg("--state-dir")
        .arg(directory.path())
        .args(["--slot", "1", "--generation", "1", "--site", "shop"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("playhouse run"), "{said}");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}
