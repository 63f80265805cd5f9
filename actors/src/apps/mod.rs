//! Managed applications: the programs of a site, started, watched and ended.
//!
//! [`Table`] holds the apps and their processes, and outlives every actor here. Of each app a [`manager`] decides how many
//! processes there are ([`decide`], [`managed`]) and each [`place`] has a [`keeper`]; requests go to the processes as to an
//! upstream's servers (`playhouse_serve::apps`), and send nobody a message.
//!
//! In a site with instances all this is in the controller, and the requests come from the instances ([`audience`]). Those
//! know of the processes by what the controller says ([`remote`]), and hold what the processes write to, so that it
//! outlives the controller ([`outputs`]). The next controller goes on with the processes that are written down
//! ([`record`]).

mod account;
pub mod audience;
mod decide;
mod group;
mod history;
mod keeper;
mod launch;
mod managed;
mod manager;
mod output;
pub(crate) mod outputs;
mod place;
mod record;
pub mod remote;
mod restart;
pub mod status;
mod table;

use std::sync::Arc;
use std::time::Duration;

use playhouse_config::model;

pub(crate) use restart::restart;
pub use table::{AppError, Pipes, Table};
pub(crate) use table::{DIRECTORY, end_leftovers};

use keeper::Keeper;
use managed::Managed;
use manager::Manager;
use place::Place;

use crate::health::HealthChecker;
use crate::pool::Pool;
use crate::reload;
use crate::supervision::{Actor, AskError, ChildSpec, Intensity, Seat, Shutdown, Strategy, Supervisor};

/// The supervisor of all apps of a site.
pub(crate) fn supervisor(table: Arc<Table>, root: Arc<Seat>) -> Supervisor {
    let specs = move || table.all().into_iter().map(|managed| spec(managed, &table, &root)).collect();
    Supervisor::new(Strategy::OneForOne, Intensity::default(), specs).shutdown_at_once()
}

/// How long all apps may take to end.
pub(crate) fn shutdown(table: &Table) -> Shutdown {
    let longest = table.all().iter().map(|managed| ending(&managed.app.settings())).max();
    Shutdown::After(longest.unwrap_or_default() + GRACE * 2)
}

/// Starts the actors of apps that have come; those of apps that are gone end by themselves.
pub(crate) async fn reconcile(table: &Arc<Table>, root: &Arc<Seat>) -> Result<(), AskError> {
    let above = root.child(NAME, Supervisor::KIND);
    let specs = table.all().into_iter().map(|managed| spec(managed, table, root));
    reload::bring_in_line(&above, Vec::new(), specs).await
}

/// One app: a supervisor of its own, whose children are equals.
fn spec(managed: Arc<Managed>, table: &Arc<Table>, root: &Arc<Seat>) -> ChildSpec {
    let name = managed.app.name().to_string();
    let (table, root) = (table.clone(), root.clone());
    let for_shutdown = managed.clone();
    ChildSpec::new(name, move || {
        let (managed, table, root) = (managed.clone(), table.clone(), root.clone());
        Supervisor::new(Strategy::OneForOne, Intensity::default(), move || children(&managed, &table, &root))
            .shutdown_at_once()
    })
    .shutdown_by(move || Shutdown::After(ending(&for_shutdown.app.settings()) + GRACE))
    .stall_after(STALL)
}

fn children(managed: &Arc<Managed>, table: &Arc<Table>, root: &Arc<Seat>) -> Vec<ChildSpec> {
    let above = root.child(NAME, Supervisor::KIND);
    let seat = above.child(managed.app.name(), Supervisor::KIND);
    let upstream = managed.app.upstream().clone();
    let mut children = Vec::new();
    // Where requests come from other processes, each has a pool of its own.
    if table.audience().is_none() {
        children.push(ChildSpec::new("pool", move || Pool::new(upstream.clone())).stall_after(STALL));
    }
    if managed.app.settings().health.is_some() {
        children.push(health_spec(managed));
    }
    let (for_manager, with) = (managed.clone(), table.clone());
    let manager = move || Manager::new(for_manager.clone(), with.clone(), seat.clone(), above.clone());
    children.push(ChildSpec::new("manager", manager).stall_after(STALL));
    children.extend(managed.places().iter().map(|place| place_spec(place, managed, table)));
    children
}

fn health_spec(managed: &Managed) -> ChildSpec {
    let upstream = managed.app.upstream().clone();
    ChildSpec::new(HEALTH, move || HealthChecker::new(upstream.clone())).stall_after(STALL)
}

fn place_spec(place: &Arc<Place>, managed: &Arc<Managed>, table: &Arc<Table>) -> ChildSpec {
    let deadline = ending(&place.settings);
    let (name, place, managed, table) =
        (place_name(place.number), place.clone(), managed.clone(), table.clone());
    ChildSpec::new(name, move || Keeper::new(place.clone(), managed.clone(), table.clone()))
        .shutdown(Shutdown::After(deadline))
        .stall_after(STALL)
}

/// For the requests in flight, from TERM to KILL, and for what is left in the pipes.
fn ending(app: &model::App) -> Duration {
    app.stop_timeout * 2 + GRACE
}

fn place_name(number: u32) -> String {
    format!("place-{number}")
}

/// Where the apps are in the tree.
pub const NAME: &str = "apps";
const HEALTH: &str = "health";
const STALL: Duration = Duration::from_secs(2);
const GRACE: Duration = Duration::from_secs(3);
