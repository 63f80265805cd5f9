//! How many processes are started and ended, and which. Pure decisions over what there is.

use super::place::Phase;

/// One process, as far as this is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// Its place.
    pub number: u32,
    /// Where it is in its life.
    pub phase: Phase,
    /// It is to be replaced.
    pub outdated: bool,
    /// It is to end already.
    pub asked: bool,
}

/// What is to be done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// So many are to be started.
    pub start: usize,
    /// These are to end.
    pub leave: Vec<u32>,
}

/// What follows where `wanted` processes are to serve. The outdated serve until others do in their place, and there is never
/// more than one beyond what is wanted because of that.
pub fn decide(views: &[View], wanted: usize) -> Decision {
    let staying = |view: &&View| !view.asked && view.phase != Phase::Gone;
    let current = || views.iter().filter(staying).filter(|view| !view.outdated);
    let outdated = || views.iter().filter(staying).filter(|view| view.outdated);
    let serves = |view: &&View| view.phase == Phase::Serving;
    if wanted == 0 {
        return Decision { start: 0, leave: views.iter().filter(staying).map(|view| view.number).collect() };
    }
    // What nobody is served by yet is no loss.
    let mut leave: Vec<u32> = outdated().filter(|view| !serves(view)).map(|view| view.number).collect();
    let old: Vec<u32> = outdated().filter(serves).map(|view| view.number).collect();
    let successors = current().filter(serves).count();
    let surplus = (successors + old.len()).saturating_sub(wanted);
    leave.extend(old.iter().take(surplus));

    let asked = views.iter().filter(|view| view.asked && view.phase != Phase::Gone).count();
    let going = asked + outdated().filter(|view| !serves(view)).count();
    let missing = wanted.saturating_sub(current().count());
    let room = match old.len() {
        0 => missing,
        // One after another, however long those take that leave.
        old => (wanted + 1).saturating_sub(current().count() + old + going),
    };
    if old.is_empty() {
        // Those first that do not serve yet, then the last.
        let mut too_many: Vec<&View> = current().collect();
        too_many.sort_by_key(|view| (!serves(view), view.number));
        leave.extend(too_many.iter().skip(wanted).map(|view| view.number));
    }
    Decision { start: missing.min(room), leave }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(number: u32, phase: Phase) -> View {
        View { number, phase, outdated: false, asked: false }
    }

    fn old(number: u32, phase: Phase) -> View {
        View { outdated: true, ..view(number, phase) }
    }

    fn asked(number: u32) -> View {
        View { asked: true, ..view(number, Phase::Leaving) }
    }

    fn decision(start: usize, leave: &[u32]) -> Decision {
        Decision { start, leave: leave.to_vec() }
    }

    #[test]
    fn what_is_missing_is_started_and_what_is_too_much_ends() {
        use Phase::{Serving, Starting};
        assert_eq!(decide(&[], 3), decision(3, &[]));
        assert_eq!(decide(&[view(1, Starting), view(2, Serving)], 3), decision(1, &[]));
        assert_eq!(decide(&[view(1, Starting), view(2, Serving), view(3, Serving)], 2), decision(0, &[1]));
        assert_eq!(decide(&[view(1, Serving), view(2, Serving), view(3, Serving)], 1), decision(0, &[2, 3]));
        assert_eq!(decide(&[view(1, Serving), asked(2)], 0), decision(0, &[1]));
        assert_eq!(decide(&[asked(1)], 1), decision(1, &[]), "who leaves is no help");
    }

    #[test]
    fn the_outdated_are_replaced_one_after_another_and_serve_until_then() {
        use Phase::{Serving, Starting};
        let outdated = [old(1, Serving), old(2, Serving)];
        assert_eq!(decide(&outdated, 2), decision(1, &[]));
        let mut views = [&outdated[..], &[view(3, Starting)]].concat();
        assert_eq!(decide(&views, 2), decision(0, &[]), "not before it is ready");
        views[2].phase = Serving;
        assert_eq!(decide(&views, 2), decision(0, &[1]));
        views[0].asked = true;
        assert_eq!(decide(&views, 2), decision(0, &[]), "not before it has gone");
        assert_eq!(decide(&views[1..], 2), decision(1, &[]));
        let last = [old(2, Serving), view(3, Serving), view(1, Serving)];
        assert_eq!(decide(&last, 2), decision(0, &[2]));
    }

    #[test]
    fn an_outdated_one_that_does_not_serve_is_not_waited_for() {
        use Phase::{Serving, Starting};
        assert_eq!(decide(&[old(1, Starting)], 1), decision(1, &[1]));
        assert_eq!(decide(&[old(1, Serving), old(2, Starting)], 2), decision(1, &[2]));
        assert_eq!(decide(&[old(1, Serving)], 0), decision(0, &[1]));
    }

    proptest::proptest! {
        /// Followed to its end, each decision leads to what is wanted, by processes that are not outdated, and never are
        /// fewer served by than before as long as fewer than wanted serve.
        #[test]
        fn it_comes_to_an_end(states in proptest::collection::vec((0..3u8, proptest::bool::ANY), 0..6), wanted in 0usize..5) {
            let mut views: Vec<View> = states.iter().zip(1..).map(|((phase, outdated), number)| View {
                number,
                phase: [Phase::Starting, Phase::Serving, Phase::Leaving][usize::from(*phase)],
                outdated: *outdated,
                asked: *phase == 2,
            }).collect();
            let serving = |views: &[View]| {
                views.iter().filter(|view| view.phase == Phase::Serving && !view.asked).count()
            };
            for round in 0..40 {
                let before = serving(&views);
                let decision = decide(&views, wanted);
                for number in &decision.leave {
                    views.iter_mut().filter(|view| view.number == *number).for_each(|view| view.asked = true);
                }
                proptest::prop_assert!(serving(&views) >= before.min(wanted), "{:?}", views);
                let next = views.iter().map(|view| view.number).max().unwrap_or(0) + 1;
                views.extend((0..decision.start as u32).map(|more| view(next + more, Phase::New)));
                // Half of what is under way comes to its end in each round.
                if round % 2 == 0 {
                    views.retain(|view| !view.asked);
                } else {
                    views.iter_mut().filter(|view| view.phase != Phase::Serving && !view.asked)
                        .for_each(|view| view.phase = Phase::Serving);
                }
            }
            let outdated = views.iter().any(|view| view.outdated);
            proptest::prop_assert!(!outdated && serving(&views) == wanted, "{:?}", views);
        }
    }
}
