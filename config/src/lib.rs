//! The site file, parsed into a model that cannot be invalid.
//!
//! [`model`] is what a valid site is; [`file`] is how it is written in RON, and what [`Site::builder`] collects in code;
//! [`parse`] leads from one to the other and gives every error at once. Nothing here opens a socket or reads anything
//! but the site file itself.
//!
//! The way of a file: `document` (RON to a tree in which every value knows its place) → `file` (the tree to typed,
//! still unchecked records) → `resolve` (records to the model).

#![forbid(unsafe_code)]

mod builder;
pub mod changes;
mod document;
mod error;
pub mod file;
pub mod model;
mod resolve;

use std::path::Path;

pub use builder::Builder;
pub use error::{Error, Errors};
pub use model::Site;

use error::{At, Report, Source};
use file::Decode;

/// Bytes of the longest site file that [`load`] reads and [`parse`] accepts.
pub const MAX_FILE_BYTES: usize = 4 << 20;

/// Reads and parses a site file. Relative paths in it are joined to the file's absolute directory, so that the site
/// does not change its meaning with the working directory.
///
/// # Errors
///
/// One error if the file cannot be read, is longer than [`MAX_FILE_BYTES`] or is not UTF-8; else as [`parse`].
pub fn load(file: &Path) -> Result<Site, Errors> {
    let directory = match std::path::absolute(file) {
        Ok(absolute) => absolute.parent().unwrap_or(Path::new("/")).to_path_buf(),
        Err(error) => return Err(Errors::unreadable(file, &error.to_string())),
    };
    parse_in(&read(file)?, file, &directory)
}

/// The text of a site file, to be parsed here or elsewhere.
///
/// # Errors
///
/// One error if the file cannot be read, is longer than [`MAX_FILE_BYTES`] or is not UTF-8.
pub fn read(file: &Path) -> Result<String, Errors> {
    read_text(file).map_err(|message| Errors::unreadable(file, &message))
}

/// Parses the text of a site file. `file` stands in errors, and its parent is the directory of relative paths.
///
/// # Errors
///
/// All errors of the text at once. A syntax error stands alone, as nothing after it can be read.
pub fn parse(text: &str, file: &Path) -> Result<Site, Errors> {
    parse_in(text, file, file.parent().unwrap_or(Path::new("")))
}

fn parse_in(text: &str, file: &Path, directory: &Path) -> Result<Site, Errors> {
    // Some editors begin a file with a byte order mark.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut report = Report::of_file(Source { file, text });
    if text.len() > MAX_FILE_BYTES {
        return Err(Errors::unreadable(file, &too_long()));
    }
    let root = match document::read(text) {
        Ok(root) => root,
        Err(syntax) => {
            report.syntax_error(syntax.offset, &syntax.message);
            return report.finish(None);
        }
    };
    report.place(&At::root(), root.offset);
    let raw = file::Site::decode(&root, &At::root(), &mut report);
    let site = raw.and_then(|raw| resolve::site(&raw, directory, &mut report));
    report.finish(site)
}

fn read_text(file: &Path) -> Result<String, String> {
    use std::io::Read;

    let mut bytes = Vec::new();
    std::fs::File::open(file)
        .and_then(|file| file.take(MAX_FILE_BYTES as u64 + 1).read_to_end(&mut bytes))
        .map_err(|error| format!("cannot be read: {error}"))?;
    if bytes.len() > MAX_FILE_BYTES {
        return Err(too_long());
    }
    String::from_utf8(bytes).map_err(|error| {
        format!("is not UTF-8: the first wrong byte is at offset {}", error.utf8_error().valid_up_to())
    })
}

fn too_long() -> String {
    format!("is longer than {} MiB, which no site needs", MAX_FILE_BYTES >> 20)
}
