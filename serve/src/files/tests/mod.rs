//! Whole requests against real directories.

mod confinement;
mod content;
mod freshness;
mod selection;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use http::Request;
use http_body_util::BodyExt;
use proptest::prelude::{prop, prop_assert};
use tempfile::TempDir;
use tokio::time::Instant;

use super::*;
use crate::exchange::{ConnectionInfo, Informational, Peer};
use crate::{BodyError, RequestBody};

/// A route to a directory of its own.
struct Site {
    directory: TempDir,
    config: model::Static,
    path: PathPattern,
    cache: Arc<FileCache>,
    files: Static,
}

impl Site {
    fn new(files: &[(&str, &str)]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("root");
        fs::create_dir(&root).unwrap();
        let config = model::Static {
            root,
            follow: Vec::new(),
            index: vec!["index.html".to_owned()],
            precompressed: Vec::new(),
            cache_control: None,
        };
        let site = Site::built(directory, config, PathPattern::Prefix("/".to_owned()), Duration::ZERO);
        for (name, content) in files {
            site.write(name, content);
        }
        site
    }

    fn built(directory: TempDir, config: model::Static, path: PathPattern, settle: Duration) -> Self {
        let cache = Arc::new(FileCache::new(1 << 20, settle));
        let files = Static::new(&config, &path, &cache);
        Site { directory, config, path, cache, files }
    }

    fn with(self, change: impl FnOnce(&mut model::Static)) -> Self {
        let Site { directory, mut config, path, .. } = self;
        change(&mut config);
        Site::built(directory, config, path, Duration::ZERO)
    }

    fn at(self, path: PathPattern) -> Self {
        Site::built(self.directory, self.config, path, Duration::ZERO)
    }

    fn settling(self, settle: Duration) -> Self {
        Site::built(self.directory, self.config, self.path, settle)
    }

    fn root(&self, name: &str) -> PathBuf {
        self.config.root.join(name)
    }

    fn write(&self, name: &str, content: &str) {
        let path = self.root(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let changed = |path| fs::metadata(path).map(|file| (file.ctime(), file.ctime_nsec())).ok();
        let before = changed(&path);
        fs::write(&path, content).unwrap();
        // Where the kernel's clock ticks coarsely, the first write may fall into the tick of the last one. Sites wait for
        // files to settle instead; these do not.
        while before.is_some() && changed(&path) == before {
            fs::write(&path, content).unwrap();
        }
    }

    async fn ask(&self, method: &str, uri: &str, fields: &[(&str, &str)]) -> Answer {
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        let mut exchange = Exchange {
            request: request.body(RequestBody::Empty).unwrap(),
            connection: Arc::new(ConnectionInfo {
                id: 1,
                listener: "http".into(),
                listener_index: 0,
                peer: Peer::Unix,
                local: None,
                proxied: None,
                tls: None,
                rate: None,
                alternative: None,
            }),
            informational: Informational::Unsupported,
            record: Record::new(Instant::now()),
        };
        let path = NormalisedPath::parse(exchange.request.uri().path()).unwrap();
        path.rewrite(exchange.request.uri_mut()).unwrap();
        let mut response = self.files.answer(&mut exchange, &path).await;
        crate::CachedAnswer::spread(&mut response);
        let (head, body) = response.into_parts();
        let from_memory = matches!(body, Body::Bytes(_));
        Answer { status: head.status.as_u16(), headers: head.headers, from_memory, body }
    }

    async fn get(&self, uri: &str) -> (u16, String) {
        let answer = self.ask("GET", uri, &[]).await;
        (answer.status, answer.text().await)
    }
}

struct Answer {
    status: u16,
    headers: HeaderMap,
    from_memory: bool,
    body: Body,
}

impl Answer {
    fn field(&self, name: header::HeaderName) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    async fn text(self) -> String {
        String::from_utf8(self.body.collect().await.unwrap().to_bytes().to_vec()).unwrap()
    }
}

fn ok(text: &str) -> (u16, String) {
    (200, text.to_owned())
}

const NOT_FOUND: u16 = 404;
