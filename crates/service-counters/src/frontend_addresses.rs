//! Finds the addresses and ports at which a Service port is served. All code that looks up the
//! Service of an address uses this module.

use std::net::IpAddr;

use proxy::{NodePorts, Protocol, Service, ServicePort};

use crate::At;

/// A Service address, or a node port, at which a Service port is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FrontendAddress {
    /// An address of the Service, with the Service port's number.
    At(At),
    /// A node port, at all node addresses that serve NodePorts. The Service does not list these
    /// addresses.
    NodePort(u16, Protocol),
}

/// Returns the cluster IPs, external IPs and load-balancer addresses of a Service.
pub fn addresses(service: &Service) -> impl Iterator<Item = IpAddr> + Clone {
    let cluster = service.cluster_ips.iter();
    let all = cluster.chain(&service.external_ips);
    all.chain(&service.ingress_ips).copied()
}

/// Returns the addresses and node ports at which a Service port is served.
pub fn places(service: &Service, port: &ServicePort) -> impl Iterator<Item = FrontendAddress> {
    let (number, protocol) = (port.port, port.protocol);
    let cluster = service.cluster_ips.iter().copied();
    let balanced = service.ingress_ips.iter().copied();
    let all = cluster.chain(service.external_ips_of(port)).chain(balanced);
    let at = all.map(move |address| {
        FrontendAddress::At(At {
            address,
            port: number,
            protocol,
        })
    });
    let node_port = port.node_port;
    at.chain(node_port.map(|number| FrontendAddress::NodePort(number, protocol)))
}

/// Reports whether NodePorts are served at an address. The unspecified address represents all
/// NodePort addresses. At another address of the node, another program may listen on the port.
pub fn is_of_node(node_ports: Option<&NodePorts>, address: IpAddr) -> bool {
    address.is_unspecified() || node_ports.is_some_and(|node| node.contains(address))
}

#[cfg(test)]
mod tests {
    use proxy::NamespacedName;

    use super::*;

    #[test]
    fn a_port_is_served_at_service_addresses_and_node_port() {
        let protocol = Protocol::Udp;
        let port = |number, node_port| ServicePort {
            name: "".into(),
            protocol,
            port: number,
            node_port,
        };
        let [cluster, external, ingress] = [1, 2, 3].map(|last| IpAddr::from([10, 96, 0, last]));
        let service = Service {
            external_ips: [external].into(),
            ingress_ips: [ingress].into(),
            ..Service::at(NamespacedName::new("a", "b"), [cluster])
        };
        let at = |address| {
            let port = 53;
            FrontendAddress::At(At {
                address,
                port,
                protocol,
            })
        };
        let of = |port: ServicePort| -> Vec<FrontendAddress> { places(&service, &port).collect() };
        let own = [cluster, external, ingress].map(at);
        assert_eq!(of(port(53, None)), own);
        let all = [
            own.as_slice(),
            &[FrontendAddress::NodePort(30_053, protocol)],
        ]
        .concat();
        assert_eq!(of(port(53, Some(30_053))), all);
    }
}
