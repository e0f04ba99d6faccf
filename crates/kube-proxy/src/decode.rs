//! Kubernetes objects to our own compact ones.
//!
//! ```text
//!   JSON, YAML ──serde──▶ wire::Service ──service()──▶ Decoded { key, content, problems }
//!                         wire::EndpointSlice …        content: Proxied(Service), Ignored(why) or Unusable
//! ```
//!
//! Defaults that an API server fills in are filled in here too, as manifests lack them. What an API server would have
//! refused is found here as well: a part that is wrong is left out and reported as a `Problem` by name, and the rest of
//! the object is used. An object of which nothing is left is `Unusable`; whoever asked keeps what it knew of it before.

pub(crate) mod address;
mod endpoint_slice;
mod node;
mod service;
pub(crate) mod wire;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use k8s_openapi::jiff::Timestamp;
use proxy::{EndpointSlice, Event, IpFamily, Kind, NamespacedName, Node, Protocol, Service};
use serde::Deserialize;

pub(crate) use endpoint_slice::endpoint_slice;
pub(crate) use node::node;
pub(crate) use service::service;

/// Which object: displayed as `Service default/web`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) kind: Kind,
    pub(crate) name: NamespacedName,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            Kind::Node => write!(f, "Node {}", self.name.name()),
            kind => write!(f, "{} {}", kind_name(kind), self.name),
        }
    }
}

/// `kind` as objects carry it.
pub(crate) const fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Service => "Service",
        Kind::EndpointSlice => "EndpointSlice",
        Kind::Node => "Node",
    }
}

/// An object that was read.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Decoded {
    pub(crate) key: Key,
    /// `metadata.resourceVersion`.
    pub(crate) version: Option<Box<str>>,
    pub(crate) content: Content,
    /// What was left out, and why it is unusable if it is.
    pub(crate) problems: Vec<Problem>,
}

/// What an object comes to.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Content {
    /// It is served.
    Proxied(Object),
    /// It is not for this proxy, and why.
    Ignored(&'static str),
    /// Nothing of it can be used.
    Unusable,
}

/// An object that is served.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Object {
    Service(Service),
    EndpointSlice(EndpointSlice),
    Node(Node),
}

impl Decoded {
    /// What the model is told.
    pub(crate) fn into_event(self) -> Event {
        self.content.into_event(self.key)
    }
}

impl Content {
    /// What the model is told of the object with this key.
    pub(crate) fn into_event(self, key: Key) -> Event {
        match self {
            Self::Proxied(Object::Service(service)) => Event::ServiceApplied(service),
            Self::Proxied(Object::EndpointSlice(slice)) => Event::SliceApplied(slice),
            Self::Proxied(Object::Node(node)) => Event::NodeApplied(node),
            Self::Ignored(_) => key.into_deletion(),
            Self::Unusable => Event::Unreadable(key.kind, key.name),
        }
    }
}

impl Key {
    /// What the model is told when the object is gone.
    pub(crate) fn into_deletion(self) -> Event {
        match self.kind {
            Kind::Service => Event::ServiceDeleted(self.name),
            Kind::EndpointSlice => Event::SliceDeleted(self.name),
            Kind::Node => Event::NodeDeleted(self.name.name().into()),
        }
    }
}

/// Something wrong in an object: which, where, what it says, and what comes of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{object}: {field} is {value}: {advice}")]
pub(crate) struct Problem {
    /// `Service default/web`.
    pub(crate) object: String,
    /// `spec.ports[0].port`.
    pub(crate) field: String,
    /// The value as it was written.
    pub(crate) value: String,
    /// Why it is wrong, what is done instead, and what to do.
    pub(crate) advice: String,
}

/// An object without a name: nothing can be said of it but that.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind} without metadata.name: it is left out; name it")]
pub(crate) struct Unnamed {
    pub(crate) kind: &'static str,
}

/// Collects what is wrong in one object.
struct Findings {
    key: Key,
    version: Option<Box<str>>,
    problems: Vec<Problem>,
}

impl Findings {
    fn new(kind: Kind, metadata: &wire::Metadata<'_>) -> Result<Self, Unnamed> {
        let name = metadata
            .name
            .as_deref()
            .filter(|name| !name.is_empty())
            .ok_or(Unnamed {
                kind: kind_name(kind),
            })?;
        let namespace = match (kind, metadata.namespace.as_deref()) {
            (Kind::Node, _) => "",
            (_, None | Some("")) => "default",
            (_, Some(namespace)) => namespace,
        };
        Ok(Self {
            key: Key {
                kind,
                name: NamespacedName::new(namespace, name),
            },
            version: metadata.resource_version.as_deref().map(Into::into),
            problems: Vec::new(),
        })
    }

    /// A text that is wrong.
    fn text(&mut self, field: impl Into<String>, value: &str, advice: impl Into<String>) {
        self.value(field, format!("{value:?}"), advice);
    }

    /// A value that is wrong, as it is to be shown.
    fn value(
        &mut self,
        field: impl Into<String>,
        value: impl fmt::Display,
        advice: impl Into<String>,
    ) {
        self.problems.push(Problem {
            object: self.key.to_string(),
            field: field.into(),
            value: value.to_string(),
            advice: advice.into(),
        });
    }

    fn decoded(self, content: Content) -> Decoded {
        Decoded {
            key: self.key,
            version: self.version,
            content,
            problems: self.problems,
        }
    }

    fn proxied(self, object: Object) -> Decoded {
        self.decoded(Content::Proxied(object))
    }

    fn ignored(self, reason: &'static str) -> Decoded {
        self.decoded(Content::Ignored(reason))
    }

    fn unusable(self) -> Decoded {
        self.decoded(Content::Unusable)
    }

    /// Checks the object's own `kind`, which a list leaves out.
    fn is_kind(&mut self, kind: Option<&str>) -> bool {
        let expected = kind_name(self.key.kind);
        match kind {
            Some(kind) if kind != expected => {
                self.text(
                    "kind",
                    kind,
                    format!("a {expected} was asked for; it is left out"),
                );
                false
            }
            _ => true,
        }
    }

    /// An address that packets can be sent to.
    fn address(&mut self, field: impl FnOnce() -> String, text: &str) -> Option<IpAddr> {
        if let Some(ip) = address::ip(text) {
            return self.host(field, ip);
        }
        self.text(
            field(),
            text,
            "not an IP address; it is left out until it is corrected",
        );
        None
    }

    /// Checks that an address is that of one host, and not this one's loopback.
    fn host(&mut self, field: impl FnOnce() -> String, ip: IpAddr) -> Option<IpAddr> {
        let what = if ip.is_unspecified() {
            "an unspecified address"
        } else if ip.is_loopback() {
            "a loopback address"
        } else if ip.is_multicast() || ip == IpAddr::V4(Ipv4Addr::BROADCAST) {
            "not an address of one host"
        } else {
            return Some(ip);
        };
        let advice = format!("{what}; it is left out until it is corrected");
        self.value(field(), ip, advice);
        None
    }

    fn protocol(&mut self, field: impl FnOnce() -> String, text: Option<&str>) -> Option<Protocol> {
        match text {
            None | Some("" | "TCP") => Some(Protocol::Tcp),
            Some("UDP") => Some(Protocol::Udp),
            Some("SCTP") => Some(Protocol::Sctp),
            Some(other) => {
                self.text(
                    field(),
                    other,
                    "give TCP, UDP or SCTP; this port is left out until then",
                );
                None
            }
        }
    }

    /// A port number other than 0.
    fn port(&mut self, field: impl FnOnce() -> String, number: Option<i64>) -> Option<u16> {
        let port = number.and_then(|number| u16::try_from(number).ok());
        if let Some(1..) = port {
            return port;
        }
        self.value(
            field(),
            number.map_or_else(|| "missing".to_owned(), |number| number.to_string()),
            "a port is 1 to 65535; this port is left out until it is corrected",
        );
        None
    }

    fn time(&mut self, field: &str, text: Option<&str>) -> Option<Timestamp> {
        let text = text?;
        let time = text.parse().ok();
        if time.is_none() {
            self.text(field, text, "not an RFC 3339 time; it is not used");
        }
        time
    }
}

/// The JSON shape of an object.
pub(crate) trait Wire<'a>: Deserialize<'a> {
    /// What it comes to.
    fn decode(self) -> Result<Decoded, Unnamed>;
}

impl<'a> Wire<'a> for wire::Service<'a> {
    fn decode(self) -> Result<Decoded, Unnamed> {
        service(self)
    }
}

impl<'a> Wire<'a> for wire::EndpointSlice<'a> {
    fn decode(self) -> Result<Decoded, Unnamed> {
        endpoint_slice(self)
    }
}

impl<'a> Wire<'a> for wire::Node<'a> {
    fn decode(self) -> Result<Decoded, Unnamed> {
        node(self)
    }
}

/// Reads from JSON an event of a watch by which an object is added or modified, and the object with it: in one pass, which is
/// what nearly all events take. `None` for any other event, and if there is something in it that does not decode.
pub(crate) fn applied_from_json(kind: Kind, event: &str) -> Option<Result<Decoded, Unnamed>> {
    #[derive(Deserialize)]
    #[serde(rename_all = "UPPERCASE")]
    enum Type {
        Added,
        Modified,
    }

    #[derive(Deserialize)]
    struct Applied<T> {
        #[serde(rename = "type")]
        _type: Type,
        object: T,
    }

    fn read<'a, W: Wire<'a>>(event: &'a str) -> Option<Result<Decoded, Unnamed>> {
        let applied: Applied<W> = serde_json::from_str(event).ok()?;
        Some(applied.object.decode())
    }

    match kind {
        Kind::Service => read::<wire::Service<'_>>(event),
        Kind::EndpointSlice => read::<wire::EndpointSlice<'_>>(event),
        Kind::Node => read::<wire::Node<'_>>(event),
    }
}

/// Reads one object from JSON. One that does not decode is `Unusable`, if at least its name can be read.
pub(crate) fn from_json(kind: Kind, json: &str) -> Result<Decoded, Unnamed> {
    let decoded = match kind {
        Kind::Service => serde_json::from_str(json).map(service),
        Kind::EndpointSlice => serde_json::from_str(json).map(endpoint_slice),
        Kind::Node => serde_json::from_str(json).map(node),
    };
    match decoded {
        Ok(decoded) => decoded,
        Err(error) => {
            let mut findings = headed(kind, json)?;
            let what = format!("{error}, near {:?}", before(json, &error));
            findings.value(
                "the object",
                "unreadable",
                format!("{what}; what was known of it before stays until it is corrected"),
            );
            Ok(findings.unusable())
        }
    }
}

/// Reads from JSON which object it is, and its resource version.
pub(crate) fn key_from_json(kind: Kind, json: &str) -> Result<(Key, Option<Box<str>>), Unnamed> {
    headed(kind, json).map(|findings| (findings.key, findings.version))
}

fn headed(kind: Kind, json: &str) -> Result<Findings, Unnamed> {
    let headed: wire::Headed<'_> = serde_json::from_str(json).unwrap_or_default();
    Findings::new(kind, &headed.metadata.unwrap_or_default())
}

/// The text just before the place of an error: a line and column say little where an object is one long line.
fn before<'a>(json: &'a str, error: &serde_json::Error) -> &'a str {
    const LENGTH: usize = 40;
    let line_start: usize = json
        .split_inclusive('\n')
        .take(error.line().saturating_sub(1))
        .map(str::len)
        .sum();
    let end = json.floor_char_boundary(line_start + error.column());
    let start = json.floor_char_boundary(end.saturating_sub(LENGTH));
    json.get(start..end).unwrap_or_default()
}

/// `IPv4` or `IPv6` as the API writes them.
fn family(text: &str) -> Option<IpFamily> {
    match text {
        "IPv4" => Some(IpFamily::V4),
        "IPv6" => Some(IpFamily::V6),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
