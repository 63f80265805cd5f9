//! Changing which sockets there are: everything is opened first, and only then anything changed.

use std::fmt;
use std::io;
use std::sync::Arc;

use playhouse_config::model::{self, Bind};

use super::given::Given;
use super::plan::{self, Place, Source};
use super::{Socket, Sockets};
use crate::engine::Settings;
use crate::net::{self, BoundSocket, QuicEndpoint, ReusePortGroup};
use crate::tls::{Certificates, TlsError};

/// Sockets that are open but not in the table yet. Dropped, it closes those it has opened.
#[derive(Debug)]
pub struct Prepared {
    plans: Vec<Plan>,
}

#[derive(Debug)]
struct Plan {
    name: Arc<str>,
    bind: Bind,
    settings: Arc<Settings>,
    /// `None` where the socket of this name goes on, with other settings at most.
    listener: Option<Arc<net::Listener>>,
    quic: Option<Arc<QuicEndpoint>>,
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

impl BindError {
    /// What is wrong with this listener.
    pub fn new(listener: &model::Listener, error: BindErrorKind) -> Self {
        let (name, address) = (listener.name.clone(), Address(&listener.bind).to_string());
        BindError { listener: name, address, error }
    }
}

/// The cause of a [`BindError`].
#[derive(Debug, thiserror::Error)]
pub enum BindErrorKind {
    /// The address could not be bound.
    #[error("cannot listen: {0}{hint}", hint = way_out(.0))]
    Bind(io::Error),
    /// The UDP socket of HTTP/3 could not be had.
    #[error("cannot listen for HTTP/3, on UDP: {0}{hint}", hint = way_out(.0))]
    Quic(io::Error),
    /// A socket was given for it that is not of its address.
    #[error("the socket that was handed to this process for it cannot be used: {0}")]
    Unfit(io::Error),
    /// It would have to be bound anew, which it cannot while it listens.
    #[error(
        "sharing cannot change while the address stays the same: give it another address, or start the site anew"
    )]
    Sharing,
    /// This process does not bind, and nothing was given.
    #[error("no socket was handed to this process for it")]
    NotGiven,
    /// The certificates cannot be used.
    #[error(transparent)]
    Tls(TlsError),
}

/// What an operator can do about it, where that is not in the error.
fn way_out(error: &io::Error) -> &'static str {
    match rustix::io::Errno::from_io_error(error) {
        Some(rustix::io::Errno::ADDRINUSE) => {
            "; stop what listens there (`ss -lntup` shows it), or choose another address"
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
    /// Opens what `listeners` asks for and is not open yet, from what was given or by binding, and reads the certificates
    /// of new ones. Changes nothing in the table. Must be called within a runtime, and by one caller at a time until
    /// [`Sockets::commit`].
    ///
    /// A socket goes on when its listener has the same name and address. It also goes on under another name when its
    /// own listener is gone, so that a rename closes nothing. Where another socket than this one was given for the
    /// listener, that one replaces it. An address that overlaps with that of a running socket without being the same
    /// (`0.0.0.0:80` and `127.0.0.1:80`) is in use.
    ///
    /// What was given and is used is taken out of `given`, on an error too.
    ///
    /// # Errors
    /// All that is wrong with any listener; then nothing stays bound.
    pub fn prepare(
        &self,
        listeners: &[model::Listener],
        certificates: &Certificates,
        given: &mut Given,
    ) -> Result<Prepared, Vec<BindError>> {
        let running = self.all();
        let places: Vec<_> =
            running.iter().map(|socket| Place { name: socket.name(), bind: socket.bind() }).collect();
        given.match_addresses(listeners);
        let mut plans = Vec::new();
        let mut errors = Vec::new();
        for (listener, source) in listeners.iter().zip(plan::sources(listeners, &places)) {
            let before = match source {
                Source::Kept(place) | Source::Succeeds(place) => Some(&*running[place]),
                Source::New => None,
            };
            let socket = before.and_then(Socket::listener);
            // A socket that is closed already is drained, and stays so.
            let is_kept = |opened: &Arc<net::Listener>| {
                matches!(source, Source::Kept(_))
                    && socket.as_ref().is_none_or(|own| Arc::ptr_eq(own, opened))
            };
            let opened = match (source, &socket) {
                (Source::Kept(_), None) => Ok(None),
                _ => open_here(listener, socket.clone(), given)
                    .map(|opened| Some(opened).filter(|opened| !is_kept(opened))),
            };
            let mut opened = opened;
            let mut quic = self.endpoint(listener, &opened, before, given);
            for _ in 0..PORTS {
                if !(is_taken(&quic) && source == Source::New && is_chosen_by_kernel(&listener.bind)) {
                    break;
                }
                opened = open_here(listener, None, given).map(Some);
                quic = self.endpoint(listener, &opened, before, given);
            }
            let tls = certificates.load(listener).map_err(BindErrorKind::Tls);
            match (opened, tls, quic) {
                (Ok(opened), Ok(tls), Ok(quic)) => plans.push(Plan {
                    name: listener.name.clone(),
                    bind: listener.bind.clone(),
                    settings: Arc::new(Settings {
                        limits: listener.limits.clone(),
                        timeouts: listener.timeouts.clone(),
                        http2: listener.http2,
                        proxy_protocol: listener.proxy_protocol.clone(),
                        quic: self.quic_config(listener, tls.as_deref()),
                        tls,
                    }),
                    listener: opened,
                    quic,
                }),
                (opened, tls, quic) => {
                    let quic = quic.err().map(BindErrorKind::Quic);
                    let causes = [opened.err(), tls.err(), quic].into_iter().flatten();
                    errors.extend(causes.map(|error| BindError::new(listener, error)));
                }
            }
        }
        if errors.is_empty() { Ok(Prepared { plans }) } else { Err(errors) }
    }

    /// Makes the table what was prepared. Cannot fail; running connections are not touched.
    pub fn commit(&self, prepared: Prepared) -> Changes {
        let mut changes = Changes::default();
        for socket in self.all() {
            if !prepared.plans.iter().any(|plan| plan.listener.is_none() && plan.name == *socket.name()) {
                self.table.remove(socket.name());
                socket.close();
                changes.removed.push(socket);
            }
        }
        for plan in prepared.plans {
            let running = self.socket(&plan.name);
            let listener = plan.listener.clone().or_else(|| running.as_ref()?.listener());
            if let Bind::Unix { mode: Some(mode), path } = &plan.bind
                && let Some(Err(error)) = listener.map(|listener| listener.set_mode(*mode))
            {
                tracing::warn!(path = %path.display(), %error, "mode of the socket file not changed");
            }
            match (plan.listener, running) {
                (None, Some(socket)) => {
                    if !same_settings(&socket.settings(), &plan.settings) {
                        socket.apply(plan.settings);
                        socket.set_quic(plan.quic);
                        changes.changed.push(socket);
                    }
                }
                (Some(listener), _) => {
                    let index = self.index(&plan.name);
                    let name = plan.name.clone();
                    let (gate, around) = (self.gate.clone(), self.surroundings.clone());
                    let socket =
                        Socket::new(plan.name, index, plan.bind, listener, plan.settings, gate, around);
                    let socket = Arc::new(socket);
                    socket.set_quic(plan.quic);
                    self.table.insert(name, socket.clone());
                    changes.added.push(socket);
                }
                // One caller at a time: what was kept has not gone since.
                (None, None) => {}
            }
        }
        changes
    }
}

/// The socket for a listener, in the runtime's driver: `running`, unless another one was given.
fn open_here(
    listener: &model::Listener,
    running: Option<Arc<net::Listener>>,
    given: &mut Given,
) -> Result<Arc<net::Listener>, BindErrorKind> {
    let slot = given.own_slot();
    if slot > 0 && given.has(&listener.name, slot) {
        let group = given.take_slots(&listener.name);
        let own = group.get(slot as usize - 1);
        if let Some(running) =
            running.filter(|running| own.is_some_and(|own| running.socket().is_same_socket(own)))
        {
            return Ok(running);
        }
        let opened = ReusePortGroup::from_descriptors(group, &listener.bind)
            .and_then(|group| net::Listener::in_group(Arc::new(group), slot));
        return opened.map(Arc::new).map_err(BindErrorKind::Unfit);
    }
    match open(listener, running.as_deref().map(net::Listener::socket), given)? {
        Opened::Running => running.ok_or(BindErrorKind::NotGiven),
        Opened::Given { socket, .. } => {
            net::Listener::new(socket).map(Arc::new).map_err(BindErrorKind::Unfit)
        }
        Opened::Bound(socket) => net::Listener::new(socket).map(Arc::new).map_err(BindErrorKind::Bind),
    }
}

/// Where a socket has come from.
pub(super) enum Opened {
    /// It goes on.
    Running,
    /// Another process has opened it.
    Given {
        /// The socket.
        socket: BoundSocket,
        /// Its opener keeps it.
        borrowed: bool,
    },
    /// It was bound.
    Bound(BoundSocket),
}

/// Finds or makes the socket for a listener. `running` is what it could go on with.
pub(super) fn open(
    listener: &model::Listener,
    running: Option<&BoundSocket>,
    given: &mut Given,
) -> Result<Opened, BindErrorKind> {
    if let Some(given) = given.take(&listener.name, 0)
        && !running.is_some_and(|running| running.is_same_socket(&given.descriptor))
    {
        let socket = BoundSocket::from_descriptor(given.descriptor, &listener.bind);
        return Ok(Opened::Given { socket: socket.map_err(BindErrorKind::Unfit)?, borrowed: given.borrowed });
    }
    if running.is_some() {
        return Ok(Opened::Running);
    }
    if given.is_only() {
        return Err(BindErrorKind::NotGiven);
    }
    BoundSocket::bind(&listener.bind, BACKLOG).map(Opened::Bound).map_err(BindErrorKind::Bind)
}

/// Whether another process has a port.
fn is_taken<T>(opened: &io::Result<T>) -> bool {
    opened.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse)
}

pub(super) fn is_chosen_by_kernel(bind: &Bind) -> bool {
    matches!(bind, Bind::Tcp { address, .. } if address.port() == 0)
}

/// How often another port is tried, where the kernel's choice is free for TCP alone.
pub(super) const PORTS: usize = 16;

/// What the kernel is asked for; it takes no more than `net.core.somaxconn`.
pub(super) const BACKLOG: u32 = 4096;

fn same_settings(one: &Settings, other: &Settings) -> bool {
    let same_tls = match (&one.tls, &other.tls) {
        (Some(one), Some(other)) => Arc::ptr_eq(one, other),
        (None, None) => true,
        _ => false,
    };
    let same_protocols = one.http2 == other.http2
        && one.quic.is_some() == other.quic.is_some()
        && one.proxy_protocol == other.proxy_protocol;
    same_tls && same_protocols && one.limits == other.limits && one.timeouts == other.timeouts
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
