//! What commands write: for people on a terminal, for programs elsewhere.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};

use serde::Serialize;

/// How to write.
#[derive(Clone, Copy, Debug)]
pub(super) struct Output {
    json: bool,
    colour: bool,
}

/// What a word means to people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tone {
    Plain,
    Good,
    Warning,
    Bad,
    Faint,
}

impl Output {
    pub(super) fn new(json: bool) -> Self {
        let terminal = io::stdout().is_terminal();
        // https://no-color.org
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Output { json: json || !terminal, colour: terminal && !json && !plain }
    }

    /// Whether a program reads.
    pub(super) fn is_json(self) -> bool {
        self.json
    }

    /// Writes a value as one line of JSON.
    pub(super) fn json(self, value: &impl Serialize) -> anyhow::Result<()> {
        self.text(&(serde_json::to_string(value)? + "\n"))
    }

    /// Writes text for people.
    pub(super) fn text(self, text: &str) -> anyhow::Result<()> {
        let mut out = io::stdout().lock();
        match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            // A reader that has seen enough (`head`) is no error.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
            result => Ok(result?),
        }
    }

    /// Says what went wrong. Errors are for people wherever they go.
    pub(super) fn error(self, error: &anyhow::Error) {
        let text = format!("{error:#}");
        let red = io::stderr().is_terminal() && self.colour;
        let prefix = if red { "\x1b[31merror:\x1b[0m" } else { "error:" };
        // Nobody is left to be told if this fails.
        let _ = writeln!(io::stderr(), "{prefix} {}", lines(&text));
    }

    /// A word in its tone. What is in it is made safe to show.
    pub(super) fn toned(self, tone: Tone, word: &str) -> String {
        let word = safe(word);
        let code = match tone {
            Tone::Good => "32",
            Tone::Warning => "33",
            Tone::Bad => "31",
            Tone::Faint => "2",
            Tone::Plain => return word.into_owned(),
        };
        if self.colour { format!("\x1b[{code}m{word}\x1b[0m") } else { word.into_owned() }
    }
}

/// Text that came from elsewhere, without what a terminal would act on.
pub(super) fn safe(text: &str) -> Cow<'_, str> {
    if text.chars().any(char::is_control) {
        text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
    } else {
        Cow::Borrowed(text)
    }
}

fn lines(text: &str) -> String {
    text.lines().map(safe).collect::<Vec<_>>().join("\n")
}

/// A duration in the two largest units: `3d 4h`, `12m 5s`, `250 ms`.
pub(super) fn age(milliseconds: u64) -> String {
    let seconds = milliseconds / 1000;
    match seconds {
        0 => format!("{milliseconds} ms"),
        1..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m {}s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{}h {}m", seconds / 3_600, seconds / 60 % 60),
        _ => format!("{}d {}h", seconds / 86_400, seconds / 3_600 % 24),
    }
}

/// Bytes in the largest binary unit.
pub(super) fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = "B";
    for next in UNITS {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    if unit == "B" { format!("{bytes} B") } else { format!("{value:.1} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_and_sizes_are_short() {
        for (milliseconds, text) in
            [(250, "250 ms"), (59_999, "59s"), (61_000, "1m 1s"), (3_660_000, "1h 1m"), (90_000_000, "1d 1h")]
        {
            assert_eq!(age(milliseconds), text);
        }
        for (bytes, text) in [(12, "12 B"), (2048, "2.0 KiB"), (3 << 20, "3.0 MiB"), (5 << 40, "5.0 TiB")] {
            assert_eq!(size(bytes), text);
        }
    }

    #[test]
    fn what_a_terminal_would_act_on_is_not_shown() {
        assert_eq!(safe("a\x1b[31mb\u{9b}c"), "a\u{fffd}[31mb\u{fffd}c");
        assert_eq!(safe("plain"), "plain");
    }
}
