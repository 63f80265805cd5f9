//! Another configuration for all instances: checked here, tried on one instance, then put into force.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use playhouse_config::model;
use playhouse_protocol::control::{SiteText, State};
use playhouse_serve::Site;
use playhouse_serve::random::Random;
use playhouse_serve::sockets::{BoundChanges, Given, Passable};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::Controller;
use super::fleet::InForce;
use super::member::Member;
use crate::admin::{self, Administered};
use crate::apps;
use crate::control::crash::crash_point;
use crate::plan::{self, Plan, Processes};
use crate::reload::{ReloadError, Reloaded};
use crate::service_manager::ServiceManager;
use crate::supervision::{Actor, ChildSpec, Context, EventKind, Failure};

/// Reloads, one at a time. What was not in force when it is killed never will be; what was, goes on to all instances by
/// their keepers.
pub struct Reloader {
    controller: Arc<Controller>,
}

impl Reloader {
    /// The child of the controller's root.
    pub fn spec(controller: &Arc<Controller>) -> ChildSpec {
        let controller = controller.clone();
        ChildSpec::new(NAME, move || Reloader { controller: controller.clone() }).stall_after(DEADLINE)
    }

    async fn reload(&self, path: Option<PathBuf>) -> Result<Reloaded, ReloadError> {
        let fleet = self.controller.fleet();
        let path = path.unwrap_or_else(|| fleet.in_force().text.path.clone());
        let read = tokio::task::spawn_blocking(move || {
            let (site, text) = read(&path)?;
            plan::check_files(&site)?;
            Ok::<_, ReloadError>((site, text))
        });
        let (site, text) = read.await.map_err(|_| ReloadError::NoAnswer)??;
        let before = fleet.in_force();
        if let Some(field) = plan::cannot_change(&before.site, &site) {
            return Err(ReloadError::NeedsRestart(field));
        }
        check_handlers(&self.controller, &site)?;
        fleet.apps().prepare(&site.apps)?;
        let text = SiteText { revision: fleet.next_revision(), ..text };
        let slots = site.instances.as_ref().map_or(0, |instances| instances.slots());
        fleet.reserve_slots(slots).map_err(ReloadError::StateDir)?;
        let prepared = fleet.bound().prepare(&site.listeners, &mut Given::default())?;
        let admin = self.controller.prepare_admin(&site)?;

        // One instance first: what only shows where it is put into force stops here.
        let trial = loop {
            let Some(canary) = self.canary() else { break None };
            let trial = canary.begin_trial();
            let sockets = prepared.descriptors().map_err(ReloadError::StateDir)?;
            match try_on(&canary, fleet, &text, sockets).await {
                Ok(Tried::InForce) => break Some(trial),
                // Soon its keeper knows too, and another is there to be asked, or none.
                Ok(Tried::Gone) => tokio::time::sleep(AGAIN).await,
                Err(error) => {
                    // It may have got further than it could say: it is to be told again what is in force.
                    canary.note_sent(0);
                    return Err(error);
                }
            }
        };
        crash_point("reload");
        let threads = before.site.threads != site.threads;
        let revision = text.revision;
        let in_force = InForce::new(text, site).ok_or(ReloadError::NeedsRestart("instances"))?;
        let commit = || {
            self.controller.commit_admin(admin);
            fleet.bound().commit(prepared)
        };
        let changes = fleet.put_into_force(in_force, commit).map_err(ReloadError::StateDir)?;
        drop(trial);
        // Should this fail, the next incarnation of the apps' supervisor, or of this, has them.
        if apps::reconcile(fleet.apps(), self.controller.tree().root()).await.is_err() {
            tracing::warn!("the apps could not be brought in line in time");
        }
        // The new listeners are in force; should this fail, the admin supervisor's next incarnation has them.
        let over: Arc<dyn Administered> = self.controller.clone();
        if admin::reconcile(&over).await.is_err() {
            tracing::warn!("the admin interface's listeners could not be brought in line in time");
        }
        if threads {
            fleet.roll().map_err(ReloadError::StateDir)?;
        }
        // The keepers send it to the others; those that refuse it are replaced.
        let deadline = Instant::now() + DEADLINE / 2;
        for member in fleet.members() {
            let mut answered = member.answered();
            let done = answered.wait_for(|answered| {
                answered.gone
                    || answered.revision >= revision
                    || answered.refused.as_ref().is_some_and(|(refused, _)| *refused >= revision)
            });
            if member.state() == State::Active
                && !member.view().stuck
                && tokio::time::timeout_at(deadline, done).await.is_err()
            {
                return Err(ReloadError::NoAnswer);
            }
        }
        fleet.let_apps_go();
        Ok(reloaded(changes))
    }

    /// The instance on which a configuration is tried.
    fn canary(&self) -> Option<Arc<Member>> {
        let serves = |member: &Arc<Member>| member.state() == State::Active && !member.view().stuck;
        self.controller.fleet().members().into_iter().find(serves)
    }
}

fn check_handlers(controller: &Controller, site: &model::Site) -> Result<(), ReloadError> {
    // Builds all routes, and drops them again.
    Site::new(site, controller.options().handlers.clone(), Random::seeded(0))?;
    Ok(())
}

async fn try_on(
    canary: &Member,
    fleet: &super::Fleet,
    text: &SiteText,
    sockets: Vec<Passable>,
) -> Result<Tried, ReloadError> {
    let mut answered = canary.answered();
    if fleet.configure(canary, text, sockets).is_err() && canary.process().has_ended() {
        return Ok(Tried::Gone);
    }
    let done = answered.wait_for(|answered| {
        answered.gone
            || answered.revision == text.revision
            || answered.refused.as_ref().is_some_and(|(refused, _)| *refused == text.revision)
    });
    let answer = match tokio::time::timeout(DEADLINE / 2, done).await {
        Ok(Ok(answer)) => answer.clone(),
        _ => return Err(ReloadError::NoAnswer),
    };
    match answer.refused {
        Some((refused, error)) if refused == text.revision => Err(ReloadError::Refused(error)),
        _ if answer.revision == text.revision => Ok(Tried::InForce),
        _ => Ok(Tried::Gone),
    }
}

/// What has become of a trial.
enum Tried {
    /// It went well.
    InForce,
    /// The instance has ended meanwhile, which says nothing.
    Gone,
}

/// Reads a site file: what it means, and its text for the instances.
pub(super) fn read(file: &Path) -> Result<(model::Site, SiteText), ReloadError> {
    let path = std::path::absolute(file).map_err(ReloadError::StateDir)?;
    let text = playhouse_config::read(&path)?;
    let text = SiteText { path, text, revision: 0 };
    Ok((parse(&text)?, text))
}

/// What a text means.
pub(super) fn parse(text: &SiteText) -> Result<model::Site, ReloadError> {
    Ok(playhouse_config::parse(&text.text, &text.path)?)
}

fn reloaded(changes: BoundChanges) -> Reloaded {
    Reloaded { listeners_added: changes.added, listeners_removed: changes.removed, ..Reloaded::default() }
}

/// What a reload would do; the file that is in force is read again if no other is given.
pub(super) async fn plan(controller: &Controller, path: Option<PathBuf>) -> Result<Plan, ReloadError> {
    let before = controller.fleet().in_force();
    let path = path.unwrap_or_else(|| before.text.path.clone());
    let read = tokio::task::spawn_blocking(move || {
        let (site, _) = read(&path)?;
        plan::check_files(&site)?;
        Ok::<_, ReloadError>(site)
    });
    let site = read.await.map_err(|_| ReloadError::NoAnswer)??;
    check_handlers(controller, &site)?;
    controller.fleet().apps().check(&site.apps)?;
    Ok(Plan::new(&before.site, &site, Processes::Several))
}

/// Asks the reload actor, and notes what has come of it.
pub(super) async fn ask(controller: &Controller, path: Option<&Path>) -> Result<Reloaded, ReloadError> {
    let seat = controller.tree().root().child(NAME, Reloader::KIND);
    let answer = seat
        .ask::<Reloader, _>(DEADLINE, |answer| (path.map(Path::to_owned), answer))
        .await
        .map_err(|_| ReloadError::NoAnswer)?;
    let message = match &answer {
        Ok(reloaded) => reloaded.to_string(),
        Err(error) => format!("refused, nothing has changed: {error}"),
    };
    controller.tree().events().emit(EventKind::Reload, seat.path(), message);
    answer
}

impl Actor for Reloader {
    type Message = (Option<PathBuf>, oneshot::Sender<Result<Reloaded, ReloadError>>);

    const KIND: &'static str = "reload";

    async fn run(&mut self, context: &Context) -> Result<(), Failure> {
        // One before may have been cut off between putting something into force and telling of it.
        if context.seat().restarts() > 0 {
            apps::reconcile(self.controller.fleet().apps(), self.controller.tree().root()).await?;
            self.controller.fleet().let_apps_go();
        }
        Ok(())
    }

    async fn handle(&mut self, (path, answer): Self::Message, _: &Context) -> Result<(), Failure> {
        let manager = self.controller.options().service_manager.as_ref();
        let _reloading = manager.map(ServiceManager::reloading);
        let result = self.reload(path).await;
        // Who asked may have given up.
        let _ = answer.send(result);
        Ok(())
    }
}

const NAME: &str = "reload";
const DEADLINE: Duration = Duration::from_secs(30);
const AGAIN: Duration = Duration::from_millis(10);
