//! Faults that an operator or a plan may put into any actor.

use std::str::FromStr;
use std::time::Duration;

/// What to do to an actor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Asked to stop: what it is doing is finished first.
    Stop,
    /// Cut off at its next await point.
    Kill,
    /// A panic inside its own task.
    Panic,
    /// Not polled for this long; its mailbox grows meanwhile.
    Stall(Duration),
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Fault::Stop => f.write_str("stop"),
            Fault::Kill => f.write_str("kill"),
            Fault::Panic => f.write_str("panic"),
            Fault::Stall(duration) => write!(f, "stall={}ms", duration.as_millis()),
        }
    }
}

/// `stop`, `kill`, `panic`, or `stall=` and a number of `ms` or `s`, at most an hour.
impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "stop" => return Ok(Fault::Stop),
            "kill" => return Ok(Fault::Kill),
            "panic" => return Ok(Fault::Panic),
            _ => {}
        }
        let unknown = || format!("{text:?} is none of stop, kill, panic, stall=500ms");
        let duration = text.strip_prefix("stall=").ok_or_else(unknown)?;
        let (number, unit) = match (duration.strip_suffix("ms"), duration.strip_suffix('s')) {
            (Some(number), _) => (number, 1),
            (None, Some(number)) => (number, 1000),
            (None, None) => return Err(unknown()),
        };
        let millis = number.parse::<u64>().ok().and_then(|n| n.checked_mul(unit)).ok_or_else(unknown)?;
        if millis > 3_600_000 {
            return Err(format!("{text:?} is longer than an hour"));
        }
        Ok(Fault::Stall(Duration::from_millis(millis)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_read_as_they_are_written() {
        for text in ["stop", "kill", "panic", "stall=500ms"] {
            assert_eq!(text.parse::<Fault>().unwrap().to_string(), text);
        }
        assert_eq!("stall=2s".parse(), Ok(Fault::Stall(Duration::from_secs(2))));
        for text in [
            "",
            "stall",
            "stall=",
            "stall=5",
            "stall=-1s",
            "explode",
            "stall=99999999999999999999s",
            "stall=2h",
        ] {
            assert!(text.parse::<Fault>().is_err(), "{text}");
        }
    }
}
