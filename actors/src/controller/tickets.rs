//! The tickets actor: replaces the keys of TLS session tickets, the same for all instances of a site, so that a session
//! resumes on every one of them.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use playhouse_protocol::control::TicketKey;
use playhouse_serve::tls::tickets::{Rotation, TicketKeys};

use crate::supervision::{Actor, ChildSpec, Context, EventKind, Failure};

/// Who holds the keys of a site: they outlive the actor that replaces them.
pub trait TicketHolder: Send + Sync + 'static {
    /// The keys in use, newest first; none at first.
    fn ticket_keys(&self) -> Vec<TicketKey>;

    /// Keeps these keys in place of those before, and gives them to all instances.
    fn publish_ticket_keys(&self, keys: Vec<TicketKey>);
}

/// Of the keys that adopted instances use, those that were replaced last: a controller that was killed while it gave out new
/// ones has left some instances with the ones before. Keys that no instance would take are none. Empty where there are
/// none.
pub(super) fn newest(of: impl IntoIterator<Item = Vec<TicketKey>>) -> Vec<TicketKey> {
    let usable = |keys: &Vec<TicketKey>| TicketKeys::default().replace(keys.clone()).is_ok();
    let made = |keys: &Vec<TicketKey>| (keys.first().map(|newest| newest.made_unix_ms), keys.len());
    of.into_iter().filter(usable).max_by_key(made).unwrap_or_default()
}

/// Makes a key when there is none, and a new one every
/// [`ROTATION`](playhouse_serve::tls::tickets::ROTATION). Instances go on with the keys that they have without it.
pub struct Tickets<H> {
    holder: Arc<H>,
}

impl<H: TicketHolder> Tickets<H> {
    /// The actor of this site's keys.
    pub fn new(holder: Arc<H>) -> Self {
        Tickets { holder }
    }

    /// The child of the controller's root.
    pub fn spec(holder: &Arc<H>) -> ChildSpec {
        let holder = holder.clone();
        ChildSpec::new("tickets", move || Tickets::new(holder.clone())).stall_after(STALL)
    }
}

impl<H: TicketHolder> Actor for Tickets<H> {
    type Message = std::convert::Infallible;

    const KIND: &'static str = "tickets";

    async fn run(&mut self, context: &Context) -> Result<(), Failure> {
        let mut rotation = Rotation::default();
        loop {
            if let Some(keys) = rotation.next(&self.holder.ticket_keys(), SystemTime::now())? {
                self.holder.publish_ticket_keys(keys);
                let message = "a new key for TLS session tickets is in use";
                context.emit(EventKind::Certificates, context.seat().path(), message);
            }
            context.progress();
            tokio::time::sleep(INTERVAL).await;
        }
    }

    async fn handle(&mut self, message: Self::Message, _: &Context) -> Result<(), Failure> {
        match message {}
    }
}

/// Shows at least this often that it is alive.
const INTERVAL: Duration = Duration::from_millis(500);
const STALL: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use playhouse_serve::tls::tickets::{KEPT, ROTATION, make};
    use tokio::sync::watch;
    use tokio::time::Instant;

    use super::*;
    use crate::supervision::{self, Fault, Intensity, Strategy, Supervisor, Tree};

    struct Fleet {
        keys: watch::Sender<Vec<TicketKey>>,
        published: Mutex<Vec<Instant>>,
    }

    impl Fleet {
        fn with(keys: Vec<TicketKey>) -> Arc<Self> {
            Arc::new(Fleet { keys: watch::Sender::new(keys), published: Mutex::default() })
        }

        fn names(&self) -> Vec<String> {
            self.keys.borrow().iter().map(|key| key.name.clone()).collect()
        }

        fn published(&self) -> Vec<Instant> {
            self.published.lock().clone()
        }
    }

    impl TicketHolder for Fleet {
        fn ticket_keys(&self) -> Vec<TicketKey> {
            self.keys.borrow().clone()
        }

        fn publish_ticket_keys(&self, keys: Vec<TicketKey>) {
            self.published.lock().push(Instant::now());
            self.keys.send_replace(keys);
        }
    }

    async fn run(fleet: &Arc<Fleet>) -> Arc<Tree> {
        let tree = Tree::new("controller", Supervisor::KIND, 7);
        let fleet = fleet.clone();
        let children = move || vec![Tickets::spec(&fleet)];
        let root = Supervisor::new(Strategy::OneForOne, Intensity::default(), children);
        supervision::spawn(tree.root().clone(), root, None).await.unwrap();
        tree
    }

    async fn stop(tree: &Tree) {
        tree.root().request_stop();
        tree.root().vacated().await;
    }

    #[test]
    fn of_the_keys_of_several_instances_the_newest_are_used_on() {
        let at = |hours: u64| make(SystemTime::UNIX_EPOCH + Duration::from_secs(hours * 3600)).unwrap();
        let (first, second, third) = (at(1), at(7), at(13));
        let before = vec![second.clone(), first.clone()];
        let after = vec![third.clone(), second.clone(), first];
        assert_eq!(newest([before.clone(), after.clone(), Vec::new()]), after);
        assert_eq!(newest([after.clone(), Vec::new(), before.clone()]), after);
        assert_eq!(newest([vec![third.clone()], after.clone()]), after, "of the same age, the most");
        assert_eq!(newest([Vec::new(), Vec::new()]), []);
        let garbage = vec![TicketKey { secret: "no".into(), made_unix_ms: u64::MAX, ..third }];
        assert_eq!(newest([garbage, before.clone()]), before);
    }

    #[tokio::test(start_paused = true)]
    async fn keys_follow_each_other_every_six_hours_and_three_are_kept() {
        let (fleet, start) = (Fleet::with(Vec::new()), Instant::now());
        let mut changes = fleet.keys.subscribe();
        let tree = run(&fleet).await;
        let mut before: Vec<String> = Vec::new();
        for round in 1..=5 {
            changes.changed().await.unwrap();
            let names = fleet.names();
            assert_eq!(names.len(), round.min(KEPT));
            assert_eq!(names[1..], before[..names.len() - 1]);
            before = names;
        }
        for (round, at) in fleet.published().into_iter().enumerate() {
            let late = at.duration_since(start) - ROTATION * round as u32;
            assert!(late <= INTERVAL * (2 * round as u32 + 1), "round {round}: {late:?} late");
        }
        stop(&tree).await;
    }

    #[tokio::test(start_paused = true)]
    async fn another_incarnation_keeps_the_keys_and_their_time() {
        let (fleet, start) = (Fleet::with(Vec::new()), Instant::now());
        let mut changes = fleet.keys.subscribe();
        let tree = run(&fleet).await;
        changes.changed().await.unwrap();
        let first = fleet.names();
        let seat = tree.find("controller/tickets").unwrap();
        let epoch = seat.epoch();
        tree.kill("controller/tickets", Fault::Kill).unwrap();
        seat.until(|seat| seat.epoch() > epoch).await;
        seat.reached(supervision::SeatState::Running).await;
        assert_eq!(fleet.names(), first);
        changes.changed().await.unwrap();
        assert_eq!(fleet.names()[1..], first);
        assert!(start.elapsed() >= ROTATION);
        assert_eq!(fleet.published().len(), 2);
        stop(&tree).await;
    }

    #[tokio::test(start_paused = true)]
    async fn keys_of_adopted_instances_are_used_on_until_they_are_old() {
        let hours = |hours: u64| Duration::from_secs(hours * 3600);
        let adopted = make(SystemTime::now() - hours(4)).unwrap();
        let (fleet, start) = (Fleet::with(vec![adopted.clone()]), Instant::now());
        let mut changes = fleet.keys.subscribe();
        let tree = run(&fleet).await;
        changes.changed().await.unwrap();
        let waited = start.elapsed();
        assert!(waited > hours(2) - INTERVAL * 4 && waited < hours(2) + INTERVAL * 4, "{waited:?}");
        assert_eq!(fleet.names()[1..], [adopted.name]);
        stop(&tree).await;

        let outdated = make(SystemTime::now() - hours(24)).unwrap();
        let (fleet, start) = (Fleet::with(vec![outdated]), Instant::now());
        let mut changes = fleet.keys.subscribe();
        let tree = run(&fleet).await;
        changes.changed().await.unwrap();
        assert!(start.elapsed() < INTERVAL);
        assert_eq!(fleet.names().len(), 1, "keys that nobody accepts any more are dropped");
        stop(&tree).await;
    }
}
