//! The admin interface: the same acceptors, connections and engines as the site's own listeners, with another
//! application behind them.

mod access;
mod application;
mod events;
mod scrape;
mod status;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use playhouse_config::model::{self, Bind, ClientTimeouts, Limits, Listener};

pub use application::AdminApplication;
pub use status::{InstanceStatus, ListenerStatus, Status};

use crate::instance::Instance;
use crate::reload::ReloadError;
use crate::shard::Shard;
use crate::supervision::{ChildSpec, Intensity, Shutdown, Strategy, Supervisor};

/// The admin interface's place in the tree.
pub const NAME: &str = "admin";
pub(crate) const CONNECTIONS: &str = "connections";
/// The listener that is the Unix socket in the state directory.
const SOCKET: &str = "socket";
/// The listener on `admin.bind`.
const TCP: &str = "tcp";

/// The supervisor of the admin interface.
pub(crate) fn supervisor(instance: Arc<Instance>) -> Supervisor {
    Supervisor::new(Strategy::OneForOne, Intensity::default(), move || {
        let admin = instance.tree().root().child(NAME, <Supervisor as crate::supervision::Actor>::KIND);
        let shards = admin.child(CONNECTIONS, <Supervisor as crate::supervision::Actor>::KIND);
        let mut children = vec![
            ChildSpec::new(CONNECTIONS, || {
                Supervisor::new(Strategy::OneForOne, Intensity::default(), || {
                    vec![ChildSpec::new("shard-0", Shard::default).shutdown(Shutdown::After(FAREWELL))]
                })
            })
            .shutdown(Shutdown::After(FAREWELL * 2)),
        ];
        let sockets = instance.admin_sockets().all();
        children.extend(sockets.into_iter().map(|socket| instance.admin_spec(socket, shards.clone())));
        children
    })
}

/// The admin interface's listeners.
pub(crate) fn listeners(socket: Option<PathBuf>, admin: &model::Admin) -> Vec<Listener> {
    let listener = |name: &str, bind| Listener {
        name: name.into(),
        bind,
        tls: Vec::new(),
        http2: false,
        limits: Limits { connections: 256, body_bytes: 64 << 10, ..Limits::default() },
        timeouts: ClientTimeouts::default(),
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
