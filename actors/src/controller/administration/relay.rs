//! The actor that takes the instances' events over into the controller's, so that one stream has all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use playhouse_protocol::control::State;

use super::client;
use crate::controller::Fleet;
use crate::controller::member::Member;
use crate::supervision::{Actor, ChildSpec, Context, Failure};

/// How far each instance's events were taken over; outlives the actor, so that none is taken twice.
pub type Relayed = Arc<Mutex<BTreeMap<Key, u64>>>;

/// Slot and generation of a process.
type Key = (u32, u64);

/// Follows the events of every instance. While it is away nothing is lost: instances keep their last few hundred.
pub struct Relay {
    fleet: Arc<Fleet>,
    relayed: Relayed,
}

impl Relay {
    /// The child of the controller's root.
    pub fn spec(fleet: &Arc<Fleet>) -> ChildSpec {
        let (fleet, relayed) = (fleet.clone(), Relayed::default());
        ChildSpec::new("events", move || Relay { fleet: fleet.clone(), relayed: relayed.clone() })
            .stall_after(STALL)
    }

    /// Until the stream ends.
    async fn follow(&self, member: Arc<Member>) -> Key {
        let key = key(&member);
        // What one that was adopted has kept happened under another controller.
        let unseen = if member.is_adopted() { u64::MAX } else { 0 };
        let after = *self.relayed.lock().entry(key).or_insert(unseen);
        // What ends the stream shows elsewhere: in the instance's state.
        let Ok(mut events) = client(&self.fleet, &member).events(after).await else { return key };
        while let Ok(event) = events.next().await {
            self.relayed.lock().insert(key, event.sequence);
            self.fleet.tree().events().relay(event);
        }
        key
    }
}

impl Actor for Relay {
    type Message = std::convert::Infallible;

    const KIND: &'static str = "events";

    async fn run(&mut self, context: &Context) -> Result<(), Failure> {
        let mut followed = BTreeSet::new();
        let mut followers = FuturesUnordered::new();
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            context.progress();
            tokio::select! {
                Some(key) = followers.next() => { followed.remove(&key); }
                _ = tick.tick() => {
                    let mut members = self.fleet.members();
                    members.retain(|member| member.state() != State::Gone);
                    let living: BTreeSet<_> = members.iter().map(|member| key(member)).collect();
                    self.relayed.lock().retain(|key, _| living.contains(key));
                    for member in members {
                        if followed.insert(key(&member)) {
                            followers.push(self.follow(member));
                        }
                    }
                }
            }
        }
    }

    async fn handle(&mut self, message: Self::Message, _: &Context) -> Result<(), Failure> {
        match message {}
    }
}

fn key(member: &Member) -> Key {
    (member.slot(), member.generation())
}

/// How soon a new instance, or one whose stream has ended, is followed.
const TICK: Duration = Duration::from_millis(250);
const STALL: Duration = Duration::from_secs(5);
