//! Templates of a `Location`: literal text and variables.

use super::Resolver;
use super::value::shown;
use crate::error::{At, nearest};
use crate::model::{Segment, Variable};

const VARIABLES: &[(&str, Variable)] =
    &[("uri", Variable::Uri), ("path", Variable::Path), ("query", Variable::Query), ("host", Variable::Host)];

impl Resolver<'_, '_> {
    /// A template that leads, whatever the client sends, to the host that is written in it or to the same one.
    pub(super) fn location(&mut self, text: &str, at: &At) -> Option<Vec<Segment>> {
        match segments(text).and_then(|segments| destination(&segments).map(|()| segments)) {
            Ok(segments) => Some(segments),
            Err(message) => self.refuse(at, message),
        }
    }
}

fn segments(text: &str) -> Result<Vec<Segment>, String> {
    if let Some(wrong) = text.chars().find(|c| !c.is_ascii_graphic()) {
        return Err(format!("has the character {wrong:?}, which a Location cannot carry; percent-encode it"));
    }
    let mut segments = Vec::new();
    let mut rest = text;
    while let Some(brace) = rest.find(['{', '}']) {
        let (before, from) = rest.split_at(brace);
        let Some(inner) = from.strip_prefix('{') else {
            return Err("has a \"}\" without its \"{\"; a brace that is meant literally is %7D".to_owned());
        };
        let Some((name, after)) = inner.split_once('}') else {
            return Err("has a \"{\" without its \"}\"; a brace that is meant literally is %7B".to_owned());
        };
        if !before.is_empty() {
            segments.push(Segment::Text(before.to_owned()));
        }
        segments.push(Segment::Variable(variable(name)?));
        rest = after;
    }
    if !rest.is_empty() {
        segments.push(Segment::Text(rest.to_owned()));
    }
    Ok(segments)
}

fn variable(name: &str) -> Result<Variable, String> {
    if let Some((_, variable)) = VARIABLES.iter().find(|(known, _)| *known == name) {
        return Ok(*variable);
    }
    let names: Vec<&str> = VARIABLES.iter().map(|(name, _)| *name).collect();
    Err(match nearest(name, &names) {
        Some(near) => format!("no variable {{{}}}; did you mean {{{near}}}?", name.escape_debug()),
        None => format!(
            "no variable {{{}}}; there are {{uri}}, {{path}}, {{query}} and {{host}}",
            name.escape_debug()
        ),
    })
}

/// Refuses what would let a client choose the host (an open redirect).
fn destination(segments: &[Segment]) -> Result<(), String> {
    const BEGIN: &str = "begins with \"/\", \"http://\", \"https://\", {uri} or {path}";
    let (first, rest) = segments.split_first().ok_or_else(|| "is empty; write where to".to_owned())?;
    let text = match first {
        Segment::Text(text) => text.as_str(),
        // Both begin with one `/`.
        Segment::Variable(Variable::Uri | Variable::Path) => return Ok(()),
        Segment::Variable(Variable::Query | Variable::Host) => return Err(format!("a location {BEGIN}")),
    };
    if text.starts_with("//") || text.starts_with("/\\") {
        return Err("begins with \"//\", which leads to another host; write its scheme too".to_owned());
    }
    if text == "/" && rest.first().is_some_and(|next| *next != Segment::Variable(Variable::Host)) {
        return Err(match rest.first() {
            Some(Segment::Variable(Variable::Query)) => {
                "lets a client choose the host: \"/\" before {query} may become \"//\"; write \"/?{query}\""
            }
            _ => "would begin with \"//\", which leads to another host: {uri} and {path} have their own \"/\"; take the first one out",
        }
        .to_owned());
    }
    if text.starts_with('/') {
        return Ok(());
    }
    let lower = text.to_ascii_lowercase();
    let Some(authority) = lower.strip_prefix("https://").or(lower.strip_prefix("http://")) else {
        return Err(format!("{} is no location: it {BEGIN}", shown(text)));
    };
    authority_ends(authority, rest)
}

/// Follows the segments to the end of the authority: only literal text and `{host}` may stand before it.
fn authority_ends(text: &str, rest: &[Segment]) -> Result<(), String> {
    let ends = |text: &str| text.contains(['/', '?', '#', '\\']);
    let mut empty = text.is_empty();
    if text.starts_with(['/', '?', '#', '\\', ':']) {
        return Err("has no host after its scheme".to_owned());
    }
    if ends(text) {
        return Ok(());
    }
    for segment in rest {
        match segment {
            Segment::Text(text) if ends(text) => return Ok(()),
            Segment::Text(_) | Segment::Variable(Variable::Host) => empty = false,
            Segment::Variable(Variable::Uri | Variable::Path) if !empty => return Ok(()),
            Segment::Variable(Variable::Uri | Variable::Path) => {
                return Err("has no host after its scheme".to_owned());
            }
            Segment::Variable(Variable::Query) => {
                return Err("lets a client choose the host: write a \"/\" or \"?\" before {query}".to_owned());
            }
        }
    }
    if empty { Err("has no host after its scheme".to_owned()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> Result<(), String> {
        destination(&segments(text)?)
    }

    #[test]
    fn a_template_is_text_and_variables() {
        assert_eq!(
            segments("https://{host}/a{uri}"),
            Ok(vec![
                Segment::Text("https://".into()),
                Segment::Variable(Variable::Host),
                Segment::Text("/a".into()),
                Segment::Variable(Variable::Uri),
            ])
        );
    }

    #[test]
    fn usual_locations_are_accepted() {
        for text in [
            "/",
            "/new",
            "/new{uri}",
            "{uri}",
            "{path}?{query}",
            "/?{query}",
            "https://{host}{uri}",
            "https://shop.example{uri}",
            "HTTP://shop.example",
            "https://shop.example:8443{path}",
            "/{host}/x",
            "https://{host}",
            "https://www.{host}/?{query}",
            "/a/{query}",
        ] {
            assert_eq!(check(text), Ok(()), "{text}");
        }
    }

    #[test]
    fn a_client_never_chooses_the_host() {
        for text in [
            "//x",
            "/{uri}",
            "/{path}",
            "/{query}",
            "{query}",
            "{host}",
            "/\\x",
            "https://x{query}",
            "https://{query}",
            "https://{uri}",
            "https://",
            "https:///x",
            "https://:80/",
            "javascript:{query}",
            "",
            "x",
        ] {
            assert!(check(text).is_err(), "{text}");
        }
    }
}
