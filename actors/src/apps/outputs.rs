//! What processes of apps write to, in an instance: held so that it outlives the controller, and read while there is none.
//!
//! A pipe that nobody holds ends a program that writes to it, and one that nobody reads makes it wait. So every instance
//! holds all of them, and while its controller is gone, one instance reads them in its stead.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::future::poll_fn;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use parking_lot::Mutex;
use playhouse_protocol::control::AppProcess;
use rustix::fs::{FlockOperation, flock};

use super::output::{Line, Output};
use super::{DIRECTORY, Pipes};
use crate::control::Conversation;
use crate::supervision::{Actor, ChildSpec, Context, Failure};

/// What is held.
#[derive(Debug, Default)]
pub struct Outputs(Mutex<BTreeMap<AppProcess, Pipes>>);

impl Outputs {
    /// Holds what this process writes to.
    pub fn hold(&self, process: AppProcess, pipes: Pipes) {
        let mut held = self.0.lock();
        if held.len() < MOST {
            held.insert(process, pipes);
        }
    }

    /// Holds what these processes write to, and nothing else any more.
    pub fn hold_only(&self, processes: &[AppProcess]) {
        self.0.lock().retain(|process, _| processes.contains(process));
    }

    /// Duplicates of all that is held.
    pub fn duplicates(&self) -> Vec<(AppProcess, Pipes)> {
        let duplicate =
            |[stdout, stderr]: &Pipes| Ok::<_, std::io::Error>([stdout.try_clone()?, stderr.try_clone()?]);
        let held = self.0.lock();
        held.iter().filter_map(|(process, pipes)| Some((process.clone(), duplicate(pipes).ok()?))).collect()
    }

    fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}

/// Each process of a message with its two descriptors.
///
/// # Errors
/// For people: they are more or fewer.
pub fn pair_outputs(
    processes: Vec<AppProcess>,
    descriptors: Vec<OwnedFd>,
) -> Result<Vec<(AppProcess, Pipes)>, String> {
    let (count, wanted) = (descriptors.len(), processes.len() * 2);
    if count != wanted {
        return Err(format!("{count} descriptors for the outputs of {} processes", processes.len()));
    }
    let mut descriptors = descriptors.into_iter();
    // As many as were counted.
    let pair = |process| Some((process, [descriptors.next()?, descriptors.next()?]));
    Ok(processes.into_iter().filter_map(pair).collect())
}

/// Reads in the controller's stead, while there is none.
pub struct Reader {
    conversation: Arc<Conversation>,
}

impl Reader {
    /// The child of an instance's root.
    pub fn spec(conversation: &Arc<Conversation>) -> ChildSpec {
        let conversation = conversation.clone();
        ChildSpec::new(NAME, move || Reader { conversation: conversation.clone() }).stall_after(STALL)
    }

    /// Reads until there is a controller again.
    async fn read(&self, context: &Context) {
        let opened =
            self.conversation.outputs().duplicates().into_iter().filter_map(|(process, [out, err])| {
                Output::new(out, err).ok().map(|output| (process, Some(output)))
            });
        let mut outputs: Vec<_> = opened.collect();
        let write = |process: &AppProcess, line: &Line| line.write(&process.app, process.place, process.pid);
        while !self.conversation.is_linked() {
            context.progress();
            tokio::select! {
                (process, line) = next_line(&mut outputs) => write(&process, &line),
                () = tokio::time::sleep(LOOK) => {}
            }
        }
        for (process, output) in &mut outputs {
            output.iter_mut().flat_map(Output::take_begun).for_each(|line| write(process, &line));
        }
    }
}

impl Actor for Reader {
    type Message = std::convert::Infallible;

    const KIND: &'static str = "app output";

    async fn run(&mut self, context: &Context) -> Result<(), Failure> {
        let directory = self.conversation.identity().directory.join(DIRECTORY);
        loop {
            context.progress();
            // One instance reads; when it is gone, the kernel gives its lock to the next.
            if !self.conversation.is_linked()
                && !self.conversation.outputs().is_empty()
                && let Some(_lock) = lock(&directory)
            {
                self.read(context).await;
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn handle(&mut self, message: Self::Message, _: &Context) -> Result<(), Failure> {
        match message {}
    }
}

/// The next line of any; pending when all have ended.
async fn next_line(outputs: &mut [(AppProcess, Option<Output>)]) -> (AppProcess, Line) {
    poll_fn(|cx| {
        for (process, output) in outputs.iter_mut() {
            let Some(open) = output else { continue };
            match open.poll_line(cx) {
                Poll::Ready(Some(line)) => return Poll::Ready((process.clone(), line)),
                Poll::Ready(None) => *output = None,
                Poll::Pending => {}
            }
        }
        Poll::Pending
    })
    .await
}

/// Held by the one that reads.
fn lock(directory: &Path) -> Option<File> {
    let mut options = OpenOptions::new();
    let file =
        options.write(true).create(true).truncate(false).mode(0o600).open(directory.join(LOCK)).ok()?;
    flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
    Some(file)
}

const NAME: &str = "app-output";
const LOCK: &str = "output.lock";
/// Processes of all apps of a site: far more than one has.
const MOST: usize = 4096;
const LOOK: Duration = Duration::from_millis(100);
const STALL: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    fn null() -> OwnedFd {
        File::open("/dev/null").unwrap().into()
    }

    fn process(pid: u32) -> AppProcess {
        AppProcess { app: "blog".into(), place: 1, pid, started: 1 }
    }

    #[test]
    fn what_is_held_is_given_and_let_go_with_its_process() {
        let outputs = Outputs::default();
        outputs.hold(process(1), [null(), null()]);
        outputs.hold(process(2), [null(), null()]);
        outputs.hold_only(&[process(2), process(3)]);
        let given: Vec<_> = outputs.duplicates().into_iter().map(|(process, _)| process.pid).collect();
        assert_eq!(given, [2]);
        outputs.hold_only(&[]);
        assert!(outputs.is_empty());
    }

    #[test]
    fn each_process_has_two_descriptors() {
        let pairs = pair_outputs(vec![process(1), process(2)], (0..4).map(|_| null()).collect()).unwrap();
        assert_eq!(pairs.len(), 2);
        assert!(pair_outputs(vec![process(1)], vec![null()]).is_err());
        assert!(pair_outputs(Vec::new(), vec![null()]).is_err());
    }
}
