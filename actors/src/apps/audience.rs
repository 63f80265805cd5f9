//! The instances of a site as its apps see them: they send the requests, in processes of their own. What each is told is
//! one state of all apps, and what it says is how many requests it has with which process.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;
use playhouse_protocol::control::{AppProcess, AppState, AppsLoad, AppsState};
use tokio::sync::watch;

/// Who sends requests to the processes of apps from outside of this process.
#[derive(Debug)]
pub struct Audience {
    said: watch::Sender<Arc<AppsState>>,
    heard: Mutex<Heard>,
}

#[derive(Debug, Default)]
struct Heard {
    /// By the instance's place.
    instances: BTreeMap<u32, Instance>,
    /// Requests that instances have had with a process which are gone by now.
    past: HashMap<AppProcess, u64>,
}

/// What an instance has said last.
#[derive(Debug, Default)]
struct Instance {
    /// What it goes by.
    applied: u64,
    waiting: HashMap<String, usize>,
    /// Requests in flight and so far, by app, place and process number.
    with: HashMap<(String, u32, u32), (usize, u64)>,
}

impl Audience {
    /// Nobody yet. What is said is counted from `first`, which is to be more than any controller before has counted to.
    pub fn new(first: u64) -> Self {
        let state = AppsState { generation: first, ..AppsState::default() };
        Audience { said: watch::Sender::new(Arc::new(state)), heard: Mutex::default() }
    }

    /// What there is to be said.
    pub fn said(&self) -> Arc<AppsState> {
        self.said.borrow().clone()
    }

    /// Tells when there is something else to be said.
    pub fn changes(&self) -> watch::Receiver<Arc<AppsState>> {
        self.said.subscribe()
    }

    /// An app is like this now, `None` where nothing is left of it. Gives the generation in which it is so.
    pub(super) fn say(&self, app: &str, now: Option<(AppState, Vec<AppProcess>)>) -> u64 {
        let mut generation = 0;
        self.said.send_if_modified(|said| {
            let mut next = AppsState::clone(said);
            next.apps.retain(|other| other.name != app);
            next.processes.retain(|process| process.app != app);
            if let Some((state, processes)) = &now {
                next.apps.push(state.clone());
                next.processes.extend(processes.iter().cloned());
            }
            // In one order, whoever was said last.
            next.apps.sort_by(|one, other| one.name.cmp(&other.name));
            next.processes.sort();
            generation = said.generation;
            if (&next.apps, &next.processes) == (&said.apps, &said.processes) {
                return false;
            }
            next.generation += 1;
            generation = next.generation;
            let mut heard = self.heard.lock();
            heard.past.retain(|process, _| next.processes.contains(process));
            *said = Arc::new(next);
            true
        });
        generation
    }

    /// From here on nothing has come to all until it has come to this instance, of which nothing is known yet.
    pub fn joins(&self, slot: u32) {
        // The same process over another link is believed to have what it had, until it says more.
        self.heard.lock().instances.entry(slot).or_default().applied = 0;
    }

    /// Whether this instance is one of those.
    pub fn has(&self, slot: u32) -> bool {
        self.heard.lock().instances.contains_key(&slot)
    }

    /// An instance is gone, and what it had with it.
    pub fn leaves(&self, slot: u32) {
        let processes = self.said().processes.clone();
        let mut heard = self.heard.lock();
        let Some(instance) = heard.instances.remove(&slot) else { return };
        for ((app, place, pid), (_, requests)) in instance.with {
            let process =
                processes.iter().find(|known| (&known.app, known.place, known.pid) == (&app, place, pid));
            if let Some(process) = process {
                *heard.past.entry(process.clone()).or_default() += requests;
            }
        }
    }

    /// Takes what an instance says. Gives the apps for which requests wait there.
    pub fn hears(&self, slot: u32, load: AppsLoad) -> Vec<String> {
        let mut heard = self.heard.lock();
        let Some(instance) = heard.instances.get_mut(&slot) else { return Vec::new() };
        instance.applied = load.generation;
        instance.waiting.clear();
        instance.with.clear();
        let mut wanted = Vec::new();
        // No instance has more apps and processes than it was told of; one that says so is not believed.
        for app in load.apps.into_iter().take(MOST) {
            for server in app.servers.into_iter().take(MOST) {
                // What cannot be is cut, so that no sum of all overflows.
                let with = (server.in_flight.min(MOST_REQUESTS) as usize, server.requests.min(MOST_EVER));
                instance.with.insert((app.name.clone(), server.place, server.pid), with);
            }
            if app.waiting > 0 {
                instance.waiting.insert(app.name.clone(), app.waiting.min(MOST_REQUESTS) as usize);
                wanted.push(app.name);
            }
        }
        wanted
    }

    /// Whether every instance goes by this, or by what came after it.
    pub(super) fn has_reached_all(&self, generation: u64) -> bool {
        self.heard.lock().instances.values().all(|instance| instance.applied >= generation)
    }

    /// Requests in flight with a process, and requests that it has had so far.
    pub(super) fn load(&self, process: &AppProcess) -> (usize, u64) {
        let heard = self.heard.lock();
        let key = (process.app.clone(), process.place, process.pid);
        let mut sum = (0, heard.past.get(process).copied().unwrap_or(0));
        for (in_flight, requests) in heard.instances.values().filter_map(|instance| instance.with.get(&key)) {
            sum = (sum.0 + in_flight, sum.1.saturating_add(*requests));
        }
        sum
    }

    /// Requests that wait for a process of this app.
    pub(super) fn waiting(&self, app: &str) -> usize {
        let heard = self.heard.lock();
        heard.instances.values().filter_map(|instance| instance.waiting.get(app)).sum()
    }
}

/// Apps in a message, and processes of one: far more than a site has.
const MOST: usize = 4096;
/// Requests of an instance at once, and ever: more than there can be.
const MOST_REQUESTS: u64 = 1 << 24;
const MOST_EVER: u64 = 1 << 48;

#[cfg(test)]
mod tests {
    use playhouse_protocol::control::{AppLoad, AppServerLoad};

    use super::*;

    fn process(pid: u32) -> AppProcess {
        AppProcess { app: "blog".into(), place: 1, pid, started: 7 }
    }

    fn say(audience: &Audience, pids: &[u32]) -> u64 {
        let state = AppState { name: "blog".into(), expected: true, servers: Vec::new() };
        audience.say("blog", Some((state, pids.iter().map(|pid| process(*pid)).collect())))
    }

    fn load(generation: u64, pid: u32, in_flight: u64, requests: u64, waiting: u64) -> AppsLoad {
        let servers = vec![AppServerLoad { place: 1, pid, in_flight, requests }];
        AppsLoad { generation, apps: vec![AppLoad { name: "blog".into(), waiting, servers }] }
    }

    #[test]
    fn what_was_said_has_reached_all_once_every_instance_goes_by_it() {
        let audience = Audience::new(100);
        let first = say(&audience, &[5]);
        assert_eq!((first, say(&audience, &[5])), (101, 101), "the same is said once");
        assert!(audience.has_reached_all(first), "there is nobody");
        audience.joins(1);
        audience.joins(2);
        audience.hears(1, load(101, 5, 0, 0, 0));
        assert!(!audience.has_reached_all(first), "not the second");
        audience.hears(2, load(101, 5, 0, 0, 0));
        assert!(audience.has_reached_all(first));
        let second = say(&audience, &[]);
        assert!(!audience.has_reached_all(second));
        audience.hears(1, load(second, 5, 0, 0, 0));
        audience.leaves(2);
        assert!(audience.has_reached_all(second), "who is gone is not waited for");
        audience.joins(1);
        assert!(!audience.has_reached_all(second), "another link begins anew");
        assert_eq!(audience.say("blog", None), second + 1);
    }

    #[test]
    fn requests_of_all_instances_are_summed_and_those_of_the_gone_stay_counted() {
        let audience = Audience::new(1);
        say(&audience, &[5]);
        assert_eq!(audience.hears(9, load(2, 5, 1, 1, 1)), Vec::<String>::new(), "nobody that is known");
        audience.joins(1);
        audience.joins(2);
        assert_eq!(audience.hears(1, load(2, 5, 3, 10, 2)), ["blog"]);
        assert!(audience.hears(2, load(2, 5, 1, 4, 0)).is_empty());
        assert_eq!((audience.load(&process(5)), audience.waiting("blog")), ((4, 14), 2));
        audience.joins(1);
        assert_eq!(audience.load(&process(5)), (4, 14), "the same process over another link");
        audience.hears(1, load(2, 5, 2, 11, 0));
        audience.leaves(1);
        assert_eq!((audience.load(&process(5)), audience.waiting("blog")), ((1, 15), 0));
        say(&audience, &[6]);
        audience.leaves(2);
        assert_eq!(audience.load(&process(5)), (0, 0), "a process that is gone is forgotten");
    }
}
