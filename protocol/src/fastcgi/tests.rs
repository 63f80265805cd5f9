use bytes::BytesMut;
use http::StatusCode;
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::http1::HeadLimits;

fn record(kind: u8, request: u16, content: &[u8], padding: u8) -> Vec<u8> {
    let mut bytes = vec![1, kind];
    bytes.extend(request.to_be_bytes());
    bytes.extend(u16::try_from(content.len()).unwrap().to_be_bytes());
    bytes.extend([padding, 0]);
    bytes.extend(content);
    bytes.extend(vec![0xaa; padding.into()]);
    bytes
}

fn end(app_status: u32, status: u8, padding: u8) -> Vec<u8> {
    let mut content = app_status.to_be_bytes().to_vec();
    content.extend([status, 0, 0, 0]);
    record(END_REQUEST, 1, &content, padding)
}

/// What an application has said, in pieces that were put together.
#[derive(Debug, Default, PartialEq, Eq)]
struct Said {
    output: Vec<u8>,
    error: Vec<u8>,
    end: Option<(u32, ProtocolStatus)>,
}

/// Reads to the end, or to where more is needed.
fn read(reader: &mut Reader, input: &mut BytesMut, said: &mut Said) -> Result<(), RecordError> {
    loop {
        match reader.next(input)? {
            Event::NeedMore => return Ok(()),
            Event::Output(piece) => {
                assert!(!piece.is_empty());
                said.output.extend(piece);
            }
            Event::Error(piece) => {
                assert!(!piece.is_empty());
                said.error.extend(piece);
            }
            Event::End { app_status, status } => {
                assert!(said.end.replace((app_status, status)).is_none());
                return Ok(());
            }
        }
    }
}

fn refused(bytes: &[u8]) -> RecordError {
    let mut input = BytesMut::from(bytes);
    let mut reader = Reader::default();
    loop {
        match reader.next(&mut input) {
            Err(error) => return error,
            Ok(Event::NeedMore) => panic!("not refused"),
            Ok(_) => {}
        }
    }
}

#[test]
fn a_request_is_written_as_the_specification_has_it() {
    let mut out = BytesMut::new();
    write::begin(&mut out, true);
    assert_eq!(out[..], [1, 1, 0, 1, 0, 8, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0]);
    let mut pairs = BytesMut::new();
    write::param(&mut pairs, b"A", b"bc");
    write::param(&mut pairs, b"D", &[b'x'; 200]);
    assert_eq!(pairs[..10], [1, 2, b'A', b'b', b'c', 1, 0x80, 0, 0, 200]);
    out.clear();
    write::params(&mut out, &pairs);
    assert_eq!(out[..8], [1, 4, 0, 1, 0, pairs.len() as u8, 0, 0]);
    assert_eq!(out[8 + pairs.len()..], [1, 4, 0, 1, 0, 0, 0, 0]);
    out.clear();
    write::content(&mut out, 300);
    write::content_end(&mut out);
    assert_eq!(out[..], [1, 5, 0, 1, 1, 44, 0, 0, 1, 5, 0, 1, 0, 0, 0, 0]);
}

#[test]
fn many_params_take_more_than_one_record() {
    let mut out = BytesMut::new();
    write::params(&mut out, &vec![7; write::LARGEST + 1]);
    assert_eq!(out.len(), 8 + write::LARGEST + 8 + 1 + 8);
    assert_eq!(out[8 + write::LARGEST..][..8], [1, 4, 0, 1, 0, 1, 0, 0]);
}

#[test]
fn what_an_application_must_not_send_is_refused() {
    let mut other_version = record(STDOUT, 1, b"x", 0);
    other_version[0] = 2;
    assert_eq!(refused(&other_version), RecordError::Version(2));
    // Management records, those of a web server, and what does not exist.
    for kind in [0, 1, 2, 4, 5, 8, 9, 10, 11, 12, 255] {
        assert_eq!(refused(&record(kind, 1, b"", 0)), RecordError::Type(kind));
    }
    for request in [0, 2, 256, u16::MAX] {
        assert_eq!(refused(&record(STDOUT, request, b"x", 0)), RecordError::Request(request));
        assert_eq!(refused(&record(END_REQUEST, request, &[0; 8], 0)), RecordError::Request(request));
    }
    for length in [0, 7, 9] {
        let bytes = record(END_REQUEST, 1, &vec![0; length], 0);
        assert_eq!(refused(&bytes), RecordError::EndLength(length as u16));
    }
    assert_eq!(refused(&end(0, 4, 0)), RecordError::Status(4));
    for kind in [STDOUT, STDERR] {
        let bytes = [record(kind, 1, b"", 3), record(kind, 1, b"x", 0)].concat();
        assert_eq!(refused(&bytes), RecordError::BehindEnd);
    }
    assert_eq!(refused(&[end(0, 0, 9), record(STDOUT, 1, b"x", 0)].concat()), RecordError::BehindEnd);
}

#[test]
fn an_end_says_what_became_of_the_request() {
    for (byte, status) in [
        (0, ProtocolStatus::Complete),
        (1, ProtocolStatus::CannotMultiplex),
        (2, ProtocolStatus::Overloaded),
        (3, ProtocolStatus::UnknownRole),
    ] {
        let mut said = Said::default();
        let mut reader = Reader::default();
        read(&mut reader, &mut BytesMut::from(&end(9, byte, 5)[..]), &mut said).unwrap();
        assert_eq!((said.end, reader.is_done()), (Some((9, status)), true));
    }
}

fn head(text: &[u8]) -> Result<Option<AnswerHead>, HeadError> {
    HeadParser::new(HeadLimits { bytes: 100, fields: 4 }).parse(&mut BytesMut::from(text))
}

#[test]
fn a_head_has_a_status_and_fields() {
    let parsed =
        head(b"Status: 404 Not Found\r\nX-A: b\r\nX-A: c\r\nContent-Length: 7\r\n\r\n").unwrap().unwrap();
    assert_eq!((parsed.status, parsed.length), (StatusCode::NOT_FOUND, Some(7)));
    assert_eq!(parsed.headers.get_all("x-a").iter().collect::<Vec<_>>(), ["b", "c"]);
    assert!(!parsed.headers.contains_key("status"));
    let parsed = head(b"Content-type: text/html\n\n").unwrap().unwrap();
    assert_eq!((parsed.status, parsed.length), (StatusCode::OK, None));
    let status = |text: &str| head(text.as_bytes()).unwrap().unwrap().status.as_u16();
    assert_eq!(status("Location: https://a.example/\r\n\r\n"), 302);
    assert_eq!(status("Location: /local\r\n\r\n"), 302);
    assert_eq!(status("Status: 201\r\nLocation: /made\r\n\r\n"), 201);
    let parsed =
        head(b"Transfer-Encoding: chunked\nConnection: x-a\nUpgrade: h2c\nX-A: 1\n\n").unwrap().unwrap();
    assert_eq!(parsed.headers.len(), 1, "framing is not the program's");
}

#[test]
fn a_head_that_is_unclear_is_refused() {
    let malformed: [&[u8]; 18] = [
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"no colon\r\n\r\n",
        b"<html>\n\n",
        b": x\r\n\r\n",
        b"A B: x\r\n\r\n",
        b"A: b\r\n folded\r\n\r\n",
        b"A: b\rc\r\n\r\n",
        b"A: \0\r\n\r\n",
        b"Status: 20\r\n\r\n",
        b"Status: 100 Continue\r\n\r\n",
        b"Status: 101\r\n\r\n",
        b"Status: 2000\r\n\r\n",
        b"Status: 600\r\n\r\n",
        b"Status: 200\r\nStatus: 200\r\n\r\n",
        b"Content-Length: 1\r\nContent-Length: 1\r\n\r\n",
        b"Content-Length: -1\r\n\r\n",
        b"Content-Length: 99999999999999999999\r\n\r\n",
        b"Location: /a\r\nLocation: /b\r\n\r\n",
    ];
    for text in malformed {
        let result = head(text);
        assert!(
            matches!(result, Err(HeadError::Malformed(_))),
            "{:?}: {result:?}",
            String::from_utf8_lossy(text)
        );
    }
    assert_eq!(head(b"\r\n").unwrap_err(), HeadError::Empty);
    assert_eq!(head(b"\n").unwrap_err(), HeadError::Empty);
    assert_eq!(head(&[b'x'; 100]).unwrap_err(), HeadError::TooLarge);
    assert!(head(&[b'x'; 99]).unwrap().is_none());
    assert_eq!(head(b"a: 1\nb: 1\nc: 1\nd: 1\ne: 1\n\n").unwrap_err(), HeadError::TooLarge);
}

/// Records of an answer with what they say.
fn answer() -> impl Strategy<Value = (Said, Vec<u8>)> {
    let piece = (any::<bool>(), vec(any::<u8>(), 1..80), any::<u8>());
    (vec(piece, 0..8), any::<bool>(), any::<u32>(), 0..4u8, any::<u8>()).prop_map(
        |(pieces, close, app_status, status, padding)| {
            let mut said = Said::default();
            let mut bytes = Vec::new();
            for (stderr, content, padding) in pieces {
                bytes.extend(record(if stderr { STDERR } else { STDOUT }, 1, &content, padding));
                if stderr { &mut said.error } else { &mut said.output }.extend(content);
            }
            if close {
                bytes.extend(record(STDOUT, 1, b"", 1));
                bytes.extend(record(STDERR, 1, b"", 0));
            }
            bytes.extend(end(app_status, status, padding));
            let status = [
                ProtocolStatus::Complete,
                ProtocolStatus::CannotMultiplex,
                ProtocolStatus::Overloaded,
                ProtocolStatus::UnknownRole,
            ][usize::from(status)];
            said.end = Some((app_status, status));
            (said, bytes)
        },
    )
}

/// Takes params apart again.
fn unpaired(mut bytes: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut pairs = Vec::new();
    fn length(bytes: &mut &[u8]) -> usize {
        if bytes[0] < 0x80 {
            let (length, rest) = (usize::from(bytes[0]), &bytes[1..]);
            *bytes = rest;
            return length;
        }
        let (length, rest) = bytes.split_first_chunk::<4>().unwrap();
        *bytes = rest;
        (u32::from_be_bytes(*length) & !(1 << 31)) as usize
    }
    while !bytes.is_empty() {
        let (name, value) = (length(&mut bytes), length(&mut bytes));
        let (this, rest) = bytes.split_at(name + value);
        pairs.push((this[..name].to_vec(), this[name..].to_vec()));
        bytes = rest;
    }
    pairs
}

proptest! {
    #[test]
    fn an_answer_is_read_wherever_it_is_split((expected, bytes) in answer()) {
        for cut in 0..=bytes.len() {
            let mut input = BytesMut::from(&bytes[..cut]);
            let (mut reader, mut said) = (Reader::default(), Said::default());
            read(&mut reader, &mut input, &mut said).unwrap();
            prop_assert_eq!(reader.is_done(), cut == bytes.len());
            if cut < bytes.len() {
                input.extend_from_slice(&bytes[cut..]);
                read(&mut reader, &mut input, &mut said).unwrap();
            }
            prop_assert_eq!(&said, &expected, "cut at {}", cut);
            prop_assert!(input.is_empty());
        }
    }

    #[test]
    fn an_answer_is_read_byte_by_byte((expected, bytes) in answer()) {
        let (mut reader, mut said, mut input) = (Reader::default(), Said::default(), BytesMut::new());
        for byte in bytes {
            input.extend_from_slice(&[byte]);
            read(&mut reader, &mut input, &mut said).unwrap();
        }
        prop_assert_eq!(&said, &expected);
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(bytes in vec(any::<u8>(), 0..400), likely in any::<bool>()) {
        let mut bytes = bytes;
        if likely && bytes.len() >= 8 {
            bytes[..4].copy_from_slice(&[1, STDOUT, 0, 1]);
        }
        let (mut reader, mut input) = (Reader::default(), BytesMut::from(&bytes[..]));
        let _ = read(&mut reader, &mut input, &mut Said::default());
    }

    #[test]
    fn params_are_what_they_were(pairs in vec((vec(any::<u8>(), 0..300), vec(any::<u8>(), 0..300)), 0..20)) {
        let mut bytes = BytesMut::new();
        for (name, value) in &pairs {
            write::param(&mut bytes, name, value);
        }
        prop_assert_eq!(unpaired(&bytes), pairs);
    }

    #[test]
    fn a_head_is_read_wherever_it_is_split(cut in 0..58usize) {
        let text = b"Status: 201 Made\r\nX-A: b\nContent-Length: 4\r\n\r\nbody and more";
        let mut parser = HeadParser::new(HeadLimits::default());
        let mut input = BytesMut::from(&text[..cut]);
        let parsed = match parser.parse(&mut input).unwrap() {
            Some(parsed) => parsed,
            None => {
                input.extend_from_slice(&text[cut..]);
                parser.parse(&mut input).unwrap().unwrap()
            }
        };
        prop_assert_eq!((parsed.status.as_u16(), parsed.length, parsed.headers.len()), (201, Some(4), 2));
        prop_assert!(b"body and more".starts_with(&input[..]) );
    }

    #[test]
    fn any_head_is_read_without_a_panic(bytes in vec(any::<u8>(), 0..300)) {
        let _ = head(&bytes);
    }
}
