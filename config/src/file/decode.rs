//! From a tree to records. Every error is reported; what could not be read is `None`.

use std::collections::HashSet;

use super::{Ejection, EjectionSettings, Named, Names, ProxyProtocol, Target, Trust};
use crate::document::{Key, Node, Shape};
use crate::error::{At, Report, nearest};

/// What can be read from a value of the file.
pub(crate) trait Decode: Sized {
    /// `None` after at least one error at or beneath `at`.
    fn decode(node: &Node<'_>, at: &At, report: &mut Report<'_>) -> Option<Self>;

    /// What a written `None` means; for most it is as if the field were not written.
    fn absent() -> Option<Self> {
        None
    }

    /// What stands in a list for a value that could not be read, so that the others are still checked.
    fn placeholder() -> Option<Self> {
        None
    }
}

/// Reports that a value is of another type.
pub(super) fn mismatch<T>(node: &Node<'_>, at: &At, report: &mut Report<'_>, expected: &str) -> Option<T> {
    report.error_at(at, node.offset, format!("expected {expected}, found {}", node.shape.found()));
    None
}

/// Fields of a record that may be written, and those that a later build will have.
#[derive(Clone, Copy)]
pub(super) struct Known {
    pub(super) name: &'static str,
    pub(super) fields: &'static [&'static str],
    pub(super) later: &'static [&'static str],
    pub(super) short: Option<&'static str>,
    pub(super) tuple: &'static [&'static str],
}

/// Brings each form of a record into the long one: pairs of a field of `known` and its value, none twice. What is wrong is reported.
pub(super) fn fields<'n, 'a>(
    known: Known,
    node: &'n Node<'a>,
    at: &At,
    report: &mut Report<'_>,
) -> Option<Vec<(&'static str, &'n Node<'a>)>> {
    match &node.shape {
        Shape::Record(fields) => Some(named_fields(known, fields, at, report)),
        Shape::Tuple(values) if values.is_empty() => Some(Vec::new()),
        Shape::Variant(name, Some(inner)) if *name == known.name => fields(known, inner, at, report),
        Shape::String(_) if known.short.is_some() => {
            Some(known.short.into_iter().map(|f| (f, node)).collect())
        }
        Shape::Tuple(values) if !known.tuple.is_empty() && values.len() <= known.tuple.len() => {
            Some(known.tuple.iter().copied().zip(values).collect())
        }
        Shape::Map(_) => mismatch(node, at, report, "a record in parentheses, such as (name: value)"),
        _ => {
            let mut expected = format!("a record ({}: …)", known.fields.first().copied().unwrap_or_default());
            if known.short.is_some() {
                expected.push_str(" or a string");
            }
            mismatch(node, at, report, &expected)
        }
    }
}

fn named_fields<'n, 'a>(
    known: Known,
    fields: &'n [(Key<'a>, Node<'a>)],
    at: &At,
    report: &mut Report<'_>,
) -> Vec<(&'static str, &'n Node<'a>)> {
    let mut seen = Vec::with_capacity(fields.len().min(known.fields.len()));
    for (key, value) in fields {
        let here = at.field(key.name);
        match known.fields.iter().find(|field| **field == key.name) {
            Some(field) if seen.iter().any(|(other, _)| other == field) => {
                report.error_at(&here, key.offset, "is written twice; keep one of the two");
            }
            Some(field) => seen.push((*field, value)),
            None if known.later.contains(&key.name) => {
                let message = format!("this build does not have {:?} yet; leave the field out", key.name);
                report.error_at(&here, key.offset, message);
            }
            None => {
                let way_out = match nearest(key.name, known.fields) {
                    Some(near) => format!("did you mean {near:?}?"),
                    None => format!("the fields here are {}", known.fields.join(", ")),
                };
                report.error_at(&here, key.offset, format!("unknown field; {way_out}"));
            }
        }
    }
    seen
}

/// Reads one field of a record, with its place.
pub(super) fn field<T: Decode>(
    found: &[(&'static str, &Node<'_>)],
    name: &str,
    at: &At,
    report: &mut Report<'_>,
) -> Option<T> {
    let (name, node) = found.iter().find(|(field, _)| *field == name)?;
    let here = at.field(name);
    report.place(&here, node.offset);
    if matches!(node.shape, Shape::None) { T::absent() } else { T::decode(node, &here, report) }
}

/// Declares a record with all fields optional, and reads it. `short` is the field that a lone string stands for,
/// `tuple` are those of the form without names, `later` those of which a later build will know.
macro_rules! record {
    (
        $(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* }
        $(short: $short:ident)? $(tuple: $($tuple:ident)+)? $(later: $($later:ident)+)?
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: Option<$type>,)*
        }

        impl $crate::file::decode::Decode for $name {
            fn decode(
                node: &$crate::document::Node<'_>,
                at: &$crate::error::At,
                report: &mut $crate::error::Report<'_>,
            ) -> Option<Self> {
                let known = $crate::file::decode::Known {
                    name: stringify!($name),
                    fields: &[$(stringify!($field)),*],
                    later: &[$($(stringify!($later)),+)?],
                    short: None$(.or(Some(stringify!($short))))?,
                    tuple: &[$($(stringify!($tuple)),+)?],
                };
                let found = $crate::file::decode::fields(known, node, at, report)?;
                Some($name {
                    $($field: $crate::file::decode::field(&found, stringify!($field), at, report),)*
                })
            }

            fn placeholder() -> Option<Self> {
                Some(Self::default())
            }
        }
    };
}
pub(super) use record;

impl<T: Decode> Decode for Vec<T> {
    fn decode(node: &Node<'_>, at: &At, report: &mut Report<'_>) -> Option<Self> {
        let Shape::List(nodes) = &node.shape else {
            return mismatch(node, at, report, "a list in brackets, such as […]");
        };
        let values = nodes.iter().enumerate().map(|(index, node)| {
            let here = at.index(index);
            report.place(&here, node.offset);
            T::decode(node, &here, report).or_else(T::placeholder)
        });
        // Not `collect::<Option<_>>()`, which would stop at the first error.
        let values: Vec<Option<T>> = values.collect();
        values.into_iter().collect()
    }
}

impl<T: Decode + Default> Decode for Named<T> {
    fn decode(node: &Node<'_>, at: &At, report: &mut Report<'_>) -> Option<Self> {
        let entries = match &node.shape {
            Shape::Map(entries) => entries,
            Shape::Record(_) | Shape::Tuple(_) => {
                return mismatch(
                    node,
                    at,
                    report,
                    "a map in braces with quoted names, such as {\"name\": …}",
                );
            }
            _ => return mismatch(node, at, report, "a map in braces, such as {\"name\": …}"),
        };
        let mut named = Named::default();
        let mut seen = HashSet::new();
        for (key, value) in entries {
            let Shape::String(name) = &key.shape else {
                mismatch::<()>(key, at, report, "a name in quotes");
                continue;
            };
            let here = at.key(name);
            if !seen.insert(name.as_str()) {
                report.error_at(&here, key.offset, "this name stands here twice; names are unique");
                continue;
            }
            report.place(&here, value.offset);
            // A name counts even if what it names is wrong, so that those who refer to it are not blamed.
            let value = T::decode(value, &here, report).unwrap_or_default();
            named.0.push((name.clone(), value));
        }
        Some(named)
    }
}

impl Decode for Ejection {
    fn decode(node: &Node<'_>, at: &At, report: &mut Report<'_>) -> Option<Self> {
        match &node.shape {
            Shape::Variant("Off", None) => Some(Ejection::Off),
            Shape::Record(_) | Shape::Tuple(_) => {
                EjectionSettings::decode(node, at, report).map(Ejection::On)
            }
            _ => mismatch(node, at, report, "Off or a record (failures: …, duration: …)"),
        }
    }

    fn absent() -> Option<Self> {
        Some(Ejection::Off)
    }
}

impl Decode for ProxyProtocol {
    fn decode(node: &Node<'_>, at: &At, report: &mut Report<'_>) -> Option<Self> {
        let Shape::Variant(name, payload) = &node.shape else {
            return mismatch(node, at, report, "Required or Optional, perhaps with (trusted: […])");
        };
        let trust = |report: &mut Report<'_>| match payload {
            Some(payload) => Trust::decode(payload, at, report),
            None => Some(Trust::default()),
        };
        match *name {
            "Required" => trust(report).map(ProxyProtocol::Required),
            "Optional" => trust(report).map(ProxyProtocol::Optional),
            name => {
                report.error_at(at, node.offset, no_such_word(name, &["Required", "Optional"]));
                None
            }
        }
    }
}

impl Decode for Names {
    fn decode(node: &Node<'_>, at: &At, report: &mut Report<'_>) -> Option<Self> {
        match &node.shape {
            Shape::String(name) => Some(Names(vec![name.clone()])),
            Shape::List(_) => Vec::decode(node, at, report).map(Names),
            _ => mismatch(node, at, report, "a string in quotes, or a list of them"),
        }
    }
}

const TARGETS: &[&str] = &["Respond", "Redirect", "Static", "Proxy", "FastCgi", "App", "Handler"];

impl Decode for Target {
    fn decode(node: &Node<'_>, at: &At, report: &mut Report<'_>) -> Option<Self> {
        let Shape::Variant(name, payload) = &node.shape else {
            return mismatch(node, at, report, "what answers, such as Static(\"public\") or Proxy(\"name\")");
        };
        let payload = match payload.as_deref() {
            // `Proxy("api")`: a tuple of one is that one.
            Some(Node { shape: Shape::Tuple(values), .. }) if values.len() == 1 => &values[0],
            Some(payload) => payload,
            None => &Node { offset: node.offset, shape: Shape::Tuple(Vec::new()) },
        };
        match *name {
            "Respond" => Decode::decode(payload, at, report).map(Target::Respond),
            "Redirect" => Decode::decode(payload, at, report).map(Target::Redirect),
            "Static" => Decode::decode(payload, at, report).map(Target::Static),
            "Proxy" => Decode::decode(payload, at, report).map(Target::Proxy),
            "FastCgi" => Decode::decode(payload, at, report).map(Target::FastCgi),
            "App" => Decode::decode(payload, at, report).map(Target::App),
            "Handler" => Decode::decode(payload, at, report).map(Target::Handler),
            name => {
                report.error_at(at, node.offset, no_such_word(name, TARGETS));
                None
            }
        }
    }
}

/// `there is no Jsn; did you mean Json?`
pub(super) fn no_such_word(word: &str, words: &[&str]) -> String {
    match nearest(word, words) {
        Some(near) => format!("there is no {word}; did you mean {near}?"),
        None => format!("there is no {word}; choose one of {}", words.join(", ")),
    }
}
