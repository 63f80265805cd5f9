//! RFC 9113 and RFC 7541 section by section, as raw frames: each row is what a client sends and what the server owes it.
//! Every row runs over cleartext (prior knowledge) and over TLS (ALPN).

use std::net::TcpStream;

use crate::harness::{Algorithm, Authority, Running, Scripted, Site, Wire, pattern};

/// What the server owes.
#[derive(Clone, Debug)]
enum Owed {
    /// GOAWAY with one of these codes, then the end of the connection.
    Connection(&'static [u32]),
    /// The end of the stream by RST_STREAM with one of these codes or, what is stricter, the end of the connection.
    StreamOrConnection(u32, &'static [u32]),
    /// RST_STREAM, or an answer of 4xx, on a connection that goes on: a malformed request (§8.1.1).
    Malformed(u32),
    /// The same, or the end of the connection, where `h2` cannot go on: what a field's name or value may not contain it
    /// takes for damage of the whole header block.
    MalformedOrConnection(u32),
    /// A whole answer with this status on this stream, on a connection that goes on.
    Answer(u32, u16),
    /// Nothing special: the connection goes on.
    Nothing,
    /// The end, with or without a GOAWAY.
    End,
}

use Owed::*;

/// What a client does.
#[derive(Clone, Debug)]
enum Step {
    Send(Vec<u8>),
    /// Waits for the end of the answer on a stream.
    Answered(u32),
}

struct Case {
    section: &'static str,
    what: &'static str,
    /// Without the preface and SETTINGS before it.
    raw: bool,
    steps: Vec<Step>,
    owed: Owed,
}

fn case(section: &'static str, what: &'static str, frames: impl Script, owed: Owed) -> Case {
    Case { section, what, raw: false, steps: frames.steps(), owed }
}

fn raw(section: &'static str, what: &'static str, bytes: impl Script, owed: Owed) -> Case {
    Case { section, what, raw: true, steps: bytes.steps(), owed }
}

trait Script {
    fn steps(self) -> Vec<Step>;
}

impl Script for Vec<u8> {
    fn steps(self) -> Vec<Step> {
        vec![Step::Send(self)]
    }
}

impl<const N: usize> Script for [Vec<u8>; N] {
    fn steps(self) -> Vec<Step> {
        vec![Step::Send(self.concat())]
    }
}

impl Script for Vec<Step> {
    fn steps(self) -> Vec<Step> {
        self
    }
}

#[test]
fn connections_and_frames_follow_rfc_9113() {
    Bench::start().judge(frames());
}

#[test]
fn stream_states_follow_rfc_9113() {
    Bench::start().judge(streams());
}

#[test]
fn every_frame_type_follows_rfc_9113() {
    Bench::start().judge(frame_types());
}

#[test]
fn requests_follow_rfc_9113() {
    Bench::start().judge(requests());
}

#[test]
fn field_compression_follows_rfc_7541() {
    Bench::start().judge(compression());
}

/// §3.4, §4, §5.5.
fn frames() -> Vec<Case> {
    let mut split_preface: Vec<Step> = PREFACE.iter().map(|byte| Step::Send(vec![*byte])).collect();
    split_preface.push(Step::Send([frame(SETTINGS, 0, 0, &[]), get(1)].concat()));
    vec![
        raw("3.4", "a preface that is none", b"INVALID CONNECTION PREFACE\r\n\r\n".to_vec(), End),
        raw("3.4", "a preface that ends wrongly", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\rX".to_vec(), End),
        raw("3.4", "a preface byte by byte", split_preface, Answer(1, 200)),
        raw(
            "3.4",
            "a first frame that is not SETTINGS",
            [PREFACE.to_vec(), get(1)],
            Connection(&[PROTOCOL_ERROR]),
        ),
        raw(
            "3.4",
            "a first frame that is the acknowledgement of SETTINGS",
            [PREFACE.to_vec(), frame(SETTINGS, ACK, 0, &[])],
            Connection(&[PROTOCOL_ERROR]),
        ),
        case("4.1", "a frame of an unknown type", frame(0x42, 0, 0, &[0; 8]), Nothing),
        case(
            "4.1",
            "a frame of an unknown type on a stream",
            [frame(0x42, 0xff, 1, &[0; 8]), get(1)],
            Answer(1, 200),
        ),
        case("4.1", "undefined flags", frame(PING, 0x16, 0, &[0; 8]), Nothing),
        case("4.1", "the reserved bit of a stream's number", frame(PING, 0, 1 << 31, &[0; 8]), Nothing),
        case(
            "4.1",
            "the reserved bit on a request",
            frame(HEADERS, END_STREAM | END_HEADERS, 1 | 1 << 31, GET),
            Answer(1, 200),
        ),
        case(
            "4.2",
            "DATA of 16,384 bytes",
            [post(1), frame(DATA, END_STREAM, 1, &[0; 16_384])],
            Answer(1, 200),
        ),
        case(
            "4.2",
            "DATA of 16,385 bytes",
            [post(1), frame(DATA, END_STREAM, 1, &[0; 16_385])],
            StreamOrConnection(1, &[FRAME_SIZE_ERROR]),
        ),
        case(
            "4.2",
            "HEADERS of 16,385 bytes",
            frame(HEADERS, END_STREAM | END_HEADERS, 1, &[0; 16_385]),
            Connection(&[FRAME_SIZE_ERROR]),
        ),
        case(
            "4.2",
            "an unknown frame of 16,385 bytes",
            frame(0x42, 0, 0, &[0; 16_385]),
            Connection(&[FRAME_SIZE_ERROR]),
        ),
        case(
            "4.3",
            "a header block that is damaged",
            frame(HEADERS, END_STREAM | END_HEADERS, 1, b"\x00\x85\xf2\xb2\x4a"),
            Connection(DAMAGED),
        ),
        case(
            "4.3",
            "a field that is cut",
            frame(HEADERS, END_STREAM | END_HEADERS, 1, b"\x82\x86\x84\x41\x04x"),
            Connection(DAMAGED),
        ),
        case(
            "4.3",
            "PRIORITY inside a header block",
            [
                frame(HEADERS, END_STREAM, 1, GET),
                frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 255]),
                frame(CONTINUATION, END_HEADERS, 1, &[]),
            ],
            Connection(&[PROTOCOL_ERROR]),
        ),
        case(
            "4.3",
            "HEADERS of another stream inside a header block",
            [frame(HEADERS, END_STREAM, 1, GET), get(3)],
            Connection(&[PROTOCOL_ERROR]),
        ),
        case(
            "5.5",
            "an unknown frame inside a header block",
            [
                frame(HEADERS, END_STREAM, 1, GET),
                frame(0x42, 0, 0, &[0; 8]),
                frame(CONTINUATION, END_HEADERS, 1, &[]),
            ],
            Connection(&[PROTOCOL_ERROR]),
        ),
        case(
            "5.4.1",
            "a connection error ends the connection",
            frame(PING, 0, 0, &[0; 6]),
            Connection(&[FRAME_SIZE_ERROR]),
        ),
    ]
}

/// §5.1 to §5.3.
fn streams() -> Vec<Case> {
    let reset = || frame(RST_STREAM, 0, 1, &CANCEL.to_be_bytes());
    let data = |stream| frame(DATA, END_STREAM, stream, b"test");
    let closed = |after: Vec<u8>| vec![Step::Send(get(1)), Step::Answered(1), Step::Send(after)];
    let mut many: Vec<Vec<u8>> = (0..129).map(|number| post(2 * number + 1)).collect();
    many.push(Vec::new());
    vec![
        case("5.1", "idle: DATA", data(1), Connection(&[PROTOCOL_ERROR, STREAM_CLOSED])),
        case("5.1", "idle: RST_STREAM", reset(), Connection(&[PROTOCOL_ERROR])),
        case(
            "5.1",
            "idle: WINDOW_UPDATE",
            frame(WINDOW_UPDATE, 0, 1, &100_u32.to_be_bytes()),
            Connection(&[PROTOCOL_ERROR]),
        ),
        case(
            "5.1",
            "idle: CONTINUATION",
            frame(CONTINUATION, END_HEADERS, 1, GET),
            Connection(&[PROTOCOL_ERROR]),
        ),
        case("5.1", "idle: PRIORITY", [frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 255]), get(1)], Answer(1, 200)),
        case("5.1", "half-closed: DATA", [wait(1), data(1)], StreamOrConnection(1, ENDED)),
        case("5.1", "half-closed: HEADERS", [wait(1), get(1)], StreamOrConnection(1, ENDED)),
        case(
            "5.1",
            "half-closed: CONTINUATION",
            [wait(1), frame(CONTINUATION, END_HEADERS, 1, GET)],
            Connection(&[STREAM_CLOSED, PROTOCOL_ERROR]),
        ),
        case(
            "5.1",
            "half-closed: WINDOW_UPDATE",
            [get(1), frame(WINDOW_UPDATE, 0, 1, &100_u32.to_be_bytes())],
            Answer(1, 200),
        ),
        case(
            "5.1",
            "half-closed: PRIORITY",
            [get(1), frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 255])],
            Answer(1, 200),
        ),
        case("5.1", "half-closed: RST_STREAM", [wait(1), reset()], Nothing),
        case(
            "5.1",
            "closed by reset: DATA",
            [post(1), reset(), data(1)],
            StreamOrConnection(1, &[STREAM_CLOSED]),
        ),
        case("5.1", "closed by reset: HEADERS", [post(1), reset(), get(1)], StreamOrConnection(1, ENDED)),
        case(
            "5.1",
            "closed by reset: CONTINUATION",
            [post(1), reset(), frame(CONTINUATION, END_HEADERS, 1, GET)],
            Connection(&[STREAM_CLOSED, PROTOCOL_ERROR]),
        ),
        case("5.1", "closed: DATA", closed(data(1)), StreamOrConnection(1, &[STREAM_CLOSED])),
        case(
            "5.1",
            "closed: HEADERS",
            closed(get(1)),
            StreamOrConnection(1, &[STREAM_CLOSED, PROTOCOL_ERROR]),
        ),
        case(
            "5.1",
            "closed: CONTINUATION",
            closed(frame(CONTINUATION, END_HEADERS, 1, GET)),
            Connection(&[STREAM_CLOSED, PROTOCOL_ERROR]),
        ),
        case(
            "5.1",
            "closed: WINDOW_UPDATE",
            closed(frame(WINDOW_UPDATE, 0, 1, &100_u32.to_be_bytes())),
            Nothing,
        ),
        case("5.1", "closed: RST_STREAM", closed(reset()), Nothing),
        case("5.1", "closed: PRIORITY", closed(frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 255])), Nothing),
        case("5.1.1", "an even number", get(2), Connection(&[PROTOCOL_ERROR])),
        case(
            "5.1.1",
            "a number smaller than one before",
            [get(5), get(3)],
            Connection(&[PROTOCOL_ERROR, STREAM_CLOSED]),
        ),
        case("5.1.1", "numbers that are left out", [get(5), get(101)], Answer(101, 200)),
        case("5.1.1", "the highest number", get(0x7fff_ffff), Answer(0x7fff_ffff, 200)),
        case(
            "5.1.2",
            "more streams than allowed",
            many.concat(),
            StreamOrConnection(257, &[REFUSED_STREAM, PROTOCOL_ERROR]),
        ),
        case(
            "5.3.1",
            "HEADERS that depend on themselves",
            frame(HEADERS, END_STREAM | END_HEADERS | PRIORITY_FLAG, 1, &[&[0, 0, 0, 1, 255], GET].concat()),
            StreamOrConnection(1, &[PROTOCOL_ERROR]),
        ),
        case(
            "5.3.1",
            "HEADERS with a priority",
            frame(
                HEADERS,
                END_STREAM | END_HEADERS | PRIORITY_FLAG,
                1,
                &[&[0x80, 0, 0, 0, 255], GET].concat(),
            ),
            Answer(1, 200),
        ),
        case(
            "5.3.1",
            "PRIORITY that depends on itself",
            frame(PRIORITY, 0, 1, &[0, 0, 0, 1, 255]),
            StreamOrConnection(1, &[PROTOCOL_ERROR]),
        ),
    ]
}

/// §6 and §7.
fn frame_types() -> Vec<Case> {
    let setting = |id: u16, value: u32| [&id.to_be_bytes()[..], &value.to_be_bytes()].concat();
    let settings = |id: u16, value: u32| frame(SETTINGS, 0, 0, &setting(id, value));
    let window = |stream, more: u32| frame(WINDOW_UPDATE, 0, stream, &more.to_be_bytes());
    let padded = |block: &[u8]| [&[4], block, &[0; 4]].concat();
    vec![
        case("6.1", "DATA on stream 0", frame(DATA, END_STREAM, 0, b"test"), Connection(&[PROTOCOL_ERROR])),
        case(
            "6.1",
            "DATA after the end of the stream",
            [wait(1), frame(DATA, END_STREAM, 1, b"test")],
            StreamOrConnection(1, ENDED),
        ),
        case(
            "6.1",
            "DATA with more padding than payload",
            [post(1), frame(DATA, END_STREAM | PADDED, 1, b"\x06test")],
            Connection(&[PROTOCOL_ERROR]),
        ),
        case(
            "6.1",
            "DATA with the flag of padding and nothing else",
            [post(1), frame(DATA, END_STREAM | PADDED, 1, b"")],
            Connection(&[PROTOCOL_ERROR, FRAME_SIZE_ERROR]),
        ),
        case(
            "6.1",
            "DATA with padding",
            [post(1), frame(DATA, END_STREAM | PADDED, 1, &padded(b"test"))],
            Answer(1, 200),
        ),
        case(
            "6.1",
            "DATA of padding alone",
            [post(1), frame(DATA, END_STREAM | PADDED, 1, &padded(b""))],
            Answer(1, 200),
        ),
        case("6.2", "HEADERS on stream 0", get(0), Connection(&[PROTOCOL_ERROR])),
        case(
            "6.2",
            "HEADERS with more padding than payload",
            frame(HEADERS, END_STREAM | END_HEADERS | PADDED, 1, &[&[0xff], GET].concat()),
            Connection(&[PROTOCOL_ERROR]),
        ),
        case(
            "6.2",
            "HEADERS with padding",
            frame(HEADERS, END_STREAM | END_HEADERS | PADDED, 1, &padded(GET)),
            Answer(1, 200),
        ),
        case(
            "6.2",
            "HEADERS too short for their priority",
            frame(HEADERS, END_STREAM | END_HEADERS | PRIORITY_FLAG, 1, &[0, 0]),
            Connection(&[PROTOCOL_ERROR, FRAME_SIZE_ERROR]),
        ),
        case(
            "6.3",
            "PRIORITY on stream 0",
            frame(PRIORITY, 0, 0, &[0, 0, 0, 1, 255]),
            Connection(&[PROTOCOL_ERROR]),
        ),
        case(
            "6.3",
            "PRIORITY of 4 bytes",
            frame(PRIORITY, 0, 1, &[0, 0, 0, 1]),
            StreamOrConnection(1, &[FRAME_SIZE_ERROR]),
        ),
        case(
            "6.4",
            "RST_STREAM on stream 0",
            frame(RST_STREAM, 0, 0, &[0, 0, 0, 8]),
            Connection(&[PROTOCOL_ERROR]),
        ),
        case(
            "6.4",
            "RST_STREAM on an idle stream",
            frame(RST_STREAM, 0, 1, &[0, 0, 0, 8]),
            Connection(&[PROTOCOL_ERROR]),
        ),
        case(
            "6.4",
            "RST_STREAM of 3 bytes",
            [post(1), frame(RST_STREAM, 0, 1, &[0, 0, 8])],
            Connection(&[FRAME_SIZE_ERROR]),
        ),
        case(
            "6.5",
            "an acknowledgement with content",
            frame(SETTINGS, ACK, 0, &setting(3, 1)),
            Connection(&[FRAME_SIZE_ERROR]),
        ),
        case(
            "6.5",
            "SETTINGS on a stream",
            frame(SETTINGS, 0, 1, &setting(3, 1)),
            Connection(&[PROTOCOL_ERROR]),
        ),
        case(
            "6.5",
            "SETTINGS of 3 bytes",
            frame(SETTINGS, 0, 0, &[0, 3, 0]),
            Connection(&[FRAME_SIZE_ERROR]),
        ),
        case("6.5.2", "ENABLE_PUSH of 2", settings(2, 2), Connection(&[PROTOCOL_ERROR])),
        case("6.5.2", "ENABLE_PUSH of 0", [settings(2, 0), get(1)], Answer(1, 200)),
        case(
            "6.5.2",
            "INITIAL_WINDOW_SIZE beyond 2^31 - 1",
            settings(4, 1 << 31),
            Connection(&[FLOW_CONTROL_ERROR, PROTOCOL_ERROR]),
        ),
        case("6.5.2", "MAX_FRAME_SIZE below 16,384", settings(5, 16_383), Connection(&[PROTOCOL_ERROR])),
        case("6.5.2", "MAX_FRAME_SIZE beyond 2^24 - 1", settings(5, 1 << 24), Connection(&[PROTOCOL_ERROR])),
        case(
            "6.5.2",
            "MAX_FRAME_SIZE of 2^24 - 1",
            [settings(5, (1 << 24) - 1), path(1, "/big")],
            Answer(1, 200),
        ),
        case("6.5.2", "a setting that nobody knows", [settings(0xff, 1), get(1)], Answer(1, 200)),
        case("6.5.2", "a table of no bytes", [settings(1, 0), get(1), get(3)], Answer(3, 200)),
        case("6.5.2", "a table of 4 GiB", [settings(1, u32::MAX), get(1), get(3)], Answer(3, 200)),
        case(
            "6.5.3",
            "the last of two values counts",
            [frame(SETTINGS, 0, 0, &[setting(4, 0), setting(4, 65_535)].concat()), get(1)],
            Answer(1, 200),
        ),
        case(
            "6.6",
            "PUSH_PROMISE of a client",
            [get(1), frame(PUSH_PROMISE, END_HEADERS, 1, &[&[0, 0, 0, 2], GET].concat())],
            Connection(&[PROTOCOL_ERROR]),
        ),
        case("6.7", "an acknowledgement that nobody waits for", frame(PING, ACK, 0, b"invalid\0"), Nothing),
        case("6.7", "PING on a stream", frame(PING, 0, 1, &[0; 8]), Connection(&[PROTOCOL_ERROR])),
        case("6.7", "PING of 6 bytes", frame(PING, 0, 0, &[0; 6]), Connection(&[FRAME_SIZE_ERROR])),
        case("6.8", "GOAWAY on a stream", frame(GOAWAY, 0, 1, &[0; 8]), Connection(&[PROTOCOL_ERROR])),
        case("6.8", "GOAWAY of 4 bytes", frame(GOAWAY, 0, 0, &[0; 4]), Connection(&[FRAME_SIZE_ERROR])),
        case(
            "6.8",
            "GOAWAY while a request is open",
            [get(1), frame(GOAWAY, 0, 0, &[0; 8])],
            Connection(&[NO_ERROR]),
        ),
        case(
            "6.9",
            "a window of the connection that grows by 0",
            window(0, 0),
            Connection(&[PROTOCOL_ERROR]),
        ),
        case(
            "6.9",
            "a window of a stream that grows by 0",
            [post(1), window(1, 0)],
            StreamOrConnection(1, &[PROTOCOL_ERROR]),
        ),
        case(
            "6.9",
            "WINDOW_UPDATE of 3 bytes",
            frame(WINDOW_UPDATE, 0, 0, &[0, 0, 1]),
            Connection(&[FRAME_SIZE_ERROR]),
        ),
        case(
            "6.9.1",
            "a window of the connection beyond 2^31 - 1",
            [window(0, 0x7fff_ffff), window(0, 0x7fff_ffff)],
            Connection(&[FLOW_CONTROL_ERROR]),
        ),
        case(
            "6.9.1",
            "a window of a stream beyond 2^31 - 1",
            [post(1), window(1, 0x7fff_ffff), window(1, 0x7fff_ffff)],
            StreamOrConnection(1, &[FLOW_CONTROL_ERROR]),
        ),
        case(
            "6.9.2",
            "a window that opens after the request",
            [settings(4, 0), path(1, "/big"), settings(4, 2 << 20), window(0, 2 << 20)],
            Answer(1, 200),
        ),
        case(
            "6.9.2",
            "a window that opens by one byte and then for all",
            [settings(4, 1), get(1), window(1, 10_000)],
            Answer(1, 200),
        ),
        case(
            "6.9.2",
            "a window that becomes negative",
            [settings(4, 3), get(1), settings(4, 2), window(1, 10_000)],
            Answer(1, 200),
        ),
        case(
            "6.9.2",
            "a setting that makes a window overflow",
            [wait(1), window(1, 0x7fff_0000), settings(4, 0x7fff_ffff)],
            Connection(&[FLOW_CONTROL_ERROR]),
        ),
        case(
            "6.10",
            "many CONTINUATION frames",
            [
                frame(HEADERS, END_STREAM, 1, &GET[..1]),
                frame(CONTINUATION, 0, 1, &GET[1..2]),
                frame(CONTINUATION, 0, 1, &[]),
                frame(CONTINUATION, END_HEADERS, 1, &GET[2..]),
            ],
            Answer(1, 200),
        ),
        case(
            "6.10",
            "DATA inside a header block",
            [frame(HEADERS, 0, 1, GET), frame(DATA, END_STREAM, 1, b"test")],
            Connection(&[PROTOCOL_ERROR]),
        ),
        case(
            "6.10",
            "CONTINUATION on stream 0",
            [frame(HEADERS, END_STREAM, 1, GET), frame(CONTINUATION, END_HEADERS, 0, &[])],
            Connection(&[PROTOCOL_ERROR]),
        ),
        case(
            "6.10",
            "CONTINUATION after whole HEADERS",
            [post(1), frame(CONTINUATION, END_HEADERS, 1, GET)],
            Connection(&[PROTOCOL_ERROR]),
        ),
        case(
            "6.10",
            "CONTINUATION after the last CONTINUATION",
            [
                frame(HEADERS, 0, 1, GET),
                frame(CONTINUATION, END_HEADERS, 1, &[]),
                frame(CONTINUATION, END_HEADERS, 1, &[]),
            ],
            Connection(&[PROTOCOL_ERROR]),
        ),
        case(
            "6.10",
            "CONTINUATION after DATA",
            [post(1), frame(DATA, 0, 1, b"test"), frame(CONTINUATION, END_HEADERS, 1, GET)],
            Connection(&[PROTOCOL_ERROR]),
        ),
        case("7", "GOAWAY with an unknown code", frame(GOAWAY, 0, 0, &[0, 0, 0, 0, 0, 0, 0, 0xff]), End),
        case(
            "7",
            "RST_STREAM with an unknown code",
            [post(1), frame(RST_STREAM, 0, 1, &[0, 0, 0, 0xff])],
            Nothing,
        ),
    ]
}

/// §8.
fn requests() -> Vec<Case> {
    let get = |fields: &[(&str, &str)]| {
        let all = [&[(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", HOST)], fields]
            .concat();
        frame(HEADERS, END_STREAM | END_HEADERS, 1, &block(&all))
    };
    let only = |fields: &[(&str, &str)]| frame(HEADERS, END_STREAM | END_HEADERS, 1, &block(fields));
    let method = (":method", "GET");
    let scheme = (":scheme", "http");
    let slash = (":path", "/");
    let authority = (":authority", HOST);
    let mut cases = vec![
        case(
            "8.1",
            "a second HEADERS that does not end the stream",
            [post(1), frame(HEADERS, END_HEADERS, 1, &block(&[("x-trailer", "1")]))],
            Malformed(1),
        ),
        case(
            "8.1",
            "trailers",
            [
                post(1),
                frame(DATA, 0, 1, b"test"),
                frame(HEADERS, END_STREAM | END_HEADERS, 1, &block(&[("x-trailer", "1")])),
            ],
            Answer(1, 200),
        ),
        case(
            "8.1",
            "a pseudo-header in trailers, which `h2` drops",
            [post(1), frame(HEADERS, END_STREAM | END_HEADERS, 1, &block(&[(":method", "200")]))],
            Answer(1, 200),
        ),
        case(
            "8.1",
            "an upper-case name in trailers",
            [post(1), frame(HEADERS, END_STREAM | END_HEADERS, 1, &block(&[("X-Trailer", "200")]))],
            MalformedOrConnection(1),
        ),
        case("8.3", "an empty path", only(&[method, scheme, (":path", ""), authority]), Malformed(1)),
        case("8.3", "no method", only(&[scheme, slash, authority]), Malformed(1)),
        case("8.3", "no scheme", only(&[method, slash, authority]), Malformed(1)),
        case("8.3", "no path", only(&[method, scheme, authority]), Malformed(1)),
        case("8.3", "nothing at all", only(&[]), Malformed(1)),
        case("8.3", "two authorities", only(&[method, scheme, slash, authority, authority]), Malformed(1)),
        case(
            "8.3",
            "a path without a slash",
            only(&[method, scheme, (":path", "index"), authority]),
            Malformed(1),
        ),
        case(
            "8.3",
            "a path that is a URL",
            only(&[method, scheme, (":path", "http://x/"), authority]),
            Malformed(1),
        ),
        case(
            "8.3",
            "a path with a fragment, which `h2` drops",
            only(&[method, scheme, (":path", "/#x"), authority]),
            Answer(1, 200),
        ),
        case("8.3", "an asterisk for GET", only(&[method, scheme, (":path", "*"), authority]), Malformed(1)),
        case(
            "8.3",
            "an authority with user information",
            only(&[method, scheme, slash, (":authority", "u@x")]),
            Malformed(1),
        ),
        case(
            "8.3",
            "an authority with a path",
            only(&[method, scheme, slash, (":authority", "x/y")]),
            Malformed(1),
        ),
        case("8.3", "an empty authority", only(&[method, scheme, slash, (":authority", "")]), Malformed(1)),
        case("8.3", "no host at all", only(&[method, scheme, slash]), Malformed(1)),
        case(
            "8.3",
            "a host in place of an authority",
            only(&[method, scheme, slash, ("host", HOST)]),
            Answer(1, 200),
        ),
        case("8.3", "another host than the authority", get(&[("host", "other")]), Malformed(1)),
        case("8.3", "the authority's host", get(&[("host", HOST)]), Answer(1, 200)),
        case(
            "8.3",
            "a method that is no token",
            only(&[(":method", "G ET"), scheme, slash, authority]),
            MalformedOrConnection(1),
        ),
        case(
            "8.3",
            "an empty method",
            only(&[(":method", ""), scheme, slash, authority]),
            MalformedOrConnection(1),
        ),
        case(
            "8.3",
            "a scheme that is none",
            only(&[method, (":scheme", "http://"), slash, authority]),
            Malformed(1),
        ),
        case("8.5", "CONNECT", only(&[(":method", "CONNECT"), authority]), Answer(1, 501)),
        case(
            "8.5",
            "CONNECT with a path",
            only(&[(":method", "CONNECT"), scheme, slash, authority]),
            Malformed(1),
        ),
        case(
            "8.5",
            "extended CONNECT, which was not offered",
            only(&[(":method", "CONNECT"), (":protocol", "websocket"), scheme, slash, authority]),
            Malformed(1),
        ),
        case("8.2.2", "te: trailers", get(&[("te", "trailers")]), Answer(1, 200)),
        case("8.2.3", "crumbs of a cookie", get(&[("cookie", "a=b"), ("cookie", "c=d")]), Answer(1, 200)),
        case(
            "8.1.1",
            "a body longer than its content-length",
            [post_with(1, &[("content-length", "1")]), frame(DATA, END_STREAM, 1, b"test")],
            Malformed(1),
        ),
        case(
            "8.1.1",
            "a body longer than its content-length in two frames",
            [
                post_with(1, &[("content-length", "5")]),
                frame(DATA, 0, 1, b"test"),
                frame(DATA, END_STREAM, 1, b"test"),
            ],
            Malformed(1),
        ),
        case(
            "8.1.1",
            "a body shorter than its content-length",
            [post_with(1, &[("content-length", "5")]), frame(DATA, END_STREAM, 1, b"test")],
            Malformed(1),
        ),
        case(
            "8.1.1",
            "a body shorter than its content-length before trailers",
            [
                post_with(1, &[("content-length", "5")]),
                frame(DATA, 0, 1, b"test"),
                frame(HEADERS, END_STREAM | END_HEADERS, 1, &block(&[("x-trailer", "1")])),
            ],
            Malformed(1),
        ),
        case("8.1.1", "a content-length without a body", get(&[("content-length", "5")]), Malformed(1)),
        case(
            "8.1.1",
            "a content-length that is no number",
            [post_with(1, &[("content-length", "+4")]), frame(DATA, END_STREAM, 1, b"test")],
            Malformed(1),
        ),
        case(
            "8.1.1",
            "two content-lengths",
            [
                post_with(1, &[("content-length", "4"), ("content-length", "5")]),
                frame(DATA, END_STREAM, 1, b"test"),
            ],
            Malformed(1),
        ),
        case(
            "8.1.1",
            "a content-length that fits",
            [post_with(1, &[("content-length", "4")]), frame(DATA, END_STREAM, 1, b"test")],
            Answer(1, 200),
        ),
        case("8.1.1", "a content-length of 0", get(&[("content-length", "0")]), Answer(1, 200)),
    ];
    for (what, name, value) in [
        ("an upper-case name", "X-Test", "ok"),
        ("a name with a space", "x test", "ok"),
        ("a name with a colon", "x:test", "ok"),
        ("a name with NUL", "x\0test", "ok"),
        ("a name with DEL", "x\x7ftest", "ok"),
        ("an empty name", "", "ok"),
        ("a value with NUL", "x-test", "a\0b"),
        ("a value with CR", "x-test", "a\rb"),
        ("a value with LF", "x-test", "a\nb"),
        ("a value with a leading space", "x-test", " a"),
        ("a value with a trailing space", "x-test", "a "),
        ("a value with a leading tab", "x-test", "\ta"),
    ] {
        let white = value.trim() != value && !value.contains(['\r', '\n']);
        let owed = if white { Malformed(1) } else { MalformedOrConnection(1) };
        cases.push(case("8.2.1", what, get(&[(name, value)]), owed));
    }
    for (what, name, value) in [
        ("connection", "connection", "keep-alive"),
        ("proxy-connection", "proxy-connection", "keep-alive"),
        ("keep-alive", "keep-alive", "timeout=5"),
        ("transfer-encoding", "transfer-encoding", "chunked"),
        ("upgrade", "upgrade", "h2c"),
        ("te that is not trailers", "te", "trailers, deflate"),
    ] {
        cases.push(case("8.2.2", what, get(&[(name, value)]), Malformed(1)));
    }
    for (what, field) in [
        ("an unknown pseudo-header", (":test", "ok")),
        ("a pseudo-header of answers", (":status", "200")),
        ("a second method", method),
        ("a second scheme", scheme),
        ("a second path", slash),
    ] {
        let owed = if field.0 == ":test" { MalformedOrConnection(1) } else { Malformed(1) };
        cases.push(case("8.3", what, get(&[field]), owed));
    }
    cases.push(case(
        "8.3",
        "a pseudo-header after a field",
        only(&[method, scheme, authority, ("x-test", "ok"), slash]),
        Malformed(1),
    ));
    cases
}

/// RFC 7541.
fn compression() -> Vec<Case> {
    let with = |tail: &[u8]| frame(HEADERS, END_STREAM | END_HEADERS, 1, &[GET, tail].concat());
    let damaged = || Connection(DAMAGED);
    vec![
        case("2.3.3", "an index beyond both tables", with(&[0xc6]), damaged()),
        case("2.3.3", "the name of an index beyond both tables", with(&[0x7f, 0x0f, 0x01, b'x']), damaged()),
        case("4.2", "a size update after a field", with(&[0x20]), damaged()),
        case(
            "4.2",
            "a size update before all fields",
            frame(HEADERS, END_STREAM | END_HEADERS, 1, &[&[0x20], GET].concat()),
            Answer(1, 200),
        ),
        case(
            "4.2",
            "two size updates",
            frame(HEADERS, END_STREAM | END_HEADERS, 1, &[&[0x20, 0x3f, 0xe1, 0x1f], GET].concat()),
            Answer(1, 200),
        ),
        case(
            "5.1",
            "an integer that overflows",
            with(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]),
            damaged(),
        ),
        case(
            "5.1",
            "a length that overflows",
            with(&[0x00, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]),
            damaged(),
        ),
        case(
            "5.2",
            "Huffman padding of more than 7 bits",
            with(b"\x00\x85\xf2\xb2\x4a\x84\xff\x84\x49\x50\x9f\xff"),
            damaged(),
        ),
        case(
            "5.2",
            "Huffman padding of zeros",
            with(b"\x00\x85\xf2\xb2\x4a\x84\xff\x83\x49\x50\x90"),
            damaged(),
        ),
        case(
            "5.2",
            "Huffman text with EOS",
            with(b"\x00\x85\xf2\xb2\x4a\x84\xff\x87\x49\x51\xff\xff\xff\xfa\x7f"),
            damaged(),
        ),
        case("5.2", "Huffman text", with(b"\x00\x85\xf2\xb2\x4a\x84\xff\x83\x49\x50\x9f"), Answer(1, 200)),
        case("6.1", "the index 0", with(&[0x80]), damaged()),
        case(
            "6.2",
            "a field in each form",
            with(b"\x40\x01a\x01b\x00\x01a\x01c\x10\x01a\x01d\xbe"),
            Answer(1, 200),
        ),
        case(
            "6.3",
            "a table larger than offered",
            frame(HEADERS, END_STREAM | END_HEADERS, 1, &[&[0x3f, 0xe2, 0x1f], GET].concat()),
            damaged(),
        ),
    ]
}

/// A site with what the rows need, on a cleartext and on a TLS listener.
struct Bench {
    site: Running,
    authority: Authority,
    upstream: Scripted,
}

impl Bench {
    fn start() -> Self {
        let authority = Authority::new();
        // Answers when it has the whole of a request; never where the path says so.
        let upstream = Scripted::start(|mut connection| {
            while let Some(request) = connection.request() {
                if request.target.starts_with("/echo/wait") {
                    while matches!(connection.wire.fill(), Ok(1..)) {}
                    return;
                }
                connection.send(crate::harness::ok("taken\n"));
            }
        });
        let site = Site::new()
            .listener("http", r#"(bind: "127.0.0.1:0")"#)
            .listener("https", r#"(bind: "127.0.0.1:0", tls: [(cert: "x.pem", key: "x.key")])"#)
            .file("public/big", pattern(1 << 20))
            .server("up", upstream.address)
            .route(r#"(path: "/", to: Respond(status: 200, body: "hello\n"))"#)
            .route(r#"(path: "/big", to: Static(root: "public"))"#)
            .route(r#"(path: "/echo/", to: Proxy("up"))"#);
        authority.write(&site.path("."), "x", &[HOST], Algorithm::Ecdsa);
        Bench { site: site.start(), authority, upstream }
    }

    /// Runs all cases; says all that went wrong at once.
    fn judge(&self, cases: Vec<Case>) {
        let mut faults = Vec::new();
        for case in &cases {
            for transport in ["cleartext", "TLS"] {
                if let Err(fault) = self.run(case, transport) {
                    faults.push(format!("§{} {} ({transport}): {fault}", case.section, case.what));
                }
            }
        }
        assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
        let ledger = self.site.admin.settled_ledger();
        assert_eq!(ledger.killed, 0, "{ledger:?}");
        assert!(!self.site.process.output().contains("panicked"), "{}", self.site.process.output());
    }

    fn run(&self, case: &Case, transport: &str) -> Result<(), String> {
        let mut client = self.client(transport);
        if !case.raw {
            client.send(&[PREFACE, &frame(SETTINGS, 0, 0, &[])].concat());
            client.until(|frame| (frame.kind == SETTINGS && frame.flags == 0).then_some(()))?;
            client.send(&frame(SETTINGS, ACK, 0, &[]));
            // A window for the whole of the connection, so that only what a row says is short.
            client.send(&frame(WINDOW_UPDATE, 0, 0, &(8_u32 << 20).to_be_bytes()));
        }
        for step in &case.steps {
            match step {
                Step::Send(bytes) => client.send(bytes),
                Step::Answered(stream) => {
                    client.answer(*stream)?;
                }
            }
        }
        client.owes(&case.owed)
    }

    fn client(&self, transport: &str) -> Client {
        if transport == "cleartext" {
            return Client { wire: self.site.wire(), status: Vec::new() };
        }
        let stream = TcpStream::connect(self.site.address("https")).unwrap();
        stream.set_nodelay(true).unwrap();
        let name = rustls::pki_types::ServerName::try_from(HOST).unwrap();
        let session = rustls::ClientConnection::new(self.authority.client(&[b"h2"]), name).unwrap();
        Client { wire: Wire::over(rustls::StreamOwned::new(session, stream)), status: Vec::new() }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        // Nothing malformed may have come through.
        for request in self.upstream.requests() {
            assert!(request.target.starts_with("/echo/"), "{request:?}");
        }
    }
}

struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

impl Frame {
    /// The code of RST_STREAM, or of GOAWAY.
    fn code(&self) -> u32 {
        let at = if self.kind == GOAWAY { 4 } else { 0 };
        self.payload.get(at..at + 4).map_or(u32::MAX, |code| u32::from_be_bytes(code.try_into().unwrap()))
    }
}

struct Client {
    wire: Wire,
    /// Statuses of answers, by stream, as HEADERS came.
    status: Vec<(u32, u16)>,
}

impl Client {
    /// The server may have ended the connection already.
    fn send(&mut self, bytes: &[u8]) {
        let _ = self.wire.try_send(bytes);
    }

    fn read(&mut self) -> Result<Frame, String> {
        let mut take = |length| self.wire.take(length).map_err(|error| error.kind().to_string());
        let head = take(9)?;
        let payload = take(u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize)?;
        let stream = u32::from_be_bytes(head[5..9].try_into().unwrap()) & 0x7fff_ffff;
        let frame = Frame { kind: head[3], flags: head[4], stream, payload };
        if frame.kind == HEADERS
            && let Some(status) = status(&frame.payload)
        {
            self.status.push((stream, status));
        }
        if frame.kind == DATA && !frame.payload.is_empty() {
            // Windows stay open, but for rows that shut them.
            let more = (frame.payload.len() as u32).to_be_bytes();
            let mut both = self::frame(WINDOW_UPDATE, 0, 0, &more);
            if frame.flags & END_STREAM == 0 {
                both.extend(self::frame(WINDOW_UPDATE, 0, stream, &more));
            }
            self.send(&both);
        }
        Ok(frame)
    }

    fn until<T>(&mut self, fits: impl Fn(&Frame) -> Option<T>) -> Result<T, String> {
        loop {
            let frame = self.read()?;
            if let Some(found) = fits(&frame) {
                return Ok(found);
            }
            if frame.kind == GOAWAY {
                return Err(format!("GOAWAY with code {}", frame.code()));
            }
        }
    }

    /// Reads to the end of the answer on a stream; its status.
    fn answer(&mut self, stream: u32) -> Result<u16, String> {
        self.until(|frame| match frame.kind {
            RST_STREAM if frame.stream == stream => {
                Some(Err(format!("RST_STREAM with code {}", frame.code())))
            }
            DATA | HEADERS if frame.stream == stream && frame.flags & END_STREAM != 0 => Some(Ok(())),
            _ => None,
        })??;
        let status = self.status.iter().rfind(|(of, _)| *of == stream);
        status.map(|(_, status)| *status).ok_or_else(|| "an answer without a status".to_owned())
    }

    /// Whether the connection still works.
    fn goes_on(&mut self) -> Result<(), String> {
        self.send(&frame(PING, 0, 0, b"go on ok"));
        self.until(|frame| {
            (frame.kind == PING && frame.flags == ACK && frame.payload == b"go on ok").then_some(())
        })
        .map_err(|error| format!("the connection does not go on: {error}"))
    }

    fn owes(&mut self, owed: &Owed) -> Result<(), String> {
        match owed {
            Nothing => self.goes_on(),
            Answer(stream, wanted) => match self.answer(*stream)? {
                status if status == *wanted => self.goes_on(),
                status => Err(format!("answered with {status}")),
            },
            End => {
                self.wire.rest();
                Ok(())
            }
            Connection(codes) => loop {
                let frame = self.read().map_err(|error| format!("no GOAWAY: {error}"))?;
                if frame.kind == GOAWAY {
                    if !codes.contains(&frame.code()) {
                        return Err(format!("GOAWAY with code {}", frame.code()));
                    }
                    self.wire.rest();
                    return Ok(());
                }
            },
            StreamOrConnection(stream, codes) => loop {
                let frame = self.read().map_err(|error| format!("neither RST_STREAM nor GOAWAY: {error}"))?;
                let end = frame.kind == GOAWAY || (frame.kind == RST_STREAM && frame.stream == *stream);
                if end {
                    let code = frame.code();
                    return codes
                        .contains(&code)
                        .then_some(())
                        .ok_or(format!("code {code} in frame {}", frame.kind));
                }
            },
            Malformed(stream) | MalformedOrConnection(stream) => {
                let ended = self.until(|frame| {
                    let reset = frame.kind == RST_STREAM;
                    let refused =
                        frame.kind == HEADERS && status(&frame.payload).is_some_and(|s| s / 100 == 4);
                    let ended = frame.kind == GOAWAY && matches!(owed, MalformedOrConnection(_));
                    ((frame.stream == *stream && (reset || refused)) || ended).then_some(ended)
                })?;
                if let Some((_, status)) = self.status.iter().find(|(_, status)| *status < 400) {
                    return Err(format!("answered with {status}"));
                }
                if ended { Ok(()) } else { self.goes_on() }
            }
        }
    }
}

/// `:status` is the first field of an answer, indexed or literal.
fn status(block: &[u8]) -> Option<u16> {
    // A size update may stand before it.
    let block = match block {
        [0x20, rest @ ..] => rest,
        block => block,
    };
    match block {
        [index @ 0x88..=0x8e, ..] => Some([200, 204, 206, 304, 400, 404, 500][usize::from(index - 0x88)]),
        // Three digits, plain or in Huffman's code of 5 or 6 bits each.
        [0x08 | 0x48, 0x03, digits @ ..] => std::str::from_utf8(digits.get(..3)?).ok()?.parse().ok(),
        [0x08 | 0x48, length @ 0x82..=0x83, digits @ ..] => {
            let digits = digits.get(..usize::from(length & 0x7f))?;
            let mut bits = digits.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte))
                << (32 - 8 * digits.len());
            let mut status = 0;
            for _ in 0..3 {
                let (digit, used) =
                    if bits >> 27 < 3 { (bits >> 27, 5) } else { ((bits >> 26) - 0x19 + 3, 6) };
                status = 10 * status + digit as u16;
                bits <<= used;
            }
            Some(status)
        }
        _ => None,
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// Fields as literals that are not indexed.
fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.extend([0, name.len() as u8]);
        block.extend_from_slice(name.as_bytes());
        block.push(value.len() as u8);
        block.extend_from_slice(value.as_bytes());
    }
    block
}

/// A whole request for `/`.
fn get(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_STREAM | END_HEADERS, stream, GET)
}

fn path(stream: u32, path: &str) -> Vec<u8> {
    let fields = [(":method", "GET"), (":scheme", "http"), (":path", path), (":authority", HOST)];
    frame(HEADERS, END_STREAM | END_HEADERS, stream, &block(&fields))
}

/// A whole request that is never answered, so that its stream stays half-closed.
fn wait(stream: u32) -> Vec<u8> {
    path(stream, "/echo/wait")
}

/// The head of a request whose body is to follow; it is answered when that is whole.
fn post(stream: u32) -> Vec<u8> {
    post_with(stream, &[])
}

fn post_with(stream: u32, fields: &[(&str, &str)]) -> Vec<u8> {
    let head = [(":method", "POST"), (":scheme", "http"), (":path", "/echo/"), (":authority", HOST)];
    frame(HEADERS, END_HEADERS, stream, &block(&[&head, fields].concat()))
}

/// `h2` does not tell a damaged header block from other errors.
const DAMAGED: &[u32] = &[COMPRESSION_ERROR, PROTOCOL_ERROR];
/// Nor a stream whose half is closed from one that never was.
const ENDED: &[u32] = &[STREAM_CLOSED, PROTOCOL_ERROR];

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HOST: &str = "a.test";
/// `:method: GET`, `:scheme: http`, `:path: /`, and `:authority` as a literal that is not indexed.
const GET: &[u8] = b"\x82\x86\x84\x01\x06a.test";

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PUSH_PROMISE: u8 = 5;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

const ACK: u8 = 0x1;
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY_FLAG: u8 = 0x20;

const NO_ERROR: u32 = 0;
const PROTOCOL_ERROR: u32 = 1;
const FLOW_CONTROL_ERROR: u32 = 3;
const STREAM_CLOSED: u32 = 5;
const FRAME_SIZE_ERROR: u32 = 6;
const REFUSED_STREAM: u32 = 7;
const CANCEL: u32 = 8;
const COMPRESSION_ERROR: u32 = 9;
