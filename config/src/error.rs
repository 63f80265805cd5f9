//! Errors of a site file: all at once, each with its place, its field and a way out.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;

use serde::Serialize;

/// One error. Displays as one line: `site.ron:12:5: routes[0].to: no upstream "apii"; did you mean "api"?`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Error {
    /// The file as it was named; `None` for a site that was built in code.
    pub file: Option<String>,
    /// From 1, where it is known.
    pub line: Option<usize>,
    /// In characters, from 1, where it is known.
    pub column: Option<usize>,
    /// The field's path, `routes[0].to`; empty for the whole file.
    pub field: String,
    /// The cause and, where there is one, the way out. One line.
    pub message: String,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            f.write_str(file)?;
            if let (Some(line), Some(column)) = (self.line, self.column) {
                write!(f, ":{line}:{column}")?;
            }
            f.write_str(": ")?;
        }
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

/// All errors of a site, at least one, in the order of the file. Displays one a line, without a final line break.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Errors(Vec<Error>);

impl Errors {
    /// The errors one by one.
    pub fn iter(&self) -> std::slice::Iter<'_, Error> {
        self.0.iter()
    }

    /// The errors as a list.
    pub fn as_slice(&self) -> &[Error] {
        &self.0
    }

    pub(crate) fn unreadable(file: &Path, message: &str) -> Errors {
        Errors(vec![Error {
            file: Some(file.display().to_string()),
            line: None,
            column: None,
            field: String::new(),
            message: message.to_owned(),
        }])
    }
}

impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            error.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for Errors {}

impl IntoIterator for Errors {
    type Item = Error;
    type IntoIter = std::vec::IntoIter<Error>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a> IntoIterator for &'a Errors {
    type Item = &'a Error;
    type IntoIter = std::slice::Iter<'a, Error>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

/// The path of a field, and of what it lies in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct At {
    text: String,
    /// Lengths of the paths of what it lies in.
    parents: Vec<usize>,
}

impl At {
    pub(crate) fn root() -> At {
        At::default()
    }

    /// `self.name`
    pub(crate) fn field(&self, name: &str) -> At {
        self.child(&if self.text.is_empty() { name.to_owned() } else { format!(".{name}") })
    }

    /// `self[index]`
    pub(crate) fn index(&self, index: usize) -> At {
        self.child(&format!("[{index}]"))
    }

    /// `self.key`, or `self["k.e.y"]` if it would not read as one word.
    pub(crate) fn key(&self, key: &str) -> At {
        let word = !key.is_empty()
            && key.len() <= 64
            && key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
        if word { self.child(&format!(".{key}")) } else { self.child(&format!("[{key:?}]")) }
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    /// The path of what it lies in.
    pub(crate) fn parent(&self) -> At {
        let mut parents = self.parents.clone();
        let end = parents.pop().unwrap_or(0);
        At { text: self.text[..end].to_owned(), parents }
    }

    fn child(&self, suffix: &str) -> At {
        let mut parents = self.parents.clone();
        parents.push(self.text.len());
        At { text: format!("{}{suffix}", self.text), parents }
    }

    /// From the path itself outwards.
    fn outwards(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.text.as_str()).chain(self.parents.iter().rev().map(|&end| &self.text[..end]))
    }
}

/// The text that is parsed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source<'a> {
    pub(crate) file: &'a Path,
    pub(crate) text: &'a str,
}

/// Collects errors, and knows where in the text each field stands.
#[derive(Debug, Default)]
pub(crate) struct Report<'a> {
    source: Option<Source<'a>>,
    /// Byte offsets of values by path.
    places: HashMap<String, usize>,
    errors: Vec<Error>,
    /// Errors beyond [`MAX_ERRORS`].
    dropped: usize,
}

/// Nobody reads more, and without an end a hostile file costs its length squared.
const MAX_ERRORS: usize = 1_000;

impl<'a> Report<'a> {
    pub(crate) fn of_file(source: Source<'a>) -> Self {
        Report { source: Some(source), ..Report::default() }
    }

    /// Remembers where a field stands.
    pub(crate) fn place(&mut self, at: &At, offset: usize) {
        self.places.insert(at.text.clone(), offset);
    }

    /// An error of a field, placed at it or at the nearest that holds it.
    pub(crate) fn error(&mut self, at: &At, message: impl Into<String>) {
        let offset = at.outwards().find_map(|path| self.places.get(path).copied());
        self.push(at.as_str(), offset, message.into());
    }

    /// An error of a field at a place of its own.
    pub(crate) fn error_at(&mut self, at: &At, offset: usize, message: impl Into<String>) {
        self.push(at.as_str(), Some(offset), message.into());
    }

    pub(crate) fn syntax_error(&mut self, offset: usize, message: &str) {
        let mut message = message.replace(char::is_control, " ");
        if let Some(first) = message.get(..1) {
            let first = first.to_lowercase();
            message.replace_range(..1, &first);
        }
        self.push("", Some(offset), format!("not RON: {message}"));
    }

    /// Whether a field or something in it has an error already, so that what follows from it is not said again.
    pub(crate) fn failed(&self, at: &At) -> bool {
        self.errors.iter().any(|error| match error.field.strip_prefix(at.as_str()) {
            Some(rest) => rest.is_empty() || rest.starts_with(['.', '[']) || at.as_str().is_empty(),
            None => false,
        })
    }

    /// Whether this very field has an error.
    pub(crate) fn failed_itself(&self, at: &At) -> bool {
        self.errors.iter().any(|error| error.field == at.as_str())
    }

    /// The value if there was no error.
    pub(crate) fn finish<T>(mut self, value: Option<T>) -> Result<T, Errors> {
        match value {
            Some(value) if self.errors.is_empty() => return Ok(value),
            _ => {}
        }
        if self.errors.is_empty() {
            // Whoever gives no value has said why; this keeps `Errors` from being empty if that is ever forgotten.
            self.push("", None, "cannot be used, for a reason that was not recorded".into());
        }
        // A stable sort: errors without a place keep the order in which they were found.
        self.errors.sort_by_key(|error| (error.line.unwrap_or(usize::MAX), error.column));
        if self.dropped > 0 {
            let message = format!("{} further errors are not listed", self.dropped);
            self.errors.push(Error {
                file: self.source.map(|source| source.file.display().to_string()),
                line: None,
                column: None,
                field: String::new(),
                message,
            });
        }
        Err(Errors(self.errors))
    }

    fn push(&mut self, field: &str, offset: Option<usize>, message: String) {
        if self.errors.len() >= MAX_ERRORS {
            self.dropped += 1;
            return;
        }
        let (file, place) = match self.source {
            Some(source) => (
                Some(source.file.display().to_string()),
                offset.and_then(|offset| source.text.get(..offset)).map(line_and_column),
            ),
            None => (None, None),
        };
        let error = Error {
            file,
            line: place.map(|(line, _)| line),
            column: place.map(|(_, column)| column),
            field: field.to_owned(),
            message,
        };
        if !self.errors.contains(&error) {
            self.errors.push(error);
        }
    }
}

fn line_and_column(before: &str) -> (usize, usize) {
    let line = before.bytes().filter(|&byte| byte == b'\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or(before).chars().count() + 1;
    (line, column)
}

/// `no upstream "apii"; did you mean "api"?`, or the names that exist.
pub(crate) fn unknown<'n>(what: &str, name: &str, names: impl IntoIterator<Item = &'n str>) -> String {
    let names: Vec<&str> = names.into_iter().collect();
    let way_out = match nearest(name, &names) {
        Some(near) => format!("did you mean {near:?}?"),
        None if names.is_empty() => "the site has none".to_owned(),
        None => format!("there is {}", listed(&names)),
    };
    format!("{what} {name:?}; {way_out}")
}

/// The name that was probably meant.
pub(crate) fn nearest<'n>(name: &str, names: &[&'n str]) -> Option<&'n str> {
    // Longer than any name may be; the distance costs the product of the lengths.
    if name.len() > 256 {
        return None;
    }
    let name = name.to_lowercase();
    let distance = |other: &str| strsim::damerau_levenshtein(&name, &other.to_lowercase());
    let (distance, near) = names.iter().map(|other| (distance(other), *other)).min_by_key(|(d, _)| *d)?;
    (distance <= 1 + name.chars().count().min(near.chars().count()) / 3).then_some(near)
}

/// `"a", "b" and "c"`
fn listed(names: &[&str]) -> String {
    const SHOWN: usize = 12;
    let mut quoted: Vec<String> = names.iter().take(SHOWN).map(|name| format!("{name:?}")).collect();
    if names.len() > SHOWN {
        quoted.push(format!("{} more", names.len() - SHOWN));
    }
    match quoted.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} and {last}", rest.join(", ")),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_near_name_is_suggested_and_a_far_one_is_not() {
        assert_eq!(
            unknown("no upstream", "apii", ["api", "php"]),
            r#"no upstream "apii"; did you mean "api"?"#
        );
        assert_eq!(unknown("no upstream", "API", ["api"]), r#"no upstream "API"; did you mean "api"?"#);
        assert_eq!(
            unknown("no upstream", "zebra", ["api", "php"]),
            r#"no upstream "zebra"; there is "api" and "php""#
        );
        assert_eq!(unknown("no upstream", "api", []), r#"no upstream "api"; the site has none"#);
    }

    #[test]
    fn an_error_without_a_place_of_its_own_stands_at_what_holds_the_field() {
        let source = Source { file: Path::new("site.ron"), text: "(\n  ä: (b: 1))" };
        let mut report = Report::of_file(source);
        let at = At::root().field("a");
        report.place(&at, 8);
        report.error(&at.field("b").index(3), "wrong");
        let errors = report.finish::<()>(None).unwrap_err();
        assert_eq!(errors.to_string(), "site.ron:2:6: a.b[3]: wrong");
    }
}
