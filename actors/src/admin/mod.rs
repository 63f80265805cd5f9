//! The admin interface: the same acceptors, connections and engines as the site's own listeners, with another
//! application behind them.

mod access;
mod administered;
mod application;
pub mod client;
mod events;
pub mod exposition;
mod instance;
pub(crate) mod scrape;
mod status;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use playhouse_config::model::{self, Bind, ClientTimeouts, Limits, Listener};

pub use administered::{Administered, Refused, Scale, Value};
pub(crate) use administered::{end_app_process, fault_here, to_json};
pub use application::AdminApplication;
pub use status::{ControllerStatus, InstanceStatus, ListenerStatus, MemoryStatus, ScalerStatus, Status};
pub(crate) use status::{RECENT_EVENTS, cpu_seconds};

use playhouse_serve::sockets::Socket;

use crate::acceptor::{Acceptor, Door};
use crate::connection::Admission;
use crate::reload::{self, ReloadError};
use crate::shard::Shard;
use crate::supervision::{Actor, AskError, ChildSpec, Intensity, Seat, Shutdown, Strategy, Supervisor};

/// The admin interface's place in the tree.
pub const NAME: &str = "admin";
const CONNECTIONS: &str = "connections";
/// The listener that is the Unix socket in the state directory.
const SOCKET: &str = "socket";
/// The listener on `admin.bind`.
const TCP: &str = "tcp";

/// The supervisor of the admin interface.
pub(crate) fn supervisor(over: Arc<dyn Administered>) -> Supervisor {
    Supervisor::new(Strategy::OneForOne, Intensity::default(), move || {
        let mut children = vec![
            ChildSpec::new(CONNECTIONS, || {
                Supervisor::new(Strategy::OneForOne, Intensity::default(), || {
                    vec![ChildSpec::new("shard-0", Shard::default).shutdown(Shutdown::After(FAREWELL))]
                })
            })
            .shutdown(Shutdown::After(FAREWELL * 2)),
        ];
        children.extend(over.admin_sockets().all().into_iter().map(|socket| acceptor(socket, &over)));
        children
    })
}

/// Gives every listener of the admin interface its acceptor, and ends those of what is gone. To be done after a reload;
/// idempotent.
pub(crate) async fn reconcile(over: &Arc<dyn Administered>) -> Result<(), AskError> {
    let admin = seat(over);
    let sockets = over.admin_sockets().all();
    let is_gone = |child: &Arc<Seat>| {
        child.kind() == "acceptor" && !sockets.iter().any(|socket| &**socket.name() == child.name())
    };
    let stale =
        admin.children().iter().filter(|child| is_gone(child)).map(|child| child.name().into()).collect();
    reload::bring_in_line(&admin, stale, sockets.iter().map(|socket| acceptor(socket.clone(), over))).await
}

fn seat(over: &Arc<dyn Administered>) -> Arc<Seat> {
    over.own_tree().root().child(NAME, Supervisor::KIND)
}

fn acceptor(socket: Arc<Socket>, over: &Arc<dyn Administered>) -> ChildSpec {
    let connections = seat(over).child(CONNECTIONS, Supervisor::KIND);
    let application = Arc::new(AdminApplication::new(over.clone()));
    Acceptor::spec(socket, Door::Streams, application, Admission::SameUser, connections)
}

/// The admin interface's listeners.
pub(crate) fn listeners(socket: Option<PathBuf>, admin: &model::Admin) -> Vec<Listener> {
    let listener = |name: &str, bind| Listener {
        name: name.into(),
        bind,
        tls: Vec::new(),
        http2: false,
        proxy_protocol: None,
        http3: false,
        early_data: false,
        sharing: Default::default(),
        limits: Limits { connections: 256, body_bytes: 64 << 10, ..Limits::default() },
        // Who has nothing to ask does not hold up the end of the site.
        timeouts: ClientTimeouts { drain_idle: FAREWELL / 10, ..ClientTimeouts::default() },
    };
    let socket = socket.map(|path| listener(SOCKET, Bind::Unix { path, mode: Some(0o600) }));
    let tcp = admin.bind.map(|address| listener(TCP, Bind::Tcp { address, only_v6: false }));
    socket.into_iter().chain(tcp).collect()
}

/// The bearer token of the token file. An empty one is an error: it would let everybody in.
pub(crate) fn read_token(admin: &model::Admin) -> Result<Option<String>, ReloadError> {
    let Some(path) = &admin.token_file else { return Ok(None) };
    let error = |error| ReloadError::Token { path: path.clone(), error };
    let token = std::fs::read_to_string(path).map_err(error)?.trim().to_owned();
    if token.is_empty() {
        return Err(error(std::io::Error::other("the file is empty")));
    }
    Ok(Some(token))
}

/// How long an answer to an administrator may still take when the site stops.
const FAREWELL: Duration = Duration::from_secs(1);
