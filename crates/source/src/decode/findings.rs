//! Collects the problems of one object, of any kind.

use std::fmt;
use std::net::IpAddr;

use k8s_openapi::jiff::Timestamp;
use proxy::{IpFamily, Kind, NamespacedName, Protocol};

use super::decoded::{Content, DecodedObject, Key, MissingName, Object, Problem, kind_name};
use super::{address, wire};

/// Largest number of characters that a message quotes from an invalid value.
const SHOWN_MAX: usize = 100;
/// Length in bytes of the longest name of any object, a DNS subdomain.
const NAME_BYTES_MAX: usize = 253;
/// Maximum number of stored problems of an object.
const PROBLEMS_MAX: usize = 1_000;

/// Reports whether a text can be the name of an object of some kind. The API's rules for a single
/// kind are stricter.
pub(super) fn is_name(text: &str) -> bool {
    let is_plain =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b':');
    (1..=NAME_BYTES_MAX).contains(&text.len()) && text.bytes().all(is_plain)
}

/// Problems that the decoder has found in one object.
pub(super) struct Findings {
    pub(super) key: Key,
    pub(super) version: Option<Box<str>>,
    problems: Vec<Problem>,
}

impl Findings {
    pub(super) fn new(kind: Kind, metadata: &wire::Metadata<'_>) -> Result<Self, MissingName> {
        let name = metadata
            .name
            .as_deref()
            .filter(|name| !name.is_empty())
            .ok_or(MissingName {
                kind: kind_name(kind),
            })?;
        let namespace = match metadata.namespace.as_deref() {
            _ if kind.is_cluster_scoped() => "",
            None | Some("") => "default",
            Some(namespace) => namespace,
        };
        Ok(Self {
            key: Key {
                kind,
                name: NamespacedName::new(namespace, name),
            },
            version: metadata.version().map(Into::into),
            problems: Vec::new(),
        })
    }

    /// Adds a problem of `field`, which quotes at most [`SHOWN_MAX`] characters of `value`.
    pub(super) fn text(
        &mut self,
        field: impl Into<String>,
        value: &str,
        advice: impl Into<String>,
    ) {
        let shown = match value.char_indices().nth(SHOWN_MAX) {
            None => format!("{value:?}"),
            Some((end, _)) => format!(
                "{:?}… ({} bytes)",
                value.get(..end).unwrap_or_default(),
                value.len()
            ),
        };
        self.value(field, shown, advice);
    }

    /// Checks the object's name and namespace, which appear in the log, in rule comments, in chain
    /// names and in metric labels.
    pub(super) fn is_well_named(&mut self) -> bool {
        let (name, namespace) = (self.key.name.name(), self.key.name.namespace());
        let wrong = [("metadata.name", name), ("metadata.namespace", namespace)]
            .into_iter()
            .find(|(_, text)| !text.is_empty() && !is_name(text))
            .map(|(field, text)| (field, text.to_owned()));
        if let Some((field, text)) = &wrong {
            self.text(
                *field,
                text,
                "a name has letters, digits, points and dashes, at most 253; the object is \
                 ignored until the name is corrected",
            );
        }
        wrong.is_none()
    }

    /// Returns a port's name, which may be empty. If the name is invalid, adds a problem and
    /// returns `None`.
    pub(super) fn port_name<'a>(
        &mut self,
        field: impl FnOnce() -> String,
        name: Option<&'a str>,
    ) -> Option<&'a str> {
        let name = name.unwrap_or_default();
        if name.is_empty() || is_name(name) {
            return Some(name);
        }
        self.text(
            field(),
            name,
            "a name has letters, digits, points and dashes; this port is ignored until its name \
             is corrected",
        );
        None
    }

    /// Adds a problem of `field`. Does nothing if the object already has [`PROBLEMS_MAX`] problems.
    pub(super) fn value(
        &mut self,
        field: impl Into<String>,
        value: impl fmt::Display,
        advice: impl Into<String>,
    ) {
        if self.problems.len() >= PROBLEMS_MAX {
            return;
        }
        self.problems.push(Problem {
            object: self.key.to_string(),
            field: field.into(),
            value: value.to_string(),
            advice: advice.into(),
        });
    }

    pub(super) fn decoded(self, content: Content) -> DecodedObject {
        DecodedObject {
            key: self.key,
            version: self.version,
            content,
            problems: self.problems,
        }
    }

    pub(super) fn proxied(self, object: Object) -> DecodedObject {
        self.decoded(Content::Proxied(object))
    }

    pub(super) fn ignored(self, reason: &'static str) -> DecodedObject {
        self.decoded(Content::Ignored(reason))
    }

    pub(super) fn unusable(self) -> DecodedObject {
        self.decoded(Content::Unusable)
    }

    /// Returns an unusable object, with the reason why it cannot be decoded.
    pub(super) fn unreadable(mut self, what: &str) -> DecodedObject {
        self.value(
            "the object",
            "unreadable",
            format!("{what}; its last known state stays until it is corrected"),
        );
        self.unusable()
    }

    /// Checks that the object's `kind`, if set, is the expected kind. Objects in a list have no
    /// `kind`.
    pub(super) fn is_kind(&mut self, kind: Option<&str>) -> bool {
        let expected = kind_name(self.key.kind);
        match kind {
            Some(kind) if kind != expected => {
                self.text(
                    "kind",
                    kind,
                    format!("a {expected} was requested; this object is ignored"),
                );
                false
            }
            _ => true,
        }
    }

    /// Parses the address of a single host. For other text, and for loopback and multicast
    /// addresses, adds a problem and returns `None`.
    pub(super) fn address(&mut self, field: impl FnOnce() -> String, text: &str) -> Option<IpAddr> {
        if let Some(ip) = address::ip(text) {
            return self.host(field, ip);
        }
        self.text(
            field(),
            text,
            "not an IP address; it is ignored until it is corrected",
        );
        None
    }

    /// Checks that an address belongs to a single host, and is not a loopback address. Otherwise,
    /// adds a problem and returns `None`.
    pub(super) fn host(&mut self, field: impl FnOnce() -> String, ip: IpAddr) -> Option<IpAddr> {
        let what = address::not_of_a_host(ip);
        self.usable(field, ip, what)
    }

    /// Checks that a pod can have the address, which must be neither loopback nor link-local.
    pub(super) fn endpoint(
        &mut self,
        field: impl FnOnce() -> String,
        ip: IpAddr,
    ) -> Option<IpAddr> {
        let what = address::not_of_an_endpoint(ip);
        self.usable(field, ip, what)
    }

    fn usable(
        &mut self,
        field: impl FnOnce() -> String,
        ip: IpAddr,
        what: Option<&str>,
    ) -> Option<IpAddr> {
        let Some(what) = what else {
            return Some(ip);
        };
        let advice = format!("{what}; it is ignored until it is corrected");
        self.value(field(), ip, advice);
        None
    }

    pub(super) fn protocol(
        &mut self,
        field: impl FnOnce() -> String,
        text: Option<&str>,
    ) -> Option<Protocol> {
        match text {
            None | Some("" | "TCP") => Some(Protocol::Tcp),
            Some("UDP") => Some(Protocol::Udp),
            Some("SCTP") => Some(Protocol::Sctp),
            Some(other) => {
                self.text(
                    field(),
                    other,
                    "give TCP, UDP or SCTP; this port is ignored until then",
                );
                None
            }
        }
    }

    /// Returns a port number from 1 to 65535. For another number, adds a problem and returns
    /// `None`.
    pub(super) fn port(
        &mut self,
        field: impl FnOnce() -> String,
        number: Option<i64>,
    ) -> Option<u16> {
        let port = number.and_then(|number| u16::try_from(number).ok());
        if let Some(1..) = port {
            return port;
        }
        self.value(
            field(),
            number.map_or_else(|| "missing".to_owned(), |number| number.to_string()),
            "a port is 1 to 65535; this port is ignored until it is corrected",
        );
        None
    }

    pub(super) fn time(&mut self, field: &str, time: Option<&wire::Time<'_>>) -> Option<Timestamp> {
        let time = time?;
        let (read, text) = match time {
            wire::Time::Text(text) => (text.parse().ok(), format!("{text:?}")),
            wire::Time::Seconds(seconds) => {
                (Timestamp::from_second(*seconds).ok(), seconds.to_string())
            }
        };
        if read.is_none() {
            self.value(field, text, "not an RFC 3339 time; it is not used");
        }
        read
    }
}

/// Parses a family in the API's spelling, `IPv4` or `IPv6`.
pub(crate) fn family(text: &str) -> Option<IpFamily> {
    match text {
        "IPv4" => Some(IpFamily::V4),
        "IPv6" => Some(IpFamily::V6),
        _ => None,
    }
}
