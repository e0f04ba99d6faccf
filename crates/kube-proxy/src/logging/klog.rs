//! Text lines of klog, which common log parsers read (fluentd, Fluent Bit, Promtail, Loki):
//!
//! ```text
//!   Lmmdd hh:mm:ss.uuuuuu threadid file:line] "message" err="text" key="text" count=3
//! ```
//!
//! - `L` is I, W or E.
//! - The time is local and has no year.
//! - As in klog, `threadid` is the process id, right-aligned in seven columns.
//! - `file` is printed without its directory.
//! - Message and texts are quoted as in Go (`strconv.Quote`).
//!
//! There is one difference. klog splits a text with line breaks into several lines, between `key=<`
//! and `>`. This program quotes the text, so that each event is one line.

use std::fmt::{self, Write as _};

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use super::UNSTRUCTURED;

/// klog's placeholder for an unknown source file and line.
const NOWHERE: (&str, u32) = ("???", 1);

/// Formatter that writes events as klog's text lines.
pub(super) struct Klog {
    process: u32,
    zone: TimeZone,
}

impl Klog {
    /// Creates the formatter for this process, in the time zone of `TZ` or `/etc/localtime`, else
    /// UTC.
    pub(super) fn new() -> Self {
        Self {
            process: std::process::id(),
            zone: TimeZone::system(),
        }
    }
}

/// Beginning of a log line, before the message.
struct Header<'a> {
    level: Level,
    at: DateTime,
    process: u32,
    /// Path of the source file that logs the event.
    file: &'a str,
    line: u32,
}

impl fmt::Display for Header<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.level {
            Level::ERROR => 'E',
            Level::WARN => 'W',
            _ => 'I',
        };
        let Self {
            at,
            process,
            file,
            line,
            ..
        } = self;
        write!(
            f,
            "{severity}{:02}{:02} {:02}:{:02}:{:02}.{:06} {process:>7} {}:{line}] ",
            at.month(),
            at.day(),
            at.hour(),
            at.minute(),
            at.second(),
            at.subsec_nanosecond() / 1000,
            file.rsplit('/').next().unwrap_or(file),
        )
    }
}

impl<S, N> FormatEvent<S, N> for Klog
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
        let metadata = event.metadata();
        let (file, line) = metadata.file().zip(metadata.line()).unwrap_or(NOWHERE);
        let header = Header {
            level: *metadata.level(),
            at: self.zone.to_datetime(Timestamp::now()),
            process: self.process,
            file,
            line,
        };
        let mut said = MessageText::default();
        event.record(&mut said);
        let MessageText {
            message,
            error,
            pairs,
        } = said;
        if metadata.target() == UNSTRUCTURED {
            return writeln!(writer, "{header}{message}");
        }
        writeln!(writer, "{header}{}{error}{pairs}", Quoted(&message))
    }
}

/// Message and fields of an event. The error comes before all other fields, which keep the order in
/// which they were recorded.
#[derive(Default)]
struct MessageText {
    message: String,
    error: String,
    pairs: String,
}

impl MessageText {
    fn text(&mut self, field: &Field, text: &str) {
        match field.name() {
            "message" => self.message.push_str(text),
            "error" => self.error = format!(" err={}", Quoted(text)),
            name => self.pair(name, Quoted(text)),
        }
    }

    fn pair(&mut self, name: &str, value: impl fmt::Display) {
        // Cannot fail: a String accepts every write.
        let _ = write!(self.pairs, " {name}={value}");
    }
}

impl Visit for MessageText {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.pair(field.name(), value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.pair(field.name(), value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.pair(field.name(), value);
    }

    fn record_i128(&mut self, field: &Field, value: i128) {
        self.pair(field.name(), value);
    }

    fn record_u128(&mut self, field: &Field, value: u128) {
        self.pair(field.name(), value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.pair(field.name(), value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.text(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.text(field, &format!("{value:?}"));
    }
}

/// Text in quotes. Unprintable characters are escaped as in Go, which differs from Rust.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for character in self.0.chars() {
            match character {
                '"' | '\\' => write!(f, "\\{character}")?,
                '\n' => f.write_str("\\n")?,
                '\r' => f.write_str("\\r")?,
                '\t' => f.write_str("\\t")?,
                '\x07' => f.write_str("\\a")?,
                '\x08' => f.write_str("\\b")?,
                '\x0b' => f.write_str("\\v")?,
                '\x0c' => f.write_str("\\f")?,
                '\x00'..='\x1f' | '\x7f' => write!(f, "\\x{:02x}", u32::from(character))?,
                // Of the remaining characters, `escape_debug` escapes unprintable ones and
                // combining marks.
                _ if is_printed(character) => f.write_char(character)?,
                '\u{80}'..='\u{ffff}' => write!(f, "\\u{:04x}", u32::from(character))?,
                _ => write!(f, "\\U{:08x}", u32::from(character))?,
            }
        }
        f.write_char('"')
    }
}

fn is_printed(character: char) -> bool {
    character == '\'' || character.escape_debug().len() == 1
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use regex::Regex;
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;
    use crate::logging::tests::Memory;

    /// Pattern for kube-proxy's log in the stock configuration of Kubernetes' fluentd add-on.
    const FLUENTD: &str = r"^(?<severity>\w)(?<time>\d{4} [^\s]*)\s+(?<pid>\d+)\s+(?<source>[^ \]]+)\] (?<message>.*)";
    /// A stricter pattern for the header that klog documents.
    const HEADER: &str =
        r"^[IWEF]\d{4} \d\d:\d\d:\d\d\.\d{6} [ \d]{6}\d [A-Za-z0-9_?.]+:\d+\] (?<message>.*)$";

    fn logged(klog: Klog, say: impl FnOnce()) -> String {
        let memory = Memory::default();
        let writer = memory.clone();
        let lines = tracing_subscriber::fmt::layer()
            .event_format(klog)
            .with_writer(move || writer.clone());
        let subscriber = tracing_subscriber::registry().with(lines);
        tracing::subscriber::with_default(subscriber, say);
        memory.text()
    }

    fn said(say: impl FnOnce()) -> String {
        logged(Klog::new(), say)
    }

    /// Parses a quoted text as Go would. Returns its content and the rest of `text`.
    fn unquote(text: &str) -> (String, &str) {
        let mut rest = text.strip_prefix('"').unwrap().chars();
        let mut read = String::new();
        loop {
            let hexadecimal = |rest: &mut std::str::Chars<'_>, digits| {
                let digits: String = rest.by_ref().take(digits).collect();
                char::from_u32(u32::from_str_radix(&digits, 16).unwrap()).unwrap()
            };
            match rest.next().unwrap() {
                '"' => return (read, rest.as_str()),
                '\\' => read.push(match rest.next().unwrap() {
                    'n' => '\n',
                    'r' => '\r',
                    't' => '\t',
                    'a' => '\x07',
                    'b' => '\x08',
                    'v' => '\x0b',
                    'f' => '\x0c',
                    'x' => hexadecimal(&mut rest, 2),
                    'u' => hexadecimal(&mut rest, 4),
                    'U' => hexadecimal(&mut rest, 8),
                    same @ ('"' | '\\') => same,
                    other => panic!("\\{other}"),
                }),
                other => read.push(other),
            }
        }
    }

    /// Returns the message, and a map from keys to values.
    fn parsed(message: &str) -> (String, BTreeMap<String, String>) {
        let (message, mut rest) = unquote(message);
        let mut pairs = BTreeMap::new();
        while let Some(pair) = rest.strip_prefix(' ') {
            let (key, value) = pair.split_once('=').unwrap();
            let (value, behind) = if value.starts_with('"') {
                unquote(value)
            } else {
                let end = value.find(' ').unwrap_or(value.len());
                (value[..end].to_owned(), &value[end..])
            };
            pairs.insert(key.to_owned(), value);
            rest = behind;
        }
        assert_eq!(rest, "");
        (message, pairs)
    }

    #[test]
    fn the_log_header_has_klogs_format() {
        let header = Header {
            level: Level::INFO,
            at: "2026-01-22T09:05:01.000056789".parse().unwrap(),
            process: 12345,
            file: "crates/kube-proxy/src/run.rs",
            line: 123,
        };
        assert_eq!(
            header.to_string(),
            "I0122 09:05:01.000056   12345 run.rs:123] "
        );
    }

    #[test]
    fn log_times_are_in_local_time() {
        let zone = TimeZone::fixed(jiff::tz::offset(5));
        let hour = zone.to_datetime(Timestamp::now()).hour();
        let text = logged(Klog { process: 1, zone }, || tracing::info!("now"));
        let next = (hour + 1) % 24;
        let is_local = [hour, next].map(|hour| text[6..8] == *format!("{hour:02}"));
        assert!(is_local.contains(&true), "{text}");
    }

    #[test]
    fn log_severities_are_the_letters_of_klog() {
        let text = said(|| {
            tracing::error!("e");
            tracing::warn!("w");
            tracing::info!("i");
            tracing::debug!("d");
            tracing::trace!("t");
        });
        let letters: String = text
            .lines()
            .filter_map(|line| line.chars().next())
            .collect();
        assert_eq!(letters, "EWIII");
    }

    #[test]
    fn klog_parsers_can_parse_the_log() {
        let text = said(|| {
            tracing::error!(
                family = "IPv4", count = 3_u8, ratio = 0.5, is_new = true, error = %"ENOENT: \"a\nb\"",
                "cannot add \"x\""
            );
            tracing::info!(target: UNSTRUCTURED, "FLAG: --v=\"1\"");
        });
        let lines: Vec<&str> = text.lines().collect();
        let [error, flag] = lines.as_slice() else {
            panic!("one event is one line: {text}");
        };
        for pattern in [FLUENTD, HEADER] {
            let pattern = Regex::new(pattern).unwrap();
            let of = |line| pattern.captures(line).unwrap()["message"].to_owned();
            assert_eq!(
                of(error),
                r#""cannot add \"x\"" err="ENOENT: \"a\nb\"" family="IPv4" count=3 ratio=0.5 is_new=true"#
            );
            assert_eq!(of(flag), r#"FLAG: --v="1""#);
        }
        let fluentd = Regex::new(FLUENTD).unwrap();
        let found = fluentd.captures(error).unwrap();
        assert_eq!(&found["severity"], "E");
        assert_eq!(&found["pid"], std::process::id().to_string());
        assert!(found["source"].starts_with("klog.rs:"), "{error}");
        let (message, pairs) = parsed(&found["message"]);
        assert_eq!(message, "cannot add \"x\"");
        assert_eq!(pairs["err"], "ENOENT: \"a\nb\"");
        assert_eq!((&*pairs["family"], &*pairs["count"]), ("IPv4", "3"));
    }

    #[test]
    fn log_values_are_quoted_as_by_go() {
        for (text, quoted) in [
            ("", r#""""#),
            ("plain 'text'", r#""plain 'text'""#),
            ("Grüße, 世界 🎉", "\"Grüße, 世界 🎉\""),
            ("a\"b\\c", r#""a\"b\\c""#),
            ("\x07\x08\x0c\n\r\t\x0b", r#""\a\b\f\n\r\t\v""#),
            ("\0\x1b\x7f", r#""\x00\x1b\x7f""#),
            (
                "\u{80}\u{200b}\u{feff}\u{e0001}",
                r#""\u0080\u200b\ufeff\U000e0001""#,
            ),
        ] {
            assert_eq!(Quoted(text).to_string(), quoted, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn each_log_event_is_one_line_that_can_be_parsed(message in "(\\PC|\\pC){0,20}", value in "(\\PC|\\pC){0,20}") {
            let text = said(|| tracing::info!(value, "{message}"));
            let line = text.strip_suffix('\n').unwrap();
            prop_assert!(!line.contains(['\n', '\r']));
            let found = Regex::new(HEADER).unwrap().captures(line).unwrap()["message"].to_owned();
            let (said, pairs) = parsed(&found);
            prop_assert_eq!(said, message);
            prop_assert_eq!(&pairs["value"], &value);
        }
    }
}
