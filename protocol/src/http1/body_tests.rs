use proptest::prelude::*;

use super::*;

const LIMITS: HeadLimits = HeadLimits { bytes: 256, fields: 4 };

/// Content, trailers, and how it ended: with what is left behind it, or `None` for more to come.
type Outcome = (Vec<u8>, Option<HeaderMap>, Result<Option<Vec<u8>>, BodyError>);

fn feed(length: BodyLength, pieces: &[&[u8]]) -> Outcome {
    let mut decoder = BodyDecoder::new(length, LIMITS);
    let mut buf = BytesMut::new();
    let (mut content, mut trailers) = (Vec::new(), None);
    let mut ended = false;
    for piece in pieces {
        buf.extend_from_slice(piece);
        loop {
            match decoder.decode(&mut buf) {
                Ok(Decoded::Data(data)) => {
                    assert!(!data.is_empty() && trailers.is_none() && !ended);
                    content.extend_from_slice(&data);
                }
                Ok(Decoded::Trailers(fields)) => trailers = Some(fields),
                Ok(Decoded::NeedMore) => break,
                Ok(Decoded::End) => {
                    ended = true;
                    break;
                }
                Err(error) => return (content, trailers, Err(error)),
            }
        }
    }
    (content, trailers, Ok(ended.then(|| buf.to_vec())))
}

fn chunked(input: &str) -> Result<Vec<u8>, BodyError> {
    let (content, _, end) = feed(BodyLength::Chunked, &[input.as_bytes()]);
    end.map(|end| {
        assert!(end.is_some(), "{input:?} is incomplete");
        content
    })
}

#[test]
fn a_length_is_taken_exactly() {
    assert_eq!(
        feed(BodyLength::Length(3), &[b"ab", b"cde"]),
        (b"abc".to_vec(), None, Ok(Some(b"de".to_vec())))
    );
    assert_eq!(feed(BodyLength::Length(0), &[b"x"]), (vec![], None, Ok(Some(b"x".to_vec()))));
    assert_eq!(feed(BodyLength::None, &[b"x"]), (vec![], None, Ok(Some(b"x".to_vec()))));
    assert_eq!(feed(BodyLength::Length(u64::MAX), &[b"x"]), (b"x".to_vec(), None, Ok(None)));
}

#[test]
fn blanks_behind_a_chunk_size_are_passed_over_in_an_answer_only() {
    let padded = b"3  \t \r\nabc\r\n0    \r\n\r\n";
    let mut answer = BodyDecoder::for_answer(BodyLength::Chunked, LIMITS);
    let mut buf = BytesMut::from(&padded[..]);
    assert_eq!(answer.decode(&mut buf), Ok(Decoded::Data(Bytes::from_static(b"abc"))));
    assert_eq!(answer.decode(&mut buf), Ok(Decoded::End));
    for malformed in ["3 x\r\nabc\r\n", " 3\r\nabc\r\n", "3 \n", "3 \r\r\n"] {
        let mut answer = BodyDecoder::for_answer(BodyLength::Chunked, LIMITS);
        assert!(answer.decode(&mut BytesMut::from(malformed)).is_err(), "{malformed:?}");
    }
    let mut request = BodyDecoder::new(BodyLength::Chunked, LIMITS);
    assert!(request.decode(&mut BytesMut::from(&padded[..])).is_err());
}

#[test]
fn an_end_of_the_connection_completes_only_what_ends_with_it() {
    let eof = |length, input: &[u8]| {
        let mut decoder = BodyDecoder::new(length, LIMITS);
        let mut buf = BytesMut::from(input);
        while matches!(decoder.decode(&mut buf), Ok(Decoded::Data(_))) {}
        decoder.eof()
    };
    assert_eq!(eof(BodyLength::UntilClose, b"abc"), Ok(()));
    assert_eq!(eof(BodyLength::Length(3), b"abc"), Ok(()));
    assert_eq!(eof(BodyLength::Length(4), b"abc"), Err(BodyError::Incomplete));
    for cut in ["", "3", "3\r\n", "3\r\nabc", "3\r\nabc\r\n", "3\r\nabc\r\n0\r\n", "0\r\nA: b\r\n", "0\r\n\r"]
    {
        assert_eq!(eof(BodyLength::Chunked, cut.as_bytes()), Err(BodyError::Incomplete), "{cut:?}");
    }
    assert_eq!(eof(BodyLength::Chunked, b"3\r\nabc\r\n0\r\n\r\n"), Ok(()));
}

#[test]
fn chunks_are_read() {
    assert_eq!(chunked("0\r\n\r\n"), Ok(b"".to_vec()));
    assert_eq!(chunked("3\r\nabc\r\n002\r\nde\r\n0\r\n\r\n"), Ok(b"abcde".to_vec()));
    assert_eq!(
        chunked("A\r\n0123456789\r\na\r\n0123456789\r\n000\r\n\r\n").map(|content| content.len()),
        Ok(20)
    );
    let (content, _, end) = feed(BodyLength::Chunked, &[b"1\r\na\r\n0\r\n\r\nGET /"]);
    assert_eq!((content, end), (b"a".to_vec(), Ok(Some(b"GET /".to_vec()))));
}

#[test]
fn a_chunk_size_is_hexadecimal_digits_and_nothing_else() {
    for size in [
        "",
        "+1",
        "-1",
        "0x1",
        " 1",
        "1 ",
        "\t1",
        "g",
        "1g",
        "1_0",
        "1,1",
        "1\r",
        "11111111111111111",
        "00000000000000001",
    ] {
        assert!(chunked(&format!("{size}\r\na\r\n0\r\n\r\n")).is_err(), "{size:?}");
    }
}

#[test]
fn a_chunk_ends_in_crlf_exactly() {
    for input in [
        "1\na\r\n0\r\n\r\n",
        "1\r\na\n0\r\n\r\n",
        "1\r\na0\r\n\r\n",
        "1\r\nab\r\n0\r\n\r\n",
        "2\r\na\r\n0\r\n\r\n",
        "1\r\na\r\n0\n\r\n",
        "1\r\na\r\n0\r\n\n",
        "1\r\na\r\r\n0\r\n\r\n",
    ] {
        assert!(chunked(input).is_err(), "{input:?}");
    }
}

#[test]
fn chunk_extensions_are_checked_and_ignored() {
    for extension in [";a", ";a=b", "; a = b ; c", ";a=\"b;\\\"c\"", "\t;a", ";a=\"\";b"] {
        assert_eq!(
            chunked(&format!("1{extension}\r\na\r\n0{extension}\r\n\r\n")),
            Ok(b"a".to_vec()),
            "{extension:?}"
        );
    }
    for extension in [
        ";",
        "; ;a",
        ";a=",
        ";a=\"b",
        ";a=\"b\\",
        ";=b",
        "x",
        " a",
        ";a b",
        ";a\0",
        ";a=\"\0\"",
        ";a=\r",
        ";a ",
    ] {
        assert!(chunked(&format!("1{extension}\r\na\r\n0\r\n\r\n")).is_err(), "{extension:?}");
    }
}

#[test]
fn chunk_extensions_are_bounded_by_line_and_message() {
    let long = format!("1;a={}\r\na\r\n0\r\n\r\n", "b".repeat(MAX_CHUNK_LINE));
    assert_eq!(chunked(&long), Err(BodyError::TooLarge));
    let many = format!("1;a={}\r\na\r\n", "b".repeat(500)).repeat(40);
    assert_eq!(chunked(&many), Err(BodyError::TooLarge));
}

#[test]
fn trailers_that_frame_route_or_authenticate_are_dropped() {
    let input = b"0\r\nX-Sum: 1\r\nContent-Length: 5\r\nAuthorization: x\r\nX-Forwarded-For: y\r\n\r\n";
    let (_, trailers, end) = feed(BodyLength::Chunked, &[input]);
    let trailers = trailers.expect("one is left");
    assert_eq!((trailers.len(), &trailers["x-sum"]), (1, &http::HeaderValue::from_static("1")));
    assert_eq!(end, Ok(Some(vec![])));
}

#[test]
fn trailers_are_bounded_and_strict() {
    assert_eq!(chunked(&format!("0\r\n{}\r\n", "A: b\r\n".repeat(5))), Err(BodyError::TooLarge));
    assert_eq!(chunked(&format!("0\r\nA: {}\r\n\r\n", "b".repeat(256))), Err(BodyError::TooLarge));
    for trailer in ["A\r\n", " A: b\r\n", "A : b\r\n", "A: b\n", "A: b\r\n c\r\n", "A: \0\r\n"] {
        assert!(chunked(&format!("0\r\n{trailer}\r\n")).is_err(), "{trailer:?}");
    }
}

#[test]
fn a_cut_at_any_byte_changes_nothing() {
    let long = format!("1;a={}\r\na\r\n0\r\n\r\n", "b".repeat(MAX_CHUNK_LINE));
    let corpus = [
        "3\r\nabc\r\n0f;x=\"y\"\r\n0123456789abcde\r\n0\r\nA: b\r\nC: d\r\n\r\nrest",
        "3\r\nabc\n0\r\n\r\n",
        "3\nabc",
        "0\r\nA: b\r\n c\r\n\r\n",
        "11111111111111111\r\n",
        "1;\r\na\r\n",
        "x",
        long.as_str(),
    ];
    for input in corpus {
        let input = input.as_bytes();
        let whole = feed(BodyLength::Chunked, &[input]);
        for at in 0..=input.len() {
            assert_eq!(
                feed(BodyLength::Chunked, &[&input[..at], &input[at..]]),
                whole,
                "{input:?} cut at {at}"
            );
        }
        let bytes: Vec<&[u8]> = input.chunks(1).collect();
        assert_eq!(feed(BodyLength::Chunked, &bytes), whole, "{input:?} byte by byte");
    }
}

proptest! {
    #[test]
    fn random_bytes_never_panic(input in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = feed(BodyLength::Chunked, &[&input]);
        let _ = feed(BodyLength::Chunked, &[b"1", &input, b"\r\na\r\n0\r\n\r\n"]);
        let _ = feed(BodyLength::Chunked, &[b"0\r\n", &input, b"\r\n\r\n"]);
    }

    #[test]
    fn chunks_that_are_written_are_read_again(
        pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..100), 0..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut out = BytesMut::new();
        for piece in &pieces {
            super::super::encode::chunk_head(&mut out, piece.len());
            out.extend_from_slice(piece);
            out.extend_from_slice(super::super::encode::CHUNK_END);
        }
        out.extend_from_slice(super::super::encode::LAST_CHUNK);
        let cut = cut.index(out.len());
        let outcome = feed(BodyLength::Chunked, &[&out[..cut], &out[cut..]]);
        prop_assert_eq!(outcome, (pieces.concat(), None, Ok(Some(vec![]))));
    }
}
