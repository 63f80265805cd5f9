//! Changing which sockets there are: everything is bound first, and only then anything changed.

use std::fmt;
use std::io;
use std::sync::Arc;

use playhouse_config::model::{self, Bind};

use super::{Socket, Sockets};
use crate::engine::Settings;
use crate::net;
use crate::tls::{Certificates, TlsError};

/// Sockets that are bound but not in the table yet. Dropped, it closes those it has bound.
#[derive(Debug)]
pub struct Prepared {
    plans: Vec<Plan>,
}

#[derive(Debug)]
struct Plan {
    name: Arc<str>,
    bind: Bind,
    settings: Arc<Settings>,
    listener: Arc<net::Listener>,
    /// The socket of this name goes on, with other settings at most.
    keep: bool,
}

/// What a commit has changed. A listener whose address has changed is in `removed` and in `added`.
#[derive(Debug, Default)]
pub struct Changes {
    /// New sockets, which need an acceptor.
    pub added: Vec<Arc<Socket>>,
    /// Sockets that are closed now; whoever runs their connections lets them finish.
    pub removed: Vec<Arc<Socket>>,
    /// Sockets with other settings for the connections to come.
    pub changed: Vec<Arc<Socket>>,
}

/// Why a listener cannot be.
#[derive(Debug, thiserror::Error)]
#[error("listener {listener:?} ({address}): {error}")]
pub struct BindError {
    /// The listener's name.
    pub listener: Arc<str>,
    /// The address as in the site file.
    pub address: String,
    /// The cause.
    pub error: BindErrorKind,
}

/// The cause of a [`BindError`].
#[derive(Debug, thiserror::Error)]
pub enum BindErrorKind {
    /// The address could not be bound.
    #[error("cannot listen: {0}{hint}", hint = way_out(.0))]
    Bind(io::Error),
    /// The certificates cannot be used.
    #[error(transparent)]
    Tls(TlsError),
}

/// What an operator can do about it, where that is not in the error.
fn way_out(error: &io::Error) -> &'static str {
    match rustix::io::Errno::from_io_error(error) {
        Some(rustix::io::Errno::ADDRINUSE) => {
            "; stop what listens there (`ss -ltnp` shows it), or choose another address"
        }
        Some(rustix::io::Errno::ADDRNOTAVAIL) => "; no interface of this host has this address",
        Some(rustix::io::Errno::ACCESS) => {
            "; a port below 1024 needs the capability CAP_NET_BIND_SERVICE, a Unix socket a directory that can be \
             written to"
        }
        Some(rustix::io::Errno::NOENT) => "; make its directory first",
        None if error.kind() == io::ErrorKind::InvalidInput => "; a Unix socket's path has at most 107 bytes",
        _ => "",
    }
}

impl Sockets {
    /// Binds what `listeners` asks for and is not bound yet, and reads the certificates of new ones. Changes nothing
    /// in the table. Must be called within a runtime, and by one caller at a time until [`Sockets::commit`].
    ///
    /// A socket goes on when its listener has the same name and address. It also goes on under another name when its
    /// own listener is gone, so that a rename closes nothing. An address that overlaps with that of a running socket
    /// without being the same (`0.0.0.0:80` and `127.0.0.1:80`) is in use.
    ///
    /// # Errors
    /// All that is wrong with any listener; then nothing stays bound.
    pub fn prepare(
        &self,
        listeners: &[model::Listener],
        certificates: &Certificates,
    ) -> Result<Prepared, Vec<BindError>> {
        let running = self.all();
        let kept = |socket: &Socket| {
            let mut wanted = listeners.iter();
            wanted
                .any(|listener| listener.name == *socket.name() && same_place(&listener.bind, socket.bind()))
        };
        let mut free: Vec<_> = running.iter().filter(|socket| !kept(socket)).collect();
        let mut plans = Vec::new();
        let mut errors = Vec::new();
        for listener in listeners {
            let mut fail = |error| {
                let (name, address) = (listener.name.clone(), Address(&listener.bind).to_string());
                errors.push(BindError { listener: name, address, error });
            };
            let own = running.iter().find(|socket| *socket.name() == listener.name && kept(socket));
            let successor = || {
                let place = free.iter().position(|socket| can_succeed(&listener.bind, socket.bind()))?;
                free.swap_remove(place).listener()
            };
            let socket = match own.and_then(|own| own.listener()).or_else(successor) {
                Some(socket) => Ok(socket),
                None => net::Listener::bind(&listener.bind, BACKLOG).map(Arc::new),
            };
            let socket = socket.map_err(|error| fail(BindErrorKind::Bind(error)));
            let tls = certificates.load(listener).map_err(|error| fail(BindErrorKind::Tls(error)));
            let (Ok(socket), Ok(tls)) = (socket, tls) else { continue };
            let settings = Settings {
                limits: listener.limits.clone(),
                timeouts: listener.timeouts.clone(),
                http2: listener.http2,
                tls,
            };
            plans.push(Plan {
                name: listener.name.clone(),
                bind: listener.bind.clone(),
                settings: Arc::new(settings),
                listener: socket,
                keep: own.is_some(),
            });
        }
        if errors.is_empty() { Ok(Prepared { plans }) } else { Err(errors) }
    }

    /// Makes the table what was prepared. Cannot fail; running connections are not touched.
    pub fn commit(&self, prepared: Prepared) -> Changes {
        let mut changes = Changes::default();
        for socket in self.all() {
            if !prepared.plans.iter().any(|plan| plan.keep && plan.name == *socket.name()) {
                self.table.remove(socket.name());
                socket.close();
                changes.removed.push(socket);
            }
        }
        for plan in prepared.plans {
            if let Bind::Unix { mode: Some(mode), path } = &plan.bind
                && let Err(error) = plan.listener.set_mode(*mode)
            {
                tracing::warn!(path = %path.display(), %error, "mode of the socket file not changed");
            }
            match self.socket(&plan.name).filter(|_| plan.keep) {
                Some(socket) => {
                    if !same_settings(&socket.settings(), &plan.settings) {
                        socket.apply(plan.settings);
                        changes.changed.push(socket);
                    }
                }
                None => {
                    let index = self.index(&plan.name);
                    let name = plan.name.clone();
                    let socket = Socket::new(plan.name, index, plan.bind, plan.listener, plan.settings);
                    let socket = Arc::new(socket);
                    self.table.insert(name, socket.clone());
                    changes.added.push(socket);
                }
            }
        }
        changes
    }
}

/// What the kernel is asked for; it takes no more than `net.core.somaxconn`.
const BACKLOG: u32 = 4096;

fn same_place(one: &Bind, other: &Bind) -> bool {
    match (one, other) {
        (Bind::Unix { path: one, .. }, Bind::Unix { path: other, .. }) => one == other,
        _ => one == other,
    }
}

/// Whether a listener may go on with the socket of another name. Each port 0 is a place of its own.
fn can_succeed(new: &Bind, old: &Bind) -> bool {
    let chosen_by_kernel = matches!(new, Bind::Tcp { address, .. } if address.port() == 0);
    !chosen_by_kernel && same_place(new, old)
}

fn same_settings(one: &Settings, other: &Settings) -> bool {
    let same_tls = match (&one.tls, &other.tls) {
        (Some(one), Some(other)) => Arc::ptr_eq(one, other),
        (None, None) => true,
        _ => false,
    };
    same_tls && one.limits == other.limits && one.timeouts == other.timeouts && one.http2 == other.http2
}

/// An address as in the site file.
struct Address<'a>(&'a Bind);

impl fmt::Display for Address<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Bind::Tcp { address, .. } => address.fmt(f),
            Bind::Unix { path, .. } => write!(f, "unix:{}", path.display()),
        }
    }
}
