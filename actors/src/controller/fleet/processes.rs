//! The fleet's processes: how each is started or taken over, told what to serve, sent away, and buried.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use playhouse_protocol::control::{MAX_DESCRIPTORS, Passed, SiteText, State, ToInstance};
use playhouse_serve::sockets::Passable;

use super::{Fleet, Member};
use crate::control;
use crate::control::crash::{self, crash_point};
use crate::control::link::Link;
use crate::control::process::Process;
use crate::controller::memo::Trial;
use crate::controller::small_pages;
use crate::service_manager;

impl Fleet {
    /// Starts one more process in the lowest free place. It is configured by its keeper.
    ///
    /// # Errors
    /// What the system says; nothing is left behind.
    pub(in crate::controller) fn start(&self) -> io::Result<Arc<Member>> {
        // The program that runs, even where its file has been replaced by another build meanwhile.
        self.start_process(Path::new("/proc/self/exe"), false)
    }

    /// Starts one process of another build, which is never told to serve.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub(in crate::controller) fn start_on_trial(&self, program: &Path) -> io::Result<Arc<Member>> {
        let member = self.start_process(program, true)?;
        crash_point("upgrade-start");
        // Where it does not end by itself with its link, the next controller is to end it.
        let trial = Trial::of(member.process());
        if let Err(error) = self.remember(|memo| memo.trial = Some(trial)) {
            member.kill("it cannot be written down");
            self.notify();
            return Err(error);
        }
        crash_point("upgrade-noted");
        self.notify();
        Ok(member)
    }

    fn start_process(&self, program: &Path, held: bool) -> io::Result<Arc<Member>> {
        let slot = {
            let members = self.members.lock();
            (1..=self.slots()).find(|slot| !members.contains_key(slot))
        };
        let slot = slot.ok_or_else(|| io::Error::other("every place has its process"))?;
        let generation = self.memo.lock().generation + 1;
        self.remember(|memo| memo.generation = generation)?;
        // The page is there before the process, and whole: with a full disk there is neither.
        self.accounts.page_for(slot, generation)?;
        let member = match self.spawn(program, slot, generation) {
            Ok(member) => Arc::new(member),
            Err(error) => {
                let _ = self.accounts.fold(slot, generation);
                return Err(error);
            }
        };
        member.hold(held);
        self.starts.lock().begun += 1;
        self.members.lock().insert(slot, member.clone());
        Ok(member)
    }

    fn spawn(&self, program: &Path, slot: u32, generation: u64) -> io::Result<Member> {
        use std::os::unix::process::CommandExt;

        let (link, theirs) = Link::pair()?;
        let in_force = self.in_force.load();
        let threads = in_force.site.threads.map_or(1, |threads| threads.get());
        let mut command = Command::new(program);
        command
            .arg0("playhouse")
            .arg("instance")
            .arg("--state-dir")
            .arg(&self.directory)
            .args(["--site", &in_force.site.name, "--threads", &threads.to_string()])
            .args(["--slot", &slot.to_string(), "--generation", &generation.to_string()])
            .stdin(Stdio::from(theirs))
            .env_remove(crash::VARIABLE)
            // What a terminal sends to its foreground group is for the controller alone.
            .process_group(0);
        for variable in service_manager::variables() {
            command.env_remove(variable);
        }
        let child = small_pages::as_found(|| command.spawn())?;
        // Until it is reaped its number is its own, so this is about no other process.
        let process = Process::of_child(&child)?;
        crash_point("start");
        Ok(Member::new(slot, generation, process, link.split(), None))
    }

    /// Takes over a process that a controller before this one has started.
    pub(in crate::controller) fn adopt(&self, member: Member) -> Arc<Member> {
        let member = Arc::new(member);
        self.starts.lock().adopted += 1;
        self.members.lock().insert(member.slot(), member.clone());
        member
    }

    /// Sends a configuration to an instance, with the sockets that it names.
    pub(in crate::controller) fn configure(
        &self,
        member: &Member,
        text: &SiteText,
        mut sockets: Vec<Passable>,
    ) -> io::Result<()> {
        let send = |message: &ToInstance, descriptors| {
            member.send(message, descriptors).map_err(|error| io::Error::other(error.to_string()))
        };
        while sockets.len() > MAX_DESCRIPTORS {
            let rest = sockets.split_off(MAX_DESCRIPTORS);
            let (passed, descriptors) = numbered(std::mem::replace(&mut sockets, rest));
            send(&ToInstance::Sockets { sockets: passed }, descriptors)?;
        }
        let (passed, descriptors) = numbered(sockets);
        send(&ToInstance::Configure { site: text.clone(), sockets: passed }, descriptors)?;
        member.note_sent(text.revision);
        crash_point("configure");
        Ok(())
    }

    /// Tidies up behind a process that has ended: its ledger page, its gauges, its files.
    pub(in crate::controller) fn bury(&self, member: &Member) {
        member.set_state(State::Gone);
        self.board.clear(member.slot());
        self.steer();
        self.addresses.release_slot(member.slot());
        if let Some(audience) = self.apps.audience() {
            audience.leaves(member.slot());
        }
        if let Err(error) = self.accounts.fold(member.slot(), member.generation()) {
            // Its counts are in the sums all the same, and the next fold takes it along.
            tracing::warn!(instance = member.name(), %error, "the ledger's page of an instance that has ended stays for now");
        }
        control::remove_files(&self.directory, member.slot(), member.process());
        self.notify();
    }

    /// Folds the ledger pages of processes that no instance here is: they have ended without a controller.
    pub(in crate::controller) fn bury_the_dead(&self) {
        let living: Vec<_> =
            self.members().iter().map(|member| (member.slot(), member.generation())).collect();
        for (slot, generation) in self.accounts.pages() {
            if living.contains(&(slot, generation)) {
                continue;
            }
            if !living.iter().any(|(living, _)| *living == slot) {
                // Before its page is gone, and nobody knows any more that it was there.
                self.board.clear(slot);
                self.addresses.release_slot(slot);
            }
            if let Err(error) = self.accounts.fold(slot, generation) {
                tracing::warn!(slot, generation, %error, "a ledger page of a process that has ended stays for now");
            }
        }
    }

    /// Removes what only a running site needs. All processes have ended.
    pub(in crate::controller) fn clean_up(&self) {
        crate::controller::remove_shared(&self.directory, &self.accounts);
    }

    /// Gives the place of an instance that is buried to others.
    pub(in crate::controller) fn forget(&self, member: &Member) {
        let mut members = self.members.lock();
        if members.get(&member.slot()).is_some_and(|other| other.generation() == member.generation()) {
            members.remove(&member.slot());
        }
        drop(members);
        self.notify();
    }

    /// Asks an instance to finish what it has and to go.
    pub(in crate::controller) fn drain(&self, member: &Member, last: bool) {
        let deadline = self.in_force.load().site.drain_timeout;
        if member.is_asked_to_drain() && !last {
            return;
        }
        member.note_drain(deadline);
        // First nobody is sent there any more, then it empties what it has.
        self.steer();
        let message = ToInstance::Drain { deadline_ms: deadline.as_millis() as u64, last };
        if member.send(&message, Vec::new()).is_err() {
            // TERM says the same to a process whose link is down.
            let _ = member.process().kill(rustix::process::Signal::TERM);
        }
        crash_point("drain");
        self.notify();
    }
}

fn numbered(sockets: Vec<Passable>) -> (Vec<Passed>, Vec<OwnedFd>) {
    let number = |(index, socket): (usize, Passable)| {
        let Passable { listener, slot, descriptor } = socket;
        (Passed { listener: listener.to_string(), slot, descriptor: index as u32 }, descriptor)
    };
    sockets.into_iter().enumerate().map(number).unzip()
}
