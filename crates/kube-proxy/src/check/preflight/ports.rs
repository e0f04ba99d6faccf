//! Finds ports that another process occupies: ports of the health and metrics servers, and node
//! ports of Services.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, TcpListener};

use http_server::ConflictPolicy;
use proxy::{Model, Protocol};
use service_counters::frontend_addresses::{FrontendAddress, places};

use super::listening::Listener;
use crate::check::finding::{Finding, some};

const NAME: &str = "ports";
/// Flags that set the addresses of the health and metrics servers.
const FLAGS: &str = "(--healthz-bind-address, --metrics-bind-address)";

/// The health or metrics server, with its listen address.
#[derive(Debug)]
pub(super) struct Server {
    /// Purpose of the server: `health` or `metrics`.
    pub(super) of: &'static str,
    pub(super) at: SocketAddr,
    /// Reason why this node cannot bind any port of the address. `None` if it can.
    pub(super) unbindable: Option<String>,
}

/// Binds a free port at an address for a moment. Returns the error, or `None` if that is possible.
pub(super) fn unbindable(address: IpAddr) -> Option<String> {
    // Skips 0.0.0.0 and ::, because they do not depend on the addresses of the node.
    let is_any = address.is_unspecified();
    let result = (!is_any).then(|| TcpListener::bind((address, 0)));
    result.and_then(|bound| bound.err().map(|error| error.to_string()))
}

/// NodePorts and health-check node ports of all Services, each with the name of its Service.
#[derive(Debug, Default)]
pub(super) struct NodePorts {
    /// Names of Services, by NodePort and protocol.
    pub(super) services: BTreeMap<(u16, Protocol), String>,
    /// Names of Services, by health-check node port.
    pub(super) health_checks: BTreeMap<u16, String>,
}

impl NodePorts {
    /// Collects the node ports of all Services in the model.
    pub(super) fn of(model: &Model) -> Self {
        let mut ports = Self::default();
        let views = model.service_names().filter_map(|name| model.view(name));
        for service in views.map(|view| view.service) {
            let name = service.name.to_string();
            for place in service.ports.iter().flat_map(|port| places(service, port)) {
                if let FrontendAddress::NodePort(number, protocol) = place {
                    ports.services.insert((number, protocol), name.clone());
                }
            }
            if let Some(port) = service.health_check_node_port {
                ports.health_checks.insert(port, name);
            }
        }
        ports
    }
}

/// Returns the sockets that occupy a port that the health server, the metrics server or a Service
/// needs.
pub(super) fn concerned<'a>(
    listeners: &'a [Listener],
    servers: &[Server],
    node_ports: &NodePorts,
) -> Vec<&'a Listener> {
    let is_concerned = |listener: &&Listener| {
        let (port, protocol) = (listener.at.port(), listener.protocol);
        let mut servers = servers.iter();
        servers.any(|server| is_in_the_way(listener, server.at))
            || node_ports.services.contains_key(&(port, protocol))
            || (protocol == Protocol::Tcp && node_ports.health_checks.contains_key(&port))
    };
    listeners.iter().filter(is_concerned).collect()
}

fn is_in_the_way(listener: &Listener, of: SocketAddr) -> bool {
    listener.protocol == Protocol::Tcp && overlaps(listener.at, of)
}

fn overlaps(one: SocketAddr, other: SocketAddr) -> bool {
    let is_any = one.ip().is_unspecified() || other.ip().is_unspecified();
    one.port() == other.port() && (is_any || one.ip() == other.ip())
}

/// Returns findings about occupied ports. `owners` has the process of each socket by inode, if
/// known. `when_taken` decides whether a server without its port is a failure or a warning.
pub(super) fn judge(
    concerned: &[&Listener],
    owners: &BTreeMap<u64, String>,
    servers: &[Server],
    node_ports: &NodePorts,
    when_taken: ConflictPolicy,
) -> Vec<Finding> {
    let owner = |listener: &Listener| owners.get(&listener.inode).map(String::as_str);
    let is_kube_proxy = |name: &str| name.starts_with("kube-proxy[");
    let cannot_listen = |message: String| match when_taken {
        ConflictPolicy::Fail => Finding::fail(NAME, message),
        ConflictPolicy::Retry => Finding::warn(NAME, message),
    };
    let mut findings = Vec::new();
    for (number, server) in servers.iter().enumerate() {
        let Server { of, at, unbindable } = server;
        if let Some(reason) = unbindable {
            findings.push(cannot_listen(format!(
                "{at} for {of} cannot be bound ({reason}): this node does not have the address; give another {FLAGS}"
            )));
            continue;
        }
        let mut before = servers.iter().take(number);
        if let Some(other) = before.find(|other| at.port() != 0 && overlaps(other.at, *at)) {
            findings.push(cannot_listen(format!(
                "{at} for {of} is also the address for {}: give another port {FLAGS}",
                other.of
            )));
            continue;
        }
        let taken = concerned
            .iter()
            .find(|listener| is_in_the_way(listener, *at));
        findings.push(match taken.map(|listener| owner(listener)) {
            None => Finding::ok(NAME, format!("{at} is free for {of}")),
            Some(Some(name)) if is_kube_proxy(name) => {
                let message = format!("{at} for {of} belongs to the running {name}");
                Finding::ok(NAME, message)
            }
            Some(Some(name)) => cannot_listen(format!(
                "{at} for {of} is taken by {name}: end it, or give another address {FLAGS}"
            )),
            Some(None) => Finding::warn(
                NAME,
                format!(
                    "{at} for {of} is in use by an unknown process: correct if that is the \
                     kube-proxy to be replaced, else see `ss -ltnp` on the node"
                ),
            ),
        });
    }
    let shadowed = node_ports
        .health_checks
        .iter()
        .filter_map(|(port, service)| {
            let other = node_ports.services.get(&(*port, Protocol::Tcp))?;
            Some(format!("{port} of {service} is a NodePort of {other}"))
        });
    let shadowed: Vec<String> = shadowed.collect();
    let (mut listened, mut checks) = (Vec::new(), Vec::new());
    for listener in concerned {
        let (port, protocol) = (listener.at.port(), listener.protocol);
        let who = owner(listener);
        // Skips health-check ports and userspace mode's listening ports that a running kube-proxy
        // itself occupies.
        if who.is_some_and(is_kube_proxy) {
            continue;
        }
        let who = who.unwrap_or("a process that cannot be seen from here");
        if let Some(service) = node_ports.services.get(&(port, protocol)) {
            listened.push(format!("{port}/{protocol} of {service} by {who}"));
        } else if let Some(service) = node_ports.health_checks.get(&port)
            && protocol == Protocol::Tcp
        {
            checks.push(format!("{port} of {service} by {who}"));
        }
    }
    for (mut all, what) in [
        (
            shadowed,
            "endpoints of other Services get the requests to health-check node ports",
        ),
        (
            listened,
            "other processes listen on NodePorts, but packets there reach the Service",
        ),
        (
            checks,
            "other processes listen on health-check node ports, so load balancers get their \
             replies",
        ),
    ] {
        all.sort_unstable();
        all.dedup();
        if !all.is_empty() {
            let message = format!("{what}: {}; choose another port", some(&all));
            findings.push(Finding::warn(NAME, message));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::finding::Status;

    fn listener(at: &str, inode: u64) -> Listener {
        Listener {
            at: at.parse().unwrap(),
            protocol: Protocol::Tcp,
            inode,
        }
    }

    fn server(of: &'static str, at: &str) -> Server {
        let at: SocketAddr = at.parse().unwrap();
        Server {
            of,
            at,
            unbindable: unbindable(at.ip()),
        }
    }

    #[test]
    fn addresses_that_the_daemon_cannot_bind_are_reported() {
        let judge = |servers: &[Server], when| {
            let found = judge(&[], &BTreeMap::new(), servers, &NodePorts::default(), when);
            let found = found.into_iter().map(|of| (of.status, of.message));
            found.collect::<Vec<_>>()
        };
        let same = [
            server("health", "127.0.0.1:10256"),
            server("metrics", "0.0.0.0:10256"),
        ];
        let found = judge(&same, ConflictPolicy::Retry);
        assert_eq!(found[0].0, Status::Ok);
        assert_eq!(found[1].0, Status::Warn);
        assert!(
            found[1].1.contains("also the address for health"),
            "{found:?}"
        );
        assert_eq!(judge(&same, ConflictPolicy::Fail)[1].0, Status::Fail);
        let free = [
            server("health", "127.0.0.1:0"),
            server("metrics", "127.0.0.1:0"),
        ];
        let found = judge(&free, ConflictPolicy::Fail);
        assert!(found.iter().all(|of| of.0 == Status::Ok), "{found:?}");
        // A documentation address (RFC 5737), which no node has.
        let absent = [server("metrics", "203.0.113.9:10249")];
        let found = judge(&absent, ConflictPolicy::Fail);
        assert_eq!(found[0].0, Status::Fail);
        assert!(
            found[0].1.contains("this node does not have the address"),
            "{found:?}"
        );
    }

    fn told(
        listeners: &[Listener],
        owners: &[(u64, &str)],
        when: ConflictPolicy,
    ) -> Vec<(Status, String)> {
        let servers = [server("health", "0.0.0.0:10256")];
        let node_ports = NodePorts {
            services: [((30080, Protocol::Tcp), "default/web".to_owned())].into(),
            health_checks: [(31000, "default/lb".to_owned())].into(),
        };
        let owners = owners
            .iter()
            .map(|(inode, name)| (*inode, (*name).to_owned()));
        let concerned = concerned(listeners, &servers, &node_ports);
        let findings = judge(&concerned, &owners.collect(), &servers, &node_ports, when);
        findings
            .into_iter()
            .map(|of| (of.status, of.message))
            .collect()
    }

    #[test]
    fn ports_in_use_are_reported_with_their_process() {
        let (retry, fail) = (ConflictPolicy::Retry, ConflictPolicy::Fail);
        let free = told(&[listener("0.0.0.0:22", 1)], &[], fail);
        assert_eq!(
            free,
            [(Status::Ok, "0.0.0.0:10256 is free for health".to_owned())]
        );
        let taken = [listener("127.0.0.1:10256", 1)];
        let status = |owners: &[(u64, &str)], when| told(&taken, owners, when)[0].0;
        assert_eq!(status(&[(1, "kube-proxy[7]")], fail), Status::Ok);
        assert_eq!(status(&[(1, "nginx[7]")], retry), Status::Warn);
        assert_eq!(status(&[(1, "nginx[7]")], fail), Status::Fail);
        assert_eq!(status(&[], fail), Status::Warn);
        let node_ports = [
            listener("[::]:30080", 2),
            listener("0.0.0.0:30080", 3),
            listener("0.0.0.0:31000", 4),
        ];
        let owners = [(2, "nginx[7]"), (3, "nginx[7]"), (4, "kube-proxy[8]")];
        let found = told(&node_ports, &owners, retry);
        assert_eq!(found.len(), 2);
        assert!(
            found[1]
                .1
                .contains(": 30080/TCP of default/web by nginx[7];"),
            "{found:?}"
        );
        assert_eq!(told(&node_ports[2..], &[], retry).len(), 2);
    }

    #[test]
    fn a_health_check_port_that_is_a_node_port_is_reported() {
        let node_ports = NodePorts {
            services: [30080, 30081]
                .map(|port| ((port, Protocol::Tcp), "default/web".to_owned()))
                .into(),
            health_checks: [(30081, "default/lb".to_owned())].into(),
        };
        let found = judge(
            &[],
            &BTreeMap::new(),
            &[],
            &node_ports,
            ConflictPolicy::Retry,
        );
        let text = "node ports: 30081 of default/lb is a NodePort of default/web; choose";
        assert!(
            found.len() == 1 && found[0].message.contains(text),
            "{found:?}"
        );
    }
}
