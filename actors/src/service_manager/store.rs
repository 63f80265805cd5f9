//! Listening sockets that the service manager keeps: after a crash or a restart they come back, and the clients that came
//! meanwhile have waited in the kernel's queue.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use parking_lot::Mutex;
use playhouse_serve::sockets::{KEPT, Passable};

use super::ServiceManager;

/// A listener's name, and the address at which it listens.
pub type Listening = (Arc<str>, String);

/// What the service manager keeps, as far as this process knows.
#[derive(Debug, Default)]
pub(super) struct Store {
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    sockets: BTreeMap<Arc<str>, String>,
    /// For what they are all there is to be sent.
    complete_for: Option<Vec<Listening>>,
}

impl Store {
    /// With what it has kept from a process before this one, by the names of descriptors.
    pub(super) fn of(names: &str) -> Self {
        let listeners = names.split(':').filter_map(|name| name.strip_prefix(KEPT));
        // Of none it is known whether it is still the socket of its listener.
        let sockets = listeners.map(|name| (name.into(), String::new())).collect();
        Store { kept: Mutex::new(Kept { sockets, complete_for: None }) }
    }
}

impl ServiceManager {
    /// Has it keep the TCP sockets among these, and no others; `descriptors` is asked where something has changed since the
    /// last time. A Unix socket's file goes with its process, and what would come back nobody could connect to.
    ///
    /// # Errors
    /// It does not take messages just now, or there is no descriptor left; to be tried again.
    pub fn keep(
        &self,
        listening: &[Listening],
        descriptors: impl FnOnce() -> io::Result<Vec<Passable>>,
    ) -> io::Result<()> {
        let mut kept = self.store.kept.lock();
        if self.is_stopping() || kept.complete_for.as_deref() == Some(listening) {
            return Ok(());
        }
        kept.complete_for = None;
        let address_of = |name: &Arc<str>| {
            let listener = listening.iter().find(|(listener, _)| listener == name);
            listener.map(|(_, address)| address).filter(|address| !address.starts_with("unix:"))
        };
        let goes_on = |(name, address): &(&Arc<str>, &String)| address_of(name) == Some(address);
        let gone: Vec<_> =
            kept.sockets.iter().filter(|kept| !goes_on(kept)).map(|(name, _)| name.clone()).collect();
        for name in gone {
            self.send(&format!("FDSTOREREMOVE=1\nFDNAME={KEPT}{name}"), &[])?;
            kept.sockets.remove(&name);
        }
        for Passable { listener, slot, descriptor } in descriptors()? {
            let Some(address) = address_of(&listener).filter(|_| slot == 0) else { continue };
            if let Entry::Vacant(place) = kept.sockets.entry(listener) {
                self.send(&format!("FDSTORE=1\nFDNAME={KEPT}{}", place.key()), &[descriptor.as_fd()])?;
                place.insert(address.clone());
            }
        }
        kept.complete_for = Some(listening.to_vec());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::pair;
    use super::*;
    use std::net::TcpListener;

    fn passable(name: &str, socket: &TcpListener) -> Passable {
        Passable { listener: name.into(), slot: 0, descriptor: socket.try_clone().unwrap().into() }
    }

    fn listening(name: &str, socket: &TcpListener) -> Listening {
        (name.into(), socket.local_addr().unwrap().to_string())
    }

    #[test]
    fn each_socket_is_sent_once_and_taken_back_with_its_listener() {
        let dir = tempfile::tempdir().unwrap();
        let (manager, heard) = pair(dir.path(), None);
        let bind = || TcpListener::bind("127.0.0.1:0").unwrap();
        let (http, other, again) = (bind(), bind(), bind());
        let both = [listening("http", &http), listening("other", &other), ("edge".into(), "unix:/x".into())];
        let given = || Ok(vec![passable("http", &http), passable("other", &other)]);
        manager.keep(&both, given).unwrap();
        let (message, descriptor) = heard.next_with();
        assert_eq!(message, "FDSTORE=1\nFDNAME=listener-http");
        let received = TcpListener::from(descriptor.unwrap());
        assert_eq!(received.local_addr().unwrap(), http.local_addr().unwrap());
        assert_eq!(heard.next(), "FDSTORE=1\nFDNAME=listener-other");
        manager.keep(&both, || panic!("nothing has changed")).unwrap();
        assert!(heard.nothing());

        // The one is gone, the other has another address.
        manager.keep(&[listening("http", &again)], || Ok(vec![passable("http", &again)])).unwrap();
        let removed = [heard.next(), heard.next()];
        assert_eq!(
            removed,
            ["FDSTOREREMOVE=1\nFDNAME=listener-http", "FDSTOREREMOVE=1\nFDNAME=listener-other"]
        );
        let (message, descriptor) = heard.next_with();
        assert_eq!(message, "FDSTORE=1\nFDNAME=listener-http");
        let received = TcpListener::from(descriptor.unwrap());
        assert_eq!(received.local_addr().unwrap(), again.local_addr().unwrap());
        assert!(heard.nothing());
    }

    #[test]
    fn a_site_that_stops_leaves_its_sockets_to_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let (manager, heard) = pair(dir.path(), None);
        let http = TcpListener::bind("127.0.0.1:0").unwrap();
        manager.keep(&[listening("http", &http)], || Ok(vec![passable("http", &http)])).unwrap();
        assert_eq!(heard.next(), "FDSTORE=1\nFDNAME=listener-http");
        manager.stopping();
        assert_eq!(heard.next(), "STOPPING=1");
        manager.keep(&[], || Ok(Vec::new())).unwrap();
        assert!(heard.nothing());
    }

    #[test]
    fn what_a_process_before_has_left_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let (manager, heard) = pair(dir.path(), None);
        let manager = Arc::into_inner(manager).unwrap();
        let manager =
            ServiceManager { store: Store::of("shop.socket:listener-http:listener-old"), ..manager };
        let http = TcpListener::bind("127.0.0.1:0").unwrap();
        manager.keep(&[listening("http", &http)], || Ok(vec![passable("http", &http)])).unwrap();
        assert_eq!(heard.next(), "FDSTOREREMOVE=1\nFDNAME=listener-http");
        assert_eq!(heard.next(), "FDSTOREREMOVE=1\nFDNAME=listener-old");
        assert_eq!(heard.next(), "FDSTORE=1\nFDNAME=listener-http");
    }

    #[test]
    fn what_could_not_be_sent_is_sent_the_next_time() {
        let dir = tempfile::tempdir().unwrap();
        let (manager, heard) = pair(dir.path(), None);
        let http = TcpListener::bind("127.0.0.1:0").unwrap();
        let listening = [listening("http", &http)];
        manager.keep(&listening, || Err(io::Error::other("no descriptor left"))).unwrap_err();
        assert!(heard.nothing());
        manager.keep(&listening, || Ok(vec![passable("http", &http)])).unwrap();
        assert_eq!(heard.next(), "FDSTORE=1\nFDNAME=listener-http");
    }
}
