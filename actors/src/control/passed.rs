//! Descriptors beside a message, and their numbers in it.

use std::os::fd::OwnedFd;

use playhouse_protocol::control::Passed;

/// Each descriptor of a message with what the message says of it. What it says nothing of is closed.
///
/// # Errors
/// For people: a number that is no descriptor's, or that stands there twice.
pub fn pair(passed: Vec<Passed>, descriptors: Vec<OwnedFd>) -> Result<Vec<(Passed, OwnedFd)>, String> {
    let count = descriptors.len();
    let mut descriptors: Vec<_> = descriptors.into_iter().map(Some).collect();
    let take = |passed: Passed| {
        let found =
            usize::try_from(passed.descriptor).ok().and_then(|index| descriptors.get_mut(index)?.take());
        let listener = &passed.listener;
        let error = || format!("no descriptor {} of {count} for {listener:?}", passed.descriptor);
        let descriptor = found.ok_or_else(error)?;
        Ok((passed, descriptor))
    };
    passed.into_iter().map(take).collect()
}

/// Numbers descriptors for a message, from 0: each is that of a listener, in a place.
pub fn number(sockets: Vec<(String, u32, OwnedFd)>) -> (Vec<Passed>, Vec<OwnedFd>) {
    let number =
        |(index, (listener, slot, descriptor))| (Passed { listener, slot, descriptor: index }, descriptor);
    (0..).zip(sockets).map(number).unzip()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn null() -> OwnedFd {
        std::fs::File::open("/dev/null").unwrap().into()
    }

    #[test]
    fn what_is_numbered_is_paired() {
        let (mut passed, descriptors) =
            number(vec![("http".into(), 0, null()), ("quic".into(), 2, null()), ("quic".into(), 3, null())]);
        passed.reverse();
        let pairs = pair(passed, descriptors).unwrap();
        let places: Vec<_> = pairs.iter().map(|(passed, _)| (&*passed.listener, passed.slot)).collect();
        assert_eq!(places, [("quic", 3), ("quic", 2), ("http", 0)]);
    }

    #[test]
    fn numbers_out_of_range_or_twice_are_refused() {
        let passed = |descriptor| Passed { listener: "http".into(), slot: 0, descriptor };
        assert!(pair(vec![passed(1)], vec![null()]).unwrap_err().contains("no descriptor 1 of 1"));
        assert!(pair(vec![passed(u32::MAX)], Vec::new()).is_err());
        assert!(pair(vec![passed(0), passed(0)], vec![null(), null()]).is_err());
        assert!(pair(Vec::new(), vec![null()]).unwrap().is_empty());
    }
}
