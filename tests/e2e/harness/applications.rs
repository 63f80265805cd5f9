//! PHP applications of Debian's, each in a folder of its own.

use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// Copies these directories of the unpacked packages (`usr/share/dokuwiki`) into a folder, as if that were `/`: links, and the
/// paths that are written in scripts, lead there.
#[track_caller]
pub fn install(into: &Path, directories: &[&str]) {
    let packages = std::env::var_os("PLAYHOUSE_TEST_APPLICATIONS").map(PathBuf::from);
    let packages = packages
        .unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target/test-applications"));
    for directory in directories {
        let from = packages.join(directory);
        assert!(from.is_dir(), "{} is missing: scripts/test unpacks it", from.display());
        copy(&from, &into.join(directory), into).unwrap_or_else(|error| panic!("{directory}: {error}"));
    }
}

fn copy(from: &Path, to: &Path, into: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let (entry, kind) = entry.and_then(|entry| entry.file_type().map(|kind| (entry, kind)))?;
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if kind.is_symlink() {
            let target = std::fs::read_link(&from)?;
            symlink(target.strip_prefix("/").map(|rest| into.join(rest)).unwrap_or(target.clone()), to)?;
        } else if kind.is_dir() {
            copy(&from, &to, into)?;
        } else if from.extension().is_some_and(|extension| extension == "php") {
            std::fs::write(to, moved(&std::fs::read(from)?, into.as_os_str().as_bytes()))?;
        } else {
            std::fs::copy(from, to)?;
        }
    }
    Ok(())
}

/// A script with its absolute paths led into a folder.
fn moved(script: &[u8], into: &[u8]) -> Vec<u8> {
    let mut moved = Vec::with_capacity(script.len());
    for (at, byte) in script.iter().enumerate() {
        moved.push(*byte);
        let rest = &script[at + 1..];
        if matches!(byte, b'\'' | b'"') && PLACES.iter().any(|place| rest.starts_with(place.as_bytes())) {
            moved.extend_from_slice(into);
        }
    }
    moved
}

/// The `include_path` with which PHP finds the libraries of a folder.
pub fn libraries(folder: &Path) -> String {
    let mut path = b".".to_vec();
    for library in ["usr/share/php", "usr/share/php-geshi"] {
        path.push(b':');
        path.extend(folder.join(library).into_os_string().into_vec());
    }
    String::from_utf8(path).expect("a path of the tests is UTF-8")
}

const PLACES: [&str; 4] = ["/etc/dokuwiki", "/var/lib/dokuwiki", "/usr/share/php", "/usr/share/javascript"];
