//! MariaDB with one empty database.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::process::{Process, tool};
use super::wait::eventually;

/// A running MariaDB that whoever reaches its socket may use.
pub struct Mariadb {
    _process: Process,
    /// Where it listens.
    pub socket: PathBuf,
}

impl Mariadb {
    /// Starts one with its files in `folder`, and a database of this name.
    #[track_caller]
    pub fn start(folder: &Path, database: &str) -> Self {
        let data = folder.join("database");
        let socket = folder.join("database.sock");
        let of = |option: &str, path: &Path| format!("--{option}={}", path.display());
        let user = rustix::process::geteuid().is_root().then_some("--user=root");
        let mut install = Command::new(tool("mariadb-install-db", "mariadb-server-core"));
        install.args(["--no-defaults", "--skip-test-db", "--skip-name-resolve"]).args(user);
        let output = install.arg(of("datadir", &data)).output().expect("mariadb-install-db runs");
        assert!(output.status.success(), "{output:?}");
        let begin = folder.join("begin.sql");
        std::fs::write(&begin, format!("CREATE DATABASE {database};\n")).expect("a file is written");
        let mut server = Command::new(tool("mariadbd", "mariadb-server-core"));
        server.arg("--no-defaults").args(user).args([of("datadir", &data), of("socket", &socket)]);
        // What is written is gone with the test.
        server.args(["--skip-networking", "--skip-grant-tables", "--innodb-flush-log-at-trx-commit=0"]);
        server.args([of("init-file", &begin), of("pid-file", &folder.join("database.pid"))]);
        let mut process = Process::start("mariadbd", &mut server);
        eventually("the database listens", || {
            if let Some(status) = process.ended() {
                panic!("it has ended at once: {status}\n{}", process.output());
            }
            UnixStream::connect(&socket).is_ok()
        });
        Mariadb { _process: process, socket }
    }
}
