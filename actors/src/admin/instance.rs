//! A site in one process, as administrators see it.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::StatusCode;
use playhouse_config::model;
use playhouse_serve::sockets::Sockets;

use super::administered::{Administered, Refused, Value, end_app_process, fault_here, to_json};
use super::scrape;
use super::status::Status;
use crate::apps;
use crate::instance::Instance;
use crate::supervision::{Fault, Tree};

impl Administered for Instance {
    fn own_tree(&self) -> &Arc<Tree> {
        self.tree()
    }

    fn admin_sockets(&self) -> &Sockets {
        self.admin_sockets()
    }

    fn site_config(&self) -> Arc<model::Site> {
        self.config()
    }

    fn bearer_token(&self) -> Arc<Option<String>> {
        self.admin_token()
    }

    fn is_site_ready(&self) -> bool {
        self.is_ready()
    }

    fn metrics(&self) -> BoxFuture<'_, String> {
        Box::pin(async { scrape::scrape(self) })
    }

    fn status(&self) -> BoxFuture<'_, Status> {
        Box::pin(async { Status::of(self) })
    }

    fn actors(&self, connections: bool) -> BoxFuture<'_, Bytes> {
        // A node is made of strings and numbers: there is always JSON of it.
        Box::pin(async move { serde_json::to_vec(&self.tree().view(connections)).unwrap_or_default().into() })
    }

    fn fault(&self, path: String, fault: Fault) -> BoxFuture<'_, Result<(), Refused>> {
        Box::pin(async move { fault_here(self.tree(), &path, fault) })
    }

    fn end_process(&self, path: String) -> BoxFuture<'_, Result<(), Refused>> {
        let ended = end_app_process(self.tree(), self.apps(), &path);
        Box::pin(async move { ended.unwrap_or_else(|| Err(Refused::no_controller())) })
    }

    fn reload_site(self: Arc<Self>, file: Option<PathBuf>) -> BoxFuture<'static, Result<Value, Refused>> {
        Box::pin(async move {
            refuse_alone(&self)?;
            let reloaded = self.reload_file(file.as_deref()).await?;
            to_json(&reloaded)
        })
    }

    fn plan_reload(self: Arc<Self>, file: Option<PathBuf>) -> BoxFuture<'static, Result<Value, Refused>> {
        Box::pin(async move {
            refuse_alone(&self)?;
            to_json(&self.plan(file).await?)
        })
    }

    fn restart_app(&self, app: String) -> BoxFuture<'_, Result<Value, Refused>> {
        Box::pin(async move { apps::restart(self.apps(), &app).await })
    }

    fn stop_site(self: Arc<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            if self.options().conversation.is_some() {
                self.drain(self.config().drain_timeout, false);
            }
            self.stop().await;
        })
    }
}

/// An instance that reloads by itself would differ from the others, and from what the next one begins with.
fn refuse_alone(instance: &Instance) -> Result<(), Refused> {
    match instance.options().conversation {
        Some(_) => Err(Refused::new(StatusCode::CONFLICT, "this is one instance of a site; reload the site")),
        None => Ok(()),
    }
}
