//! Keeping as many instances as are wanted: what is to be done next, decided from what is there.
//!
//! Pure: time comes in, actions go out. A replacement is always ready before the one that it replaces is touched,
//! unless that one is already dead.

use std::time::Duration;

use playhouse_protocol::control::State;
use tokio::time::Instant;

/// One instance, as far as it matters here.
#[derive(Clone, Debug, PartialEq)]
pub struct View {
    /// Its place.
    pub slot: u32,
    /// Counts the processes of the site.
    pub generation: u64,
    /// Where it is in its life.
    pub state: State,
    /// It is active, and its heartbeat has been missing for longer than it may.
    pub stuck: bool,
    /// It is to be replaced: of another build, with other settings of the process, or because an operator has said so.
    pub outdated: bool,
    /// Open connections, at its last heartbeat.
    pub connections: u64,
}

/// What is wanted, and what has happened.
#[derive(Clone, Debug)]
pub struct Aim {
    /// How many instances are to be active.
    pub wanted: u32,
    /// Processes at most, those that drain included.
    pub slots: u32,
    /// No start before this: the backoff after failures.
    pub not_before: Instant,
    /// Why none can be started just now, if so (memory).
    pub refused: Option<String>,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Start one more.
    Start,
    /// Let this one finish, and go.
    Drain(u32),
    /// Cut this one off.
    Kill(u32, &'static str),
}

/// The next actions. Applied, and asked again after every change, they lead to `wanted` active instances that are
/// neither stuck nor outdated.
pub fn plan(instances: &[View], aim: &Aim, now: Instant) -> Vec<Action> {
    let active: Vec<_> = instances.iter().filter(|view| view.state == State::Active).collect();
    let fresh: Vec<_> = active.iter().filter(|view| !view.stuck && !view.outdated).collect();
    let coming = instances.iter().filter(|view| is_coming(view) && !view.outdated).count();
    let wanted = aim.wanted as usize;
    let mut actions = Vec::new();

    // What has started with settings that are no longer wanted serves nobody yet.
    for view in instances.iter().filter(|view| is_coming(view) && view.outdated) {
        actions.push(Action::Kill(view.slot, "its settings were replaced before it was ready"));
    }

    let dying = wanted.saturating_sub(active.len()); // places where nobody serves at all
    let missing = wanted.saturating_sub(fresh.len() + coming);
    // A roll goes one by one; places of the dead are all filled at once.
    let may_start = if dying > 0 { missing } else { missing.min(1usize.saturating_sub(coming)) };
    let room = (aim.slots as usize).saturating_sub(instances.len());
    if now >= aim.not_before && aim.refused.is_none() {
        actions.extend(std::iter::repeat_n(Action::Start, may_start.min(room)));
    }

    // Beyond what is wanted: first the stuck, then the outdated, then those that serve the fewest.
    let mut spare = active.len().saturating_sub(wanted);
    let stuck: Vec<_> = active.iter().filter(|view| view.stuck).collect();
    // Where there is no memory for a replacement, the memory of the stuck one is what it needs.
    let replaced = if aim.refused.is_some() { stuck.len() } else { spare.min(stuck.len()) };
    for view in &stuck[..replaced] {
        actions.push(Action::Kill(view.slot, "its runtime has not answered within heartbeat_timeout"));
    }
    spare = spare.saturating_sub(replaced);
    let mut leaving: Vec<_> = active.iter().filter(|view| !view.stuck).collect();
    leaving.sort_by_key(|view| (!view.outdated, view.connections, std::cmp::Reverse(view.generation)));
    actions.extend(leaving.iter().take(spare).map(|view| Action::Drain(view.slot)));
    actions
}

fn is_coming(view: &View) -> bool {
    matches!(view.state, State::Starting | State::Ready)
}

/// How long to wait after the `failures`-th failed start in a row: the first is tried again at once.
pub fn backoff(failures: u32, jitter: f64) -> Duration {
    match failures {
        0 | 1 => Duration::ZERO,
        n => FIRST_BACKOFF
            .saturating_mul(1 << (n - 2).min(10))
            .min(LONGEST_BACKOFF)
            .mul_f64(0.75 + jitter / 2.0),
    }
}

const FIRST_BACKOFF: Duration = Duration::from_millis(100);
const LONGEST_BACKOFF: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn view(slot: u32, state: State) -> View {
        View { slot, generation: slot.into(), state, stuck: false, outdated: false, connections: 0 }
    }

    fn aim(wanted: u32) -> Aim {
        Aim { wanted, slots: 2 * wanted + 2, not_before: Instant::now(), refused: None }
    }

    fn next(instances: &[View], wanted: u32) -> Vec<Action> {
        plan(instances, &aim(wanted), Instant::now())
    }

    #[test]
    fn all_that_are_missing_start_at_once() {
        assert_eq!(next(&[], 3), [Action::Start, Action::Start, Action::Start]);
        assert_eq!(next(&[view(1, State::Active)], 3), [Action::Start, Action::Start]);
        assert_eq!(next(&[view(1, State::Starting), view(2, State::Ready)], 3), [Action::Start]);
        assert_eq!(next(&[view(1, State::Draining)], 1), [Action::Start]);
    }

    #[test]
    fn a_stuck_one_is_killed_only_when_its_replacement_serves() {
        let stuck = View { stuck: true, ..view(1, State::Active) };
        assert_eq!(next(std::slice::from_ref(&stuck), 1), [Action::Start]);
        assert_eq!(next(&[stuck.clone(), view(2, State::Starting)], 1), []);
        assert!(matches!(next(&[stuck, view(2, State::Active)], 1)[..], [Action::Kill(1, _)]));
    }

    #[test]
    fn a_roll_goes_one_by_one() {
        let old = |slot| View { outdated: true, ..view(slot, State::Active) };
        assert_eq!(next(&[old(1), old(2), old(3)], 3), [Action::Start]);
        assert_eq!(next(&[old(1), old(2), old(3), view(4, State::Starting)], 3), []);
        assert_eq!(
            next(&[old(1), old(2), old(3), view(4, State::Active)], 3),
            [Action::Start, Action::Drain(3)]
        );
    }

    #[test]
    fn the_least_used_of_those_beyond_the_number_leaves() {
        let busy = View { connections: 9, ..view(1, State::Active) };
        assert_eq!(next(&[busy, view(2, State::Active)], 1), [Action::Drain(2)]);
    }

    #[test]
    fn nothing_starts_during_a_backoff_or_without_memory() {
        let now = Instant::now();
        let later = Aim { not_before: now + Duration::from_secs(1), ..aim(1) };
        assert_eq!(plan(&[], &later, now), []);
        let refused = Aim { refused: Some("memory".into()), ..aim(1) };
        assert_eq!(plan(&[], &refused, now), []);
    }

    #[test]
    fn the_first_failure_is_retried_at_once_and_the_backoff_is_bounded() {
        assert_eq!(backoff(1, 0.5), Duration::ZERO);
        assert_eq!(backoff(2, 0.5), FIRST_BACKOFF);
        assert!(backoff(u32::MAX, 1.0) <= LONGEST_BACKOFF.mul_f64(1.25));
    }

    fn views() -> impl Strategy<Value = Vec<View>> {
        let state = prop_oneof![
            Just(State::Starting),
            Just(State::Ready),
            Just(State::Active),
            Just(State::Draining)
        ];
        prop::collection::vec((state, any::<bool>(), any::<bool>(), 0..5u64), 0..8).prop_map(|all| {
            let view = |(index, (state, stuck, outdated, connections))| View {
                slot: index as u32 + 1,
                generation: index as u64,
                state,
                stuck: stuck && state == State::Active,
                outdated,
                connections,
            };
            all.into_iter().enumerate().map(view).collect()
        })
    }

    proptest! {
        /// Whatever is there: as long as every start succeeds, it ends with exactly what is wanted, and until then no
        /// action takes away one that serves unless enough others do.
        #[test]
        fn it_converges_and_never_serves_with_fewer_than_it_had(mut instances in views(), wanted in 1..4u32) {
            let aim = Aim { slots: 20, ..aim(wanted) };
            let serving = |all: &[View]| {
                all.iter().filter(|view| view.state == State::Active && !view.stuck).count()
            };
            let mut next_slot = 100;
            for _ in 0..40 {
                let before = serving(&instances);
                for action in plan(&instances, &aim, Instant::now()) {
                    match action {
                        Action::Start => {
                            next_slot += 1;
                            instances.push(view(next_slot, State::Starting));
                        }
                        Action::Drain(slot) => {
                            instances.iter_mut().filter(|view| view.slot == slot)
                                .for_each(|view| view.state = State::Draining);
                        }
                        Action::Kill(slot, _) => instances.retain(|view| view.slot != slot),
                    }
                }
                prop_assert!(serving(&instances) >= before.min(wanted as usize));
                // Time passes: those that start are active, those that drain are gone.
                instances.retain(|view| view.state != State::Draining);
                for view in instances.iter_mut().filter(|view| is_coming(view)) {
                    view.state = State::Active;
                }
            }
            prop_assert_eq!(instances.len(), wanted as usize);
            prop_assert!(instances.iter().all(|view| !view.stuck && !view.outdated));
        }
    }
}
