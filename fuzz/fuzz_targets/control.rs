//! Bytes as a datagram or memfd of a link: whatever they are, reading them ends, and what was read can be sent on.

#![no_main]

use libfuzzer_sys::fuzz_target;
use playhouse_protocol::control::{ToController, ToInstance, decode, encode, enveloped};

fuzz_target!(|bytes: &[u8]| {
    let _ = enveloped(bytes);
    again::<ToInstance>(bytes);
    again::<ToController>(bytes);
});

/// What can be read is the same when it is written and read once more.
fn again<M>(bytes: &[u8])
where
    M: serde::Serialize + serde::de::DeserializeOwned + PartialEq + std::fmt::Debug,
{
    let Ok(message) = decode::<M>(bytes) else { return };
    // Escapes make a message longer.
    let Ok(written) = encode(&message) else { return };
    assert_eq!(decode::<M>(&written).expect("what was encoded is a message"), message);
}
