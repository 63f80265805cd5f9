//! What answers a path: a script, a file, the index of a directory, or the front controller.

use rustix::io::Errno;

use super::FastCgiTarget;
use crate::files::Kind;

/// What answers a path.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Resolved {
    /// A script, which exists.
    Script(Script),
    /// A file that is sent as it is.
    File(Vec<u8>),
    /// A directory that was asked for without its final slash.
    Directory,
}

/// A script beneath the root.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Script {
    /// Its path beneath the root, which does not begin with a slash.
    pub(super) path: Vec<u8>,
    /// What the request's path has behind that of the script, with its slash; else empty.
    pub(super) info: Vec<u8>,
}

impl FastCgiTarget {
    /// What answers the path beneath the root. In this order:
    ///
    /// 1. the first segment with a script's suffix that is a file: a script, and what follows is its `PATH_INFO`;
    /// 2. a file that neither is nor looks like a script, and is not hidden;
    /// 3. a directory's index;
    /// 4. the front controller.
    ///
    /// # Errors
    /// As opening a file; `ENOENT` where there is nothing.
    pub(super) async fn resolve(&self, relative: &[u8]) -> Result<Resolved, Errno> {
        if !is_hidden(relative) {
            if let Some(script) = self.script(relative).await? {
                return Ok(Resolved::Script(script));
            }
            if let Some(resolved) = self.file(relative).await? {
                return Ok(resolved);
            }
        }
        match &self.front {
            Some(front) if self.kind(front).await? == Some(Kind::File) => {
                Ok(Resolved::Script(Script { path: front.to_vec(), info: Vec::new() }))
            }
            _ => Err(Errno::NOENT),
        }
    }

    async fn script(&self, relative: &[u8]) -> Result<Option<Script>, Errno> {
        let slashes = relative.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        for end in slashes.chain([relative.len()]) {
            let path = &relative[..end];
            if !self.has_suffix(path) {
                continue;
            }
            match self.kind(path).await? {
                Some(Kind::File) => {
                    return Ok(Some(Script { path: path.to_vec(), info: relative[end..].to_vec() }));
                }
                // A directory with such a name has its own scripts.
                Some(Kind::Directory) => {}
                // Where this is not, nothing beneath it is: no `/a.jpg/b.php` makes a script of `a.jpg`.
                None => return Ok(None),
            }
        }
        Ok(None)
    }

    async fn file(&self, relative: &[u8]) -> Result<Option<Resolved>, Errno> {
        if !matches!(relative.last(), None | Some(b'/')) {
            return Ok(match self.kind(relative).await? {
                Some(Kind::File) if !self.resembles_script(relative) => {
                    Some(Resolved::File(relative.to_vec()))
                }
                Some(Kind::Directory) => Some(Resolved::Directory),
                _ => None,
            });
        }
        for name in &self.index {
            let path = [relative, name].concat();
            if self.kind(&path).await? == Some(Kind::File) {
                return Ok(Some(if self.has_suffix(name) {
                    Resolved::Script(Script { path, info: Vec::new() })
                } else {
                    Resolved::File(path)
                }));
            }
        }
        Ok(None)
    }

    /// What is at a path; `None` where there is nothing, or nothing beneath the root.
    async fn kind(&self, path: &[u8]) -> Result<Option<Kind>, Errno> {
        match self.files.kind(path).await {
            Ok(kind) => Ok(Some(kind)),
            Err(
                Errno::NOENT
                | Errno::NOTDIR
                | Errno::LOOP
                | Errno::XDEV
                | Errno::NAMETOOLONG
                | Errno::NXIO
                | Errno::NODEV,
            ) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn has_suffix(&self, path: &[u8]) -> bool {
        self.split.iter().any(|suffix| path.ends_with(suffix))
    }

    /// Whether a file may hold what a script does: in another case, or a copy that an editor has left (`index.php~`,
    /// `index.php.bak`). Its source is not for everybody.
    fn resembles_script(&self, path: &[u8]) -> bool {
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
        self.split
            .iter()
            .any(|suffix| name.windows(suffix.len()).any(|window| window.eq_ignore_ascii_case(suffix)))
    }
}

/// Whether a segment begins with a dot, as what is not for visitors does (`.git`, `.htaccess`, `.env`); RFC 8615's is.
fn is_hidden(relative: &[u8]) -> bool {
    let relative = relative.strip_prefix(b".well-known/").unwrap_or(relative);
    relative.split(|byte| *byte == b'/').any(|segment| segment.starts_with(b"."))
}
