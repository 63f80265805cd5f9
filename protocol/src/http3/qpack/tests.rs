//! Field sections, those of RFC 9204's examples among them.

use http::HeaderValue;
use http::header::{HeaderName, SET_COOKIE};
use proptest::prelude::*;

use super::*;

const LIMITS: Limits = Limits { size: 10_000, fields: 100 };

fn texts(section: &[u8]) -> Result<Vec<(String, String)>, DecodeError> {
    let text = |bytes: Bytes| String::from_utf8(bytes.to_vec()).unwrap();
    let fields = decode(Bytes::copy_from_slice(section), LIMITS)?;
    Ok(fields.into_iter().map(|(name, value)| (text(name), text(value))).collect())
}

#[test]
fn a_literal_with_a_static_name_is_decoded() {
    // RFC 9204, appendix B.1
    let section = [&[0x00, 0x00, 0x51, 0x0b][..], b"/index.html"].concat();
    assert_eq!(texts(&section), Ok(vec![(":path".into(), "/index.html".into())]));
}

#[test]
fn the_forms_that_need_no_dynamic_table_are_decoded() {
    let section = [&[0, 0, 0xc0 | 17, 0x27, 0x03][..], b"x-somename", &[0x02], b"on"].concat();
    let expected = vec![(":method".into(), "GET".into()), ("x-somename".into(), "on".into())];
    assert_eq!(texts(&section), Ok(expected));
    // Huffman-coded: "no-cache" behind a static name.
    let section = [0, 0, 0x5f, 0x18, 0x86, 0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf];
    assert_eq!(texts(&section), Ok(vec![("cache-control".into(), "no-cache".into())]));
}

#[test]
fn what_refers_to_a_dynamic_table_or_ends_early_is_broken() {
    let sections: [&[u8]; 12] = [
        &[],
        &[0],
        &[1, 0],
        &[0, 0, 0x80],
        &[0, 0, 0x10],
        &[0, 0, 0x40, 0],
        &[0, 0, 0x00, 0],
        &[0, 0, 0xff, 0x24],
        &[0, 0, 0x51, 0x0b, b'/'],
        &[0, 0, 0x51],
        &[0, 0, 0xff, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80],
        &[0, 0, 0x51, 0x81, 0x00],
    ];
    for section in sections {
        assert_eq!(texts(section), Err(DecodeError::Broken), "{section:?}");
    }
}

#[test]
fn limits_count_what_is_decoded() {
    let section = Bytes::from([&[0, 0][..], &[0xc0 | 17; 10]].concat());
    let size = 10 * (":methodGET".len() + 32);
    assert!(decode(section.clone(), Limits { size, fields: 10 }).is_ok());
    let too_large = Err(DecodeError::TooLarge);
    assert_eq!(decode(section.clone(), Limits { size: size - 1, fields: 10 }), too_large);
    assert_eq!(decode(section, Limits { size, fields: 9 }), too_large);
}

#[test]
fn an_answer_comes_back_as_it_went() {
    let mut headers = HeaderMap::new();
    let long = "x".repeat(300);
    for (name, value) in
        [("content-type", "text/html; charset=utf-8"), ("content-length", "5"), ("x-own", &long)]
    {
        headers.append(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
    }
    headers.append(SET_COOKIE, HeaderValue::from_static("a=1"));
    headers.append(SET_COOKIE, HeaderValue::from_static("b=2"));
    let mut section = BytesMut::new();
    encode(&mut section, Some(StatusCode::OK), &headers);
    let fields = texts(&section).unwrap();
    assert_eq!(fields[0], (":status".into(), "200".into()));
    let expected: Vec<_> =
        headers.iter().map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned())).collect();
    assert_eq!(fields[1..], expected);
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(section in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = decode(section.into(), LIMITS);
    }

    #[test]
    fn any_field_comes_back(name in "[a-z0-9-]{1,200}", value in "[ -~]{0,400}") {
        let mut section = BytesMut::new();
        section.put_slice(&[0, 0]);
        line(&mut section, &name, value.as_bytes(), value.len() % 2 == 0);
        prop_assert_eq!(texts(&section), Ok(vec![(name, value)]));
    }
}
