use super::*;
use playhouse_protocol::control::{Hello, MAX_PAYLOAD, Passed, SiteText, ToController, ToInstance, VERSION};
use std::time::Duration;

type Controller = (Sender<ToInstance>, Receiver<ToController>);
type Instance = (Sender<ToController>, Receiver<ToInstance>);

fn linked() -> (Controller, Instance) {
    let (ours, theirs) = Link::pair().unwrap();
    (ours.split(), Link::from_fd(theirs).unwrap().split())
}

fn configure(text: String) -> ToInstance {
    let site = SiteText { path: "/srv/site.ron".into(), text, revision: 7 };
    let passed = |descriptor| Passed { listener: "http".into(), slot: 0, descriptor };
    ToInstance::Configure { site, sockets: vec![passed(0), passed(1)] }
}

fn named(name: &str) -> OwnedFd {
    use std::io::Write;
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(name.as_bytes()).unwrap();
    file.into()
}

fn name_of(descriptor: &OwnedFd) -> String {
    let mut bytes = [0; 64];
    let length = rustix::io::pread(descriptor, &mut bytes, 0).unwrap();
    String::from_utf8_lossy(&bytes[..length]).into_owned()
}

/// Something a test waits for that would otherwise hang it.
async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), future).await.expect("in time")
}

#[tokio::test]
async fn messages_and_descriptors_arrive_in_order_both_ways() {
    let ((to_instance, from_instance), (to_controller, from_controller)) = linked();
    let hello = Hello {
        version: VERSION,
        build: "1.2.3".into(),
        pid: 7,
        started: 8,
        site: "shop".into(),
        slot: 1,
        generation: 2,
        revision: 0,
        state: None,
        ticket_keys: Vec::new(),
    };
    to_controller.send(&ToController::Hello(hello.clone()), Vec::new()).unwrap();
    to_instance.send(&configure("short".into()), vec![named("a"), named("b")]).unwrap();
    to_instance.send(&ToInstance::Activate, Vec::new()).unwrap();
    let (message, _) = soon(from_instance.recv()).await.unwrap().unwrap();
    assert_eq!(message, ToController::Hello(hello));
    let (message, descriptors) = soon(from_controller.recv()).await.unwrap().unwrap();
    assert_eq!(message, configure("short".into()));
    assert_eq!(descriptors.iter().map(name_of).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(soon(from_controller.recv()).await.unwrap().unwrap().0, ToInstance::Activate);
}

#[tokio::test]
async fn a_long_message_arrives_as_any_other() {
    let ((to_instance, _from_instance), (_to_controller, from_controller)) = linked();
    let long = configure("x".repeat(9 << 20));
    let most = || (0..MAX_DESCRIPTORS).map(|i| named(&i.to_string())).collect::<Vec<_>>();
    to_instance.send(&long, most()).unwrap();
    to_instance.send(&ToInstance::Activate, Vec::new()).unwrap();
    let (message, descriptors) = soon(from_controller.recv()).await.unwrap().unwrap();
    assert!(message == long);
    assert_eq!(descriptors.len(), MAX_DESCRIPTORS);
    assert_eq!((name_of(&descriptors[0]), name_of(&descriptors[63])), ("0".into(), "63".into()));
    assert_eq!(soon(from_controller.recv()).await.unwrap().unwrap().0, ToInstance::Activate);

    // Too much of either is the sender's mistake, and the link goes on.
    let more = most().into_iter().chain([named("64")]).collect();
    assert!(matches!(to_instance.send(&long, more), Err(LinkError::TooManyDescriptors(65))));
    let longest = configure("x".repeat(MAX_PAYLOAD));
    assert!(matches!(to_instance.send(&longest, Vec::new()), Err(LinkError::Encode(_))));
    to_instance.send(&ToInstance::GiveSockets, Vec::new()).unwrap();
    assert_eq!(soon(from_controller.recv()).await.unwrap().unwrap().0, ToInstance::GiveSockets);
}

#[tokio::test]
async fn what_the_kernel_has_no_room_for_is_queued_and_sent_later() {
    let ((to_instance, _from_instance), (_to_controller, from_controller)) = linked();
    let text = |i: usize| format!("{i} {}", "x".repeat(60_000));
    for i in 0..40 {
        to_instance.send(&configure(text(i)), Vec::new()).unwrap();
    }
    assert!(!to_instance.ends.shared.queue.lock().datagrams.is_empty());
    let flushed = to_instance.flushed();
    let read = async {
        for i in 0..40 {
            let (message, _) = from_controller.recv().await.unwrap().unwrap();
            assert!(message == configure(text(i)));
        }
    };
    let (flushed, ()) = soon(async { tokio::join!(flushed, read) }).await;
    flushed.unwrap();
}

#[tokio::test]
async fn a_peer_that_reads_nothing_is_noticed_and_both_sides_see_the_end() {
    let ((to_instance, from_instance), (to_controller, from_controller)) = linked();
    let error = loop {
        if let Err(error) = to_instance.send(&configure("x".repeat(60_000)), Vec::new()) {
            break error;
        }
        let queue = to_instance.ends.shared.queue.lock();
        assert!(queue.weight <= MAX_QUEUED_BYTES && queue.datagrams.len() <= MAX_QUEUED);
    };
    assert!(matches!(error, LinkError::Overflow));
    assert!(to_instance.is_closed() && to_instance.ends.shared.queue.lock().datagrams.is_empty());
    assert!(matches!(soon(from_instance.recv()).await, Err(LinkError::Overflow)));
    assert!(matches!(to_instance.send(&ToInstance::Activate, Vec::new()), Err(LinkError::Overflow)));
    // The peer reads what the kernel had, and then the end.
    let mut read = 0;
    while soon(from_controller.recv()).await.unwrap().is_some() {
        read += 1;
    }
    assert!(read > 0);
    assert!(matches!(
        to_controller
            .send(&ToController::State { state: playhouse_protocol::control::State::Ready }, Vec::new()),
        Err(LinkError::Closed)
    ));
}

#[tokio::test]
async fn small_messages_overflow_by_their_number() {
    let ((to_instance, from_instance), _instance) = linked();
    let waiting = tokio::spawn(async move { from_instance.recv().await.map(|_| ()) });
    let mut sent = 0;
    while to_instance.send(&ToInstance::Activate, Vec::new()).is_ok() {
        sent += 1;
        assert!(sent < 100_000);
    }
    // A receiver that waits already is told of it too.
    assert!(matches!(soon(waiting).await.unwrap(), Err(LinkError::Overflow)));
}

#[tokio::test]
async fn a_receive_that_is_given_up_loses_nothing() {
    let ((to_instance, _from_instance), (_to_controller, from_controller)) = linked();
    for i in 0..100 {
        let mut recv = Box::pin(from_controller.recv());
        assert!(futures_util::poll!(&mut recv).is_pending());
        drop(recv);
        to_instance.send(&configure(i.to_string()), vec![named("a"), named("b")]).unwrap();
        let mut recv = Box::pin(from_controller.recv());
        // Whether it is ready depends on whether the runtime has looked; if it was not, nothing was taken.
        let (message, descriptors) = match futures_util::poll!(&mut recv) {
            std::task::Poll::Ready(received) => received.unwrap().unwrap(),
            std::task::Poll::Pending => {
                drop(recv);
                soon(from_controller.recv()).await.unwrap().unwrap()
            }
        };
        assert_eq!(message, configure(i.to_string()));
        assert_eq!(descriptors.len(), 2);
    }
}

#[tokio::test]
async fn the_last_words_of_a_peer_that_is_gone_are_heard() {
    let ((to_instance, from_instance), (to_controller, from_controller)) = linked();
    to_instance.send(&ToInstance::Activate, Vec::new()).unwrap();
    let refused = ToController::Refused { revision: 3, error: "no".into() };
    to_controller.send(&refused, Vec::new()).unwrap();
    drop((to_controller, from_controller));
    // That it takes nothing any more does not end what it has said.
    while to_instance.send(&ToInstance::Activate, Vec::new()).is_ok() {}
    assert_eq!(soon(from_instance.recv()).await.unwrap().unwrap().0, refused);
    assert!(soon(from_instance.recv()).await.unwrap().is_none());
    assert!(to_instance.is_closed());
    assert!(soon(to_instance.flushed()).await.is_err());
}

#[tokio::test]
async fn hostile_datagrams_end_the_link() {
    let hostile: [(&[u8], usize, &str); 6] = [
        (b"\0\xff", 0, "not a message"),
        (br#"{"memfd":70000}"#, 0, "the memfd of a message is missing"),
        (br#"{"memfd":70000}"#, 1, "the memfd of a message is not"),
        (br#"{"memfd":-1}"#, 1, "a malformed envelope"),
        (br#"{"memfd":99999999999}"#, 1, "too long"),
        (br#"{"type":"activate"}"#, 65, "65 descriptors"),
    ];
    for (bytes, descriptors, said) in hostile {
        let (ours, theirs) = PacketSocket::pair().unwrap();
        let (_sender, receiver) = Link::from_fd(theirs).unwrap().split::<ToInstance, ToController>();
        let file = named("x");
        ours.try_send(bytes, &vec![file.as_fd(); descriptors]).unwrap();
        let error = soon(receiver.recv()).await.unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
        assert!(soon(receiver.recv()).await.unwrap().is_none());
        assert!(soon(ours.receive(&mut [0; 16])).await.unwrap().is_none());
    }
}

#[tokio::test]
async fn a_message_of_a_later_version_ends_nothing() {
    let (ours, theirs) = PacketSocket::pair().unwrap();
    let (_sender, receiver) = Link::from_fd(theirs).unwrap().split::<ToInstance, ToController>();
    ours.try_send(br#"{"type":"sing","loud":true}"#, &[]).unwrap();
    assert_eq!(soon(receiver.recv()).await.unwrap().unwrap().0, ToInstance::Unknown);
}

#[tokio::test]
async fn links_are_connected_by_path() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("instance-1.control");
    let listener = LinkListener::bind(&path).unwrap();
    let (client, server) = soon(async { tokio::join!(Link::connect(&path), listener.accept()) }).await;
    let (client, (server, peer)) = (client.unwrap(), server.unwrap());
    assert_eq!(peer.pid, std::process::id());
    assert_eq!(client.peer(), peer);
    let (sender, _receiver) = client.split::<ToController, ToInstance>();
    let (_to, from) = server.split::<ToInstance, ToController>();
    sender.send(&ToInstance::GiveSockets, Vec::new()).unwrap();
    assert_eq!(soon(from.recv()).await.unwrap().unwrap().0, ToInstance::GiveSockets);
    sender.close();
    assert!(soon(from.recv()).await.unwrap().is_none());
}

#[tokio::test]
async fn a_dropped_link_leaves_no_task_and_no_socket() {
    let (ours, theirs) = PacketSocket::pair().unwrap();
    let (sender, receiver) = Link::from_fd(theirs).unwrap().split::<ToInstance, ToController>();
    let shared = Arc::downgrade(&receiver.ends.shared);
    let clone = sender.clone();
    drop((sender, receiver));
    assert!(shared.upgrade().is_some());
    drop(clone);
    assert!(soon(ours.receive(&mut [0; 16])).await.unwrap().is_none());
    soon(async {
        while shared.strong_count() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}
