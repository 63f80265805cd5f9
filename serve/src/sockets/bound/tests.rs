use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;

use super::*;

fn listener(name: &str, bind: Bind) -> model::Listener {
    model::Listener {
        name: name.into(),
        bind,
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

fn tcp(name: &str) -> model::Listener {
    listener(name, Bind::Tcp { address: "127.0.0.1:0".parse().unwrap(), only_v6: false })
}

fn unix(name: &str, path: &Path) -> model::Listener {
    listener(name, Bind::Unix { path: path.to_owned(), mode: None })
}

fn apply(bound: &Bound, listeners: &[model::Listener]) -> BoundChanges {
    bound.commit(bound.prepare(listeners, &mut Given::default()).unwrap())
}

fn changes(added: &[&str], removed: &[&str]) -> BoundChanges {
    let names = |names: &[&str]| names.iter().map(|name| Arc::from(*name)).collect();
    BoundChanges { added: names(added), removed: names(removed) }
}

fn given(from: Vec<Passable>) -> Given {
    let mut given = Given::default();
    for Passable { listener, slot, descriptor } in from {
        given.add(&listener, slot, descriptor);
    }
    given
}

#[test]
fn clients_are_queued_while_nobody_accepts() {
    let bound = Bound::default();
    assert_eq!(apply(&bound, &[tcp("http")]), changes(&["http"], &[]));
    let [(name, address)] = &bound.addresses()[..] else { panic!("one listener") };
    assert_eq!(&**name, "http");
    TcpStream::connect(address).unwrap();
    assert_eq!(apply(&bound, &[tcp("http")]), changes(&[], &[]));
    assert_eq!(bound.addresses()[0].1, *address);
}

#[test]
fn a_renamed_socket_goes_on_and_a_removed_one_takes_its_file_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("edge.sock");
    let bound = Bound::default();
    apply(&bound, &[unix("old", &path)]);
    let prepared = bound.prepare(&[unix("new", &path)], &mut Given::default()).unwrap();
    assert!(prepared.opened().unwrap().is_empty());
    assert_eq!(prepared.descriptors().unwrap().len(), 1);
    assert_eq!(bound.commit(prepared), changes(&["new"], &["old"]));
    UnixStream::connect(&path).unwrap();
    assert_eq!(apply(&bound, &[tcp("http")]), changes(&["http"], &["new"]));
    assert!(!path.exists());
}

#[test]
fn what_was_prepared_and_is_given_up_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let (kept, path) = (dir.path().join("kept.sock"), dir.path().join("edge.sock"));
    let bound = Bound::default();
    apply(&bound, &[unix("kept", &kept)]);
    let prepared = bound.prepare(&[unix("edge", &path)], &mut Given::default()).unwrap();
    assert_eq!(&*prepared.opened().unwrap()[0].listener, "edge");
    assert!(path.exists());
    drop(prepared);
    assert!(!path.exists());
    UnixStream::connect(&kept).unwrap();
}

#[test]
fn a_holder_that_dies_leaves_the_sockets_to_its_successor() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("edge.sock");
    let listeners = [tcp("http"), unix("edge", &path)];
    let first = Bound::default();
    apply(&first, &listeners);
    let address = first.addresses().remove(0).1;
    // An instance, from which the successor has them.
    let (mut adopted, again) = (given(first.descriptors().unwrap()), first.descriptors().unwrap());
    drop(first);
    UnixStream::connect(&path).unwrap();
    let second = Bound::default();
    let prepared = second.prepare(&listeners, &mut adopted).unwrap();
    assert!(adopted.unused().is_empty());
    assert_eq!(second.commit(prepared), changes(&["http", "edge"], &[]));
    assert_eq!(second.addresses()[0].1, address);
    // What is given again changes nothing.
    let prepared = second.prepare(&listeners, &mut given(again)).unwrap();
    assert!(prepared.opened().unwrap().is_empty());
    second.commit(prepared);
    TcpStream::connect(&address).unwrap();
    UnixStream::connect(&path).unwrap();
    second.close();
    assert!(!path.exists());
    TcpStream::connect(&address).unwrap_err();
}

#[test]
fn a_socket_whose_file_is_lost_is_bound_anew() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("edge.sock");
    let first = Bound::default();
    apply(&first, &[unix("edge", &path)]);
    let mut adopted = given(first.descriptors().unwrap());
    std::fs::remove_file(&path).unwrap();
    let second = Bound::default();
    second.commit(second.prepare(&[unix("edge", &path)], &mut adopted).unwrap());
    UnixStream::connect(&path).unwrap();
}

#[test]
fn a_service_managers_socket_is_found_by_its_address_and_keeps_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("edge.sock");
    let manager = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let mut given = Given::default();
    given.add_activated("shop.socket", manager.try_clone().unwrap().into());
    given.add_activated("shop.socket", std::net::TcpListener::bind("127.0.0.1:0").unwrap().into());
    let bound = Bound::default();
    bound.commit(bound.prepare(&[unix("edge", &path)], &mut given).unwrap());
    assert_eq!(given.unused(), ["shop.socket"]);
    bound.close();
    assert!(path.exists());
    drop(manager);
}

#[test]
fn a_socket_that_was_kept_is_its_listeners_whatever_the_port_unless_that_has_another_address() {
    let kept = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = kept.local_addr().unwrap().to_string();
    let elsewhere = Bind::Tcp { address: "127.0.0.2:0".parse().unwrap(), only_v6: false };
    let other = listener("other", elsewhere);
    let mut given = Given::default();
    given.add_activated("listener-http", kept.try_clone().unwrap().into());
    given.add_activated("listener-other", kept.try_clone().unwrap().into());
    let bound = Bound::default();
    bound.commit(bound.prepare(&[tcp("http"), other], &mut given).unwrap());
    let addresses = bound.addresses();
    assert_eq!(addresses.iter().find(|(name, _)| &**name == "http").unwrap().1, address);
    assert!(addresses.iter().all(|(name, address)| &**name == "http" || address.starts_with("127.0.0.2:")));
    assert_eq!(given.unused(), ["listener-other"]);
}

#[test]
fn where_nothing_may_be_bound_a_listener_without_a_socket_is_an_error() {
    let errors = Bound::default().prepare(&[tcp("http")], &mut Given::only()).unwrap_err();
    assert!(errors[0].to_string().ends_with("no socket was handed to this process for it"));
    let mut given = Given::only();
    given.add("http", 0, std::net::UdpSocket::bind("127.0.0.1:0").unwrap().into());
    let errors = Bound::default().prepare(&[tcp("http")], &mut given).unwrap_err();
    assert!(errors[0].to_string().contains("no stream socket"));
}
