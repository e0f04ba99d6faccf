//! Finds the Service of a kernel entry by the names and addresses in the entry's text. The modes'
//! tables do not record the Service of two kinds of entries: rules, and entries that no Service
//! needs now.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};

use proxy::{Model, Protocol};

use service_counters::At;
use service_counters::frontend_addresses::{FrontendAddress, addresses, places};

/// Services, indexed by the names and addresses that entries may contain.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// Service ports, by the address and port at which they are served.
    ports: HashMap<FrontendAddress, String>,
    /// Names of Services, by each of their service addresses.
    addresses: HashMap<IpAddr, String>,
    /// Names of all Services and of their ports.
    known: HashSet<String>,
}

impl Names {
    /// Indexes all Services of the model.
    pub(super) fn of(model: &Model) -> Self {
        let mut names = Self::default();
        let views = model.service_names().filter_map(|name| model.view(name));
        for service in views.map(|view| view.service) {
            let name = service.name.to_string();
            for port in &service.ports {
                let of_port = if port.name.is_empty() {
                    name.clone()
                } else {
                    format!("{name}:{}", port.name)
                };
                let at = places(service, port).map(|place| (place, of_port.clone()));
                names.ports.extend(at);
                names.known.insert(of_port);
            }
            let of_addresses = addresses(service).map(|address| (address, name.clone()));
            names.addresses.extend(of_addresses);
            names.known.insert(name);
        }
        names
    }

    /// Returns the Service port that is served at an address and port, if any.
    pub(super) fn served_at(&self, at: SocketAddr, protocol: Protocol) -> Option<&str> {
        let places = [
            place_at(at, protocol),
            FrontendAddress::NodePort(at.port(), protocol),
        ];
        let mut found = places.iter().filter_map(|place| self.ports.get(place));
        found.next().map(String::as_str)
    }

    /// Returns the Service that the text of a kernel entry names, or `None` if the text names no
    /// known Service.
    pub(super) fn find(&self, text: &str) -> Option<&str> {
        let words = || {
            text.split([' ', '"', '{', '}'])
                .filter(|word| !word.is_empty())
        };
        let named = words().find_map(|word| self.named(word));
        let at = || words().find_map(|word| self.at(word));
        named.or_else(at)
    }

    /// Looks up a word of an entry's text as a name. In a rule's comment, the word is the name
    /// itself. The name of an nftables chain has more parts:
    /// `service-ULMVA6XW-default/web/tcp/http`.
    fn named(&self, word: &str) -> Option<&str> {
        let known = |name: &str| self.known.get(name).map(String::as_str);
        if let Some(found) = known(word) {
            return Some(found);
        }
        let mut parts = word.split('/');
        let (first, service) = (parts.next()?, parts.next()?);
        let port = parts.nth(1).unwrap_or_default();
        // A namespace may contain dashes, so every dash may be the separator.
        let mut namespaces = first.match_indices('-').map(|(at, _)| first.get(at + 1..));
        namespaces.find_map(|namespace| {
            let name = format!("{}/{service}", namespace?);
            let of_port = known(&format!("{name}:{port}"));
            of_port.or_else(|| known(&name))
        })
    }

    /// Looks up the Service of an address such as `10.96.0.1:443/TCP`, `10.96.0.1,tcp:443` or
    /// `10.96.0.1/32`.
    fn at(&self, word: &str) -> Option<&str> {
        let word = word.trim_end_matches(':');
        let (place, protocol) = if let Some((address, rest)) = word.split_once(',') {
            let (protocol, port) = rest.split(',').next()?.split_once(':')?;
            let at = SocketAddr::new(address.parse().ok()?, port.parse().ok()?);
            (Some(at), protocol)
        } else {
            let (at, protocol) = word.split_once('/').unwrap_or((word, ""));
            (at.parse().ok(), protocol)
        };
        let Some(at) = place else {
            let address = word.split('/').next()?.parse().ok()?;
            return self.addresses.get(&address).map(String::as_str);
        };
        let protocol = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp]
            .into_iter()
            .find(|known| known.to_string().eq_ignore_ascii_case(protocol))?;
        let of_port = self.ports.get(&place_at(at, protocol));
        let of_address = || self.addresses.get(&at.ip());
        let of_node_port = || {
            self.ports
                .get(&FrontendAddress::NodePort(at.port(), protocol))
        };
        let found = of_port.or_else(of_address).or_else(of_node_port);
        found.map(String::as_str)
    }
}

fn place_at(at: SocketAddr, protocol: Protocol) -> FrontendAddress {
    let (address, port) = (at.ip(), at.port());
    FrontendAddress::At(At {
        address,
        port,
        protocol,
    })
}

#[cfg(test)]
mod tests {
    use proxy::{Event, NamespacedName, Service, ServicePort};

    use super::*;

    fn names() -> Names {
        let mut model = Model::new();
        let port = |name: &str, port, node_port| ServicePort {
            name: name.into(),
            protocol: Protocol::Tcp,
            port,
            node_port,
        };
        let at =
            |name, ip: &str| Service::at(NamespacedName::new("a-b", name), [ip.parse().unwrap()]);
        model.apply(Event::ServiceApplied(Service {
            ports: vec![port("http", 80, Some(30080)), port("https", 443, None)].into(),
            ..at("web", "10.96.0.10")
        }));
        model.apply(Event::ServiceApplied(Service {
            ports: [port("", 80, None)].into(),
            ..at("one", "fd00:96::1")
        }));
        Names::of(&model)
    }

    #[test]
    fn a_kernel_entry_is_attributed_to_its_service() {
        let names = names();
        for (text, wanted) in [
            ("10.96.0.10:80/TCP", Some("a-b/web:http")),
            ("10.96.0.10:81/TCP rr", Some("a-b/web")),
            ("10.96.0.10:80/TCP -> 10.244.1.5:8080", Some("a-b/web:http")),
            ("[fd00:96::1]:80/TCP", Some("a-b/one")),
            ("192.0.2.1:30080/TCP", Some("a-b/web:http")),
            ("192.0.2.1:30080/UDP", None),
            ("KUBE-CLUSTER-IP 10.96.0.10,tcp:443", Some("a-b/web:https")),
            ("KUBE-6-CLUSTER-IP fd00:96::1,tcp:80", Some("a-b/one")),
            ("10.96.0.10 on kube-ipvs0", Some("a-b/web")),
            (
                "table nat: -A KUBE-SERVICES -d 10.96.0.10/32 -p tcp -m comment --comment \"a-b/web:http cluster IP\"",
                Some("a-b/web:http"),
            ),
            (
                "chain service-ULMVA6XW-a-b/web/tcp/https",
                Some("a-b/web:https"),
            ),
            (
                "chain endpoint-5OJB2KTY-a-b/one/tcp/__10.1.0.1/80",
                Some("a-b/one"),
            ),
            ("table nat: -N KUBE-SERVICES", None),
            ("10.96.0.99:80/TCP", None),
            ("", None),
        ] {
            assert_eq!(names.find(text), wanted, "{text}");
        }
    }
}
