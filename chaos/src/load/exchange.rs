//! What one request asks and what its answer must be.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method};

use crate::pattern;

/// One request and the answer it must get.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// The method.
    pub method: Method,
    /// The target in origin form.
    pub path: String,
    /// Fields beside `Host` (which may be replaced here), `Content-Length` and, per protocol, `Connection`.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// The request's content.
    pub body: Body,
    /// Between two pieces of the content, of 16 KiB each: a slow upload.
    pub pause: Duration,
    /// The answer that counts as answered.
    pub expect: Expect,
}

impl Exchange {
    /// A `GET`.
    pub fn get(path: impl Into<String>, expect: Expect) -> Exchange {
        Exchange {
            method: Method::GET,
            path: path.into(),
            headers: Vec::new(),
            body: Body::Empty,
            pause: Duration::ZERO,
            expect,
        }
    }

    /// A `POST` with this content.
    pub fn post(path: impl Into<String>, body: Body, expect: Expect) -> Exchange {
        Exchange { method: Method::POST, body, ..Exchange::get(path, expect) }
    }

    /// Waits between two pieces of the content.
    pub fn pause(mut self, pause: Duration) -> Exchange {
        self.pause = pause;
        self
    }

    /// Adds a field.
    pub fn header(mut self, name: HeaderName, value: HeaderValue) -> Exchange {
        self.headers.push((name, value));
        self
    }
}

/// The content of a request.
#[derive(Clone, Debug)]
pub enum Body {
    /// None: no `Content-Length` either.
    Empty,
    /// These bytes.
    Fixed(Bytes),
    /// The first `length` bytes of a [`pattern`].
    Pattern {
        /// Its seed.
        seed: u64,
        /// In bytes.
        length: u64,
    },
    /// As `Pattern`, but of undeclared length: chunked in HTTP/1.1, without `content-length` in HTTP/2.
    Streamed {
        /// Its seed.
        seed: u64,
        /// In bytes.
        length: u64,
    },
}

impl Body {
    /// The length in bytes.
    pub fn length(&self) -> u64 {
        match self {
            Body::Empty => 0,
            Body::Fixed(bytes) => bytes.len() as u64,
            Body::Pattern { length, .. } | Body::Streamed { length, .. } => *length,
        }
    }

    /// The piece at `offset`, at most 16 KiB; empty at the end.
    pub(crate) fn piece(&self, offset: u64) -> Bytes {
        const PIECE: u64 = 16 << 10;
        let length = (self.length() - offset).min(PIECE) as usize;
        match self {
            Body::Empty => Bytes::new(),
            Body::Fixed(bytes) => bytes.slice(offset as usize..offset as usize + length),
            Body::Pattern { seed, .. } | Body::Streamed { seed, .. } => {
                let mut piece = vec![0; length];
                pattern::fill(*seed, offset, &mut piece);
                piece.into()
            }
        }
    }
}

/// The answer that counts as answered; any other is a failure.
#[derive(Clone, Debug)]
pub struct Expect {
    /// The final status.
    pub status: u16,
    /// Fields that must be there with exactly these values.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// The content.
    pub body: ExpectBody,
}

impl Expect {
    /// A 200 with exactly these bytes.
    pub fn body(bytes: impl Into<Bytes>) -> Expect {
        Expect { status: 200, headers: Vec::new(), body: ExpectBody::Fixed(bytes.into()) }
    }

    /// A 200 with the first `length` bytes of the [`pattern`] `seed`.
    pub fn pattern(seed: u64, length: u64) -> Expect {
        Expect { status: 200, headers: Vec::new(), body: ExpectBody::Pattern { seed, length } }
    }

    /// This status with any content, as long as its framing is whole.
    pub fn status(status: u16) -> Expect {
        Expect { status, headers: Vec::new(), body: ExpectBody::Any }
    }

    /// Requires another status than 200.
    pub fn with_status(mut self, status: u16) -> Expect {
        self.status = status;
        self
    }

    /// Requires a field.
    pub fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Expect {
        self.headers.push((name, value));
        self
    }

    /// What is wrong with the fields, if anything is.
    pub(crate) fn check_headers(&self, headers: &HeaderMap) -> Option<String> {
        self.headers
            .iter()
            .find(|(name, value)| !headers.get_all(name).iter().any(|v| v == value))
            .map(|(name, value)| format!("{name} is {:?} where {value:?} is expected", headers.get(name)))
    }
}

/// The content that is expected.
#[derive(Clone, Debug)]
pub enum ExpectBody {
    /// Any.
    Any,
    /// These bytes.
    Fixed(Bytes),
    /// The first `length` bytes of a [`pattern`].
    Pattern {
        /// Its seed.
        seed: u64,
        /// In bytes.
        length: u64,
    },
}

/// Compares content with what is expected while it arrives.
pub(crate) struct Checker<'a> {
    expect: &'a ExpectBody,
    offset: u64,
}

impl<'a> Checker<'a> {
    pub(crate) fn new(expect: &'a ExpectBody) -> Checker<'a> {
        Checker { expect, offset: 0 }
    }

    /// Takes the next piece; an error says where it differs.
    pub(crate) fn feed(&mut self, data: &[u8]) -> Result<(), String> {
        let length = data.len() as u64;
        let differs = match self.expect {
            ExpectBody::Any => None,
            ExpectBody::Fixed(bytes) => {
                let rest = &bytes[(self.offset as usize).min(bytes.len())..];
                data.iter()
                    .zip(rest)
                    .position(|(a, b)| a != b)
                    .or((data.len() > rest.len()).then_some(rest.len()))
            }
            ExpectBody::Pattern { seed, length: whole } => {
                let rest = (whole - self.offset).min(length) as usize;
                pattern::mismatch(*seed, self.offset, &data[..rest]).or((rest < data.len()).then_some(rest))
            }
        };
        if let Some(at) = differs {
            return Err(format!("the content differs at byte {}", self.offset + at as u64));
        }
        self.offset += length;
        Ok(())
    }

    /// The answer says that this was all.
    pub(crate) fn end(&self) -> Result<(), String> {
        let whole = match self.expect {
            ExpectBody::Any => return Ok(()),
            ExpectBody::Fixed(bytes) => bytes.len() as u64,
            ExpectBody::Pattern { length, .. } => *length,
        };
        if self.offset == whole {
            Ok(())
        } else {
            Err(format!("a whole answer of {} bytes where {whole} are expected", self.offset))
        }
    }
}

/// An answer of HTTP/2 or HTTP/3, where the protocol says how long it is and whether it is whole, while it arrives.
pub(crate) struct Answer<'a> {
    status: u16,
    is_expected: bool,
    wrong: Option<String>,
    checker: Checker<'a>,
}

/// What is wrong with an answer that is whole.
#[derive(Debug)]
pub(crate) enum NotExpected {
    Status(u16),
    Wrong(String),
}

impl<'a> Answer<'a> {
    pub(crate) fn new(exchange: &'a Exchange, status: u16, headers: &HeaderMap) -> Answer<'a> {
        let expect = &exchange.expect;
        let is_expected = status == expect.status;
        let wrong = if is_expected { expect.check_headers(headers) } else { None };
        let has_content = exchange.method != Method::HEAD && !matches!(status, 204 | 304);
        let checker = Checker::new(if is_expected && has_content { &expect.body } else { &ExpectBody::Any });
        Answer { status, is_expected, wrong, checker }
    }

    /// Takes the next piece of its content. What is wrong is said at its end: whether the answer was whole decides between wrong
    /// and in flight.
    pub(crate) fn feed(&mut self, data: &[u8]) {
        let wrong = self.checker.feed(data).err();
        self.wrong = self.wrong.take().or(wrong);
    }

    pub(crate) fn end(self) -> Result<(), NotExpected> {
        if !self.is_expected {
            return Err(NotExpected::Status(self.status));
        }
        match self.wrong.or_else(|| self.checker.end().err()) {
            Some(wrong) => Err(NotExpected::Wrong(wrong)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_checked_however_it_is_split() {
        let data = pattern::bytes(3, 50);
        for expect in [ExpectBody::Fixed(data.clone()), ExpectBody::Pattern { seed: 3, length: 50 }] {
            for at in 0..=50 {
                let mut checker = Checker::new(&expect);
                assert_eq!(checker.feed(&data[..at]), Ok(()));
                assert_eq!(checker.end().is_ok(), at == 50);
                assert_eq!(checker.feed(&data[at..]), Ok(()));
                assert_eq!(checker.end(), Ok(()));
                assert!(checker.feed(b"x").is_err(), "a byte too many");
            }
            let mut wrong = data.to_vec();
            wrong[20] ^= 1;
            assert_eq!(Checker::new(&expect).feed(&wrong), Err("the content differs at byte 20".into()));
        }
    }

    #[test]
    fn the_pieces_of_a_body_are_the_body() {
        let fixed = Body::Fixed(pattern::bytes(9, 40_000));
        let pattern = Body::Pattern { seed: 9, length: 40_000 };
        let mut at = 0;
        while at < 40_000 {
            let piece = fixed.piece(at);
            assert_eq!(piece, pattern.piece(at));
            at += piece.len() as u64;
        }
        assert!(fixed.piece(40_000).is_empty());
    }
}
