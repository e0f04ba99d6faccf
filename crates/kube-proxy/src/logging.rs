//! What goes to standard error, and how.
//!
//! One event is one line of plain text, whatever its message holds, so that log collectors need no rules. Verbosity is
//! klog's: what is said at the default 0 matters to an operator; 4 and more are for debugging. Libraries below us are
//! heard only at high verbosity: what they have to say about a failure, our own lines say once and with the next step.

use std::io::{self, IsTerminal, Write};

use tracing::Level;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

/// Our own crates, by the names that their events carry.
const OWN: [&str; 7] = [
    "kube_proxy",
    "proxy",
    "proxy_ipvs",
    "reconcile",
    "ipvs_netlink",
    "ipset_netlink",
    "netlink_batch",
];

/// Starts logging to standard error. Fails if logging was already started.
pub fn start(verbosity: u8) -> Result<(), TryInitError> {
    let lines = tracing_subscriber::fmt::layer()
        .with_ansi(io::stderr().is_terminal())
        .with_target(verbosity >= 6)
        .with_writer(Lines(io::stderr));
    tracing_subscriber::registry()
        .with(lines)
        .with(targets(verbosity))
        .try_init()
}

/// Which events are said at a verbosity.
fn targets(verbosity: u8) -> Targets {
    let (own, others) = match verbosity {
        0..=3 => (Level::INFO, LevelFilter::OFF),
        4..=5 => (Level::DEBUG, LevelFilter::OFF),
        6..=7 => (Level::TRACE, LevelFilter::INFO),
        8..=9 => (Level::TRACE, LevelFilter::DEBUG),
        _ => (Level::TRACE, LevelFilter::TRACE),
    };
    Targets::new()
        .with_default(others)
        .with_targets(OWN.map(|target| (target, own)))
}

/// Makes writers that keep an event on one line.
struct Lines<M>(M);

impl<'a, W: Write, M: Fn() -> W> MakeWriter<'a> for Lines<M> {
    type Writer = Line<W>;

    fn make_writer(&'a self) -> Self::Writer {
        Line(self.0())
    }
}

/// Writes an event, which comes in one piece, with the line breaks inside it escaped.
struct Line<W>(W);

impl<W: Write> Write for Line<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = event.strip_suffix(b"\n").unwrap_or(event);
        if !text.iter().any(|byte| matches!(byte, b'\n' | b'\r')) {
            self.0.write_all(event)?;
            return Ok(event.len());
        }
        let mut line = Vec::with_capacity(event.len() + 16);
        for byte in text {
            match byte {
                b'\n' => line.extend(b"\\n"),
                b'\r' => line.extend(b"\\r"),
                other => line.push(*other),
            }
        }
        line.push(b'\n');
        self.0.write_all(&line)?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Memory(Arc<Mutex<Vec<u8>>>);

    impl Write for Memory {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(verbosity: u8, say: impl FnOnce()) -> String {
        let memory = Memory::default();
        let writer = memory.clone();
        let lines = tracing_subscriber::fmt::layer()
            .without_time()
            .with_ansi(false)
            .with_target(false)
            .with_writer(Lines(move || writer.clone()));
        let subscriber = tracing_subscriber::registry()
            .with(lines)
            .with(targets(verbosity));
        tracing::subscriber::with_default(subscriber, say);
        let bytes = memory.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn an_event_is_one_line() {
        let said = logged(0, || tracing::info!("the server said \"a\r\nb\n\""));
        assert_eq!(said, " INFO the server said \"a\\r\\nb\\n\"\n");
    }

    #[test]
    fn verbosity_is_klogs() {
        let say = || {
            tracing::info!("info");
            tracing::debug!("debug");
            tracing::trace!("trace");
            tracing::error!(target: "hyper", "library");
        };
        let levels = |verbosity| logged(verbosity, say).lines().count();
        assert_eq!([0, 2, 4, 6, 10].map(levels), [1, 1, 2, 4, 4]);
    }
}
