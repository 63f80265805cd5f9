//! Limits of addresses, within a process and across processes.

use std::num::NonZeroU32;

use super::table::{ENTRIES, WAYS};
use super::*;

fn anonymous() -> Arc<Addresses> {
    Arc::new(Addresses::anonymous(&Random::seeded(7)).unwrap())
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn meter(addresses: &Arc<Addresses>, address: IpAddr, per_second: u32, burst: u32) -> Meter {
    let number = |number| NonZeroU32::new(number).unwrap();
    let rate = model::Rate { per_second: number(per_second), burst: number(burst) };
    addresses.meter("http", address, rate, Arc::default())
}

/// How many of `count` requests are taken now.
fn taken(meter: &Meter, count: usize) -> usize {
    (0..count).filter(|_| meter.take(Instant::now()).is_ok()).count()
}

#[test]
fn an_address_has_so_many_connections_and_gets_them_back() {
    let addresses = anonymous();
    let lease = |listener: &str, address: &str| addresses.lease(listener, ip(address), 3);
    let held: Vec<_> = (0..3).map(|_| lease("http", "192.0.2.1").unwrap()).collect();
    assert!(lease("http", "192.0.2.1").is_none());
    assert!(lease("http", "::ffff:192.0.2.1").is_none(), "the same address");
    assert!(lease("http", "192.0.2.2").is_some() && lease("https", "192.0.2.1").is_some());
    drop(held);
    let again: Vec<_> = (0..3).map(|_| lease("http", "192.0.2.1").unwrap()).collect();
    assert!(lease("http", "192.0.2.1").is_none());
    drop(again);
    assert_eq!(addresses.overflowed(), 0);
}

#[test]
fn addresses_of_one_ipv6_network_are_one_client() {
    let addresses = anonymous();
    let _one = addresses.lease("http", ip("2001:db8:0:1::1"), 1).unwrap();
    assert!(addresses.lease("http", ip("2001:db8:0:1:ffff::2"), 1).is_none());
    assert!(addresses.lease("http", ip("2001:db8:0:2::1"), 1).is_some());
}

#[tokio::test(start_paused = true)]
async fn an_address_has_its_rate_over_all_its_connections() {
    let addresses = anonymous();
    let connections = [0, 1].map(|_| meter(&addresses, ip("192.0.2.1"), 10, 5));
    let other = meter(&addresses, ip("192.0.2.2"), 10, 5);
    assert_eq!((taken(&connections[0], 3), taken(&connections[1], 5)), (3, 2));
    assert_eq!(connections[0].take(Instant::now()), Err(Duration::from_millis(100)));
    assert_eq!(taken(&other, 9), 5);
    tokio::time::advance(Duration::from_millis(200)).await;
    assert_eq!((taken(&connections[0], 5), taken(&connections[1], 5)), (2, 0));
    tokio::time::advance(Duration::from_secs(60)).await;
    assert_eq!(taken(&connections[1], 9), 5);
    assert_eq!(connections.map(|meter| meter.limited.load(Ordering::Relaxed)), [4, 12]);
}

#[tokio::test(start_paused = true)]
async fn a_full_set_lets_through_and_counts_and_an_idle_entry_is_used_again() {
    let addresses = anonymous();
    // Every set fills up: by the time that there are twice as many addresses as entries, few have a free one.
    let held: Vec<_> = (0..ENTRIES as u32 * 2)
        .map(|number| addresses.lease("http", IpAddr::from(number.to_be_bytes()), 1).unwrap())
        .collect();
    let counted = held.iter().filter(|lease| lease.entry.is_some()).count();
    assert!(counted > ENTRIES * 95 / 100 && counted <= ENTRIES, "{counted}");
    assert_eq!(addresses.overflowed(), (held.len() - counted) as u64);
    drop(held);
    // All of them idle now, and each can be had again.
    let before = addresses.overflowed();
    for number in 0..1000_u32 {
        let _lease = addresses.lease("other", IpAddr::from(number.to_be_bytes()), 1).unwrap();
        assert!(addresses.lease("other", IpAddr::from(number.to_be_bytes()), 1).is_none());
    }
    assert_eq!(addresses.overflowed(), before);
}

#[tokio::test(start_paused = true)]
async fn an_address_whose_burst_is_not_over_keeps_its_entry() {
    let addresses = anonymous();
    let key = addresses.key("http", ip("192.0.2.1"));
    let meter = meter(&addresses, ip("192.0.2.1"), 1, 10);
    assert_eq!(taken(&meter, 20), 10);
    // As many other addresses of the same set as there are entries.
    let crowd: Vec<_> = (0..u32::MAX)
        .map(|number| IpAddr::from(number.to_be_bytes()))
        .filter(|address| {
            addresses.key("http", *address) as usize % (ENTRIES / WAYS) == key as usize % (ENTRIES / WAYS)
        })
        .take(2 * WAYS)
        .collect();
    for address in &crowd {
        let _lease = addresses.lease("http", *address, 1).unwrap();
    }
    assert_eq!(taken(&meter, 1), 0, "it was not forgotten");
    tokio::time::advance(Duration::from_secs(11)).await;
    let held: Vec<_> = crowd.iter().map(|address| addresses.lease("http", *address, 1).unwrap()).collect();
    assert_eq!(held.iter().filter(|lease| lease.entry.is_some()).count(), WAYS, "its entry among them");
    assert_eq!(taken(&meter, 20), 20, "there is no room to count it");
    drop(held);
    assert_eq!(taken(&meter, 20), 10);
}

#[test]
fn processes_share_a_table_and_what_is_gone_is_given_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("limits");
    let controller = Addresses::open_or_create(&path, 10, &Random::seeded(1)).unwrap();
    let open = |slot| Arc::new(Addresses::open(&path, slot).unwrap());
    let (one, ten) = (open(1), open(10));
    let lease = |addresses: &Arc<Addresses>| addresses.lease("http", ip("192.0.2.1"), 5);
    let lost: Vec<_> = (0..3).map(|_| lease(&one).unwrap()).collect();
    let kept: Vec<_> = (0..2).map(|_| lease(&ten).unwrap()).collect();
    assert!(lease(&one).is_none() && lease(&ten).is_none());
    // As if the process had ended.
    lost.into_iter().for_each(std::mem::forget);
    controller.release_slot(1);
    let more: Vec<_> = (0..3).map(|_| lease(&ten).unwrap()).collect();
    assert!(lease(&ten).is_none());
    drop((kept, more));
    controller.release_slot(10);
    controller.release_slot(4_000_000_000);
    assert!((0..5).map(|_| lease(&one)).collect::<Option<Vec<_>>>().is_some());

    // A controller that starts again finds the same table, with the same key.
    let again = Arc::new(Addresses::open_or_create(&path, 10, &Random::seeded(2)).unwrap());
    assert_eq!(again.key("http", ip("192.0.2.1")), one.key("http", ip("192.0.2.1")));
    // The first page has room for 23 slots.
    assert!(Addresses::open(&path, 23).is_ok() && Addresses::open(&path, 24).is_err());
    assert!(Addresses::open(&path, u32::MAX).is_err());
}

#[test]
fn a_table_grows_beneath_the_processes_that_have_it_open() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("limits");
    // Of a site that was ended in the middle of growing.
    std::fs::write(dir.path().join("limits-2"), "garbage").unwrap();
    let controller = Addresses::open_or_create(&path, 10, &Random::seeded(1)).unwrap();
    let open = |slot| Arc::new(Addresses::open(&path, slot).unwrap());
    let lease = |addresses: &Arc<Addresses>| addresses.lease("http", ip("192.0.2.1"), 5);
    let old = open(1);
    let kept = [lease(&old).unwrap(), lease(&old).unwrap()];
    for slots in [24, 56, 255] {
        controller.reserve(slots).unwrap();
        let new = open(slots);
        let lost: Vec<_> = (0..3).map(|_| lease(&new).unwrap()).collect();
        assert!(lease(&old).is_none() && lease(&new).is_none(), "{slots}");
        lost.into_iter().for_each(std::mem::forget);
        controller.release_slot(slots);
        let held: Vec<_> = (0..3).map(|_| lease(&old).unwrap()).collect();
        assert!(lease(&new).is_none(), "{slots}");
        drop(held);
    }
    drop(kept);
    assert!(controller.reserve(280).is_err());
    // Fewer slots take nothing from those that are in use, and another controller finds them all.
    let last = open(255);
    let held: Vec<_> = (0..5).map(|_| lease(&last).unwrap()).collect();
    drop(controller);
    let controller = Addresses::open_or_create(&path, 10, &Random::seeded(2)).unwrap();
    assert!(lease(&old).is_none() && lease(&open(2)).is_none());
    held.into_iter().for_each(std::mem::forget);
    controller.release_slot(255);
    assert!(lease(&old).is_some());
    Addresses::remove(&path).unwrap();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn an_entry_that_a_process_was_ended_over_is_freed_with_its_slot() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("limits");
    let controller = Addresses::open_or_create(&path, 10, &Random::seeded(1)).unwrap();
    let one = Arc::new(Addresses::open(&path, 1).unwrap());
    let lease = one.lease("http", ip("192.0.2.1"), 1).unwrap();
    let entry = lease.entry.unwrap();
    drop(lease);
    // The mark of slot 1.
    one.table.set_key(entry, 2);
    controller.release_slot(2);
    assert_eq!(one.table.key(entry), 2);
    controller.release_slot(1);
    assert_eq!(one.table.key(entry), 0);
}

#[test]
fn no_more_than_the_limit_are_leased_whoever_asks_at_the_same_time() {
    use std::sync::atomic::AtomicI64;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("limits");
    Addresses::open_or_create(&path, 4, &Random::seeded(1)).unwrap();
    // Two addresses, and a crowd of others that wants the same entries.
    let open = [AtomicI64::new(0), AtomicI64::new(0)];
    std::thread::scope(|scope| {
        for slot in 1..=4 {
            let (path, open) = (&path, &open);
            scope.spawn(move || {
                let addresses = Arc::new(Addresses::open(path, slot).unwrap());
                for round in 0..20_000_u32 {
                    let which = (round % 2) as usize;
                    let address = IpAddr::from([192, 0, 2, which as u8]);
                    let Some(lease) = addresses.lease("http", address, 2) else { continue };
                    if lease.entry.is_some() {
                        let now = open[which].fetch_add(1, Ordering::SeqCst) + 1;
                        assert!(now <= 2, "{now} of an address");
                        open[which].fetch_sub(1, Ordering::SeqCst);
                    }
                    drop(lease);
                    drop(addresses.lease("crowd", IpAddr::from(round.to_be_bytes()), 1));
                }
                assert!(addresses.overflowed() < 200, "{} were not counted", addresses.overflowed());
            });
        }
    });
    let addresses = Arc::new(Addresses::open(&path, 1).unwrap());
    for which in [0, 1] {
        let address = IpAddr::from([192, 0, 2, which]);
        let held: Vec<_> = (0..2).map(|_| addresses.lease("http", address, 2).unwrap()).collect();
        assert!(held.iter().all(|lease| lease.entry.is_some()), "all were given back");
        assert!(addresses.lease("http", address, 2).is_none());
    }
}
