//! The table as acceptors and reloads use it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use playhouse_config::model::{self, Address, Bind};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::net::Connector;
use crate::tls::Certificates;

fn tcp(name: &str) -> model::Listener {
    model::Listener {
        name: name.into(),
        bind: Bind::Tcp { address: "127.0.0.1:0".parse().unwrap(), only_v6: false },
        tls: Vec::new(),
        http2: true,
        proxy_protocol: None,
        http3: false,
        early_data: false,
        sharing: Default::default(),
        limits: model::Limits::default(),
        timeouts: model::ClientTimeouts::default(),
    }
}

fn stream(accepted: Accepted) -> crate::net::Stream {
    match accepted.transport {
        Transport::Stream(stream) => stream,
        Transport::Quic(..) => panic!("by QUIC"),
    }
}

fn apply(sockets: &Sockets, listeners: &[model::Listener]) -> Changes {
    sockets.commit(sockets.prepare(listeners, &Certificates::default(), &mut Given::default()).unwrap())
}

fn names(sockets: &[Arc<Socket>]) -> Vec<String> {
    sockets.iter().map(|socket| socket.name().to_string()).collect()
}

fn address(socket: &Socket) -> Address {
    Address::Tcp(socket.listener().unwrap().local().unwrap())
}

/// Clients that each wait for one byte; counts those that got it.
fn clients(count: usize, to: &Address) -> Arc<AtomicUsize> {
    let served = Arc::new(AtomicUsize::new(0));
    for _ in 0..count {
        let (served, to) = (served.clone(), to.clone());
        tokio::spawn(async move {
            let mut stream = Connector::connect(&to).await.unwrap();
            stream.read_u8().await.unwrap();
            served.fetch_add(1, Ordering::Relaxed);
        });
    }
    served
}

#[tokio::test]
async fn a_listener_that_cannot_be_says_which_it_is_why_and_what_to_do() {
    let sockets = Sockets::default();
    let taken: std::net::SocketAddr =
        apply(&sockets, &[tcp("http")]).added.remove(0).address().parse().unwrap();
    let mut late = tcp("late");
    late.bind = Bind::Tcp { address: taken, only_v6: false };
    let mut long = tcp("long");
    long.bind = Bind::Unix { path: format!("/{}", "x".repeat(200)).into(), mode: None };
    let mut lost = tcp("lost");
    lost.bind = Bind::Unix { path: "/no/such/directory/x.sock".into(), mode: None };
    let errors = Sockets::default()
        .prepare(&[late, long, lost], &Certificates::default(), &mut Given::default())
        .unwrap_err();
    let said: Vec<String> = errors.iter().map(ToString::to_string).collect();
    assert_eq!(said.len(), 3, "{said:?}");
    let expected = [
        ["\"late\"", &*taken.to_string(), "ss -lntup"],
        ["\"long\"", "unix:/xxx", "107 bytes"],
        ["\"lost\"", "unix:/no/such/directory/x.sock", "make its directory"],
    ];
    for (said, parts) in said.iter().zip(expected) {
        assert!(parts.iter().all(|part| said.contains(part)), "{said}");
    }
}

#[tokio::test]
async fn an_accept_that_is_dropped_at_any_poll_loses_nobody() {
    let sockets = Sockets::default();
    let socket = apply(&sockets, &[tcp("http")]).added.remove(0);
    const CLIENTS: usize = 300;
    let served = clients(CLIENTS, &address(&socket));
    let mut polls = 0;
    while served.load(Ordering::Relaxed) < CLIENTS {
        // An acceptor that is killed after one to three polls, whatever came of them: its ticket dies with it.
        {
            let mut accept = std::pin::pin!(socket.accept());
            polls += 1;
            for _ in 0..=polls % 3 {
                if futures_util::poll!(accept.as_mut()).is_ready() {
                    break;
                }
                tokio::task::yield_now().await;
            }
        }
        if polls % 7 == 0 {
            for ticket in socket.waiting() {
                let mut accepted = stream(socket.take(ticket).unwrap());
                accepted.write_u8(1).await.unwrap();
                assert!(socket.take(ticket).is_none());
            }
        }
        tokio::task::yield_now().await;
    }
    let counts = socket.counts();
    assert_eq!((counts.accepted, counts.handed), (CLIENTS as u64, CLIENTS as u64));
    assert_eq!((counts.waiting, counts.open, counts.errors), (0, 0, 0));
}

#[tokio::test]
async fn two_acceptors_at_once_take_every_stream_once() {
    let sockets = Sockets::default();
    let socket = apply(&sockets, &[tcp("http")]).added.remove(0);
    const CLIENTS: usize = 100;
    let served = clients(CLIENTS, &address(&socket));
    let accept_all = async || {
        while served.load(Ordering::Relaxed) < CLIENTS {
            tokio::select! {
                ticket = socket.accept() => {
                    let mut accepted = stream(socket.take(ticket.unwrap()).unwrap());
                    accepted.write_u8(1).await.unwrap();
                }
                () = tokio::task::yield_now() => {}
            }
        }
    };
    futures_util::future::join(accept_all(), accept_all()).await;
    assert_eq!(socket.counts().handed, CLIENTS as u64);
}

#[tokio::test]
async fn at_the_connection_limit_clients_wait_in_the_kernel() {
    let sockets = Sockets::default();
    let mut listener = tcp("http");
    listener.limits.connections = 1;
    let socket = apply(&sockets, &[listener.clone()]).added.remove(0);
    let _first = Connector::connect(&address(&socket)).await.unwrap();
    let _second = Connector::connect(&address(&socket)).await.unwrap();
    let ticket = socket.accept().await.unwrap();
    let first = socket.take(ticket).unwrap();
    let mut accept = std::pin::pin!(socket.accept());
    assert!(futures_util::poll!(accept.as_mut()).is_pending());
    assert_eq!(socket.connections().open(), 1);
    drop(first);
    let ticket = accept.await.unwrap();
    let _second_accepted = socket.take(ticket).unwrap();

    let _third = Connector::connect(&address(&socket)).await.unwrap();
    let mut accept = std::pin::pin!(socket.accept());
    assert!(futures_util::poll!(accept.as_mut()).is_pending());
    listener.limits.connections = 2;
    assert_eq!(names(&apply(&sockets, &[listener]).changed), ["http"]);
    accept.await.unwrap();
}

#[tokio::test]
async fn a_reload_touches_only_what_changed() {
    let sockets = Sockets::default();
    let (one, mut two) = (tcp("one"), tcp("two"));
    apply(&sockets, &[one.clone(), two.clone()]);
    let before = sockets.socket("one").unwrap();
    two.limits.body_bytes = 1;
    let changes = apply(&sockets, &[one.clone(), two, tcp("three")]);
    assert_eq!(names(&changes.added), ["three"]);
    assert_eq!(names(&changes.changed), ["two"]);
    assert!(changes.removed.is_empty());
    assert!(Arc::ptr_eq(&before, &sockets.socket("one").unwrap()));

    let changes = apply(&sockets, &[one]);
    assert_eq!(names(&changes.removed), ["two", "three"]);
    assert!(changes.removed.iter().all(|socket| socket.is_closed()));
    assert_eq!(sockets.index(&"three".into()), 2);
}

#[tokio::test]
async fn a_renamed_listener_goes_on_with_its_socket() {
    let sockets = Sockets::default();
    let mut listener = tcp("old");
    // A port of its own, so that the address is the same and not only "any".
    let free = crate::net::Listener::bind(&listener.bind, 1).unwrap().local().unwrap();
    listener.bind = Bind::Tcp { address: free, only_v6: false };
    let old = apply(&sockets, &[listener.clone()]).added.remove(0);
    let _client = Connector::connect(&address(&old)).await.unwrap();
    let before = old.listener().unwrap();
    listener.name = "new".into();
    let changes = apply(&sockets, &[listener]);
    assert_eq!((names(&changes.removed), names(&changes.added)), (vec!["old".into()], vec!["new".into()]));
    let new = &changes.added[0];
    assert!(Arc::ptr_eq(&before, &new.listener().unwrap()));
    new.accept().await.unwrap();
}

#[tokio::test]
async fn one_bad_listener_leaves_everything_as_it_was() {
    let sockets = Sockets::default();
    let running = apply(&sockets, &[tcp("running")]).added.remove(0);
    let taken = Bind::Tcp { address: running.listener().unwrap().local().unwrap(), only_v6: false };
    let bad = model::Listener { bind: taken, ..tcp("bad") };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("good.sock");
    let good = model::Listener { bind: Bind::Unix { path: path.clone(), mode: None }, ..tcp("good") };
    let worse = model::Listener {
        bind: Bind::Unix { path: dir.path().join("no/such/dir"), mode: None },
        ..tcp("worse")
    };
    let errors = sockets
        .prepare(&[tcp("running"), bad, good, worse], &Certificates::default(), &mut Given::default())
        .unwrap_err();
    assert_eq!(errors.iter().map(|error| &*error.listener).collect::<Vec<_>>(), ["bad", "worse"]);
    assert!(!path.exists());
    assert!(!running.is_closed());
    assert_eq!(sockets.all().len(), 1);
}

#[tokio::test]
async fn a_closed_socket_first_accepts_what_the_kernel_has_ready() {
    let sockets = Sockets::default();
    let socket = apply(&sockets, &[tcp("http")]).added.remove(0);
    let _first = Connector::connect(&address(&socket)).await.unwrap();
    let _second = Connector::connect(&address(&socket)).await.unwrap();
    socket.accept().await.unwrap();
    sockets.close();
    socket.accept().await.unwrap();
    assert!(matches!(socket.accept().await, Err(AcceptError::Closed)));
    assert_eq!(socket.waiting().len(), 2);
}

#[tokio::test]
async fn a_closed_socket_refuses_new_clients_while_its_connections_hold_it() {
    let sockets = Sockets::default();
    let socket = apply(&sockets, &[tcp("http")]).added.remove(0);
    let to = address(&socket);
    let _client = Connector::connect(&to).await.unwrap();
    let ticket = socket.accept().await.unwrap();
    let _connection = socket.take(ticket).unwrap();
    socket.close();
    assert!(matches!(socket.accept().await, Err(AcceptError::Closed)));
    assert!(Connector::connect(&to).await.is_err());
}

#[tokio::test]
async fn closing_ends_an_accept_that_waits() {
    let sockets = Sockets::default();
    let socket = apply(&sockets, &[tcp("http")]).added.remove(0);
    let mut accept = std::pin::pin!(socket.accept());
    assert!(accept.as_mut().now_or_never().is_none());
    socket.close();
    assert!(matches!(accept.await, Err(AcceptError::Closed)));
}

#[tokio::test]
async fn sockets_that_are_held_leave_clients_to_the_kernel_until_they_are_activated() {
    let sockets = Sockets::default();
    sockets.hold();
    let socket = apply(&sockets, &[tcp("http")]).added.remove(0);
    let _client = Connector::connect(&address(&socket)).await.unwrap();
    let mut accept = std::pin::pin!(socket.accept());
    for _ in 0..10 {
        assert!(futures_util::poll!(accept.as_mut()).is_pending());
        tokio::task::yield_now().await;
    }
    assert!(!sockets.is_active());
    sockets.activate();
    accept.await.unwrap();
    let late = apply(&sockets, &[tcp("http"), tcp("late")]).added.remove(0);
    let _client = Connector::connect(&address(&late)).await.unwrap();
    late.accept().await.unwrap();
}

#[derive(Debug)]
struct Board(Arc<[std::sync::atomic::AtomicBool]>, u32);

impl Peers for Board {
    fn opened(&self) {}

    fn closed(&self) {}

    fn share(&self) -> Share {
        Share::default()
    }

    fn taken_behind(&self, _: Share) -> u64 {
        0
    }

    fn set_active(&self, active: bool) {
        self.0[self.1 as usize].store(active, Ordering::Relaxed);
    }

    fn is_active(&self, slot: u32) -> bool {
        self.0[slot as usize].load(Ordering::Relaxed)
    }
}

#[tokio::test(start_paused = true)]
async fn with_a_socket_per_instance_nobody_who_waits_for_one_that_leaves_or_dies_is_lost() {
    let listeners = [model::Listener { sharing: model::Sharing::ReusePort, ..tcp("http") }];
    let bound = Bound::default();
    bound.reserve_slots(4);
    bound.steer(&[(1, 1), (2, 1), (3, 1)], &[1, 2, 3]).unwrap();
    bound.commit(bound.prepare(&listeners, &mut Given::default()).unwrap());
    let to = Address::Tcp(bound.addresses()[0].1.parse().unwrap());
    let active: Arc<[_]> = (0..5).map(|_| std::sync::atomic::AtomicBool::new(false)).collect();
    let instance = |slot| {
        let mut given = Given::for_slot(slot);
        for Passable { listener, slot, descriptor } in bound.descriptors().unwrap() {
            given.add(&listener, slot, descriptor);
        }
        let sockets = Sockets::default();
        sockets.share_with(Arc::new(Board(active.clone(), slot)));
        sockets.commit(sockets.prepare(&listeners, &Certificates::default(), &mut given).unwrap());
        sockets
    };
    let [stays, leaves, dies] = [1, 2, 3].map(instance);
    assert_eq!(stays.descriptors().unwrap().len(), 4);
    let mut clients = Vec::new();
    for _ in 0..150 {
        clients.push(Connector::connect(&to).await.unwrap());
    }
    // One is killed, and one is to leave: first they are taken out, then the one that leaves is told.
    bound.steer(&[(1, 1)], &[1]).unwrap();
    active[3].store(false, Ordering::Relaxed);
    drop(dies);
    let leaving = leaves.socket("http").unwrap();
    leaves.leave();
    leaves.close();
    assert!(leaves.descriptors().unwrap().is_empty());
    for _ in 0..10 {
        clients.push(Connector::connect(&to).await.unwrap());
    }
    let mut left = 0;
    while leaving.accept().await.is_ok() {
        left += 1;
    }
    let staying = stays.socket("http").unwrap();
    let (mut swept, mut own) = (0, 0);
    // On a busy machine a client may know that it is connected before its connection has come into the queue.
    let deadline = std::time::SystemTime::now() + Duration::from_secs(10);
    while left + swept + own < 160 && std::time::SystemTime::now() < deadline {
        swept += staying.sweep().len();
        while let Some(accepted) = staying.accept().now_or_never() {
            accepted.unwrap();
            own += 1;
        }
        tokio::task::yield_now().await;
    }
    assert_eq!(left + swept + own, 160, "{left} {swept} {own}");
    assert!(left > 10 && swept > 10 && own > 20, "{left} {swept} {own}");
    assert!(staying.sweep().is_empty());
}

#[tokio::test]
async fn a_site_of_one_process_has_one_socket_whatever_the_sharing() {
    let listener = model::Listener { sharing: model::Sharing::ReusePort, ..tcp("http") };
    let sockets = Sockets::default();
    let socket = apply(&sockets, std::slice::from_ref(&listener)).added.remove(0);
    assert!(socket.listener().unwrap().group().is_none());
    let bound = Bound::default();
    bound.commit(bound.prepare(&[listener], &mut Given::default()).unwrap());
    assert_eq!(bound.descriptors().unwrap().len(), 1);
    bound.reserve_slots(3);
    let errors = bound.prepare(&[tcp("http")], &mut Given::default()).unwrap_err();
    assert!(matches!(errors[..], [BindError { error: BindErrorKind::Sharing, .. }]));
}

/// A socket table that shares the listening sockets of another, as another process would.
fn shares(with: &Sockets, listeners: &[model::Listener]) -> Sockets {
    let mut given = Given::only();
    for Passable { listener, slot, descriptor } in with.descriptors().unwrap() {
        given.add(&listener, slot, descriptor);
    }
    let sockets = Sockets::default();
    sockets.commit(sockets.prepare(listeners, &Certificates::default(), &mut given).unwrap());
    sockets
}

#[tokio::test]
async fn who_leaves_takes_nobody_from_the_queue_that_others_share_and_ends_nobody() {
    let listeners = [tcp("http")];
    let leaving = Sockets::default();
    let socket = apply(&leaving, &listeners).added.remove(0);
    let to = address(&socket);
    let staying = shares(&leaving, &listeners).socket("http").unwrap();
    let _client = Connector::connect(&to).await.unwrap();
    let _ticket = socket.accept().await.unwrap();
    let mut accept = std::pin::pin!(socket.accept());
    assert!(accept.as_mut().now_or_never().is_none());
    let _client = Connector::connect(&to).await.unwrap();
    leaving.leave();
    assert!(socket.listener().is_none());
    assert!(leaving.descriptors().unwrap().is_empty());
    assert!(matches!(accept.await, Err(AcceptError::Closed)));
    assert!(socket.closed().now_or_never().is_none());
    staying.accept().await.unwrap();
    assert_eq!((socket.counts().accepted, staying.counts().accepted), (1, 1));
    // Now the connections are to finish, too.
    leaving.close();
    socket.closed().await;
    assert!(matches!(socket.accept().await, Err(AcceptError::Closed)));
}

#[tokio::test]
async fn a_reload_goes_on_with_a_given_socket_unless_another_is_given() {
    let listeners = [tcp("http")];
    let opener = Sockets::default();
    let opened = apply(&opener, &listeners).added.remove(0);
    let sockets = shares(&opener, &listeners);
    let before = sockets.socket("http").unwrap();
    let prepare = |descriptor: Option<std::os::fd::OwnedFd>| {
        let mut given = Given::only();
        if let Some(descriptor) = descriptor {
            given.add("http", 0, descriptor);
        }
        sockets.commit(sockets.prepare(&listeners, &Certificates::default(), &mut given).unwrap())
    };
    assert!(prepare(None).added.is_empty());
    let same = opened.listener().unwrap().try_clone_descriptor().unwrap();
    assert!(prepare(Some(same)).added.is_empty());
    let other = apply(&Sockets::default(), &listeners).added.remove(0).listener().unwrap();
    let changes = prepare(Some(other.try_clone_descriptor().unwrap()));
    assert_eq!((names(&changes.added), names(&changes.removed)), (vec!["http".into()], vec!["http".into()]));
    assert!(before.is_closed());
    assert_eq!(sockets.socket("http").unwrap().address(), other.address());
    let errors = sockets
        .prepare(&[tcp("http"), tcp("new")], &Certificates::default(), &mut Given::only())
        .unwrap_err();
    assert!(matches!(errors[..], [BindError { error: BindErrorKind::NotGiven, .. }]));
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_nobody_takes_becomes_overdue() {
    let sockets = Sockets::default();
    let socket = apply(&sockets, &[tcp("http")]).added.remove(0);
    let _client = Connector::connect(&address(&socket)).await.unwrap();
    let ticket = socket.accept().await.unwrap();
    assert!(socket.overdue(Duration::from_secs(1)).is_empty());
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(socket.overdue(Duration::from_secs(1)), [ticket]);
}
