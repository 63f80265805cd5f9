//! What a process is given between its fork and its program.

use std::ffi::CString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use rustix::process::{Gid, Resource, Rlimit, Uid, chdir, geteuid, setrlimit};
use rustix::thread::{set_thread_gid, set_thread_groups, set_thread_uid};

/// What a process is given before its program begins, in this order: so limits may be raised that its user may not raise,
/// and its directory is entered with its user's rights. `None` stays as it is here.
#[derive(Clone, Debug, Default)]
pub struct Before {
    /// Limits of what it may have (setrlimit(2)).
    pub limits: Vec<(Resource, Rlimit)>,
    /// Supplementary groups. Who is not root, and may not set any, keeps its own.
    pub groups: Option<Vec<Gid>>,
    /// Its group.
    pub group: Option<Gid>,
    /// Its user.
    pub user: Option<Uid>,
    /// Where it begins.
    pub directory: Option<CString>,
}

/// A program that did not start.
#[derive(Debug)]
pub struct SpawnError {
    /// What could not be done.
    pub step: Step,
    /// Why.
    pub error: io::Error,
}

/// What is done for a program to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The limit at this place in [`Before::limits`].
    Limit(usize),
    /// Its groups.
    Groups,
    /// Its group.
    Group,
    /// Its user.
    User,
    /// Its directory.
    Directory,
    /// Anything else, the program itself above all.
    Program,
}

/// Starts a program. User, group and directory are to be in `before`, not in the command.
///
/// # Errors
/// What could not be done, and why.
pub fn spawn(mut command: Command, before: Before) -> Result<Child, SpawnError> {
    let is_root = geteuid().is_root();
    let closure = move || before.apply(is_root);
    // SAFETY: between fork and exec there is one thread, and what others held stays locked. `apply` makes system calls,
    // without the C library, and allocates nothing, frees nothing and takes no lock. For that one thread, what is set for a
    // thread is set for the process.
    unsafe { command.pre_exec(closure) };
    command.spawn().map_err(SpawnError::new)
}

impl Before {
    fn apply(&self, is_root: bool) -> io::Result<()> {
        let failed = |step: Step| move |errno: rustix::io::Errno| step.encode(errno);
        for (index, (resource, limit)) in self.limits.iter().enumerate() {
            setrlimit(*resource, *limit).map_err(failed(Step::Limit(index)))?;
        }
        match self.groups.as_deref().map(set_thread_groups) {
            Some(Err(errno)) if is_root || errno != rustix::io::Errno::PERM => {
                return Err(Step::Groups.encode(errno));
            }
            _ => {}
        }
        if let Some(group) = self.group {
            set_thread_gid(group).map_err(failed(Step::Group))?;
        }
        if let Some(user) = self.user {
            set_thread_uid(user).map_err(failed(Step::User))?;
        }
        if let Some(directory) = &self.directory {
            chdir(directory.as_c_str()).map_err(failed(Step::Directory))?;
        }
        Ok(())
    }
}

impl Step {
    /// The standard library hands nothing but a number from the child to its parent. Those of errors are small.
    fn encode(self, errno: rustix::io::Errno) -> io::Error {
        let step = match self {
            Step::Program => 0,
            Step::Groups => 1,
            Step::Group => 2,
            Step::User => 3,
            Step::Directory => 4,
            // There are fewer than twenty kinds of limits.
            Step::Limit(index) => 5 + index as i32,
        };
        io::Error::from_raw_os_error(errno.raw_os_error() | step << 16)
    }
}

impl SpawnError {
    fn new(error: io::Error) -> Self {
        let Some(raw) = error.raw_os_error() else { return SpawnError { step: Step::Program, error } };
        let step = match raw >> 16 {
            1 => Step::Groups,
            2 => Step::Group,
            3 => Step::User,
            4 => Step::Directory,
            limit @ 5.. => Step::Limit(limit as usize - 5),
            _ => return SpawnError { step: Step::Program, error },
        };
        SpawnError { step, error: io::Error::from_raw_os_error(raw & 0xffff) }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use super::*;

    fn said(script: &str, before: &Before) -> String {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdout(Stdio::piped());
        let output = spawn(command, before.clone()).unwrap().wait_with_output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    fn files(current: u64, maximum: u64) -> (Resource, Rlimit) {
        (Resource::Nofile, Rlimit { current: Some(current), maximum: Some(maximum) })
    }

    #[test]
    fn a_program_finds_its_limits_when_it_begins() {
        let directory = Some(c"/usr".to_owned());
        let before = Before { limits: vec![files(50, 60)], directory, ..Before::default() };
        for _ in 0..20 {
            assert_eq!(said("ulimit -Sn; ulimit -Hn; pwd", &before), "50\n60\n/usr\n");
        }
    }

    #[test]
    fn root_starts_programs_as_others_in_groups_of_theirs() {
        if !geteuid().is_root() {
            return;
        }
        let before = Before {
            limits: vec![files(50, 60)],
            groups: Some(vec![Gid::from_raw(71), Gid::from_raw(70)]),
            group: Some(Gid::from_raw(70)),
            user: Some(Uid::from_raw(65534)),
            directory: Some(c"/".to_owned()),
        };
        assert_eq!(said("id -u; id -g; id -G; pwd; ulimit -n", &before), "65534\n70\n70 71\n/\n50\n");
    }

    #[test]
    fn what_could_not_be_done_is_told() {
        let failed = |program: &str, before: Before| {
            let error = spawn(Command::new(program), before).unwrap_err();
            (error.step, error.error.kind())
        };
        let nowhere = Some(c"/nowhere/at/all".to_owned());
        let before = Before { directory: nowhere, ..Before::default() };
        assert_eq!(failed("true", before), (Step::Directory, io::ErrorKind::NotFound));
        let program = (Step::Program, io::ErrorKind::NotFound);
        assert_eq!(failed("no-such-program-here", Before::default()), program);
        let before = Before { limits: vec![files(50, 60), files(60, 50)], ..Before::default() };
        assert_eq!(failed("true", before), (Step::Limit(1), io::ErrorKind::InvalidInput));
    }
}
