use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::*;

const LIMIT: usize = 4096;

fn read(bytes: &[u8]) -> Result<Option<Header>, HeaderError> {
    Reader::new(LIMIT).read(&mut BytesMut::from(bytes))
}

fn v1(text: &str) -> Result<Option<Origin>, HeaderError> {
    read(text.as_bytes()).map(|header| header.map(|header| header.origin))
}

/// A header of version 2 with these bytes behind the signature's command and family.
fn v2(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
    let mut bytes = v2::SIGNATURE.to_vec();
    bytes.extend([command, family]);
    bytes.extend(u16::try_from(rest.len()).unwrap().to_be_bytes());
    bytes.extend(rest);
    bytes
}

const INET: &[u8] = &[192, 0, 2, 1, 198, 51, 100, 7, 0xdc, 0x04, 0x01, 0xbb];

fn inet() -> Origin {
    Origin::Inet {
        transport: Transport::Stream,
        source: "192.0.2.1:56324".parse().unwrap(),
        destination: "198.51.100.7:443".parse().unwrap(),
    }
}

#[test]
fn lines_of_version_1_are_understood() {
    assert_eq!(v1("PROXY TCP4 192.0.2.1 198.51.100.7 56324 443\r\n"), Ok(Some(inet())));
    let Ok(Some(Origin::Inet { source, destination, .. })) = v1("PROXY TCP6 2001:db8::1 ::1 1 65535\r\n")
    else {
        panic!("not read");
    };
    assert_eq!(source, "[2001:db8::1]:1".parse().unwrap());
    assert_eq!(destination, "[::1]:65535".parse().unwrap());
    assert_eq!(v1("PROXY UNKNOWN\r\n"), Ok(Some(Origin::Unknown)));
    assert_eq!(v1("PROXY UNKNOWN ffff::1 whatever 1 2\r\n"), Ok(Some(Origin::Unknown)));
}

#[test]
fn lines_that_are_not_of_version_1_are_refused() {
    for text in [
        "PROXY TCP4 192.0.2.1 198.51.100.7 56324\r\n",
        "PROXY TCP4 192.0.2.1 198.51.100.7 56324 443 1\r\n",
        "PROXY TCP4 192.0.2.1 198.51.100.7 56324 443 \r\n",
        "PROXY TCP4  192.0.2.1 198.51.100.7 56324 443\r\n",
        "PROXY  TCP4 192.0.2.1 198.51.100.7 56324 443\r\n",
        "PROXY TCP4 192.0.2.1 198.51.100.7 56324 65536\r\n",
        "PROXY TCP4 192.0.2.1 198.51.100.7 056324 443\r\n",
        "PROXY TCP4 192.0.2.1 198.51.100.7 +1 443\r\n",
        "PROXY TCP4 192.0.2.01 198.51.100.7 1 443\r\n",
        "PROXY TCP4 ::1 ::1 1 443\r\n",
        "PROXY TCP6 192.0.2.1 198.51.100.7 1 443\r\n",
        "PROXY UDP4 192.0.2.1 198.51.100.7 1 443\r\n",
        "PROXY UNKNOWNS\r\n",
        "PROXY \r\n",
        "PROXY TCP4 192.0.2.1 198.51.100.7 1 443\n\r\n",
        "PROXY TCP4 192.0.2.1 198.51.100.7 1 \u{ff}443\r\n",
    ] {
        assert_eq!(v1(text), Err(HeaderError::Malformed("its line")), "{text:?}");
    }
    for text in ["GET / HTTP/1.1\r\n", "PRI * HTTP/2.0\r\n\r\n", "proxy TCP4", "\r\nGET /", "\x16\x03\x01"] {
        assert_eq!(v1(text), Err(HeaderError::Missing), "{text:?}");
    }
}

#[test]
fn a_line_of_version_1_has_at_most_107_bytes() {
    let line = |spaces: usize| format!("PROXY UNKNOWN{}\r\n", " ".repeat(spaces));
    assert_eq!(line(92).len(), 107);
    assert_eq!(v1(&line(92)), Ok(Some(Origin::Unknown)));
    assert_eq!(v1(&line(93)), Err(HeaderError::TooLarge));
    assert_eq!(v1(&line(93)[..107]), Err(HeaderError::TooLarge));
    assert_eq!(v1(&line(93)[..106]), Ok(None));
}

#[test]
fn version_2_is_understood() {
    let header = read(&v2(0x21, 0x11, INET)).unwrap().unwrap();
    assert_eq!((header.version, header.origin), (Version::V2, inet()));
    let local = read(&v2(0x20, 0x11, b"what does not matter")).unwrap().unwrap();
    assert_eq!(local.origin, Origin::Local);
    assert_eq!(read(&v2(0x21, 0x00, &[])).unwrap().unwrap().origin, Origin::Unknown);
    let mut unix = vec![0; 216];
    unix[..5].copy_from_slice(b"/a/b\xff");
    let Origin::Unix { source, destination, transport } =
        read(&v2(0x21, 0x31, &unix)).unwrap().unwrap().origin
    else {
        panic!("not read");
    };
    assert_eq!((&*source, &*destination, transport), (&b"/a/b\xff"[..], &b""[..], Transport::Stream));
}

#[test]
fn what_is_not_of_version_2_is_refused() {
    for (command, family) in
        [(0x22, 0x11), (0x11, 0x11), (0x31, 0x11), (0x21, 0x10), (0x21, 0x13), (0x21, 0x41)]
    {
        let result = read(&v2(command, family, &[0; 250]));
        assert!(matches!(result, Err(HeaderError::Malformed(_))), "{command:x} {family:x} {result:?}");
    }
    for (family, length) in [(0x11, 11), (0x12, 0), (0x21, 35), (0x22, 12), (0x31, 215)] {
        let result = read(&v2(0x21, family, &vec![0; length]));
        assert_eq!(result, Err(HeaderError::Malformed("its addresses are cut off")), "{family:x} {length}");
    }
    let mut almost = v2(0x21, 0x11, INET);
    almost[11] = b'\r';
    assert_eq!(read(&almost), Err(HeaderError::Missing));
}

#[test]
fn a_length_over_the_limit_is_refused_before_anything_of_it_has_come() {
    let mut bytes = v2(0x21, 0x11, &[]);
    bytes[14..16].copy_from_slice(&u16::MAX.to_be_bytes());
    assert_eq!(read(&bytes), Err(HeaderError::TooLarge));
    let largest = v2(0x20, 0, &vec![0; LIMIT - 16]);
    assert_eq!(read(&largest).unwrap().unwrap().origin, Origin::Local);
    assert_eq!(read(&v2(0x20, 0, &vec![0; LIMIT - 15])[..16]), Err(HeaderError::TooLarge));
}

#[test]
fn parts_that_are_cut_off_or_unclear_are_refused() {
    let with = |tlvs: &[u8]| read(&v2(0x21, 0x11, &[INET, tlvs].concat()));
    let malformed: &[&[u8]] = &[
        // Cut off.
        &[4],
        &[4, 0],
        &[4, 0, 1],
        &[2, 0xff, 0xff, b'a'],
        // A checksum of three bytes, of five, and twice.
        &[3, 0, 3, 0, 0, 0],
        &[3, 0, 5, 0, 0, 0, 0, 0],
        &[3, 0, 4, 0, 0, 0, 0, 3, 0, 4, 0, 0, 0, 0],
        // Authorities: twice, no UTF-8, a line feed.
        &[2, 0, 1, b'a', 2, 0, 1, b'a'],
        &[2, 0, 1, 0xff],
        &[2, 0, 1, b'\n'],
        // TLS: cut off, within and twice.
        &[0x20, 0, 4, 1, 0, 0, 0],
        &[0x20, 0, 7, 1, 0, 0, 0, 0, 0x21, 0],
        &[0x20, 0, 8, 1, 0, 0, 0, 0, 0x21, 0, 1],
        &[0x20, 0, 5, 1, 0, 0, 0, 0, 0x20, 0, 5, 1, 0, 0, 0, 0],
    ];
    for tlvs in malformed {
        assert!(matches!(with(tlvs), Err(HeaderError::Malformed(_))), "{tlvs:?}");
    }
    assert_eq!(with(&[3, 0, 4, 0, 0, 0, 0]), Err(HeaderError::Checksum));
    let long_id = [&[5, 0, 129][..], &[0; 129]].concat();
    assert_eq!(with(&long_id), Err(HeaderError::Malformed("the length of its unique id")));
    let header = with(&[4, 0, 2, 9, 9, 0xe0, 0, 1, 1, 2, 0, 3, b'a', b'.', b'b', 0x20, 0, 5, 1, 0, 0, 0, 0]);
    let tlvs = header.unwrap().unwrap().tlvs;
    assert_eq!(tlvs.authority.as_deref(), Some("a.b"));
    // No certificate, so that there is none that was verified.
    assert_eq!(tlvs.tls, Some(Tls { used: true, ..Tls::default() }));
}

fn transport() -> impl Strategy<Value = Transport> {
    prop_oneof![Just(Transport::Stream), Just(Transport::Datagram)]
}

fn path() -> impl Strategy<Value = Box<[u8]>> {
    vec(1u8.., 0..=108).prop_map(Vec::into_boxed_slice)
}

fn origin() -> impl Strategy<Value = Origin> {
    let v4 = (any::<Ipv4Addr>(), any::<u16>()).prop_map(SocketAddr::from);
    // None that is a mapped IPv4 address: those become IPv4.
    let v6 = (1u16.., any::<[u16; 7]>(), any::<u16>()).prop_map(|(first, [b, c, d, e, f, g, h], port)| {
        SocketAddr::from((Ipv6Addr::new(first, b, c, d, e, f, g, h), port))
    });
    let inet =
        |address: BoxedStrategy<SocketAddr>| {
            (transport(), address.clone(), address)
                .prop_map(|(transport, source, destination)| Origin::Inet { transport, source, destination })
        };
    prop_oneof![
        Just(Origin::Local),
        Just(Origin::Unknown),
        inet(v4.boxed()),
        inet(v6.boxed()),
        (transport(), path(), path()).prop_map(|(transport, source, destination)| Origin::Unix {
            transport,
            source,
            destination
        }),
    ]
}

fn text() -> impl Strategy<Value = Option<Box<str>>> {
    option::of("[ -~äö]{0,40}".prop_map(String::into_boxed_str))
}

prop_compose! {
    fn tls()(
        (used, certificate, certificate_in_session, verified) in any::<(bool, bool, bool, bool)>(),
        texts in [text(), text(), text(), text(), text()],
    ) -> Tls {
        let [version, common_name, cipher, signature_algorithm, key_algorithm] = texts;
        let verified = verified && (certificate || certificate_in_session);
        Tls {
            used, certificate, certificate_in_session, verified,
            version, common_name, cipher, signature_algorithm, key_algorithm,
        }
    }
}

prop_compose! {
    fn tlvs()(
        alpn in option::of(vec(any::<u8>(), 0..20).prop_map(Vec::into_boxed_slice)),
        unique_id in option::of(vec(any::<u8>(), 0..=128).prop_map(Vec::into_boxed_slice)),
        (authority, namespace) in (text(), text()),
        tls in option::of(tls()),
    ) -> Tlvs {
        Tlvs { alpn, authority, unique_id, tls, namespace }
    }
}

/// Any valid header, with its bytes.
fn written() -> impl Strategy<Value = (Header, Vec<u8>)> {
    (origin(), tlvs(), any::<bool>(), any::<bool>()).prop_map(|(origin, tlvs, checksum, old)| {
        let mut out = BytesMut::new();
        if old {
            write_v1(&mut out, &origin);
            let origin = match origin {
                Origin::Inet { transport: Transport::Stream, .. } => origin,
                _ => Origin::Unknown,
            };
            return (Header { version: Version::V1, origin, tlvs: Tlvs::default() }, out.to_vec());
        }
        write_v2(&mut out, &origin, &tlvs, checksum).unwrap();
        let tlvs = if origin == Origin::Local { Tlvs::default() } else { tlvs };
        (Header { version: Version::V2, origin, tlvs }, out.to_vec())
    })
}

proptest! {
    #[test]
    fn what_is_written_is_read_wherever_it_is_split((header, bytes) in written(), behind in vec(any::<u8>(), 0..20)) {
        let reader = Reader::new(LIMIT);
        for cut in 0..bytes.len() {
            let mut input = BytesMut::from(&bytes[..cut]);
            prop_assert_eq!(reader.read(&mut input), Ok(None), "cut at {}", cut);
            prop_assert_eq!(&input[..], &bytes[..cut]);
            input.extend_from_slice(&bytes[cut..]);
            input.extend_from_slice(&behind);
            prop_assert_eq!(reader.read(&mut input), Ok(Some(header.clone())));
            prop_assert_eq!(&input[..], &behind[..]);
        }
    }

    #[test]
    fn a_changed_bit_of_a_header_with_a_checksum_is_noticed(
        origin in origin(), place in any::<prop::sample::Index>(), bit in 0u8..8,
    ) {
        prop_assume!(origin != Origin::Local);
        let mut out = BytesMut::new();
        write_v2(&mut out, &origin, &Tlvs::default(), true).unwrap();
        // All but the words that say that there is a checksum.
        let at = place.index(out.len() - 3);
        let at = if at < out.len() - 7 { at } else { at + 3 };
        out[at] ^= 1 << bit;
        match Reader::new(LIMIT).read(&mut out) {
            // The command has become LOCAL.
            Ok(Some(header)) => prop_assert_eq!((header.origin, at), (Origin::Local, 12)),
            // The length has become more than there is.
            Ok(None) => prop_assert!(at == 14 || at == 15),
            Err(_) => {}
        }
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(bytes in vec(any::<u8>(), 0..600), begin in 0..4usize) {
        let begin: &[u8] = [b"", v1::BEGIN, v2::SIGNATURE, b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0"][begin];
        let mut input = BytesMut::from(&[begin, &bytes].concat()[..]);
        let before = input.len();
        match Reader::new(LIMIT).read(&mut input) {
            Ok(Some(_)) => prop_assert!(input.len() < before),
            Ok(None) | Err(_) => prop_assert_eq!(input.len(), before),
        }
    }
}
