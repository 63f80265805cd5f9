//! The program's log, on standard error: text on a terminal, else an object of JSON a line.

use std::fmt;
use std::io::{self, IsTerminal};

use tracing::{Event, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::FmtContext;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::registry::LookupSpan;

use super::output::no_colour;

/// Starts the log, filtered by `$RUST_LOG`. All processes of a site write to one place: each line of an instance's says
/// which one it is.
pub(super) fn to_standard_error(instance: Option<String>) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info,ractor=warn"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    // Fails only where there is a subscriber already, and then it is that one's business.
    let _ = if io::stderr().is_terminal() {
        let log = log.with_ansi(!no_colour()).with_target(false);
        log.map_event_format(|inner| Labelled { inner, instance, is_json: false }).try_init()
    } else {
        let log = log.json().flatten_event(true);
        log.map_event_format(|inner| Labelled { inner, instance, is_json: true }).try_init()
    };
}

/// Puts the name of the process before what is written of an event: spans are not entered by all that logs.
struct Labelled<F> {
    inner: F,
    /// Without a character that JSON escapes.
    instance: Option<String>,
    is_json: bool,
}

impl<S, N, F> FormatEvent<S, N> for Labelled<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let Some(instance) = &self.instance else { return self.inner.format_event(context, writer, event) };
        if !self.is_json {
            write!(writer, "{instance} ")?;
            return self.inner.format_event(context, writer, event);
        }
        let mut line = String::new();
        self.inner.format_event(context, Writer::new(&mut line), event)?;
        match line.strip_prefix('{') {
            Some(rest) => write!(writer, "{{\"instance\":\"{instance}\",{rest}"),
            None => writer.write_str(&line),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(instance: Option<&str>) -> serde_json::Value {
        let lines = Lines::default();
        let into = lines.clone();
        let instance = instance.map(str::to_owned);
        let log = tracing_subscriber::fmt().with_writer(move || into.clone()).json().flatten_event(true);
        let log = log.map_event_format(|inner| Labelled { inner, instance, is_json: true }).finish();
        tracing::subscriber::with_default(log, || tracing::info!(path = "a\"b", "{{said}}"));
        let bytes = lines.0.lock().unwrap().clone();
        serde_json::from_slice(&bytes).unwrap()
    }

    #[test]
    fn each_line_of_an_instance_says_which_one_it_is() {
        let line = logged(Some("instance-3"));
        assert_eq!(line["instance"], "instance-3");
        assert_eq!((&line["message"], &line["path"]), (&"{said}".into(), &"a\"b".into()));
        assert_eq!(logged(None)["instance"], serde_json::Value::Null);
    }
}
