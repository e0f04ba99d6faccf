//! Services with their EndpointSlices. A test describes them in short form, and this module renders
//! them as YAML.

use std::fmt::{self, Write as _};
use std::net::IpAddr;

/// A port of a Service.
#[derive(Debug, Clone)]
pub struct Port {
    protocol: &'static str,
    number: u16,
    target: u16,
    name: &'static str,
    node: Option<u16>,
}

/// Describes a TCP port `port` whose endpoints use the port `target`.
pub fn tcp(port: u16, target: u16) -> Port {
    Port {
        protocol: "TCP",
        number: port,
        target,
        name: "",
        node: None,
    }
}

/// Describes a UDP port `port` whose endpoints use the port `target`.
pub fn udp(port: u16, target: u16) -> Port {
    Port {
        protocol: "UDP",
        ..tcp(port, target)
    }
}

/// Describes an SCTP port `port` whose endpoints use the port `target`.
pub fn sctp(port: u16, target: u16) -> Port {
    Port {
        protocol: "SCTP",
        ..tcp(port, target)
    }
}

impl Port {
    /// Sets the port's name, which each port of a multi-port Service needs.
    #[must_use]
    pub fn named(self, name: &'static str) -> Self {
        Self { name, ..self }
    }

    /// Sets the node port of this Service port.
    #[must_use]
    pub fn node_port(self, node_port: u16) -> Self {
        Self {
            node: Some(node_port),
            ..self
        }
    }
}

/// A Service `default/NAME` with its EndpointSlices, which `Display` renders as YAML.
#[derive(Debug, Clone)]
pub struct Service {
    name: String,
    cluster_ips: Vec<IpAddr>,
    ports: Vec<Port>,
    external_ips: Vec<String>,
    ingress: Vec<String>,
    endpoints: Vec<IpAddr>,
    spec: String,
    metadata: String,
}

impl Service {
    /// Creates a Service of type ClusterIP. `cluster_ips` is one cluster IP, or one per family,
    /// separated by blanks.
    pub fn new(name: &str, cluster_ips: &str) -> Self {
        Self {
            name: name.to_owned(),
            cluster_ips: ips(cluster_ips),
            ports: Vec::new(),
            external_ips: Vec::new(),
            ingress: Vec::new(),
            endpoints: Vec::new(),
            spec: String::new(),
            metadata: String::new(),
        }
    }

    /// Adds a port. A node port changes the Service's type to NodePort.
    #[must_use]
    pub fn port(mut self, port: Port) -> Self {
        self.ports.push(port);
        self
    }

    /// Sets the endpoints, separated by blanks. Endpoints in 10.244.1.0/24 and fd44:1::/64 are on
    /// node1, all other endpoints are on node2.
    #[must_use]
    pub fn endpoints(self, endpoints: &str) -> Self {
        Self {
            endpoints: ips(endpoints),
            ..self
        }
    }

    /// Sets the external IPs, separated by blanks.
    #[must_use]
    pub fn external(self, external_ips: &str) -> Self {
        Self {
            external_ips: words(external_ips),
            ..self
        }
    }

    /// Sets the load-balancer addresses, separated by blanks, and the type LoadBalancer.
    #[must_use]
    pub fn ingress(self, ingress: &str) -> Self {
        Self {
            ingress: words(ingress),
            ..self
        }
    }

    /// Sets `sessionAffinity: ClientIP` with this timeout in seconds.
    #[must_use]
    pub fn affinity(self, seconds: u32) -> Self {
        let config = format!("{{clientIP: {{timeoutSeconds: {seconds}}}}}");
        self.spec(&format!(
            "sessionAffinity: ClientIP, sessionAffinityConfig: {config}"
        ))
    }

    /// Sets further fields of `spec`, in YAML's flow style. Replaces the fields of an earlier call.
    #[must_use]
    pub fn spec(self, spec: &str) -> Self {
        Self {
            spec: format!(", {spec}"),
            ..self
        }
    }

    /// Sets further fields of `metadata`, in YAML's flow style. Replaces the fields of an earlier
    /// call.
    #[must_use]
    pub fn metadata(self, metadata: &str) -> Self {
        Self {
            metadata: format!(", {metadata}"),
            ..self
        }
    }

    /// Returns the name of the Service, which is also the name of its manifest file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the virtual servers (`TCP 10.96.0.10:80`) that this Service needs on a node with
    /// these addresses, each with its destinations (`10.244.1.10:8080`).
    pub(crate) fn wanted(&self, node: &[IpAddr]) -> Vec<(String, Vec<String>)> {
        let vips: Vec<IpAddr> = self.vips().collect();
        let mut wanted = Vec::new();
        for port in &self.ports {
            let at_node_port = port
                .node
                .into_iter()
                .flat_map(|number| node.iter().map(move |ip| (*ip, number)));
            let at = vips.iter().map(|ip| (*ip, port.number)).chain(at_node_port);
            wanted.extend(
                at.filter(|(ip, _)| self.has_family(*ip))
                    .map(|(ip, number)| {
                        let endpoints = self
                            .endpoints
                            .iter()
                            .filter(|endpoint| endpoint.is_ipv4() == ip.is_ipv4());
                        let reals = endpoints
                            .map(|endpoint| socket(*endpoint, port.target))
                            .collect();
                        (format!("{} {}", port.protocol, socket(ip, number)), reals)
                    }),
            );
        }
        wanted
    }

    /// Returns the cluster IPs, external IPs and load-balancer addresses in the Service's families.
    pub(crate) fn vips(&self) -> impl Iterator<Item = IpAddr> {
        let further = self
            .external_ips
            .iter()
            .chain(&self.ingress)
            .filter_map(|ip| ip.parse().ok());
        self.cluster_ips
            .iter()
            .copied()
            .chain(further)
            .filter(|ip| self.has_family(*ip))
    }

    fn has_family(&self, ip: IpAddr) -> bool {
        self.cluster_ips
            .iter()
            .any(|own| own.is_ipv4() == ip.is_ipv4())
    }

    fn kind(&self) -> &'static str {
        if !self.ingress.is_empty() {
            "LoadBalancer"
        } else if self.ports.iter().any(|port| port.node.is_some()) {
            "NodePort"
        } else {
            "ClusterIP"
        }
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            spec,
            metadata,
            ..
        } = self;
        let families: Vec<&str> = self.cluster_ips.iter().map(|ip| family(*ip)).collect();
        let policy = if families.len() > 1 {
            "RequireDualStack"
        } else {
            "SingleStack"
        };
        let ports = self.ports.iter().map(|port| {
            let mut text = format!(
                "{{name: {:?}, protocol: {}, port: {}, targetPort: {}",
                port.name, port.protocol, port.number, port.target
            );
            if let Some(number) = port.node {
                let _ = write!(text, ", nodePort: {number}");
            }
            text + "}"
        });
        let cluster_ips = quoted(&self.cluster_ips);
        writeln!(
            f,
            "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: default{metadata}}}"
        )?;
        writeln!(
            f,
            "spec: {{type: {}, clusterIP: {}, clusterIPs: [{}], ipFamilies: [{}], ipFamilyPolicy: {policy}, \
             externalIPs: [{}], ports: [{}]{spec}}}",
            self.kind(),
            cluster_ips.first().map_or("\"\"", String::as_str),
            cluster_ips.join(", "),
            families.join(", "),
            quoted(&self.external_ips).join(", "),
            ports.collect::<Vec<_>>().join(", "),
        )?;
        let ingress: Vec<String> = self
            .ingress
            .iter()
            .map(|ip| format!("{{ip: {ip:?}}}"))
            .collect();
        writeln!(
            f,
            "status: {{loadBalancer: {{ingress: [{}]}}}}",
            ingress.join(", ")
        )?;
        for family in families {
            self.slice(f, family)?;
        }
        Ok(())
    }
}

impl Service {
    fn slice(&self, f: &mut fmt::Formatter<'_>, family: &str) -> fmt::Result {
        let name = &self.name;
        writeln!(
            f,
            "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\naddressType: {family}"
        )?;
        writeln!(
            f,
            "metadata: {{name: {name}-{}, namespace: default, labels: {{kubernetes.io/service-name: {name}}}}}",
            family.to_lowercase()
        )?;
        writeln!(f, "ports:")?;
        for port in &self.ports {
            writeln!(
                f,
                "- {{name: {:?}, protocol: {}, port: {}}}",
                port.name, port.protocol, port.target
            )?;
        }
        let endpoints: Vec<_> = self
            .endpoints
            .iter()
            .filter(|ip| crate::object::family(**ip) == family)
            .collect();
        writeln!(
            f,
            "endpoints:{}",
            if endpoints.is_empty() { " []" } else { "" }
        )?;
        for ip in endpoints {
            let text = ip.to_string();
            let is_near = text.starts_with("10.244.1.") || text.starts_with("fd44:1:");
            let node = if is_near { "node1" } else { "node2" };
            writeln!(
                f,
                "- {{addresses: [{text:?}], nodeName: {node}, conditions: {{ready: true}}}}"
            )?;
        }
        Ok(())
    }
}

fn family(ip: IpAddr) -> &'static str {
    if ip.is_ipv4() { "IPv4" } else { "IPv6" }
}

fn socket(ip: IpAddr, port: u16) -> String {
    std::net::SocketAddr::new(ip, port).to_string()
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

#[allow(clippy::panic, reason = "a story with a slip in it")]
fn ips(text: &str) -> Vec<IpAddr> {
    text.split_whitespace()
        .map(|ip| ip.parse().unwrap_or_else(|_| panic!("{ip} is no address")))
        .collect()
}

fn quoted<T: ToString>(values: &[T]) -> Vec<String> {
    values
        .iter()
        .map(|value| format!("{:?}", value.to_string()))
        .collect()
}
