//! Sockets that are only held, never accepted from: what a controller has, so that there is always one who does.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;
use playhouse_config::model::{self, Bind, Sharing};

use super::given::Given;
use super::holding::{Holding, open_to_hold};
use super::plan::{self, Place, Source};
use super::prepare::{BindError, BindErrorKind, PORTS, is_chosen_by_kernel};
use super::quic::quic_name;
use super::quic_holding::{Ids, Steering, open_quic};
use crate::net::{KeySource, QuicGroup, Weighted};

/// The listening sockets of a site, opened here and accepted from elsewhere. Needs no runtime.
///
/// Dropped, it leaves socket files where they are, since others may be listening; [`Bound::close`] removes them.
#[derive(Debug, Default)]
pub struct Bound {
    held: Mutex<Vec<Held>>,
    /// What a listener with a socket per instance gets.
    slots: AtomicU32,
    /// The slots that new clients go to.
    active: Mutex<Vec<Weighted>>,
    /// Where the packets of HTTP/3 go.
    quic: Mutex<Steering>,
    ids: Ids,
}

#[derive(Clone, Debug)]
struct Held {
    name: Arc<str>,
    bind: Bind,
    sharing: Sharing,
    holding: Arc<Holding>,
    /// Whether HTTP/3 is offered.
    http3: bool,
    /// Kept where it is not offered any more: connections may last, and the address cannot be bound again meanwhile.
    quic: Option<Arc<QuicGroup>>,
}

/// Sockets that are open but do not count yet. Dropped, it closes those it has opened.
#[derive(Debug, Default)]
pub struct PreparedBound {
    held: Vec<Held>,
    opened: Vec<Arc<Holding>>,
    opened_quic: Vec<Arc<QuicGroup>>,
}

/// What a commit has changed, by the listener's name. One whose address has changed is in both.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BoundChanges {
    /// Sockets that were opened, bound or given.
    pub added: Vec<Arc<str>>,
    /// Sockets that are closed here now.
    pub removed: Vec<Arc<str>>,
}

/// What was opened for a listener, or goes on.
struct Opened {
    holding: Arc<Holding>,
    is_new: bool,
    /// The same of HTTP/3.
    quic: Option<(Arc<QuicGroup>, bool)>,
}

/// A duplicate of a socket, to be passed on.
#[derive(Debug)]
pub struct Passable {
    /// The listener's name; with `:h3` behind it, it is one of its UDP sockets.
    pub listener: Arc<str>,
    /// Its place where the listener has a socket per instance, from 1; else 0.
    pub slot: u32,
    /// Close-on-exec.
    pub descriptor: OwnedFd,
}

impl Bound {
    /// How many sockets the listeners that are prepared from now on get, where they have one per instance: at least the
    /// highest slot of an instance. Without any, such a listener has a single socket like the others.
    pub fn reserve_slots(&self, slots: u32) {
        self.slots.store(slots, Ordering::Release);
    }

    /// Says where the keys of HTTP/3 are from, by which packets are told apart. To be called once, before the first
    /// [`Bound::prepare`]; without it nobody else has them.
    pub fn take_keys_from(&self, source: KeySource) {
        let _ = self.ids.source.set(source);
    }

    /// Opens what `listeners` asks for and is not open yet, from what was given or by binding, by the rules of
    /// [`Sockets::prepare`](super::Sockets::prepare). Changes nothing yet. To be called by one caller at a time until
    /// [`Bound::commit`].
    ///
    /// Of a Unix socket that was given, its file is ours from then on, unless a service manager keeps it; where the file
    /// is gone, so that nobody can connect, the address is bound anew.
    ///
    /// # Errors
    /// All that is wrong with any listener; then nothing stays bound.
    pub fn prepare(
        &self,
        listeners: &[model::Listener],
        given: &mut Given,
    ) -> Result<PreparedBound, Vec<BindError>> {
        let running = self.held.lock().clone();
        let places: Vec<_> =
            running.iter().map(|held| Place { name: &held.name, bind: &held.bind }).collect();
        given.match_addresses(listeners);
        let slots = self.slots.load(Ordering::Acquire);
        let (mut prepared, mut errors) = (PreparedBound::default(), Vec::new());
        for (listener, source) in listeners.iter().zip(plan::sources(listeners, &places)) {
            let running = match source {
                Source::Kept(place) | Source::Succeeds(place) => Some(&running[place]),
                Source::New => None,
            };
            match self.open(listener, running, slots, given) {
                Ok(Opened { holding, is_new, quic }) => {
                    if is_new {
                        self.steer_new(&holding);
                        prepared.opened.push(holding.clone());
                    }
                    if let Some((quic, true)) = &quic {
                        self.steer_new_quic(quic);
                        prepared.opened_quic.push(quic.clone());
                    }
                    prepared.held.push(Held {
                        name: listener.name.clone(),
                        bind: listener.bind.clone(),
                        sharing: listener.sharing,
                        holding,
                        http3: listener.http3,
                        quic: quic.map(|(quic, _)| quic),
                    });
                }
                Err(error) => errors.push(BindError::new(listener, error)),
            }
        }
        if errors.is_empty() { Ok(prepared) } else { Err(errors) }
    }

    fn open(
        &self,
        listener: &model::Listener,
        running: Option<&Held>,
        slots: u32,
        given: &mut Given,
    ) -> Result<Opened, BindErrorKind> {
        if running.is_some_and(|running| running.sharing != listener.sharing) {
            return Err(BindErrorKind::Sharing);
        }
        let mut tries = if running.is_none() && is_chosen_by_kernel(&listener.bind) { PORTS } else { 1 };
        loop {
            tries -= 1;
            let before = running.map(|running| running.holding.clone());
            let (holding, is_new) = open_to_hold(listener, before, slots, given)?;
            let quic = self.open_quic(listener, &holding, running, slots, given);
            match quic {
                // The kernel's choice was free for TCP alone.
                Err(BindErrorKind::Quic(error))
                    if error.kind() == io::ErrorKind::AddrInUse && is_new && tries > 0 => {}
                quic => return Ok(Opened { holding, is_new, quic: quic? }),
            }
        }
    }

    fn open_quic(
        &self,
        listener: &model::Listener,
        holding: &Holding,
        running: Option<&Held>,
        slots: u32,
        given: &mut Given,
    ) -> Result<Option<(Arc<QuicGroup>, bool)>, BindErrorKind> {
        let running = running.and_then(|running| running.quic.clone());
        let (true, Some(local)) = (listener.http3 && slots > 0, holding.local()) else {
            let stays = running.filter(|running| holding.local() == Some(running.local()));
            return Ok(stays.map(|running| (running, false)));
        };
        open_quic(listener, local, running, slots, given, &self.ids).map(Some)
    }

    /// Holds what was prepared, and closes what is no longer wanted, its socket files included. Cannot fail.
    pub fn commit(&self, mut prepared: PreparedBound) -> BoundChanges {
        let new = std::mem::take(&mut prepared.held);
        for held in &new {
            held.holding.keep_file();
            if let Bind::Unix { mode: Some(mode), path } = &held.bind
                && let Err(error) = held.holding.set_mode(*mode)
            {
                tracing::warn!(path = %path.display(), %error, "mode of the socket file not changed");
            }
        }
        let old = std::mem::replace(&mut *self.held.lock(), new.clone());
        let goes_on = |held: &Held, among: &[Held]| {
            among.iter().any(|other| other.name == held.name && other.holding.is_same(&held.holding))
        };
        let names = |of: &[Held], but: &[Held]| {
            of.iter().filter(|held| !goes_on(held, but)).map(|held| held.name.clone()).collect()
        };
        for held in &old {
            // Under another name it is still wanted.
            if !new.iter().any(|other| other.holding.is_same(&held.holding)) {
                held.holding.remove_file();
            }
        }
        BoundChanges { added: names(&new, &old), removed: names(&old, &new) }
    }

    /// Sends the new clients of listeners with a socket per instance to the slots that are `active` by their weights, at
    /// once and from then on. What was sent to another slot before stays in its queue: the instance that leaves empties it,
    /// and the others empty those of slots that the board says are not active. So a slot is taken out here before its
    /// instance is told to leave, and as soon as its process is gone.
    ///
    /// The packets of QUIC connections go on to their slots, as long as those are `living`.
    ///
    /// # Errors
    /// What the kernel says of any of them; a slot that a listener does not have is left out.
    pub fn steer(&self, active: &[Weighted], living: &[u32]) -> io::Result<()> {
        *self.active.lock() = active.to_vec();
        let mut steering = self.quic.lock();
        steering.set(active, living);
        let held = self.held.lock().clone();
        let steer = |held: &Held| {
            let quic = held.quic.as_ref().map_or(Ok(()), |quic| steering.apply(quic, self.ids.ids()?));
            held.holding.steer(active).and(quic)
        };
        held.iter().map(steer).fold(Ok(()), Result::and)
    }

    fn steer_new_quic(&self, group: &QuicGroup) {
        let steering = self.quic.lock();
        if !steering.is_known() {
            // A new one has its first program; one that was given goes on with what it has.
            return;
        }
        let applied = self.ids.ids().and_then(|ids| steering.apply(group, ids));
        if let Err(error) = applied {
            tracing::warn!(%error, "the packets of HTTP/3 do not find their instances");
        }
    }

    /// The first client is not to meet an empty slot.
    fn steer_new(&self, holding: &Holding) {
        if let Err(error) = holding.steer(&self.active.lock()) {
            tracing::warn!(%error, "new clients are not spread over the instances");
        }
    }

    /// Duplicates of all sockets.
    ///
    /// # Errors
    /// Where the process has no descriptor left.
    pub fn descriptors(&self) -> io::Result<Vec<Passable>> {
        duplicates(&self.held.lock())
    }

    /// Names and addresses, a port 0 resolved, in the order of the site file.
    pub fn addresses(&self) -> Vec<(Arc<str>, String)> {
        let held = self.held.lock();
        held.iter().map(|held| (held.name.clone(), held.holding.address())).collect()
    }

    /// Closes all sockets here, and removes their files: the site ends, or nobody else holds them.
    pub fn close(&self) {
        for held in std::mem::take(&mut *self.held.lock()) {
            held.holding.remove_file();
        }
    }
}

impl PreparedBound {
    /// Duplicates of all sockets that there will be.
    ///
    /// # Errors
    /// Where the process has no descriptor left.
    pub fn descriptors(&self) -> io::Result<Vec<Passable>> {
        duplicates(&self.held)
    }

    /// The same, only of those that were opened for this.
    ///
    /// # Errors
    /// Where the process has no descriptor left.
    pub fn opened(&self) -> io::Result<Vec<Passable>> {
        let is_new = |held: &&Held| self.opened.iter().any(|opened| Arc::ptr_eq(opened, &held.holding));
        let is_new_quic =
            |quic: &&Arc<QuicGroup>| self.opened_quic.iter().any(|opened| Arc::ptr_eq(opened, quic));
        let mut new = Vec::new();
        for held in &self.held {
            let holding = Some(held).filter(is_new).map(|held| &*held.holding);
            add_duplicates(&mut new, held, holding, held.quic.as_ref().filter(is_new_quic))?;
        }
        Ok(new)
    }
}

fn duplicates(held: &[Held]) -> io::Result<Vec<Passable>> {
    let mut duplicates = Vec::new();
    for held in held {
        let quic = held.quic.as_ref().filter(|_| held.http3);
        add_duplicates(&mut duplicates, held, Some(&held.holding), quic)?;
    }
    Ok(duplicates)
}

fn add_duplicates(
    duplicates: &mut Vec<Passable>,
    held: &Held,
    holding: Option<&Holding>,
    quic: Option<&Arc<QuicGroup>>,
) -> io::Result<()> {
    for (slot, descriptor) in holding.map_or_else(|| Ok(Vec::new()), Holding::duplicates)? {
        duplicates.push(Passable { listener: held.name.clone(), slot, descriptor });
    }
    let Some(quic) = quic else { return Ok(()) };
    let listener: Arc<str> = quic_name(&held.name, quic.is_steered()).into();
    for (slot, socket) in quic.sockets() {
        duplicates.push(Passable { listener: listener.clone(), slot, descriptor: socket.try_clone()? });
    }
    Ok(())
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "clients need no runtime here")]
mod tests;
