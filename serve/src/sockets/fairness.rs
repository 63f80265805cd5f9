//! Sharing a socket's clients fairly among the processes that accept from it.
//!
//! Every client wakes all of them, and whoever is fastest has it: without more, the one that has just run, or that has
//! the idle CPU, takes nearly everybody. So a process that has more than its share lets the others go first, until it has
//! no more than its share or they do not come. Where they do not, it takes more and more without waiting.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

/// The processes that accept from the same sockets, this one among them.
pub trait Peers: Debug + Send + Sync {
    /// One more connection of this process is open.
    fn opened(&self);

    /// One that was [opened](Peers::opened) is closed.
    fn closed(&self);

    /// How the connections are spread now.
    fn share(&self) -> Share;

    /// Changes, in whatever direction, when a process that has fewer than its share has accepted.
    fn taken_behind(&self, share: Share) -> u64;

    /// Whether this process accepts from now on.
    fn set_active(&self, active: bool);

    /// Whether the process in this slot accepts.
    fn is_active(&self, slot: u32) -> bool;
}

/// How the connections of a site are spread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// Open connections of this process.
    pub mine: u64,
    /// Processes that accept, this one among them.
    pub active: u64,
    /// Open connections of all that accept.
    pub total: u64,
}

/// How long this process should let the others go first at a time; `None` where it has no more than its share.
fn delay(share: Share) -> Option<Duration> {
    let Share { mine, active, total } = share;
    let scaled = mine.saturating_mul(active);
    // Beyond the mean so much is chance; among many, more.
    let slack = active.saturating_mul(SLACK).max(total / SLACK_OF);
    if active < 2 || scaled <= total.saturating_add(slack) {
        return None;
    }
    // More than a quarter above the mean.
    let far = scaled.saturating_mul(4) > total.saturating_mul(5);
    Some(if far { LONG } else { SHORT })
}

/// What has come of letting the others go first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// There was no need to.
    Ours,
    /// They came: this process has no more than its share now.
    Fair,
    /// They did not, or not enough of them.
    InVain,
}

/// How a socket's acceptor has fared with waiting.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// Clients that may be taken without waiting for the others.
    free: AtomicU32,
    /// How many that will be after the next wait in vain.
    grant: AtomicU32,
}

impl Turns {
    /// Lets the others go first, where they have had less. `freed` tells of connections of this process that have ended.
    /// May be dropped at any point.
    pub(super) async fn wait(&self, peers: &dyn Peers, freed: &Notify) -> Turn {
        let mut share = peers.share();
        if delay(share).is_none() {
            return Turn::Ours;
        }
        // Only this acceptor, and rarely its successor beside it, writes here.
        let free = self.free.load(Ordering::Relaxed);
        if free > 0 {
            self.free.store(free - 1, Ordering::Relaxed);
            return Turn::Ours;
        }
        for _ in 0..PATIENCE {
            let Some(delay) = delay(share) else { return Turn::Fair };
            let before = peers.taken_behind(share);
            // Where they are awake, they come within microseconds.
            for _ in 0..LOOKS {
                tokio::task::yield_now().await;
                if self::delay(peers.share()).is_none() {
                    return Turn::Fair;
                }
            }
            let mut slept = std::pin::pin!(tokio::time::sleep(delay));
            loop {
                tokio::select! {
                    biased;
                    () = slept.as_mut() => break,
                    () = freed.notified() => if self::delay(peers.share()).is_none() {
                        return Turn::Fair;
                    },
                }
            }
            share = peers.share();
            if peers.taken_behind(share) == before {
                break;
            }
        }
        if delay(share).is_none() { Turn::Fair } else { Turn::InVain }
    }

    /// What has come of an accept after a turn.
    pub(super) fn accepted(&self, turn: Turn, taken: bool) {
        if !taken || turn == Turn::Fair {
            // The others keep up.
            self.free.store(0, Ordering::Relaxed);
            self.grant.store(0, Ordering::Relaxed);
        } else if turn == Turn::InVain {
            let grant = self.grant.load(Ordering::Relaxed);
            self.free.store(grant, Ordering::Relaxed);
            self.grant.store((grant * 2).clamp(1, MOST), Ordering::Relaxed);
        }
    }
}

/// Connections beyond the mean that are no reason to wait: so much is chance.
const SLACK: u64 = 1;
/// The same as a part of the mean.
const SLACK_OF: u64 = 32;
/// Looks at what the others do, before it sleeps.
const LOOKS: usize = 8;
/// Enough for another process to be woken on a busy CPU. Timers are no finer.
const SHORT: Duration = Duration::from_millis(1);
const LONG: Duration = Duration::from_millis(2);
/// How many times in a row the others are let go first who come, but are slow.
const PATIENCE: usize = 8;
/// Clients that are taken in a row where the others do not come: with [`LONG`] before, some 16,000 a second.
const MOST: u32 = 32;

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "clients need no runtime here")]
mod tests {
    use std::io::Read;
    use std::net::TcpStream;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU64};

    use playhouse_config::model;
    use tokio::time::Instant;

    use super::*;
    use crate::sockets::{Given, Sockets};
    use crate::tls::Certificates;

    /// Places of processes, each of which counts its connections.
    #[derive(Clone, Debug)]
    struct Place {
        all: Arc<[AtomicU64]>,
        mine: usize,
    }

    impl Place {
        fn of(all: &[u64], mine: usize) -> Self {
            Place { all: all.iter().map(|count| AtomicU64::new(*count)).collect(), mine }
        }
    }

    impl Peers for Place {
        fn opened(&self) {
            self.all[self.mine].fetch_add(1, Ordering::Relaxed);
        }

        fn closed(&self) {
            self.all[self.mine].fetch_sub(1, Ordering::Relaxed);
        }

        fn share(&self) -> Share {
            let total = self.all.iter().map(|count| count.load(Ordering::Relaxed)).sum();
            let mine = self.all[self.mine].load(Ordering::Relaxed);
            Share { mine, active: self.all.len() as u64, total }
        }

        // Nobody's connections end here, so that they count those that were accepted.
        fn taken_behind(&self, share: Share) -> u64 {
            let counts = self.all.iter().map(|count| count.load(Ordering::Relaxed));
            counts.filter(|count| count * share.active < share.total).sum()
        }

        fn set_active(&self, _: bool) {}

        fn is_active(&self, slot: u32) -> bool {
            slot as usize <= self.all.len()
        }
    }

    fn share(mine: u64, active: u64, total: u64) -> Share {
        Share { mine, active, total }
    }

    #[test]
    fn who_is_alone_or_has_its_share_at_most_does_not_wait() {
        for share in
            [share(9, 1, 9), share(9, 0, 0), share(0, 4, 0), share(1, 4, 1), share(5, 4, 20), share(6, 4, 20)]
        {
            assert_eq!(delay(share), None, "{share:?}");
        }
        assert_eq!(delay(share(23, 4, 80)), Some(SHORT));
        assert_eq!(delay(share(27, 4, 80)), Some(LONG));
        // A thirty-second part of the mean is chance.
        assert_eq!((delay(share(1_031, 4, 4_000)), delay(share(1_032, 4, 4_000))), (None, Some(SHORT)));
        assert_eq!(delay(share(u64::MAX, u64::MAX, 0)), None);
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_in_vain_takes_more_and_more_without_waiting() {
        let (peers, freed) = (Place::of(&[100, 0], 0), Notify::new());
        let turns = Turns::default();
        let started = Instant::now();
        for _ in 0..100 {
            let turn = turns.wait(&peers, &freed).await;
            turns.accepted(turn, true);
        }
        // 1 + 2 + 3 + 5 + 9 + 17 + 33, and so on.
        assert_eq!(started.elapsed(), LONG * 8);
        turns.accepted(Turn::Ours, false);
        assert_eq!(turns.wait(&peers, &freed).await, Turn::InVain);
        assert_eq!(started.elapsed(), LONG * 9);
    }

    #[tokio::test(start_paused = true)]
    async fn others_that_come_are_let_go_first_until_it_is_fair() {
        let (peers, freed) = (Place::of(&[20, 10, 12], 0), Notify::new());
        let turns = Turns::default();
        let started = Instant::now();
        let take = |of: usize| peers.all[of].fetch_add(1, Ordering::Relaxed);
        let come = async {
            for _ in 0..5 {
                tokio::time::sleep(SHORT).await;
                take(1);
                take(2);
                take(1);
            }
            std::future::pending::<()>().await;
        };
        // Who comes at the same moment has come.
        let turn = tokio::select! {
            biased;
            () = come => unreachable!(),
            turn = turns.wait(&peers, &freed) => turn,
        };
        assert_eq!(turn, Turn::Fair);
        assert!(started.elapsed() <= SHORT * 8, "{:?}", started.elapsed());
        assert_eq!(delay(peers.share()), None);
    }

    #[tokio::test(start_paused = true)]
    async fn others_that_are_slow_are_not_waited_for_without_end() {
        let (peers, freed) = (Place::of(&[1_000, 10], 0), Notify::new());
        let turns = Turns::default();
        let started = Instant::now();
        let come = async {
            loop {
                tokio::time::sleep(SHORT).await;
                peers.all[1].fetch_add(1, Ordering::Relaxed);
            }
        };
        let turn = tokio::select! {
            turn = turns.wait(&peers, &freed) => turn,
            () = come => unreachable!(),
        };
        assert_eq!((turn, started.elapsed()), (Turn::InVain, LONG * PATIENCE as u32));
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_no_more_than_its_share_any_longer_does_not_wait_on() {
        let (peers, freed) = (Place::of(&[20, 10], 0), Notify::new());
        let turns = Turns::default();
        let started = Instant::now();
        let end = async {
            tokio::time::sleep(SHORT / 2).await;
            peers.all[0].store(10, Ordering::Relaxed);
            freed.notify_waiters();
            std::future::pending::<()>().await;
        };
        let turn = tokio::select! {
            turn = turns.wait(&peers, &freed) => turn,
            () = end => unreachable!(),
        };
        assert_eq!(turn, Turn::Fair);
        assert!(started.elapsed() < LONG, "{:?}", started.elapsed());
    }

    /// Processes, as far as the kernel can tell, that accept from one socket until told to stop; each holds what it has.
    fn spread(processes: usize, clients: usize, pace: Duration) -> Vec<u64> {
        let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let bind = model::Bind::Tcp { address: "127.0.0.1:0".parse().unwrap(), only_v6: false };
        let listeners = [model::Listener {
            name: "http".into(),
            bind,
            tls: Vec::new(),
            http2: true,
            proxy_protocol: None,
            http3: false,
            early_data: false,
            sharing: Default::default(),
            limits: model::Limits::default(),
            timeouts: model::ClientTimeouts::default(),
        }];
        let bound = crate::sockets::Bound::default();
        bound.commit(bound.prepare(&listeners, &mut Given::default()).unwrap());
        let all: Arc<[AtomicU64]> = (0..processes).map(|_| AtomicU64::new(0)).collect();
        let done = Arc::new(AtomicBool::new(false));
        let threads: Vec<_> = (0..processes)
            .map(|mine| {
                let mut given = Given::only();
                for passed in bound.descriptors().unwrap() {
                    given.add(&passed.listener, 0, passed.descriptor);
                }
                let (listeners, all, done) = (listeners.clone(), all.clone(), done.clone());
                std::thread::spawn(move || {
                    runtime().block_on(async {
                        let sockets = Sockets::default();
                        sockets.share_with(Arc::new(Place { all, mine }));
                        let prepared = sockets.prepare(&listeners, &Certificates::default(), &mut given);
                        sockets.commit(prepared.unwrap());
                        let socket = sockets.socket("http").unwrap();
                        let mut held = Vec::new();
                        while !done.load(Ordering::Acquire) {
                            let look = Duration::from_millis(20);
                            if let Ok(ticket) = tokio::time::timeout(look, socket.accept()).await {
                                held.push(socket.take(ticket.unwrap()).unwrap());
                                // What a connection costs at its beginning.
                                std::thread::sleep(Duration::from_micros(50));
                            }
                        }
                    });
                })
            })
            .collect();
        let address = bound.addresses().remove(0).1;
        let open = || {
            std::thread::sleep(pace);
            TcpStream::connect(&address).unwrap()
        };
        let open: Vec<_> = (0..clients).map(|_| open()).collect();
        while all.iter().map(|count| count.load(Ordering::Relaxed)).sum::<u64>() < clients as u64 {
            std::thread::yield_now();
        }
        let spread = all.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        done.store(true, Ordering::Release);
        for thread in threads {
            thread.join().unwrap();
        }
        for mut client in open {
            assert!(
                client.read(&mut [0]).is_ok_and(|read| read == 0),
                "accepted once, and closed with its process"
            );
        }
        spread
    }

    #[test]
    fn four_processes_on_one_socket_have_about_equally_many_connections() {
        for pace in [Duration::ZERO, Duration::from_micros(300)] {
            let spread = spread(4, 400, pace);
            println!("{spread:?} at {pace:?}");
            let most = *spread.iter().max().unwrap();
            assert!(most <= 150, "{spread:?} at {pace:?}");
        }
    }
}
