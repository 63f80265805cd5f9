//! Every frame type: RFC 9113 §6 and §7.

use super::wire::*;
use super::{Case, Owed::*, case};

pub(super) fn cases() -> Vec<Case> {
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
