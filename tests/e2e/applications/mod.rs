//! PHP applications as Debian has them, installed and used by a browser.

mod dokuwiki;
mod wordpress;

use std::path::Path;

use crate::harness::{Running, eventually_some};

/// Two files to be uploaded: a picture, and one of 20 MiB. Their paths.
fn uploads(folder: &Path) -> [std::path::PathBuf; 2] {
    let (picture, large) = (folder.join("poster.png"), folder.join("large.zip"));
    std::fs::write(&picture, POSTER).expect("a file is written");
    std::fs::write(&large, crate::harness::pattern(20 << 20)).expect("a file is written");
    [picture, large]
}

/// Panics unless each request was answered, and none of them with an error of a server.
#[track_caller]
fn nothing_has_failed(site: &Running) {
    let ledger = site.admin.settled_ledger();
    assert!(ledger.answered > 20, "{ledger:?}");
    // A browser gives up what a page needs no more.
    assert_eq!(ledger.answered + ledger.client_gone, ledger.accepted, "{ledger:?}");
    let ended = usize::try_from(ledger.accepted).expect("not so many");
    let log = eventually_some("all are in the log", || {
        let log = std::fs::read_to_string(site.path("access.log")).unwrap_or_default();
        (log.lines().count() >= ended).then_some(log)
    });
    let failed: Vec<&str> = log.lines().filter(|line| line.contains("\"status\":5")).collect();
    assert!(failed.is_empty(), "{failed:#?}");
}

/// A picture of one pixel.
const POSTER: &[u8] = include_bytes!("poster.png");
