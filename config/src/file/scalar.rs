//! Single values: text, numbers, durations, sizes, words.

use std::path::PathBuf;
use std::time::Duration;

use bytesize::ByteSize;

use super::decode::{Decode, mismatch, no_such_word};
use crate::document::{Node, Shape};
use crate::error::{At, Report};
use crate::model::{Balance, Encoding, Listen, LogFormat, OnReload, ProxyVersion, Sharing};

/// A number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

impl Decode for String {
    fn decode(node: &Node<'_>, at: &At, report: &mut Report<'_>) -> Option<Self> {
        match &node.shape {
            Shape::String(text) => Some(text.clone()),
            _ => mismatch(node, at, report, "a string in quotes"),
        }
    }
}

impl Decode for PathBuf {
    fn decode(node: &Node<'_>, at: &At, report: &mut Report<'_>) -> Option<Self> {
        match &node.shape {
            Shape::String(text) => Some(PathBuf::from(text)),
            _ => mismatch(node, at, report, "a path in quotes"),
        }
    }
}

impl Decode for bool {
    fn decode(node: &Node<'_>, at: &At, report: &mut Report<'_>) -> Option<Self> {
        match node.shape {
            Shape::Bool(value) => Some(value),
            _ => mismatch(node, at, report, "true or false"),
        }
    }
}

impl Decode for u64 {
    fn decode(node: &Node<'_>, at: &At, report: &mut Report<'_>) -> Option<Self> {
        match node.shape {
            Shape::Integer(value) => u64::try_from(value).ok(),
            _ => None,
        }
        .or_else(|| mismatch(node, at, report, "a whole number"))
    }
}

impl Decode for f64 {
    fn decode(node: &Node<'_>, at: &At, report: &mut Report<'_>) -> Option<Self> {
        match node.shape {
            // The precision that is lost is beyond any share.
            Shape::Integer(value) => Some(value as f64),
            Shape::Float(value) => Some(value),
            _ => mismatch(node, at, report, "a number"),
        }
    }
}

impl Decode for u16 {
    fn decode(node: &Node<'_>, at: &At, report: &mut Report<'_>) -> Option<Self> {
        match node.shape {
            Shape::Integer(value) => u16::try_from(value).ok(),
            _ => None,
        }
        .or_else(|| mismatch(node, at, report, "a whole number up to 65535"))
    }
}

/// A range of statuses.
impl Decode for (u16, u16) {
    fn decode(node: &Node<'_>, at: &At, report: &mut Report<'_>) -> Option<Self> {
        match &node.shape {
            Shape::Tuple(values) if values.len() == 2 => {
                let first = u16::decode(&values[0], &at.index(0), report);
                let last = u16::decode(&values[1], &at.index(1), report);
                first.zip(last)
            }
            _ => mismatch(node, at, report, "a first and a last status, such as (200, 399)"),
        }
    }
}

impl Decode for Duration {
    fn decode(node: &Node<'_>, at: &At, report: &mut Report<'_>) -> Option<Self> {
        match &node.shape {
            Shape::String(text) => humantime::parse_duration(text).ok(),
            _ => None,
        }
        .or_else(|| mismatch(node, at, report, "a duration with its unit, such as \"30s\" or \"500ms\""))
    }
}

impl Decode for Size {
    fn decode(node: &Node<'_>, at: &At, report: &mut Report<'_>) -> Option<Self> {
        match &node.shape {
            // The crate takes a bare number for bytes; here the unit is said.
            Shape::String(text) if text.ends_with(|last: char| last.is_ascii_alphabetic()) => {
                text.parse::<ByteSize>().ok().map(|size| Size(size.as_u64()))
            }
            _ => None,
        }
        .or_else(|| mismatch(node, at, report, "a size with its unit, such as \"64KiB\" or \"1GiB\""))
    }
}

/// One of a few words.
fn word<T: Copy>(node: &Node<'_>, at: &At, report: &mut Report<'_>, words: &[(&str, T)]) -> Option<T> {
    let names: Vec<&str> = words.iter().map(|(name, _)| *name).collect();
    match node.shape {
        Shape::Variant(found, None) => {
            let value = words.iter().find(|(name, _)| *name == found).map(|(_, value)| *value);
            if value.is_none() {
                report.error_at(at, node.offset, no_such_word(found, &names));
            }
            value
        }
        _ => mismatch(node, at, report, &format!("one of the words {} (without quotes)", names.join(", "))),
    }
}

impl Decode for LogFormat {
    fn decode(node: &Node<'_>, at: &At, report: &mut Report<'_>) -> Option<Self> {
        word(node, at, report, &[("Json", LogFormat::Json), ("Combined", LogFormat::Combined)])
    }
}

impl Decode for Balance {
    fn decode(node: &Node<'_>, at: &At, report: &mut Report<'_>) -> Option<Self> {
        let words = [("RoundRobin", Balance::RoundRobin), ("LeastConnections", Balance::LeastConnections)];
        word(node, at, report, &words)
    }
}

impl Decode for ProxyVersion {
    fn decode(node: &Node<'_>, at: &At, report: &mut Report<'_>) -> Option<Self> {
        word(node, at, report, &[("V1", ProxyVersion::V1), ("V2", ProxyVersion::V2)])
    }
}

impl Decode for Sharing {
    fn decode(node: &Node<'_>, at: &At, report: &mut Report<'_>) -> Option<Self> {
        let words = [("Inherited", Sharing::Inherited), ("ReusePort", Sharing::ReusePort)];
        word(node, at, report, &words)
    }
}

impl Decode for OnReload {
    fn decode(node: &Node<'_>, at: &At, report: &mut Report<'_>) -> Option<Self> {
        let words = [("Keep", OnReload::Keep), ("Drain", OnReload::Drain), ("Close", OnReload::Close)];
        word(node, at, report, &words)
    }
}

impl Decode for Listen {
    fn decode(node: &Node<'_>, at: &At, report: &mut Report<'_>) -> Option<Self> {
        word(node, at, report, &[("Socket", Listen::Socket), ("Port", Listen::Port)])
    }
}

impl Decode for Encoding {
    fn decode(node: &Node<'_>, at: &At, report: &mut Report<'_>) -> Option<Self> {
        word(node, at, report, &[("Br", Encoding::Br), ("Zstd", Encoding::Zstd), ("Gzip", Encoding::Gzip)])
    }
}
