//! Request to trace packets from senders to a destination.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use proxy::Protocol;

use view::ServiceName;

/// Namespace of a Service in an HTTP request that names none.
const NAMESPACE: &str = "default";

/// Request to trace packets from senders to a destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceRequest {
    /// Destination as the user typed it.
    pub text: String,
    /// Destination of the traced packets.
    pub to: TraceDestination,
    /// Senders: kinds of senders, or single addresses. An empty list selects the kinds that fit the
    /// destination.
    pub from: Vec<TraceSender>,
}

/// Destination of the traced packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TraceDestination {
    /// All addresses of a Service, at one of its ports or, with `None`, at all its ports.
    Service(ServiceName, Option<PortOf>),
    /// An address and port, with one protocol or, with `None`, with each protocol that Services use
    /// there.
    Address(SocketAddr, Option<Protocol>),
}

/// One port of a Service, by number or name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PortOf {
    /// Number in the field `port` or `nodePort` of the Service port.
    Number(u16),
    /// Name of the Service port.
    Name(String),
}

/// A kind of sender, or a single sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraceSender {
    /// A pod on this node.
    Pod,
    /// This node itself.
    Node,
    /// A host outside the cluster.
    External,
    /// The host or pod with this address.
    Address(IpAddr),
}

/// Error of a request to trace packets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The destination cannot be parsed.
    #[error(
        "`{0}` is neither a Service nor an address: give NAMESPACE/NAME, NAMESPACE/NAME:PORT, 10.96.0.1:80, 10.96.0.1:53/UDP \
         or [fd00::1]:80"
    )]
    To(String),
    /// The default namespace is not a valid name.
    #[error("`{0}` is not the name of a namespace: give one name with -n")]
    Namespace(String),
    /// The port of the destination is not a number from 1 to 65535.
    #[error("`{0}` has no valid port: give a number from 1 to 65535")]
    InvalidPort(String),
    /// The destination is an address without a port.
    #[error("`{0}` has no port: give {1}:PORT")]
    Port(String, String),
    /// The protocol is not TCP, UDP or SCTP.
    #[error("`{0}` has no valid protocol: give TCP, UDP or SCTP")]
    Protocol(String),
    /// The sender is neither a known kind nor an IP address.
    #[error(
        "`{0}` is no sender: give pod, node, external or an IP address; several with commas between"
    )]
    From(String),
    /// The IP families of sender and destination differ.
    #[error("{0} cannot send to {1}: one is IPv4, the other IPv6")]
    Family(IpAddr, SocketAddr),
    /// The query string of an HTTP request has an unknown parameter.
    #[error("there is no parameter {0}; there are: to, from")]
    Parameter(String),
}

impl TraceRequest {
    /// Parses a request. `namespace` is the namespace of a Service that is named without one.
    /// `from` is a list of senders, separated by commas, and may be empty.
    ///
    /// # Errors
    ///
    /// Fails if the destination, the namespace or a sender is invalid, or if their IP families
    /// differ.
    pub fn parse(to: &str, from: &str, namespace: &str) -> Result<Self, RequestError> {
        let text = to.trim();
        let to = to_of(text, namespace)?;
        let words = from.split(',').map(str::trim);
        let mut senders = Vec::new();
        for word in words.filter(|word| !word.is_empty()) {
            let sender = from_of(word)?;
            if !senders.contains(&sender) {
                senders.push(sender);
            }
        }
        if senders.is_empty() && !from.is_empty() {
            return Err(RequestError::From(from.to_owned()));
        }
        let from = senders;
        if let TraceDestination::Address(at, _) = to {
            for sender in &from {
                if let TraceSender::Address(address) = *sender
                    && address.is_ipv4() != at.is_ipv4()
                {
                    return Err(RequestError::Family(address, at));
                }
            }
        }
        let text = match &to {
            TraceDestination::Service(name, _) if !text.contains('/') => {
                text.replacen(&name.name, &format!("{}/{}", name.namespace, name.name), 1)
            }
            _ => text.to_owned(),
        };
        Ok(Self { text, to, from })
    }

    /// Returns the query string of the HTTP request to the daemon. `from` is the list of senders as
    /// the user typed it.
    pub fn query(&self, from: &str) -> String {
        form_urlencoded::Serializer::new(String::new())
            .append_pair("to", &self.text)
            .append_pair("from", from)
            .finish()
    }

    /// Parses the query string of an HTTP request to the daemon.
    ///
    /// # Errors
    ///
    /// Fails for an unknown parameter, or for an invalid destination or sender.
    pub fn read_query(query: &str) -> Result<Self, RequestError> {
        let (mut to, mut from) = (String::new(), String::new());
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            match &*name {
                "to" => to = value.into_owned(),
                "from" if from.is_empty() => from = value.into_owned(),
                "from" => from = format!("{from},{value}"),
                _ => return Err(RequestError::Parameter(name.into_owned())),
            }
        }
        Self::parse(&to, &from, NAMESPACE)
    }
}

fn to_of(text: &str, namespace: &str) -> Result<TraceDestination, RequestError> {
    if let Some(address) = address_of(text)? {
        return Ok(address);
    }
    let unclear = || RequestError::To(shortened(text));
    let (name, port) = match text.split_once(':') {
        Some((name, port)) => (name, Some(port)),
        None => (text, None),
    };
    let (namespace, name) = match name.split_once('/') {
        Some(parts) => parts,
        None if !is_label(namespace) => {
            return Err(RequestError::Namespace(shortened(namespace)));
        }
        None => (namespace, name),
    };
    let is_number = |text: &str| {
        text.bytes()
            .all(|byte| byte.is_ascii_digit() || byte == b'.')
    };
    if !is_label(namespace) || !is_label(name) || (is_number(name) && name.contains('.')) {
        return Err(unclear());
    }
    let port = match port {
        None => None,
        Some(port) => Some(match port.parse::<u16>() {
            Ok(number) if number > 0 => PortOf::Number(number),
            Err(_) if is_label(port) && !is_number(port) => PortOf::Name(port.to_owned()),
            _ if is_number(port) => return Err(RequestError::InvalidPort(shortened(text))),
            _ => return Err(unclear()),
        }),
    };
    let name = ServiceName {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    };
    Ok(TraceDestination::Service(name, port))
}

/// Parses an address and port with an optional protocol. Returns `None` if the text does not begin
/// with an address.
fn address_of(text: &str) -> Result<Option<TraceDestination>, RequestError> {
    let (at, protocol) = match text.rsplit_once('/') {
        Some((at, protocol)) => (at, Some(protocol)),
        None => (text, None),
    };
    let no_protocol = || RequestError::Protocol(shortened(text));
    let bare = at.trim_start_matches('[').trim_end_matches(']');
    if let Ok(address) = bare.parse::<IpAddr>() {
        let address = match address {
            IpAddr::V4(address) => address.to_string(),
            IpAddr::V6(address) => format!("[{address}]"),
        };
        return Err(RequestError::Port(text.to_owned(), address));
    }
    let Ok(at) = at.parse::<SocketAddr>() else {
        let host = at.rsplit_once(':').map_or("", |(host, _)| host);
        let is_v6 = host.starts_with('[') && host.ends_with(']');
        let host = host.trim_start_matches('[').trim_end_matches(']').parse();
        return match host {
            Ok(IpAddr::V4(_)) => Err(RequestError::InvalidPort(shortened(text))),
            Ok(IpAddr::V6(_)) if is_v6 => Err(RequestError::InvalidPort(shortened(text))),
            _ => Ok(None),
        };
    };
    if at.port() == 0 {
        return Err(RequestError::InvalidPort(text.to_owned()));
    }
    let protocol = protocol.map(|word| protocol_of(word).ok_or_else(no_protocol));
    let protocol = protocol.transpose()?;
    Ok(Some(TraceDestination::Address(at, protocol)))
}

/// Parses a protocol: TCP, UDP or SCTP, in upper or lower case. Returns `None` for any other word.
pub(crate) fn protocol_of(word: &str) -> Option<Protocol> {
    let all = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
    all.into_iter()
        .find(|protocol| protocol.lower().eq_ignore_ascii_case(word))
}

/// Returns at most the first 100 characters of a text, for an error message.
fn shortened(text: &str) -> String {
    const MOST: usize = 100;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

fn from_of(word: &str) -> Result<TraceSender, RequestError> {
    Ok(match word {
        "pod" => TraceSender::Pod,
        "node" => TraceSender::Node,
        "external" => TraceSender::External,
        other => {
            let address = other.trim_start_matches('[').trim_end_matches(']').parse();
            TraceSender::Address(address.map_err(|_| RequestError::From(other.to_owned()))?)
        }
    })
}

/// Reports whether a text may be the name of a Kubernetes object. The API server's check is
/// stricter.
fn is_label(text: &str) -> bool {
    let is_usual = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
    (1..=253).contains(&text.len()) && text.bytes().all(is_usual)
}

impl fmt::Display for TraceSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod => f.write_str("pod"),
            Self::Node => f.write_str("node"),
            Self::External => f.write_str("external"),
            Self::Address(address) => address.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_trace_request_parses_from_its_query_string() {
        let read = TraceRequest::read_query;
        let same = TraceRequest::parse("shop/web:http", "pod,10.0.0.1,node", "").unwrap();
        assert_eq!(read(&same.query("pod,10.0.0.1,node")), Ok(same.clone()));
        let several = "to=shop%2Fweb%3Ahttp&from=pod&from=10.0.0.1%2Cnode";
        assert_eq!(read(several), Ok(same));
        let why = |query| read(query).unwrap_err().to_string();
        assert!(why("").contains("neither a Service"));
        assert!(why("too=a/b").contains("there is no parameter too"));
    }

    fn to(text: &str) -> Result<TraceDestination, RequestError> {
        TraceRequest::parse(text, "", "default").map(|asked| asked.to)
    }

    fn service(namespace: &str, name: &str, port: Option<PortOf>) -> TraceDestination {
        let name = ServiceName {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        TraceDestination::Service(name, port)
    }

    #[test]
    fn service_arguments_are_parsed_like_those_of_kubectl() {
        let name = |port: &str| Some(PortOf::Name(port.to_owned()));
        for (text, meant) in [
            ("shop/web", service("shop", "web", None)),
            (
                "shop/web:80",
                service("shop", "web", Some(PortOf::Number(80))),
            ),
            ("shop/web:http", service("shop", "web", name("http"))),
            ("web", service("default", "web", None)),
            ("web:http", service("default", "web", name("http"))),
            ("web.a", service("default", "web.a", None)),
        ] {
            assert_eq!(to(text), Ok(meant), "{text}");
        }
        let asked = TraceRequest::parse("web:http", "", "shop").unwrap();
        assert_eq!(asked.text, "shop/web:http");
    }

    #[test]
    fn an_address_argument_has_a_port_and_an_optional_protocol() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        for (text, address, protocol) in [
            ("10.96.0.1:80", "10.96.0.1:80", None),
            ("10.96.0.1:53/UDP", "10.96.0.1:53", Some(Protocol::Udp)),
            ("10.96.0.1:53/sctp", "10.96.0.1:53", Some(Protocol::Sctp)),
            ("[fd00::1]:80", "[fd00::1]:80", None),
            ("[fd00::1]:80/tcp", "[fd00::1]:80", Some(Protocol::Tcp)),
        ] {
            assert_eq!(
                to(text),
                Ok(TraceDestination::Address(at(address), protocol)),
                "{text}"
            );
        }
    }

    #[test]
    fn an_ambiguous_argument_causes_an_error_with_advice() {
        let told = |text| to(text).unwrap_err().to_string();
        assert_eq!(
            told("10.96.0.1"),
            "`10.96.0.1` has no port: give 10.96.0.1:PORT"
        );
        assert_eq!(
            told("fd00::1"),
            "`fd00::1` has no port: give [fd00::1]:PORT"
        );
        assert_eq!(
            told("10.96.0.1:53/icmp"),
            "`10.96.0.1:53/icmp` has no valid protocol: give TCP, UDP or SCTP"
        );
        assert!(told("10.96.0.1:53/").contains("`10.96.0.1:53/` has no valid protocol"));
        for text in [
            "web:",
            "web:0",
            "web:99999",
            "10.96.0.1:0",
            "10.96.0.1:65536",
            "10.96.0.1:http",
            "[fd00::1]:http",
        ] {
            let told = told(text);
            assert!(
                told.starts_with(&format!("`{text}` has no valid port")),
                "{told}"
            );
        }
        let long = "a".repeat(300);
        assert!(told(&long).len() < 300);
        let namespace = TraceRequest::parse("web", "", "a/b").unwrap_err();
        assert!(namespace.to_string().starts_with("`a/b`"), "{namespace}");
        for text in [
            "",
            "a/b/c",
            "/web",
            "shop/",
            "a b",
            "300.1.1.1:80",
            "10.96.0:80",
        ] {
            assert!(told(text).contains("neither a Service"), "{text}");
        }
    }

    #[test]
    fn a_comma_separated_list_of_senders_is_parsed() {
        let from = |text| TraceRequest::parse("10.96.0.1:80", text, "default");
        assert_eq!(from("").unwrap().from, []);
        assert_eq!(
            from("pod,node, external,10.244.1.5").unwrap().from,
            [
                TraceSender::Pod,
                TraceSender::Node,
                TraceSender::External,
                TraceSender::Address("10.244.1.5".parse().unwrap())
            ]
        );
        let external = from("external,node,external").unwrap().from;
        assert_eq!(external, [TraceSender::External, TraceSender::Node]);
        assert!(from(" ,").unwrap_err().to_string().contains("` ,`"));
        assert!(from("pods").unwrap_err().to_string().contains("`pods`"));
        let other = from("fd00::1").unwrap_err().to_string();
        assert!(other.contains("one is IPv4"), "{other}");
    }

    proptest! {
        #[test]
        fn arbitrary_arguments_never_panic_explain(text in ".{0,40}", from in ".{0,20}") {
            let _ = TraceRequest::parse(&text, &from, "default");
        }
    }
}
