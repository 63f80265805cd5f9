//! RON as a tree in which every value knows its place in the text.
//!
//! `ron` is the only parser: each level is read as raw values borrowed from the text, whose addresses give their
//! offsets. Reading the levels apart is what makes it possible to report all type errors at once, where a derived
//! `Deserialize` would stop at the first.

use std::fmt;

use ron::Options;
use ron::extensions::Extensions;
use ron::value::RawValue;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// A value and the byte offset at which it begins.
#[derive(Debug)]
pub(crate) struct Node<'a> {
    pub(crate) offset: usize,
    pub(crate) shape: Shape<'a>,
}

/// What kind of value it is. `Some(x)` is the same as `x`.
#[derive(Debug)]
pub(crate) enum Shape<'a> {
    None,
    Bool(bool),
    Integer(i128),
    Float(f64),
    String(String),
    List(Vec<Node<'a>>),
    Map(Vec<(Node<'a>, Node<'a>)>),
    /// `(name: value, …)`
    Record(Vec<(Key<'a>, Node<'a>)>),
    /// `(value, …)`, also `()`
    Tuple(Vec<Node<'a>>),
    /// `Name`, or `Name(…)` with what the parentheses hold: a record or a tuple
    Variant(&'a str, Option<Box<Node<'a>>>),
    /// A character or a byte string
    Other,
}

/// A field's name and its byte offset.
#[derive(Debug)]
pub(crate) struct Key<'a> {
    pub(crate) offset: usize,
    pub(crate) name: &'a str,
}

/// Why the text is not RON, and where.
#[derive(Debug)]
pub(crate) struct SyntaxError {
    pub(crate) offset: usize,
    pub(crate) message: String,
}

/// Reads a whole text.
pub(crate) fn read(text: &str) -> Result<Node<'_>, SyntaxError> {
    // First as a whole: this is where `ron` names the exact place of an error.
    options().from_str::<IgnoredAny>(text).map_err(|error| SyntaxError {
        offset: offset_of(text, error.span.end),
        message: match error.code {
            // Its own words are for programmers.
            ron::Error::ExceededRecursionLimit => "nested too deeply".to_owned(),
            code => code.to_string(),
        },
    })?;
    let raw: &RawValue = at(text, text, options().from_str(text))?;
    Reader { text }.node(raw)
}

impl Shape<'_> {
    /// What was found, for a message.
    pub(crate) fn found(&self) -> String {
        match self {
            Shape::None => "None".into(),
            Shape::Bool(value) => format!("{value}"),
            Shape::Integer(value) => format!("the number {value}"),
            Shape::Float(value) => format!("the number {value}"),
            Shape::String(value) => format!("{value:?}"),
            Shape::List(_) => "a list".into(),
            Shape::Map(_) => "a map".into(),
            Shape::Record(_) => "a record".into(),
            Shape::Tuple(values) if values.is_empty() => "()".into(),
            Shape::Tuple(_) => "a tuple".into(),
            Shape::Variant(name, None) => format!("the word {name}"),
            Shape::Variant(name, Some(_)) => format!("{name}(…)"),
            Shape::Other => "a character or a byte string".into(),
        }
    }
}

fn options() -> Options {
    Options::default().with_default_extension(Extensions::IMPLICIT_SOME)
}

/// Byte offset of a position in lines and characters from 1.
fn offset_of(text: &str, position: ron::error::Position) -> usize {
    let line = text.split_inclusive('\n').take(position.line.saturating_sub(1)).map(str::len).sum::<usize>();
    let column = text[line..].chars().take(position.col.saturating_sub(1)).map(char::len_utf8).sum::<usize>();
    line + column
}

/// Carries the place of an error in a part over to the whole text.
fn at<T>(text: &str, part: &str, result: Result<T, ron::error::SpannedError>) -> Result<T, SyntaxError> {
    result.map_err(|error| SyntaxError { offset: address(text, part), message: error.code.to_string() })
}

/// Byte offset of a part that was borrowed from the text.
fn address(text: &str, part: &str) -> usize {
    (part.as_ptr() as usize).saturating_sub(text.as_ptr() as usize).min(text.len())
}

struct Reader<'a> {
    text: &'a str,
}

impl<'a> Reader<'a> {
    fn node(&self, raw: &'a RawValue) -> Result<Node<'a>, SyntaxError> {
        let raw = raw.trim().get_ron();
        let offset = address(self.text, raw);
        // Whatever begins with a letter and is not a string is a word, perhaps with parentheses.
        let word = if string_begins(raw) { "" } else { leading_word(raw) };
        let shape = match (word, raw.as_bytes().first()) {
            ("true", _) => Shape::Bool(true),
            ("false", _) => Shape::Bool(false),
            ("None", _) => Shape::None,
            ("inf" | "inff32" | "inff64" | "NaN" | "NaNf32" | "NaNf64", _) => Shape::Float(f64::NAN),
            ("", Some(b'(')) => self.parenthesised(raw)?,
            ("", Some(b'[')) => Shape::List(self.nodes(self.parse(raw, |de| de.deserialize_seq(Values))?)?),
            ("", Some(b'{')) => {
                let entries = self.parse(raw, |de| de.deserialize_map(Entries))?;
                let entries = entries.into_iter().map(|(k, v)| Ok((self.node(k)?, self.node(v)?)));
                Shape::Map(entries.collect::<Result<_, _>>()?)
            }
            ("", Some(b'"' | b'r')) => Shape::String(at(self.text, raw, options().from_str(raw))?),
            ("", Some(b'0'..=b'9' | b'+' | b'-' | b'.')) => number(raw),
            ("", _) | ("b", Some(_)) => Shape::Other,
            (word, _) => return self.word(raw, word, offset),
        };
        Ok(Node { offset, shape })
    }

    /// `Some(value)` or an enum's variant.
    fn word(&self, raw: &'a str, word: &'a str, offset: usize) -> Result<Node<'a>, SyntaxError> {
        let rest = &raw[word.len()..];
        let name = word.strip_prefix("r#").unwrap_or(word);
        if name == "Some" {
            let inner = self.parse(raw, |de| de.deserialize_option(Inner))?;
            return match inner {
                Some(inner) => self.node(inner),
                None => Ok(Node { offset, shape: Shape::None }),
            };
        }
        if rest.is_empty() {
            return Ok(Node { offset, shape: Shape::Variant(name, None) });
        }
        let rest = at(self.text, rest, RawValue::from_ron(rest))?.trim().get_ron();
        let inner = Node { offset: address(self.text, rest), shape: self.parenthesised(rest)? };
        Ok(Node { offset, shape: Shape::Variant(name, Some(Box::new(inner))) })
    }

    /// The text is valid, so what does not read as a record is a tuple.
    fn parenthesised(&self, raw: &'a str) -> Result<Shape<'a>, SyntaxError> {
        if let Ok(fields) = self.parse(raw, |de| de.deserialize_struct("", &[], Fields))
            && !fields.is_empty()
        {
            let fields = fields.into_iter().map(|(name, value)| {
                let key = Key { offset: address(self.text, name), name };
                Ok((key, self.node(value)?))
            });
            return Ok(Shape::Record(fields.collect::<Result<_, _>>()?));
        }
        let values = self.parse(raw, |de| de.deserialize_tuple(0, Values))?;
        Ok(Shape::Tuple(self.nodes(values)?))
    }

    fn nodes(&self, values: Vec<&'a RawValue>) -> Result<Vec<Node<'a>>, SyntaxError> {
        values.into_iter().map(|value| self.node(value)).collect()
    }

    fn parse<T>(
        &self,
        raw: &'a str,
        read: impl FnOnce(&mut ron::Deserializer<'a>) -> ron::Result<T>,
    ) -> Result<T, SyntaxError> {
        let mut deserializer = at(self.text, raw, ron::Deserializer::from_str_with_options(raw, &options()))?;
        read(&mut deserializer)
            .map_err(|error| SyntaxError { offset: address(self.text, raw), message: error.to_string() })
    }
}

/// `"`, `r"` or `r#"`, with any number of `#`.
fn string_begins(raw: &str) -> bool {
    let raw = raw.strip_prefix('r').map_or(raw, |raw| raw.trim_start_matches('#'));
    raw.starts_with('"')
}

fn leading_word(raw: &str) -> &str {
    let begins = |c: char| c.is_alphabetic() || c == '_';
    if !raw.starts_with(begins) || raw.starts_with("b\"") || raw.starts_with("b'") || raw.starts_with("br") {
        return "";
    }
    let body = raw.strip_prefix("r#").unwrap_or(raw);
    let end = body.find(|c: char| !(c.is_alphanumeric() || matches!(c, '_' | '.' | '+' | '-')));
    &raw[..raw.len() - body.len() + end.unwrap_or(body.len())]
}

fn number(raw: &str) -> Shape<'_> {
    if let Ok(value) = options().from_str::<i64>(raw) {
        return Shape::Integer(value.into());
    }
    if let Ok(value) = options().from_str::<u64>(raw) {
        return Shape::Integer(value.into());
    }
    options().from_str::<f64>(raw).map_or(Shape::Other, Shape::Float)
}

struct Values;

impl<'de> Visitor<'de> for Values {
    type Value = Vec<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("values")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = access.next_element()? {
            values.push(value);
        }
        Ok(values)
    }
}

struct Entries;

impl<'de> Visitor<'de> for Entries {
    type Value = Vec<(&'de RawValue, &'de RawValue)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = access.next_entry()? {
            entries.push(entry);
        }
        Ok(entries)
    }
}

struct Fields;

impl<'de> Visitor<'de> for Fields {
    type Value = Vec<(&'de str, &'de RawValue)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a record")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
        let mut fields = Vec::new();
        while let Some(field) = access.next_entry()? {
            fields.push(field);
        }
        Ok(fields)
    }
}

struct Inner;

impl<'de> Visitor<'de> for Inner {
    type Value = Option<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an optional value")
    }

    fn visit_none<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        serde::Deserialize::deserialize(deserializer).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outline(node: &Node<'_>) -> String {
        let list = |nodes: &[Node<'_>]| nodes.iter().map(outline).collect::<Vec<_>>().join(" ");
        let shape = match &node.shape {
            Shape::List(nodes) => format!("[{}]", list(nodes)),
            Shape::Tuple(nodes) => format!("({})", list(nodes)),
            Shape::Map(entries) => {
                let entries = entries.iter().map(|(k, v)| format!("{}={}", outline(k), outline(v)));
                format!("{{{}}}", entries.collect::<Vec<_>>().join(" "))
            }
            Shape::Record(fields) => {
                let fields = fields.iter().map(|(k, v)| format!("{}@{}:{}", k.name, k.offset, outline(v)));
                format!("({})", fields.collect::<Vec<_>>().join(" "))
            }
            Shape::Variant(name, Some(inner)) => format!("{name}<{}>", outline(inner)),
            other => other.found(),
        };
        format!("{shape}@{}", node.offset)
    }

    fn read_outline(text: &str) -> String {
        read(text).map_or_else(|error| format!("{}: {}", error.offset, error.message), |node| outline(&node))
    }

    #[test]
    fn every_value_knows_where_it_begins() {
        assert_eq!(read_outline("(a: 1, b: \"x\")"), r#"(a@1:the number 1@4 b@7:"x"@10)@0"#);
        assert_eq!(read_outline(" [ true , /* c */ Some( 2 ) ]"), "[true@3 the number 2@24]@1");
        assert_eq!(
            read_outline("{\"k\": Foo, \"l\": Bar(\"x\", 2)}"),
            r#"{"k"@1=the word Foo@6 "l"@11=Bar<("x"@20 the number 2@25)@19>@16}@0"#
        );
        assert_eq!(read_outline("// first\n(ä: 'c')"), "(ä@10:a character or a byte string@14)@9");
        assert_eq!(read_outline("Bar /* (x: 1) */ (x: None)"), "Bar<(x@18:None@21)@17>@0");
        assert_eq!(
            read_outline("(a: (), b: r#\"q\"#, r#type: -1.5)"),
            r#"(a@1:()@4 b@8:"q"@11 type@21:the number -1.5@27)@0"#
        );
        assert_eq!(
            read_outline("#![enable(implicit_some)]\n(a: b\"x\", c: br\"x\")"),
            "(a@27:a character or a byte string@30 c@36:a character or a byte string@39)@26"
        );
    }

    #[test]
    fn a_syntax_error_has_its_place() {
        assert_eq!(read_outline("(a: 1,\n b 2)"), "10: Expected colon");
        assert_eq!(read_outline(""), "0: Unexpected end of RON");
    }

    #[test]
    fn deep_nesting_ends_in_an_error_not_in_a_stack_overflow() {
        let text = "(".repeat(100_000);
        assert_eq!(read(&text).unwrap_err().message, "nested too deeply");
        let text = format!("{}{}", "[".repeat(60), "]".repeat(60));
        assert!(read(&text).is_ok());
    }
}
