//! A process whose clock is set to another time than ours.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::process::tool;

/// A library that, preloaded, lets a process and its children believe that it is later: the time of day only, clocks
/// that measure go on as they are.
pub struct Ahead {
    library: PathBuf,
}

impl Ahead {
    /// Compiles the library into a folder, with the compiler that Rust links with.
    #[track_caller]
    pub fn by(time: Duration, folder: &Path) -> Self {
        let (source, library) = (folder.join("ahead.c"), folder.join("ahead.so"));
        let text = SOURCE.replace("AHEAD", &time.as_secs().to_string());
        std::fs::write(&source, text).expect("the source is written");
        let mut compiler = Command::new(tool("cc", "gcc"));
        let status = compiler.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(&source).status();
        assert!(status.expect("cc runs").success());
        Ahead { library }
    }

    /// Runs the command ahead of time.
    pub fn apply(&self, command: &mut Command) {
        command.env("LD_PRELOAD", &self.library);
    }
}

const SOURCE: &str = r"
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *time) {
    int result = syscall(SYS_clock_gettime, clock, time);
    if (result == 0 && clock == CLOCK_REALTIME) time->tv_sec += AHEAD;
    return result;
}
";
