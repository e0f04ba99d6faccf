//! What goes to standard error, and how.
//!
//! One event is one line, of plain text or JSON, whatever its message holds, so that log collectors need no rules. Verbosity is
//! klog's: what is said at the default 0 matters to an operator; 4 and more are for debugging. Libraries below us are
//! heard only at high verbosity: what they have to say about a failure, our own lines say once and with the next step.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

use crate::flags::LogFormat;

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
pub fn start(verbosity: u8, format: LogFormat) -> Result<(), TryInitError> {
    let lines = tracing_subscriber::fmt::layer();
    let lines: Box<dyn Layer<_> + Send + Sync> = match format {
        LogFormat::Text => lines
            .with_ansi(io::stderr().is_terminal())
            .with_target(verbosity >= 6)
            .with_writer(Lines(io::stderr))
            .boxed(),
        LogFormat::Json => lines.event_format(Json).with_writer(io::stderr).boxed(),
    };
    tracing_subscriber::registry()
        .with(lines)
        .with(targets(verbosity))
        .try_init()
}

/// Kubernetes' JSON lines: `ts` is milliseconds since 1970, `v` the verbosity, which errors lack; then `msg` and the fields.
struct Json;

impl<S, N> FormatEvent<S, N> for Json
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut object = Object(Map::new());
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let milliseconds = now.unwrap_or_default().as_secs_f64() * 1000.0;
        object.0.insert("ts".to_owned(), milliseconds.into());
        let metadata = event.metadata();
        if let (Some(file), Some(line)) = (metadata.file(), metadata.line()) {
            object
                .0
                .insert("caller".to_owned(), format!("{file}:{line}").into());
        }
        event.record(&mut object);
        let verbosity = match *metadata.level() {
            Level::ERROR => None,
            Level::WARN | Level::INFO => Some(0),
            Level::DEBUG => Some(4),
            Level::TRACE => Some(6),
        };
        if let Some(verbosity) = verbosity {
            object.0.insert("v".to_owned(), verbosity.into());
        }
        writeln!(writer, "{}", Value::Object(object.0))
    }
}

/// An event's fields, as they are recorded.
struct Object(Map<String, Value>);

impl Object {
    fn put(&mut self, field: &Field, value: impl Into<Value>) {
        let name = match field.name() {
            "message" => "msg",
            "error" => "err",
            other => other,
        };
        self.0.insert(name.to_owned(), value.into());
    }
}

impl Visit for Object {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, format!("{value:?}"));
    }
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
    fn json_is_kubernetes_json() {
        let memory = Memory::default();
        let writer = memory.clone();
        let lines = tracing_subscriber::fmt::layer()
            .event_format(Json)
            .with_writer(move || writer.clone());
        let subscriber = tracing_subscriber::registry().with(lines);
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(node = "node1", count = 3_u8, "said \"a\nb\"");
            tracing::error!(error = %"ENOENT", "failed");
        });
        let text = String::from_utf8(memory.0.lock().unwrap().clone()).unwrap();
        let lines: Vec<Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let [warning, error] = lines.as_slice() else {
            panic!("{text}");
        };
        assert_eq!(warning["msg"], "said \"a\nb\"");
        assert_eq!(
            (&warning["node"], &warning["count"]),
            (&"node1".into(), &3.into())
        );
        assert_eq!((&warning["v"], &error["v"]), (&0.into(), &Value::Null));
        assert_eq!(
            (&error["msg"], &error["err"]),
            (&"failed".into(), &"ENOENT".into())
        );
        assert!(error["ts"].as_f64().unwrap() > 1.7e12, "{error}");
        assert!(
            error["caller"].as_str().unwrap().contains("logging.rs:"),
            "{error}"
        );
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
