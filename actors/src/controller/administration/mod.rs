//! The controller as administrators see it: one page of what it says itself and what its instances say, each asked at its
//! own admin socket. One that does not answer in time is shown as such, and holds up nobody.

mod metrics;
pub mod relay;
mod status;
mod tree;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{BoxFuture, join_all};
use http::StatusCode;
use playhouse_config::model;
use playhouse_protocol::control::State;
use playhouse_serve::sockets::Sockets;
use rustix::process::{Signal, getpid, kill_process};

use super::member::Member;
use super::{Controller, Fleet, UpgradeError};
use crate::admin::client::{Client, ClientError};
use crate::admin::{Administered, Refused, Scale, Status, Value, end_app_process, fault_here, to_json};
use crate::control;
use crate::supervision::{EventKind, Fault, Tree};

impl Administered for Controller {
    fn own_tree(&self) -> &Arc<Tree> {
        self.tree()
    }

    fn admin_sockets(&self) -> &Sockets {
        &self.admin
    }

    fn site_config(&self) -> Arc<model::Site> {
        Arc::new(self.fleet().in_force().site.clone())
    }

    fn bearer_token(&self) -> Arc<Option<String>> {
        self.admin_token.load_full()
    }

    fn is_site_ready(&self) -> bool {
        self.is_ready()
    }

    fn metrics(&self) -> BoxFuture<'_, String> {
        Box::pin(metrics::collect(self))
    }

    fn status(&self) -> BoxFuture<'_, Status> {
        Box::pin(status::collect(self))
    }

    fn actors(&self, connections: bool) -> BoxFuture<'_, Bytes> {
        Box::pin(tree::collect(self, connections))
    }

    fn fault(&self, path: String, fault: Fault) -> BoxFuture<'_, Result<(), Refused>> {
        Box::pin(async move {
            let process = process_of(&path);
            if process == self.tree().root().name() {
                return fault_here(self.tree(), &path, fault);
            }
            let Some(member) = self.fleet().member(process) else { return Err(self.no_process(&path)) };
            let command = serde_json::json!({"path": path, "how": fault.to_string()});
            let answer = client(self.fleet(), &member).post("/v1/kill", &command).await;
            answer.map(drop).map_err(|error| refused(&member, error))
        })
    }

    fn end_process(&self, path: String) -> BoxFuture<'_, Result<(), Refused>> {
        Box::pin(async move {
            if let Some(ended) = end_app_process(self.tree(), self.fleet().apps(), &path) {
                return ended;
            }
            let name = path.trim_matches('/');
            if name == self.tree().root().name() {
                self.tree().events().emit(EventKind::Fault, name, "sigkill (by an operator)");
                tokio::spawn(async {
                    // First the answer, to whoever has asked.
                    tokio::time::sleep(ANSWER_FIRST).await;
                    // Nothing is left to do where it fails.
                    let _ = kill_process(getpid(), Signal::KILL);
                });
                return Ok(());
            }
            let Some(member) = self.fleet().member(name) else { return Err(self.no_process(&path)) };
            self.tree().events().emit(EventKind::Fault, name, "sigkill (by an operator)");
            member.kill(BY_AN_OPERATOR);
            Ok(())
        })
    }

    fn reload_site(self: Arc<Self>, file: Option<PathBuf>) -> BoxFuture<'static, Result<Value, Refused>> {
        Box::pin(async move {
            let reloaded = self.reload_file(file.as_deref()).await?;
            to_json(&reloaded)
        })
    }

    fn plan_reload(self: Arc<Self>, file: Option<PathBuf>) -> BoxFuture<'static, Result<Value, Refused>> {
        Box::pin(async move { to_json(&self.plan(file).await?) })
    }

    fn stop_site(self: Arc<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move { self.stop().await })
    }

    fn scale(&self, scale: Scale) -> BoxFuture<'_, Result<Value, Refused>> {
        Box::pin(async move {
            let asked = match scale {
                Scale::Auto => None,
                Scale::To(count) => Some(count.get()),
            };
            let fleet = self.fleet();
            fleet.set_scale(asked).map_err(|error| Refused::new(StatusCode::UNPROCESSABLE_ENTITY, error))?;
            let message = match asked {
                Some(count) => format!("an operator asks for {count}"),
                None => "an operator leaves the number to the scaler".to_owned(),
            };
            self.tree().events().emit(EventKind::Scaling, self.tree().root().path(), message);
            Ok(serde_json::json!({"wanted": asked.unwrap_or_else(|| fleet.wanted()), "override": asked}))
        })
    }

    fn restart_app(&self, app: String) -> BoxFuture<'_, Result<Value, Refused>> {
        Box::pin(async move { crate::apps::restart(self.fleet().apps(), &app).await })
    }

    fn upgrade(self: Arc<Self>, binary: Option<PathBuf>) -> BoxFuture<'static, Result<Value, Refused>> {
        Box::pin(async move {
            let successor = self.prepare_upgrade(binary).await.map_err(|error| {
                let status = match error {
                    UpgradeError::Busy | UpgradeError::Stopping => StatusCode::CONFLICT,
                    _ => StatusCode::UNPROCESSABLE_ENTITY,
                };
                Refused::new(status, error)
            })?;
            let answer = serde_json::json!({"binary": successor.program, "pid": std::process::id()});
            tokio::spawn(async move {
                // The answer first: this connection ends with the build that carries it.
                tokio::time::sleep(ANSWER_FIRST).await;
                // Where it is refused, an event and the log say so.
                let _ = self.become_successor(&successor);
            });
            Ok(answer)
        })
    }

    fn drain_instance(&self, name: String) -> BoxFuture<'_, Result<Value, Refused>> {
        Box::pin(async move {
            let fleet = self.fleet();
            let Some(member) = fleet.member(&name) else { return Err(self.no_process(&name)) };
            let state = member.state();
            if state != State::Active {
                let message = format!("{name} is {}, and not active", state.as_str());
                return Err(Refused::new(StatusCode::CONFLICT, message));
            }
            let serves = |other: &&Arc<Member>| {
                let view = other.view();
                view.state == State::Active && !view.stuck && view.slot != member.slot()
            };
            fleet.emit_of(&member, EventKind::Lifecycle, "to be drained (by an operator)");
            if fleet.members().iter().any(|other| serves(&other)) {
                fleet.drain(&member, false);
            } else {
                // The only one that serves: first its successor.
                member.outdate();
                fleet.notify();
            }
            Ok(serde_json::json!({"instance": name, "pid": member.process().pid()}))
        })
    }
}

impl Controller {
    fn no_process(&self, path: &str) -> Refused {
        let mut names: Vec<_> = self.fleet().members().iter().map(|member| member.name()).collect();
        names.insert(0, self.tree().root().name().to_owned());
        let message = format!("no actor {path:?}; the processes are {}", names.join(", "));
        Refused::new(StatusCode::NOT_FOUND, message)
    }
}

/// The instances that live, each with its answer or why there is none.
async fn ask_all<T, F>(fleet: &Fleet, ask: impl Fn(Client) -> F) -> Vec<(Arc<Member>, Result<T, String>)>
where
    F: Future<Output = Result<T, ClientError>>,
{
    let mut members = fleet.members();
    members.retain(|member| member.state() != State::Gone);
    let answers = join_all(members.iter().map(|member| {
        let answer = ask(client(fleet, member));
        let is_stuck = member.view().stuck;
        async move {
            // That one would only take the deadline.
            if is_stuck {
                return Err(format!("no heartbeat for {:.1?}", member.silent_for()));
            }
            answer.await.map_err(|error| error.to_string())
        }
    }))
    .await;
    members.into_iter().zip(answers).collect()
}

fn client(fleet: &Fleet, member: &Member) -> Client {
    Client::new(control::admin_path(fleet.directory(), member.slot()))
}

fn refused(member: &Member, error: ClientError) -> Refused {
    match error {
        ClientError::Refused { status, message } => Refused { status, message },
        error => Refused::new(StatusCode::GATEWAY_TIMEOUT, format!("{}: {error}", member.name())),
    }
}

/// The process that an actor's path begins with.
fn process_of(path: &str) -> &str {
    path.trim_matches('/').split('/').next().unwrap_or_default()
}

/// Why an instance was ended by an operator's `sigkill`.
pub(super) const BY_AN_OPERATOR: &str = "sigkill (by an operator)";

const ANSWER_FIRST: Duration = Duration::from_millis(20);
