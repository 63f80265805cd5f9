//! Which of the sockets that run a new set of listeners goes on with.

use playhouse_config::model::{Bind, Listener};

/// A socket that runs: its listener's name, and where it was told to listen.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The name.
    pub name: &'a str,
    /// The address as in the site file.
    pub bind: &'a Bind,
}

/// Where a listener's socket comes from; the number is a place among those that run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Its own socket goes on.
    Kept(usize),
    /// It goes on with the socket of a listener that is gone, so that a rename closes nothing.
    Succeeds(usize),
    /// It has to be opened.
    New,
}

/// The source of each listener's socket.
pub fn sources(listeners: &[Listener], running: &[Place<'_>]) -> Vec<Source> {
    let own = |listener: &Listener| {
        let is_own =
            |place: &Place<'_>| place.name == &*listener.name && same_place(&listener.bind, place.bind);
        running.iter().position(is_own)
    };
    let kept: Vec<_> = listeners.iter().map(own).collect();
    let mut free: Vec<_> = (0..running.len()).filter(|place| !kept.contains(&Some(*place))).collect();
    let source = |(listener, kept): (&Listener, Option<usize>)| {
        if let Some(place) = kept {
            return Source::Kept(place);
        }
        match free.iter().position(|place| can_succeed(&listener.bind, running[*place].bind)) {
            Some(found) => Source::Succeeds(free.swap_remove(found)),
            None => Source::New,
        }
    };
    listeners.iter().zip(kept.clone()).map(source).collect()
}

fn same_place(one: &Bind, other: &Bind) -> bool {
    match (one, other) {
        (Bind::Unix { path: one, .. }, Bind::Unix { path: other, .. }) => one == other,
        _ => one == other,
    }
}

/// Whether a listener may go on with the socket of another name. Each port 0 is a place of its own.
fn can_succeed(new: &Bind, old: &Bind) -> bool {
    let chosen_by_kernel = matches!(new, Bind::Tcp { address, .. } if address.port() == 0);
    !chosen_by_kernel && same_place(new, old)
}
