//! Connections and frames: RFC 9113 §3.4, §4, §5.5.

use super::wire::*;
use super::{Case, Owed::*, Step, case, raw};

pub(super) fn cases() -> Vec<Case> {
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
