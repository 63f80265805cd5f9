//! What is said of a file.

use std::path::Path;
use std::time::{Duration, SystemTime};

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use http::{HeaderMap, HeaderValue, header};
use playhouse_config::model::Encoding;

use super::open::{Root, Stamp};

/// A file's state, and the fields of a whole answer with it.
#[derive(Clone, Debug)]
pub(super) struct Head {
    pub(super) stamp: Stamp,
    pub(super) fields: HeaderMap,
}

impl Head {
    pub(super) fn new(root: &Root, path: &[u8], coding: Option<Encoding>, stamp: Stamp) -> Self {
        let mut fields = HeaderMap::with_capacity(8);
        let name = match coding {
            Some(coding) => path.strip_suffix(suffix(coding).as_bytes()).unwrap_or(path),
            None => path,
        };
        fields.insert(header::CONTENT_TYPE, content_type(name));
        fields.insert(header::CONTENT_LENGTH, stamp.size.into());
        fields.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
        if let Some(tag) = entity_tag(&stamp, coding) {
            fields.insert(header::ETAG, tag);
        }
        if let Some(date) = last_modified(&stamp, SystemTime::now()) {
            fields.insert(header::LAST_MODIFIED, date);
        }
        if let Some(coding) = coding {
            fields.insert(header::CONTENT_ENCODING, HeaderValue::from_static(token(coding)));
        }
        if root.varies {
            fields.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
        }
        if let Some(value) = &root.cache_control {
            fields.insert(header::CACHE_CONTROL, value.clone());
        }
        Head { stamp, fields }
    }

    /// The strong entity tag, quotes included.
    pub(super) fn entity_tag(&self) -> &[u8] {
        self.fields.get(header::ETAG).map_or(b"", |tag| tag.as_bytes())
    }
}

/// The name of a coding in `Accept-Encoding` and `Content-Encoding`.
pub(super) fn token(coding: Encoding) -> &'static str {
    match coding {
        Encoding::Br => "br",
        Encoding::Zstd => "zstd",
        Encoding::Gzip => "gzip",
    }
}

/// What a precompressed sibling's name has more than the file's.
pub(super) fn suffix(coding: Encoding) -> &'static str {
    match coding {
        Encoding::Br => ".br",
        Encoding::Zstd => ".zst",
        Encoding::Gzip => ".gz",
    }
}

/// By extension. Text is UTF-8; what is not known is a stream of bytes.
fn content_type(path: &[u8]) -> HeaderValue {
    match mime_guess::from_path(Path::new(OsStr::from_bytes(path))).first_raw() {
        Some(text) if text.starts_with("text/") => {
            // Both parts are printable ASCII.
            HeaderValue::try_from(format!("{text}; charset=utf-8")).unwrap_or(OCTET_STREAM)
        }
        Some(other) => HeaderValue::from_static(other),
        None => OCTET_STREAM,
    }
}

/// Strong: any change of the content changes mtime, size or inode. Each coding has its own (RFC 9110 §8.8.3.3).
fn entity_tag(stamp: &Stamp, coding: Option<Encoding>) -> Option<HeaderValue> {
    let (seconds, nanoseconds) = stamp.modified;
    let nanoseconds = i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds);
    let (dash, coding) = coding.map_or(("", ""), |coding| ("-", token(coding)));
    let tag = format!("\"{nanoseconds:x}-{:x}-{:x}{dash}{coding}\"", stamp.size, stamp.inode);
    HeaderValue::try_from(tag).ok()
}

/// `None` for a time that has no HTTP date, or that is not over yet (RFC 9110 §8.8.2.1).
fn last_modified(stamp: &Stamp, now: SystemTime) -> Option<HeaderValue> {
    let seconds = u64::try_from(stamp.modified.0).ok()?;
    let time = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))?;
    if time > now || seconds >= YEAR_10000 {
        return None;
    }
    HeaderValue::try_from(httpdate::fmt_http_date(time)).ok()
}

const OCTET_STREAM: HeaderValue = HeaderValue::from_static("application/octet-stream");

/// Seconds since 1970; four digits are what an HTTP date has.
const YEAR_10000: u64 = 253_402_300_800;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_follow_the_extension() {
        for (path, expected) in [
            ("/a/index.html", "text/html; charset=utf-8"),
            ("/a.css", "text/css; charset=utf-8"),
            ("/a.JS", "text/javascript; charset=utf-8"),
            ("/a.json", "application/json"),
            ("/a.svg", "image/svg+xml"),
            ("/a.woff2", "font/woff2"),
            ("/a.wasm", "application/wasm"),
            ("/a.txt.gz", "application/gzip"),
            ("/a.unknown-thing", "application/octet-stream"),
            ("/dir.html/file", "application/octet-stream"),
        ] {
            assert_eq!(content_type(path.as_bytes()), expected, "{path}");
        }
    }

    #[test]
    fn times_without_a_date_have_none() {
        let at = |seconds| Stamp {
            device: (0, 0),
            inode: 0,
            size: 0,
            modified: (seconds, 0),
            changed: (seconds, 0),
            mode: 0,
        };
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        assert_eq!(last_modified(&at(784_111_777), now).unwrap(), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(last_modified(&at(-1), now), None);
        assert_eq!(last_modified(&at(1_000_000_001), now), None);
        assert_eq!(last_modified(&at(i64::MAX), SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 40)), None);
    }
}
