//! The pages `/flagz` and `/statusz`. The feature gates `ComponentFlagz` and `ComponentStatusz`
//! enable these pages, and are on by default.
//!
//! - **Text**: the default. Upstream does not define its format.
//! - **An object of the API group `config.k8s.io`**: programs request it with `Accept:
//!   application/json;v=v1beta1;g=config.k8s.io;as=Flagz` (or `application/yaml`; `as=Statusz`).
//! - Other types, including CBOR, are not available.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::SystemTime;

use flags::gates::{FLAGZ, Gates, STATUSZ};
use flags::version::KUBERNETES;
use http::header::{ACCEPT, WARNING};
use http::request::Parts;
use http::{HeaderValue, StatusCode};
use http_server::{Answer, answer, text};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::process::version::OWN_VERSION;

const COMPONENT: &str = "kube-proxy";
const GROUP: &str = "config.k8s.io";
/// API versions of the objects `Flagz` and `Statusz`, newest first. The older version is
/// deprecated.
const VERSIONS: [&str; 2] = ["v1beta1", "v1alpha1"];
/// Pages of the metrics server that `/statusz` lists.
const PAGES: [&str; 5] = ["/configz", "/flagz", "/healthz", "/metrics", "/proxyMode"];

/// Content of the pages `/flagz` and `/statusz`, and the gates that enable them.
#[derive(Debug)]
pub(super) struct Zpages {
    /// Flags of the command line with their values. `None`: `/flagz` is off.
    flags: Option<BTreeMap<String, String>>,
    has_status: bool,
    started: SystemTime,
}

/// Format of a response: text, or an object as JSON or YAML.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Text,
    /// JSON object of this API version, such as `v1beta1`.
    Json(&'static str),
    Yaml(&'static str),
}

impl Zpages {
    pub(super) fn new(
        gates: &Gates,
        flags: impl IntoIterator<Item = (String, String)>,
        started: SystemTime,
    ) -> Self {
        Self {
            flags: gates.is_on(FLAGZ).then(|| flags.into_iter().collect()),
            has_status: gates.is_on(STATUSZ),
            started,
        }
    }

    /// Returns the response to a request for `/flagz` or `/statusz`, or `None` for any other path.
    pub(super) fn respond(&self, head: &Parts) -> Option<Answer> {
        match (head.uri.path(), &self.flags) {
            ("/flagz", Some(flags)) => {
                let lines = flags
                    .iter()
                    .map(|(flag, value)| format!("{flag}={value}\n"));
                let lines: String = lines.collect();
                Some(page(head, "Flagz", &lines, json!({ "flags": flags })))
            }
            ("/statusz", _) if self.has_status => {
                let (lines, fields) = self.status(SystemTime::now());
                Some(page(head, "Statusz", &lines, fields))
            }
            _ => None,
        }
    }

    fn status(&self, now: SystemTime) -> (String, Value) {
        let up = now.duration_since(self.started).unwrap_or_default();
        let up = up.as_secs();
        let started = Timestamp::try_from(self.started).unwrap_or_default();
        let started = Timestamp::from_second(started.as_second()).unwrap_or_default();
        let pages = PAGES.into_iter();
        let pages: Vec<_> = pages
            .filter(|page| *page != "/flagz" || self.flags.is_some())
            .collect();
        let (binary, emulated) = (KUBERNETES.number(), KUBERNETES.release());
        let mut lines = String::new();
        let (hours, minutes, seconds) = (up / 3600, up / 60 % 60, up % 60);
        // Ignores the result: a write to a String cannot fail.
        let _ = writeln!(
            lines,
            "Started: {started}\nUp: {hours} hr {minutes:02} min {seconds:02} sec\nBinary version: {binary}\n\
             Emulation version: {emulated}\nProgram: kube-proxy-ipvs {OWN_VERSION}\nPaths: {}",
            pages.join(" ")
        );
        let fields = json!({
            "startTime": started.to_string(),
            "uptimeSeconds": up,
            // Mandatory field. It is empty, because this program is not written in Go.
            "goVersion": "",
            "binaryVersion": binary,
            "emulationVersion": emulated,
            "paths": pages,
        });
        (lines, fields)
    }
}

/// Returns a page in the format that the request accepts: `lines` as text, or `fields` as an
/// object.
fn page(head: &Parts, kind: &str, lines: &str, mut fields: Value) -> Answer {
    let accepted = head.headers.get_all(ACCEPT).iter();
    let accepted: Vec<_> = accepted.filter_map(|value| value.to_str().ok()).collect();
    let Some(form) = wanted(&accepted.join(","), kind) else {
        let advice = format!(
            "give Accept: text/plain, or application/json;v={};g={GROUP};as={kind} (or application/yaml)\n",
            VERSIONS[0]
        );
        return text(StatusCode::NOT_ACCEPTABLE, advice);
    };
    let version = match form {
        Form::Text => {
            let page = kind.to_lowercase();
            let warning = "Warning: this is for people; its form may change at any time.";
            return text(
                StatusCode::OK,
                format!("\n{COMPONENT} {page}\n{warning}\n\n{lines}"),
            );
        }
        Form::Json(version) | Form::Yaml(version) => version,
    };
    if let Some(object) = fields.as_object_mut() {
        object.insert("kind".to_owned(), kind.into());
        object.insert("apiVersion".to_owned(), format!("{GROUP}/{version}").into());
        object.insert("metadata".to_owned(), json!({ "name": COMPONENT }));
    }
    let mut answer = match form {
        Form::Yaml(_) => {
            let text = serde_saphyr::to_string(&fields).unwrap_or_default();
            answer(StatusCode::OK, "application/yaml", text)
        }
        _ => answer(StatusCode::OK, "application/json", fields.to_string()),
    };
    if version != VERSIONS[0] {
        let warning = HeaderValue::from_static("299 - \"this version of the page is deprecated\"");
        answer.headers_mut().insert(WARNING, warning);
    }
    answer
}

/// Returns the available format that `Accept` prefers. Returns text if the header is missing or
/// `*/*`.
fn wanted(accept: &str, kind: &str) -> Option<Form> {
    if accept.trim().is_empty() {
        return Some(Form::Text);
    }
    let mut ranges: Vec<_> = accept.split(',').filter_map(Range::read).collect();
    // Uses a stable sort, so that the first of equal preferences wins.
    ranges.sort_by_key(|range| Reverse(range.thousandths));
    ranges.iter().find_map(|range| range.form(kind))
}

/// A media range of the `Accept` header, such as `text/*;q=0.5`.
struct Range<'a> {
    media_type: &'a str,
    parameters: BTreeMap<&'a str, &'a str>,
    /// Preference `q` in thousandths, never 0.
    thousandths: u16,
}

impl<'a> Range<'a> {
    /// Parses a media range. Returns `None` if the client excludes the range (`q=0`).
    fn read(text: &'a str) -> Option<Self> {
        let mut parts = text.split(';').map(str::trim);
        let media_type = parts.next()?;
        let parameters: BTreeMap<_, _> = parts.filter_map(|part| part.split_once('=')).collect();
        let quality = parameters
            .get("q")
            .and_then(|text| text.parse::<f32>().ok());
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "0 to 1000"
        )]
        let thousandths = (quality.unwrap_or(1.0).clamp(0.0, 1.0) * 1000.0) as u16;
        (thousandths > 0).then_some(Self {
            media_type,
            parameters,
            thousandths,
        })
    }

    fn form(&self, kind: &str) -> Option<Form> {
        let parameter = |name| self.parameters.get(name).copied();
        let version = VERSIONS
            .into_iter()
            .find(|version| parameter("v") == Some(version));
        let version =
            version.filter(|_| parameter("g") == Some(GROUP) && parameter("as") == Some(kind));
        let has_object = parameter("as").is_some();
        match self.media_type {
            "application/json" => version.map(Form::Json),
            "application/yaml" => version.map(Form::Yaml),
            "application/*" | "*/*" if has_object => version.map(Form::Json),
            "text/plain" | "text/*" | "*/*" if !has_object => Some(Form::Text),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_accept_header_selects_the_page_format() {
        let json = "application/json;v=v1beta1;g=config.k8s.io;as=Flagz";
        for (accept, form) in [
            ("", Some(Form::Text)),
            ("*/*", Some(Form::Text)),
            ("text/plain", Some(Form::Text)),
            (json, Some(Form::Json("v1beta1"))),
            (
                "application/json; v=v1alpha1; g=config.k8s.io; as=Flagz",
                Some(Form::Json("v1alpha1")),
            ),
            (
                "application/yaml;v=v1beta1;g=config.k8s.io;as=Flagz",
                Some(Form::Yaml("v1beta1")),
            ),
            (
                "text/plain;q=0.5,application/json;v=v1beta1;g=config.k8s.io;as=Flagz",
                Some(Form::Json("v1beta1")),
            ),
            (
                "application/json;v=foo;g=config.k8s.io;as=Flagz,*/*",
                Some(Form::Text),
            ),
            ("application/json", None),
            ("application/json;v=v1beta1;g=config.k8s.io", None),
            (
                "application/json;v=v1beta1;g=config.k8s.io;as=Statusz",
                None,
            ),
            ("application/xml", None),
            ("application/cbor;v=v1beta1;g=config.k8s.io;as=Flagz", None),
            ("text/plain;q=0", None),
        ] {
            assert_eq!(wanted(accept, "Flagz"), form, "{accept}");
        }
    }

    #[test]
    fn statusz_reports_start_time_and_version() {
        let started = SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_500);
        let pages = Zpages::new(&Gates::default(), [], started);
        let (lines, fields) = pages.status(started + Duration::from_secs(3_725));
        for line in [
            "Started: 2023-11-14T22:13:20Z\n",
            "Up: 1 hr 02 min 05 sec\n",
            "Binary version: 1.37.0\nEmulation version: 1.37\n",
            "Paths: /configz /flagz /healthz /metrics /proxyMode\n",
        ] {
            assert!(lines.contains(line), "{lines}");
        }
        assert_eq!(fields["startTime"], "2023-11-14T22:13:20Z");
        assert_eq!(fields["uptimeSeconds"], 3_725);
        assert_eq!(fields["goVersion"], "");
        assert_eq!(fields["binaryVersion"], "1.37.0");
        assert_eq!(fields["paths"][4], "/proxyMode");
    }
}
