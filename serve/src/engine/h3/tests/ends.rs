//! How connections end.

use futures_util::FutureExt;
use http::Response;
use playhouse_protocol::http3::Varint;
use tokio::sync::Semaphore;

use super::*;
use crate::Body;

const NO_ERROR: u64 = 0x100;
const INTERNAL_ERROR: u64 = 0x102;
const REQUEST_REJECTED: u32 = 0x10b;

/// Answers when it is let to.
fn held() -> (Arc<TestApplication>, Arc<Semaphore>) {
    let permits = Arc::new(Semaphore::new(0));
    let held = permits.clone();
    let application = TestApplication::new(move |_| {
        let held = held.clone();
        async move {
            held.acquire().await.unwrap().forget();
            Response::new(Body::from("hello"))
        }
        .boxed()
    });
    (application, permits)
}

/// What a GOAWAY on the control stream names, after the settings.
struct Control(quinn::RecvStream, BytesMut);

impl Control {
    async fn of(client: &Client) -> Self {
        let mut control = Control(client.connection.accept_uni().await.unwrap(), BytesMut::new());
        assert_eq!(control.number().await, 0);
        assert_eq!(control.number().await, 4);
        let length = control.number().await as usize;
        while control.1.len() < length {
            control.more().await;
        }
        let _ = control.1.split_to(length);
        control
    }

    async fn more(&mut self) {
        let chunk = self.0.read_chunk(100, true).await.unwrap().unwrap();
        self.1.extend_from_slice(&chunk.bytes);
    }

    async fn number(&mut self) -> u64 {
        loop {
            let mut input = self.1.clone().freeze();
            if let Some(number) = Varint::default().read(&mut input) {
                self.1 = BytesMut::from(&input[..]);
                return number;
            }
            self.more().await;
        }
    }

    async fn goaway(&mut self) -> u64 {
        assert_eq!(self.number().await, 7);
        self.number().await;
        self.number().await
    }
}

async fn in_flight(client: &Client, count: u64) {
    while client.application.totals().in_flight < count {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn a_drain_finishes_what_is_in_flight_and_loses_nobody() {
    let (application, permits) = held();
    let mut client = connect(application).await;
    let mut control = Control::of(&client).await;
    let (mut first, answer) = client.connection.open_bi().await.unwrap();
    first.write_all(&head(&[])).await.unwrap();
    first.finish().unwrap();
    in_flight(&client, 1).await;
    client.drain();
    assert_eq!(control.goaway().await, (1 << 62) - 4);
    // It may have been on its way.
    let (mut second, other_answer) = client.connection.open_bi().await.unwrap();
    second.write_all(&head(&[])).await.unwrap();
    second.finish().unwrap();
    let last = control.goaway().await;
    assert_eq!(last, 8);
    let late = client.get("/").await.unwrap_err();
    assert_eq!(late, quinn::ReadError::Reset(REQUEST_REJECTED.into()));
    permits.add_permits(2);
    assert_eq!(read(answer).await.unwrap().content, b"hello");
    assert_eq!(read(other_answer).await.unwrap().content, b"hello");
    assert_eq!(client.closed().await, NO_ERROR);
    client.ended().await;
    let totals = client.settled().await;
    assert_eq!((totals.answered, totals.shed, totals.killed), (2, 1, 0));
}

#[tokio::test]
async fn an_idle_connection_is_closed_in_order() {
    let (application, permits) = held();
    permits.add_permits(1);
    let mut client = connect_with(application, |listener| {
        listener.timeouts.idle = Duration::from_millis(200);
    })
    .await;
    let mut control = Control::of(&client).await;
    assert_eq!(client.get("/").await.unwrap().content, b"hello");
    assert_eq!(control.goaway().await, (1 << 62) - 4);
    assert_eq!(control.goaway().await, 4);
    assert_eq!(client.closed().await, NO_ERROR);
    client.ended().await;
}

#[tokio::test]
async fn a_connection_that_is_killed_says_so_and_counts_its_requests() {
    let (application, _permits) = held();
    let client = connect(application).await;
    let (mut send, answer) = client.connection.open_bi().await.unwrap();
    send.write_all(&head(&[])).await.unwrap();
    in_flight(&client, 1).await;
    client.engine.abort();
    assert_eq!(client.closed().await, INTERNAL_ERROR);
    assert!(read(answer).await.is_err());
    assert_eq!(client.settled().await.killed, 1);
}

#[tokio::test]
async fn who_closes_has_left_what_was_in_flight() {
    let (application, _permits) = held();
    let mut client = connect(application).await;
    let (mut send, _answer) = client.connection.open_bi().await.unwrap();
    send.write_all(&head(&[])).await.unwrap();
    in_flight(&client, 1).await;
    client.connection.close((NO_ERROR as u32).into(), b"");
    client.ended().await;
    assert_eq!(client.settled().await.client_gone, 1);
}

#[tokio::test]
async fn a_client_may_come_from_another_port() {
    let (application, permits) = held();
    let client = connect(application).await;
    permits.add_permits(2);
    assert_eq!(client.get("/").await.unwrap().content, b"hello");
    let (endpoint, _) = &client._endpoints;
    let before = endpoint.local_addr().unwrap();
    endpoint.rebind(std::net::UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap();
    assert_ne!(endpoint.local_addr().unwrap(), before);
    assert_eq!(client.get("/").await.unwrap().content, b"hello");
    assert_eq!(client.settled().await.answered, 2);
}
