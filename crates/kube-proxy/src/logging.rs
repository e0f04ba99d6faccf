//! The log: its format, and its split between standard error and standard output.
//!
//! - **Lines**: each event is one line, even if its message has line breaks. So log collectors need
//!   no rules for multi-line messages.
//! - **Formats**: klog's text, which parsers of Kubernetes logs read; plain text for people; and
//!   JSON.
//! - **Verbosity**: the levels are klog's. The default 0 logs messages for operators; levels from 4
//!   on are for debugging. `--vmodule` sets the verbosity of single source files of this program.
//!   All verbosities may change while the process runs.
//! - **Libraries**: their events appear only at high verbosity. This program itself logs each
//!   failure once, with the next step.

mod klog;
pub mod settings;

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::FilterFn;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::writer::{BoxMakeWriter, MakeWriterExt as _};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::reload;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

use klog::Klog;
use settings::{LogFormat, Settings};

/// Crates of this workspace that log, named as in the target of a log event.
const OWN_CRATES: [&str; 17] = [
    "http_server",
    "inspect",
    "local_socket",
    "modes",
    "iptables",
    "kube_proxy",
    "proxy",
    "proxy_ipvs",
    "proxy_nftables",
    "proxy_userspace",
    "reconcile",
    "relay",
    "source",
    "ipvs_netlink",
    "ipset_netlink",
    "netlink_batch",
    "route_netlink",
];

/// Target of log events that klog's text shows without quotes, such as upstream's `FLAG: --v="1"`.
pub const UNSTRUCTURED: &str = "kube_proxy::unstructured";

type Filter = FilterFn<Box<dyn Fn(&Metadata<'_>) -> bool + Send + Sync>>;

/// Function that replaces the filter of the running log, set when the log starts.
static REPLACE: OnceLock<Box<dyn Fn(Filter) + Send + Sync>> = OnceLock::new();

/// Starts the log of this process with these settings.
///
/// # Errors
///
/// Fails if the log was already started.
pub fn start(settings: &Settings) -> Result<(), TryInitError> {
    let lines = tracing_subscriber::fmt::layer();
    let lines: Box<dyn Layer<_> + Send + Sync> = match settings.format {
        LogFormat::Text => lines
            .event_format(Klog::new())
            .with_writer(Lines(streams(settings)))
            .boxed(),
        LogFormat::Plain => lines
            .with_ansi(io::stderr().is_terminal())
            .with_target(settings.verbosity >= 6)
            .with_writer(Lines(streams(settings)))
            .boxed(),
        LogFormat::Json => lines
            .event_format(Json)
            .with_writer(streams(settings))
            .boxed(),
    };
    let (filter, handle) = reload::Layer::new(filter(settings.verbosity, &settings.vmodule));
    tracing_subscriber::registry()
        .with(filter)
        .with(lines)
        .try_init()?;
    let _ = REPLACE.set(Box::new(move |filter| {
        // Ignores the error: the log has already ended.
        let _ = handle.reload(filter);
    }));
    Ok(())
}

/// Returns the writer of log lines. All lines go to standard error, unless the log is split. A
/// split log writes informational lines to standard output. As in upstream, the JSON format has no
/// warnings: it treats them as informational.
fn streams(settings: &Settings) -> BoxMakeWriter {
    if !settings.is_split {
        return BoxMakeWriter::new(io::stderr);
    }
    let worst = match settings.format {
        LogFormat::Text | LogFormat::Plain => Level::WARN,
        LogFormat::Json => Level::ERROR,
    };
    BoxMakeWriter::new(io::stderr.with_max_level(worst).or_else(io::stdout))
}

/// Applies the verbosities in `settings` to the running log.
pub fn set_verbosity(settings: &Settings) {
    if let Some(replace) = REPLACE.get() {
        replace(filter(settings.verbosity, &settings.vmodule));
    }
}

/// Formatter for Kubernetes' JSON lines. A line has `ts` (milliseconds since 1970), `v` (the
/// verbosity, missing for errors), `msg`, and the event's fields.
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

/// Fields of an event as a JSON object.
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

/// Returns the filter of log events. An event of this workspace's crates needs the verbosity of its
/// source file; an event of any other crate needs the common verbosity.
fn filter(verbosity: u8, vmodule: &[(String, u8)]) -> Filter {
    let others = match verbosity {
        0..=5 => LevelFilter::OFF,
        6..=7 => LevelFilter::INFO,
        8..=9 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let vmodule = vmodule.to_vec();
    FilterFn::new(Box::new(move |event| {
        let target = event.target();
        let name = target.split("::").next().unwrap_or(target);
        if !OWN_CRATES.contains(&name) {
            return *event.level() <= others;
        }
        let file = event.file().unwrap_or_default();
        let of_file = vmodule.iter().find(|(pattern, _)| names(pattern, file));
        let own = match of_file.map_or(verbosity, |(_, verbosity)| *verbosity) {
            0..=3 => Level::INFO,
            4..=5 => Level::DEBUG,
            _ => Level::TRACE,
        };
        *event.level() <= own
    }))
}

/// Reports whether a pattern of `--vmodule` matches a source file. `*` matches any text, and `?`
/// any character. As in klog, a pattern without a directory is compared with the file's name
/// without directory and suffix.
fn names(pattern: &str, file: &str) -> bool {
    let file = file.strip_suffix(".rs").unwrap_or(file);
    let name = if pattern.contains('/') {
        file
    } else {
        file.rsplit('/').next().unwrap_or(file)
    };
    matches(pattern.as_bytes(), name.as_bytes())
}

/// Matches a name against a pattern with `*` and `?`. After a mismatch, lets only the last `*`
/// match more characters. A longer match of an earlier `*` would not help.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut pattern, mut name) = (pattern, name);
    // Position to which the function returns after a mismatch: the pattern after the last `*`, and
    // the name after the characters that this `*` has matched.
    let mut star: Option<(&[u8], &[u8])> = None;
    loop {
        match (pattern.split_first(), name.split_first()) {
            (None, None) => return true,
            (Some((b'*', rest)), _) => {
                star = Some((rest, name));
                pattern = rest;
                continue;
            }
            (Some((one, rest)), Some((other, after))) if *one == b'?' || one == other => {
                (pattern, name) = (rest, after);
                continue;
            }
            _ => {}
        }
        let Some((rest, [_, after @ ..])) = star else {
            return false;
        };
        star = Some((rest, after));
        (pattern, name) = (rest, after);
    }
}

/// Entry point for fuzzing: reports whether a pattern of `--vmodule` matches a file's name.
pub(crate) fn fits(pattern: &str, name: &str) -> bool {
    matches(pattern.as_bytes(), name.as_bytes())
}

/// Wrapper of the log's writer that keeps each event on one line.
struct Lines<M>(M);

impl<'a, M: MakeWriter<'a>> MakeWriter<'a> for Lines<M> {
    type Writer = Line<M::Writer>;

    fn make_writer(&'a self) -> Self::Writer {
        Line(self.0.make_writer())
    }

    fn make_writer_for(&'a self, of: &Metadata<'_>) -> Self::Writer {
        Line(self.0.make_writer_for(of))
    }
}

/// Writer for one event. It receives the whole event in one call, and escapes the event's line
/// breaks.
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
    pub(super) struct Memory(Arc<Mutex<Vec<u8>>>);

    impl Memory {
        /// Returns the text that the log has written.
        pub(super) fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

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
        logged_with(verbosity, &[], say)
    }

    fn logged_with(verbosity: u8, vmodule: &[(String, u8)], say: impl FnOnce()) -> String {
        let memory = Memory::default();
        let writer = memory.clone();
        let lines = tracing_subscriber::fmt::layer()
            .without_time()
            .with_ansi(false)
            .with_target(false)
            .with_writer(Lines(move || writer.clone()));
        let subscriber = tracing_subscriber::registry()
            .with(filter(verbosity, vmodule))
            .with(lines);
        tracing::subscriber::with_default(subscriber, say);
        memory.text()
    }

    #[test]
    fn each_log_event_is_one_line() {
        let said = logged(0, || tracing::info!("the server said \"a\r\nb\n\""));
        assert_eq!(said, " INFO the server said \"a\\r\\nb\\n\"\n");
    }

    #[test]
    fn the_json_log_has_kubernetes_format() {
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
        let text = memory.text();
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
    fn the_log_filter_includes_each_crate_that_logs() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
        for entry in std::fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let manifest = std::fs::read_to_string(entry.path().join("Cargo.toml")).unwrap();
            let name = entry.file_name().into_string().unwrap().replace('-', "_");
            let logs = manifest.contains("\ntracing.workspace");
            assert!(!logs || OWN_CRATES.contains(&&*name), "{name}");
        }
    }

    #[test]
    fn log_levels_follow_klogs_verbosity() {
        let say = || {
            tracing::info!("info");
            tracing::debug!("debug");
            tracing::trace!("trace");
            tracing::error!(target: "hyper", "library");
        };
        let levels = |verbosity| logged(verbosity, say).lines().count();
        assert_eq!([0, 2, 4, 6, 10].map(levels), [1, 1, 2, 4, 4]);
    }

    #[test]
    fn vmodule_sets_the_verbosity_of_a_source_file() {
        let say = || tracing::debug!("debug");
        for (pattern, is_said) in [
            ("logging", true),
            ("log*", true),
            ("l?gging", true),
            ("*/logging", true),
            ("crates/kube-proxy/src/logging", true),
            ("proxier", false),
            ("logging.rs", false),
            ("src/logging", false),
        ] {
            let said = logged_with(0, &[(pattern.to_owned(), 4)], say);
            assert_eq!(!said.is_empty(), is_said, "{pattern}");
        }
        let quiet = [("logging".to_owned(), 0)];
        assert_eq!(logged_with(6, &quiet, say), "");
    }
}
