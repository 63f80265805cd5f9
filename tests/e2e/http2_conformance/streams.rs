//! Stream states: RFC 9113 §5.1 to §5.3.

use super::wire::*;
use super::{Case, Owed::*, Step, case};

pub(super) fn cases() -> Vec<Case> {
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
