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
        Output { json: json || !terminal, colour: terminal && !json && !no_colour() }
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

    /// Says what people should know, on standard error.
    pub(super) fn warn(self, text: &str) {
        // Nobody is left to be told if this fails.
        let _ = writeln!(io::stderr(), "{}", lines(text));
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

/// Whether the environment asks for plain text: <https://no-color.org>.
pub(super) fn no_colour() -> bool {
    std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
}

/// Columns and rows of the terminal at standard output.
pub(super) fn terminal_size() -> Option<(usize, usize)> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    (size.ws_col > 0 && size.ws_row > 0).then(|| (size.ws_col.into(), size.ws_row.into()))
}

/// Text that fills a terminal of this size at most: long lines are cut, and the last one says how many are missing.
pub(super) fn fit(text: &str, (columns, rows): (usize, usize)) -> String {
    // The cursor needs a line of its own beneath.
    let rows = rows.saturating_sub(1).max(1);
    let lines = text.lines().count();
    let shown = if lines > rows { rows - 1 } else { lines };
    let mut fitted: String = text.lines().take(shown).map(|line| cut(line, columns) + "\n").collect();
    if lines > shown {
        fitted += &cut(&format!("… {} more; make the terminal taller to see them", lines - shown), columns);
        fitted.push('\n');
    }
    fitted
}

const ESCAPE: char = '\x1b';

/// The first columns of a line; colours take none, and are ended.
fn cut(line: &str, columns: usize) -> String {
    let fits = !line.contains(ESCAPE) && line.chars().count() <= columns;
    let mut text = String::new();
    let (mut column, mut in_colour, mut coloured) = (0, false, false);
    for c in line.chars() {
        if c == ESCAPE {
            (in_colour, coloured) = (true, true);
        } else if in_colour {
            in_colour = c != 'm';
        } else if column + 1 == columns && !fits {
            text.push('…');
            break;
        } else {
            column += 1;
        }
        text.push(c);
    }
    if coloured { text + "\x1b[0m" } else { text }
}

/// `1 connection`, `2 connections`.
pub(super) fn count(number: u64, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
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
    fn a_small_terminal_gets_what_fits() {
        assert_eq!(fit("abc\nd\n", (80, 24)), "abc\nd\n");
        assert_eq!(fit("abcdef\nabcd\n", (4, 24)), "abc…\nabcd\n");
        assert_eq!(fit("\x1b[31mabcdef\x1b[0m\n", (4, 24)), "\x1b[31mabc…\x1b[0m\n");
        let text = fit("a\nb\nc\nd\n", (80, 4));
        assert!(text.starts_with("a\nb\n… 2 more") && text.lines().count() == 3, "{text}");
    }

    #[test]
    fn what_a_terminal_would_act_on_is_not_shown() {
        assert_eq!(safe("a\x1b[31mb\u{9b}c"), "a\u{fffd}[31mb\u{fffd}c");
        assert_eq!(safe("plain"), "plain");
    }
}
