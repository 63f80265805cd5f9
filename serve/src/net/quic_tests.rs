//! Several endpoints on one address, as the processes of a site have them: each client's packets find their own.

use std::net::SocketAddr;
use std::sync::Arc;

use playhouse_config::model::{ClientTimeouts, Limits};
use quinn::Connection;

use super::quic::MAX_UNVALIDATED;
use super::{Buckets, QuicConfig, QuicEndpoint, QuicGroup, QuicKeys, Slot};
use crate::engine::h3_client_config;
use crate::shared::Board;
use crate::tls::{Certificates, testing};

const SLOTS: u32 = 4;

/// Answers every stream with what came and the slot.
async fn serve(endpoint: Arc<QuicEndpoint>, slot: u32) {
    loop {
        let (connecting, handshake) = endpoint.accept().await.accept().unwrap();
        tokio::spawn(async move {
            let connection = connecting.await.unwrap();
            drop(handshake);
            while let Ok((mut send, mut receive)) = connection.accept_bi().await {
                let said = receive.read_to_end(100).await.unwrap();
                send.write_all(&[&said[..], slot.to_string().as_bytes()].concat()).await.unwrap();
                send.finish().unwrap();
            }
        });
    }
}

async fn ask(connection: &Connection) -> u32 {
    let (mut send, mut receive) = connection.open_bi().await.unwrap();
    send.write_all(b"slot ").await.unwrap();
    send.finish().unwrap();
    let answer = String::from_utf8(receive.read_to_end(100).await.unwrap()).unwrap();
    answer.strip_prefix("slot ").unwrap().parse().unwrap()
}

/// Keys of a site, what its listener demands, and its clients.
fn site() -> (QuicKeys, QuicConfig, quinn::ClientConfig) {
    let files = testing::Files::default();
    let certificate = files.write("site", &["a.example"], &testing::key_pair());
    let mut listener = testing::listener(std::slice::from_ref(&certificate));
    listener.http3 = true;
    let tls = Certificates::default().load(&listener).unwrap().unwrap();
    let keys = QuicKeys::generate().unwrap();
    let (limits, timeouts) = (Limits::default(), ClientTimeouts::default());
    let config = QuicConfig::new(tls.quic.as_ref().unwrap(), &limits, &timeouts, &keys).unwrap();
    (keys, config, h3_client_config(&certificate))
}

fn any() -> SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

fn client(config: &quinn::ClientConfig) -> quinn::Endpoint {
    let mut endpoint = quinn::Endpoint::client(any()).unwrap();
    endpoint.set_default_client_config(config.clone());
    endpoint
}

async fn every_connection_stays_with_its_slot(steered: bool) {
    let (keys, config, clients_config) = site();
    let any = any();
    let group = QuicGroup::bind(any, false, SLOTS, &keys.ids()).unwrap();
    assert!(group.is_steered());
    let active = [1, 2, 4];
    let mut buckets = Buckets::all_to(1);
    buckets.spread(&active.map(|slot| (slot, 1)));
    if steered {
        group.steer(&keys.ids(), &buckets, &active).unwrap();
    }
    let group = if steered { group } else { group.without_program() };
    let (group, board, directory) =
        (Arc::new(group), Board::anonymous().unwrap(), tempfile::tempdir().unwrap());
    for slot in active {
        let place = board.mine(slot).unwrap();
        place.set_active(true);
        let slot_of_ids = Slot::among(slot, Some(place)).unwrap();
        let endpoint =
            QuicEndpoint::in_group(group.clone(), slot_of_ids, &keys, Some(directory.path())).unwrap();
        endpoint.open(&config);
        tokio::spawn(serve(Arc::new(endpoint), slot));
    }

    let mut clients = Vec::new();
    for _ in 0..24 {
        let endpoint = client(&clients_config);
        let connection = endpoint.connect(group.local(), "a.example").unwrap().await.unwrap();
        let slot = ask(&connection).await;
        clients.push((endpoint, connection, slot));
    }
    let reached: std::collections::BTreeSet<_> = clients.iter().map(|(_, _, slot)| *slot).collect();
    assert_eq!(reached.into_iter().collect::<Vec<_>>(), active);
    for (endpoint, connection, slot) in &clients {
        for _ in 0..2 {
            endpoint.rebind(super::quic_group::bind_udp(any, false, false).unwrap().into()).unwrap();
            assert_eq!(ask(connection).await, *slot);
        }
    }
}

#[tokio::test]
async fn when_many_handshakes_are_begun_clients_have_to_show_where_they_are() {
    let (keys, config, clients_config) = site();
    let server = QuicEndpoint::bind(any(), false, &keys).unwrap();
    server.open(&config);
    let client = client(&clients_config);
    let connect = || client.connect(server.local(), "a.example").unwrap();
    let (mut connecting, mut begun) = (Vec::new(), Vec::new());
    for _ in 0..MAX_UNVALIDATED {
        connecting.push(connect());
        begun.push(server.validated(server.accept().await, false).unwrap());
    }
    connecting.push(connect());
    assert!(server.validated(server.accept().await, false).is_none(), "one more gets a Retry packet");
    // The second packet of a first flight may come behind the Retry.
    let shown = loop {
        if let Some(shown) = server.validated(server.accept().await, false) {
            break shown;
        }
    };
    let (handshake, _) = shown.accept().unwrap();
    handshake.await.unwrap();
    // The others are no more: nobody has to show anything again.
    drop(begun);
    connecting.push(connect());
    assert!(server.validated(server.accept().await, false).is_some());
}

#[tokio::test]
async fn the_kernel_brings_every_packet_to_its_slot_wherever_its_client_goes() {
    every_connection_stays_with_its_slot(true).await;
}

#[tokio::test]
async fn without_the_kernels_help_the_processes_bring_it_there() {
    every_connection_stays_with_its_slot(false).await;
}
