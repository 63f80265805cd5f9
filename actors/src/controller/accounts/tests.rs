//! Controllers that end in the middle of a fold, and what their successors count.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use playhouse_serve::{Ledger, Outcome};
use proptest::prelude::*;

use super::*;

const STEPS: [Step; 4] = [Step::UnlinkLast, Step::Write, Step::Rename, Step::Unlink];

/// An instance process as far as its ledger goes.
struct Instance {
    process: Process,
    ledger: Arc<Ledger>,
}

impl Instance {
    fn start(accounts: &Accounts, slot: u32, generation: u64) -> Self {
        let path = accounts.page_for(slot, generation).unwrap();
        let page = SharedPage::open(&path, ledger::WORDS).unwrap();
        Instance { process: (slot, generation), ledger: Arc::new(Ledger::in_page(page).unwrap()) }
    }

    fn answer(&self, count: usize) {
        (0..count).for_each(|_| self.ledger.accept().end(Outcome::Answered));
    }

    /// Ends as by SIGKILL, with so many requests in flight.
    fn die(self, in_flight: usize) -> Process {
        (0..in_flight).for_each(|_| std::mem::forget(self.ledger.accept()));
        self.process
    }
}

fn sums(totals: Totals) -> (u64, u64, u64, u64) {
    assert_eq!(totals.accepted, totals.ended() + totals.in_flight);
    (totals.accepted, totals.answered, totals.killed, totals.in_flight)
}

fn files(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

#[test]
fn a_process_that_is_gone_has_killed_what_it_had_in_flight() {
    let dir = tempfile::tempdir().unwrap();
    let accounts = Accounts::open(dir.path()).unwrap();
    let (one, two) = (Instance::start(&accounts, 1, 1), Instance::start(&accounts, 2, 2));
    one.answer(10);
    two.answer(5);
    assert_eq!(accounts.live(1, 1).answered, 10);
    let (slot, generation) = one.die(3);
    assert_eq!(sums(accounts.totals()), (18, 15, 0, 3));
    accounts.fold(slot, generation).unwrap();
    assert_eq!(sums(accounts.totals()), (18, 15, 3, 0));
    assert_eq!(accounts.live(1, 1), Totals::default());
    assert_eq!(files(dir.path()), ["ledger", "ledger-2.2"]);
    two.answer(1);
    assert_eq!(sums(accounts.totals()), (19, 16, 3, 0));
    accounts.fold(slot, generation).unwrap();
    accounts.fold(7, 7).unwrap();
    assert_eq!(sums(accounts.totals()), (19, 16, 3, 0), "a fold that is asked for again changes nothing");
    assert_eq!(accounts.pages(), [(2, 2)]);
}

#[test]
fn a_slot_that_is_used_again_has_a_page_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let accounts = Accounts::open(dir.path()).unwrap();
    for generation in 1..=5 {
        let instance = Instance::start(&accounts, 1, generation);
        assert_eq!(instance.ledger.totals(), Totals::default());
        instance.answer(2);
        let (slot, generation) = instance.die(1);
        accounts.fold(slot, generation).unwrap();
        assert_eq!(sums(accounts.totals()), (3 * generation, 2 * generation, generation, 0));
    }
}

#[test]
fn a_controller_that_ends_at_any_step_of_a_fold_counts_nothing_twice_and_loses_nothing() {
    for stop in STEPS {
        let dir = tempfile::tempdir().unwrap();
        let accounts = Accounts::open(dir.path()).unwrap();
        let first = Instance::start(&accounts, 1, 1);
        first.answer(100);
        first.die(10);
        accounts.fold(1, 1).unwrap();
        let (second, other) = (Instance::start(&accounts, 1, 2), Instance::start(&accounts, 2, 3));
        second.answer(20);
        other.answer(7);
        second.die(2);
        accounts.fold_while((1, 2), |step| step != stop).unwrap();
        drop(accounts);

        let accounts = Accounts::open(dir.path()).unwrap();
        let expected_before = if stop == Step::Unlink { (139, 127, 12, 0) } else { (139, 127, 10, 2) };
        assert_eq!(sums(accounts.totals()), expected_before, "{stop:?}");
        for (slot, generation) in accounts.pages().into_iter().filter(|process| *process != (2, 3)) {
            accounts.fold(slot, generation).unwrap();
        }
        assert_eq!(sums(accounts.totals()), (139, 127, 12, 0), "{stop:?}");
        assert_eq!(files(dir.path()), ["ledger", "ledger-2.3"], "{stop:?}");
        // Its process did not notice any of this.
        other.answer(1);
        assert_eq!(sums(accounts.totals()), (140, 128, 12, 0));
    }
}

#[test]
fn a_page_that_could_not_be_removed_is_not_forgotten_by_the_next_fold() {
    let dir = tempfile::tempdir().unwrap();
    let accounts = Accounts::open(dir.path()).unwrap();
    Instance::start(&accounts, 1, 1).die(1);
    Instance::start(&accounts, 1, 2).die(1);
    // The first page stays where it is, as after an error.
    accounts.fold_while((1, 1), |step| step != Step::Unlink).unwrap();
    assert_eq!(files(dir.path()), ["ledger", "ledger-1.1", "ledger-1.2"]);
    accounts.fold(1, 2).unwrap();
    assert_eq!(files(dir.path()), ["ledger"]);
    assert_eq!(sums(Accounts::open(dir.path()).unwrap().totals()), (2, 0, 2, 0));
}

#[test]
fn where_the_archive_cannot_be_written_the_page_stays_and_the_totals_are_right() {
    let dir = tempfile::tempdir().unwrap();
    let accounts = Accounts::open(dir.path()).unwrap();
    let instance = Instance::start(&accounts, 1, 1);
    instance.answer(5);
    instance.die(2);
    // Whatever the cause, the file cannot be written.
    fs::create_dir(dir.path().join("ledger.new")).unwrap();
    accounts.fold(1, 1).unwrap_err();
    assert_eq!(sums(accounts.totals()), (7, 5, 2, 0));
    assert_eq!(accounts.pages(), [(1, 1)]);
    fs::remove_dir(dir.path().join("ledger.new")).unwrap();
    accounts.fold(1, 1).unwrap();
    assert_eq!(sums(accounts.totals()), (7, 5, 2, 0));
    assert_eq!(files(dir.path()), ["ledger"]);
}

#[test]
fn a_disk_that_is_full_loses_nothing() {
    // Writes to it fail with ENOSPC.
    let full = Path::new("/dev/full");
    let dir = tempfile::tempdir().unwrap();
    let accounts = Accounts::open(dir.path()).unwrap();
    Instance::start(&accounts, 1, 1).die(3);
    std::os::unix::fs::symlink(full, dir.path().join("ledger.new")).unwrap();
    let error = accounts.fold(1, 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    assert_eq!(sums(accounts.totals()), (3, 0, 3, 0));
    assert_eq!(files(dir.path()), ["ledger-1.1"], "nothing half is left");
    accounts.fold(1, 1).unwrap();
    assert_eq!(sums(accounts.totals()), (3, 0, 3, 0));
}

#[test]
fn what_cannot_be_read_is_put_aside() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
    write("ledger", "{ not json");
    write("ledger.new", "half");
    write("ledger-1.1", "no page");
    for other in ["ledger-1", "ledger-x.1", "ledger-01.1", "ledger-+1.1", "ledger-1.1.new", "instance-1.json"]
    {
        write(other, "");
    }
    let accounts = Accounts::open(dir.path()).unwrap();
    assert_eq!(accounts.totals(), Totals::default());
    assert_eq!(accounts.pages(), []);
    let left = files(dir.path());
    assert!(left.contains(&"ledger.unreadable".to_owned()), "{left:?}");
    assert!(!left.iter().any(|name| name == "ledger" || name == "ledger.new" || name == "ledger-1.1"));
    assert!(left.iter().any(|name| name == "ledger-01.1"), "what is not ours is left alone");
    Instance::start(&accounts, 1, 1).die(1);
    accounts.fold(1, 1).unwrap();
    assert_eq!(sums(accounts.totals()), (1, 0, 1, 0));
}

#[test]
fn a_site_that_has_stopped_begins_with_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let accounts = Accounts::open(dir.path()).unwrap();
    Instance::start(&accounts, 1, 1).die(1);
    accounts.fold(1, 1).unwrap();
    Instance::start(&accounts, 1, 2).answer(1);
    accounts.forget().unwrap();
    assert_eq!(accounts.totals(), Totals::default());
    assert_eq!(files(dir.path()), Vec::<String>::new());
    assert_eq!(Accounts::open(dir.path()).unwrap().totals(), Totals::default());
}

#[test]
fn readers_never_see_less_than_before_while_pages_are_folded() {
    let dir = tempfile::tempdir().unwrap();
    let accounts = Accounts::open(dir.path()).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut last = Totals::default();
                    while !done.load(Ordering::Acquire) {
                        let totals = accounts.totals();
                        assert!(totals.accepted >= last.accepted && totals.answered >= last.answered);
                        assert!(totals.killed >= last.killed && totals.ended() >= last.ended());
                        last = totals;
                    }
                })
            })
            .collect();
        for generation in 1..=100 {
            let instance = Instance::start(&accounts, 1, generation);
            instance.answer(3);
            instance.die(1);
            accounts.fold(1, generation).unwrap();
        }
        done.store(true, Ordering::Release);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
    assert_eq!(sums(accounts.totals()), (400, 300, 100, 0));
}

/// What may happen to a site.
#[derive(Clone, Debug)]
enum Event {
    Start,
    Answer(usize),
    /// The oldest instance ends, and its page is folded up to a step; the controller ends there.
    Die {
        in_flight: usize,
        stop: Option<Step>,
    },
    /// The controller is replaced, and folds what is left.
    Restart,
}

fn event() -> impl Strategy<Value = Event> {
    let stop = prop::option::of(prop::sample::select(&STEPS[..]));
    prop_oneof![
        Just(Event::Start),
        (0..5_usize).prop_map(Event::Answer),
        (0..4_usize, stop).prop_map(|(in_flight, stop)| Event::Die { in_flight, stop }),
        Just(Event::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn whatever_happens_when_the_sums_are_those_of_all_processes(events in prop::collection::vec(event(), 1..40)) {
        let dir = tempfile::tempdir().unwrap();
        let mut accounts = Accounts::open(dir.path()).unwrap();
        let mut instances: Vec<Instance> = Vec::new();
        let (mut generation, mut answered, mut killed) = (0, 0, 0);
        let mut last = Totals::default();
        for event in events {
            let mut restart = false;
            match event {
                Event::Start => {
                    generation += 1;
                    let slot = (1..).find(|slot| instances.iter().all(|other| other.process.0 != *slot)).unwrap();
                    instances.push(Instance::start(&accounts, slot, generation));
                }
                Event::Answer(count) => {
                    instances.iter().for_each(|instance| instance.answer(count));
                    answered += (count * instances.len()) as u64;
                }
                Event::Die { .. } if instances.is_empty() => continue,
                Event::Die { in_flight, stop } => {
                    let process = instances.remove(0).die(in_flight);
                    killed += in_flight as u64;
                    accounts.fold_while(process, |step| Some(step) != stop).unwrap();
                    restart = stop.is_some();
                }
                Event::Restart => restart = true,
            }
            if restart {
                accounts = Accounts::open(dir.path()).unwrap();
                for (slot, generation) in accounts.pages() {
                    if !instances.iter().any(|instance| instance.process == (slot, generation)) {
                        accounts.fold(slot, generation).unwrap();
                    }
                }
            }
            let totals = accounts.totals();
            prop_assert_eq!(sums(totals), (answered + killed, answered, killed, 0));
            prop_assert!(totals.accepted >= last.accepted && totals.killed >= last.killed);
            last = totals;
        }
    }
}
