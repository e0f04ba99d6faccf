//! Finds the Kubernetes origin of each step of a path: a field of a Service, an endpoint, or a
//! flag. Marks entries of other programs.

use footprint::Footprints;
use footprint::origin::{Space, origin_of};

use proxy::options;

use super::objects::ServicePortAddress;

/// Prefix of the origin text for an entry of another program.
pub(crate) const NOT_OURS: &str = "not kube-proxy's";

/// Names of the iptables tables.
const TABLES: [&str; 5] = ["raw", "mangle", "nat", "filter", "security"];
/// Names of the built-in iptables chains.
const BUILT_IN: [&str; 5] = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];

/// A step on a packet's path, with the kernel entry that the packet matched.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PathStep<'a> {
    /// Location of the step, such as `nat KUBE-SERVICES`, `table ip kube-proxy, chain services`,
    /// `IPVS` or `routing`.
    pub(crate) place: &'a str,
    /// Rule, virtual server or route that the packet matched.
    pub(crate) entry: &'a str,
    /// Members of sets that the packet matched, such as `KUBE-CLUSTER-IP 10.96.0.1,tcp:80`.
    pub(crate) members: &'a [String],
}

/// Returns the origin of a step as a text. The text is empty if the entry, such as a route, belongs
/// to the kernel itself.
///
/// `of` is the Service port at the packet's destination. `modes` are the modes that may have
/// written the entry.
pub(crate) fn origin(
    met: &PathStep<'_>,
    of: Option<&ServicePortAddress<'_>>,
    modes: Footprints,
) -> String {
    let (place, members) = (met.place, met.members);
    if place == "IPVS" {
        return of.map_or_else(
            || "a virtual server; --ipvs-scheduler".to_owned(),
            |of| {
                let chosen = scheduler_origin(met.entry, of);
                let what = format!("{}; {chosen}", of.field());
                service_words(Some(&of.port_name()), &what)
            },
        );
    }
    let Some(at) = Chain::parse(place) else {
        let links = footprint::links(modes).into_iter();
        let mut met_links = links.filter(|link| met.entry.contains(link));
        let link = met_links.find_map(|link| origin_of(modes, Space::Link, link));
        return link.map_or_else(String::new, |says| in_words(says, of, None));
    };
    let named = at.service().or_else(|| commented(met.entry));
    // If the packet matched several sets, the last one has the most specific origin.
    let mut sets = members.iter().rev().filter_map(|member| {
        let set = member.split([' ', ',']).next()?;
        origin_of(modes, at.sets(), set)
    });
    let target = || target_of(met.entry).and_then(|target| origin_of(modes, at.space(), target));
    let own = origin_of(modes, at.space(), at.name);
    // A rule in another program's chain belongs to that program, even if it matches kube-proxy's
    // set or jumps to kube-proxy's chain.
    let is_ours = own.is_some() || at.is_built_in();
    let says = match own {
        Some(own) => Some(sets.next().unwrap_or(own)),
        None if at.is_built_in() => target().or_else(|| sets.next()),
        None => None,
    };
    match says {
        Some(says) if is_ours => in_words(says, of, named.as_deref()),
        _ => format!("{NOT_OURS}: {}", at.words()),
    }
}

/// Returns the origin of a virtual server's scheduler: the Service's annotation or the flag.
/// `entry` is the virtual server, such as `TCP 10.96.0.10:80 sh`.
fn scheduler_origin(entry: &str, of: &ServicePortAddress<'_>) -> String {
    let mut options = of.service.options.iter();
    let own = options.find(|option| option.annotation == options::SCHEDULER);
    match own.filter(|own| entry.split(' ').any(|word| word == own.value)) {
        Some(_) => format!("annotation {}", options::SCHEDULER),
        None => "--ipvs-scheduler".to_owned(),
    }
}

/// Adds the Service's name to an origin if the name is known: `Services: spec.clusterIPs` becomes
/// `Service default/web, port http: spec.clusterIPs`.
fn in_words(says: &str, of: Option<&ServicePortAddress<'_>>, named: Option<&str>) -> String {
    let of = of.map(ServicePortAddress::port_name);
    let named = named.or(of.as_deref());
    match says.split_once(": ") {
        Some(("Services", what)) => service_words(named, what),
        Some(("EndpointSlices", what)) => named.map_or_else(
            || says.to_owned(),
            |named| format!("EndpointSlices of {}: {what}", named_service(named).0),
        ),
        _ => says.to_owned(),
    }
}

fn service_words(named: Option<&str>, what: &str) -> String {
    let Some(named) = named else {
        return format!("Services: {what}");
    };
    match named_service(named) {
        (service, Some(port)) => format!("Service {service}, port {port}: {what}"),
        (service, None) => format!("Service {service}: {what}"),
    }
}

/// Splits `default/web:http` into the names of the Service and, if there is one, of the port.
fn named_service(named: &str) -> (&str, Option<&str>) {
    match named.split_once(':') {
        Some((service, port)) if !port.is_empty() => (service, Some(port)),
        Some((service, _)) => (service, None),
        None => (named, None),
    }
}

/// A chain of iptables or nftables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Chain<'a> {
    table: &'a str,
    name: &'a str,
    /// True for a chain of nf\_tables, false for a chain of iptables.
    is_nft: bool,
}

impl<'a> Chain<'a> {
    fn parse(place: &'a str) -> Option<Self> {
        if let Some(rest) = place.strip_prefix("table ") {
            let (table, chain) = rest.split_once(", chain ")?;
            let table = table.split_once(' ').map_or(table, |(_, name)| name);
            return Some(Self {
                table,
                name: chain,
                is_nft: true,
            });
        }
        let (table, chain) = place.split_once(' ')?;
        TABLES.contains(&table).then_some(Self {
            table,
            name: chain,
            is_nft: false,
        })
    }

    fn space(&self) -> Space<'a> {
        if self.is_nft {
            Space::Nftables(self.table)
        } else {
            Space::Iptables(self.table)
        }
    }

    /// Returns the kind of sets that this chain's rules match: ipsets, or sets of the same nftables
    /// table.
    fn sets(&self) -> Space<'a> {
        if self.is_nft {
            self.space()
        } else {
            Space::Ipset
        }
    }

    fn is_built_in(&self) -> bool {
        !self.is_nft && BUILT_IN.contains(&self.name)
    }

    /// Returns the Service port in a chain's name, such as `default/web:http`. Returns `None`
    /// outside of nftables mode, whose chains have such names.
    fn service(&self) -> Option<String> {
        if !self.is_nft {
            return None;
        }
        // Chains are named like service-PFISGYVC-default/web/tcp/http, or
        // endpoint-…-default/web/tcp/http__10.244.1.5/8080.
        let mut parts = self.name.splitn(3, '-').skip(2);
        let mut parts = parts.next()?.split('/');
        let (namespace, name) = (parts.next()?, parts.next()?);
        let (_protocol, port) = (parts.next()?, parts.next()?);
        let port = port.split_once("__").map_or(port, |(port, _)| port);
        Some(format!("{namespace}/{name}:{port}"))
    }

    fn words(&self) -> String {
        let Self { table, name, .. } = self;
        if self.is_nft {
            format!("table {table} of nftables")
        } else if self.is_built_in() {
            format!("a rule in chain {name} of table {table}")
        } else {
            format!("chain {name}")
        }
    }
}

/// Returns the Service port in a rule's comment: `default/web:http` for the comment
/// `default/web:http cluster IP`. Returns `None` for another comment.
fn commented(entry: &str) -> Option<String> {
    let (_, comment) = entry
        .split_once("--comment ")
        .or_else(|| entry.split_once("comment "))?;
    let comment = comment.trim_start_matches('"');
    let name = comment.split([' ', '"']).next()?;
    let (namespace, rest) = name.split_once('/')?;
    let is_name = |text: &str| {
        let mut bytes = text.bytes();
        !text.is_empty() && bytes.all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte))
    };
    let (service, port) = rest.split_once(':').unwrap_or((rest, ""));
    let is_port = port.is_empty() || is_name(port);
    (is_name(namespace) && is_name(service) && is_port).then(|| name.to_owned())
}

/// Returns the chain or target to which a rule sends the packets that it matches, if any.
fn target_of(entry: &str) -> Option<&str> {
    let mut words = entry.split_whitespace();
    words.find(|word| matches!(*word, "-j" | "-g" | "jump" | "goto"))?;
    words.next()
}

#[cfg(test)]
mod tests {
    use footprint::Footprint;
    use footprint::origin::{ADDRESSES, ENDPOINTS, Origin};
    use proptest::prelude::*;
    use view::{Address, AddressKind, Port, Service, ServiceName, ServiceOption};

    use super::*;
    use crate::MODES;
    use crate::objects::Objects;

    fn objects() -> Objects {
        let service = Service {
            name: ServiceName {
                namespace: "default".to_owned(),
                name: "web".to_owned(),
            },
            ports: vec![Port {
                name: "http".to_owned(),
                protocol: "TCP".to_owned(),
                port: 80,
                addresses: vec![Address {
                    kind: AddressKind::ClusterIp,
                    at: "10.96.0.10:80".to_owned(),
                    ..Address::default()
                }],
                ..Port::default()
            }],
            ..Service::default()
        };
        Objects {
            services: vec![service],
            ..Objects::default()
        }
    }

    #[test]
    fn a_footprint_explains_only_the_chains_that_it_lists() {
        const TABLE: Space<'static> = Space::Nftables("small");
        const SMALL: Footprint = Footprint {
            nft_tables: &["small"],
            origins: &[
                Origin::of(TABLE, "services", ADDRESSES),
                Origin::beginning(TABLE, "port-", ENDPOINTS),
            ],
            ..Footprint::none("small")
        };
        let at = |place| {
            let met = PathStep {
                place,
                ..PathStep::default()
            };
            origin(&met, None, &[&SMALL])
        };
        assert_eq!(at("table ip small, chain services"), ADDRESSES);
        assert_eq!(at("table ip small, chain port-80"), ENDPOINTS);
        let other = at("table ip small, chain other");
        assert_eq!(other, format!("{NOT_OURS}: table small of nftables"));
    }

    fn known(place: &str, entry: &str, members: &[&str]) -> String {
        let objects = objects();
        let of = objects.places().next();
        let members: Vec<String> = members.iter().map(ToString::to_string).collect();
        let met = PathStep {
            place,
            entry,
            members: &members,
        };
        origin(&met, of.as_ref(), MODES)
    }

    fn unknown(place: &str, entry: &str) -> String {
        let met = PathStep {
            place,
            entry,
            members: &[],
        };
        origin(&met, None, MODES)
    }

    #[test]
    fn each_step_names_the_service_field_that_caused_the_rule() {
        let web = "Service default/web, port http: ";
        assert_eq!(
            known(
                "nat KUBE-SERVICES",
                "-A KUBE-SERVICES -m set --match-set KUBE-CLUSTER-IP dst,dst -j KUBE-MARK-MASQ",
                &["KUBE-CLUSTER-IP 10.96.0.10,tcp:80"],
            ),
            format!(
                "{web}spec.clusterIPs; whom it masquerades: --cluster-cidr, --detect-local-mode, --masquerade-all"
            )
        );
        assert_eq!(
            known("IPVS", "TCP 10.96.0.10:80 rr", &[]),
            format!("{web}spec.clusterIPs; --ipvs-scheduler")
        );
        let mut asking = objects();
        asking.services[0].options = vec![ServiceOption {
            annotation: options::SCHEDULER.to_owned(),
            value: "sh".to_owned(),
        }];
        for (entry, chosen) in [
            (
                "TCP 10.96.0.10:80 sh",
                "annotation kube-proxy-ipvs/scheduler",
            ),
            // The virtual server does not have the annotation's scheduler, so its scheduler comes
            // from the flag.
            ("TCP 10.96.0.10:80 rr", "--ipvs-scheduler"),
        ] {
            let met = PathStep {
                place: "IPVS",
                entry,
                members: &[],
            };
            let told = origin(&met, asking.places().next().as_ref(), MODES);
            assert_eq!(told, format!("{web}spec.clusterIPs; {chosen}"));
        }
        assert_eq!(
            known(
                "table ip kube-proxy, chain services",
                "",
                &["service-ips 10.96.0.10 . tcp . 80"]
            ),
            format!("{web}spec.clusterIPs, spec.externalIPs, status.loadBalancer.ingress")
        );
        assert_eq!(
            known("table ip kube-proxy-ipvs, chain KUBE-IPVS-FILTER", "", &[]),
            "kube-proxy: ports that no Service exposes (kubernetes/kubernetes#72236)"
        );
    }

    #[test]
    fn without_a_daemon_the_rules_still_name_their_services() {
        assert_eq!(
            unknown(
                "nat KUBE-SVC-LOLE4ISW44XBNF3G",
                "-A KUBE-SVC-LOLE4ISW44XBNF3G -m comment --comment \"shop/cart:http -> 10.244.1.5:80\" -j KUBE-SEP-X"
            ),
            "EndpointSlices of shop/cart: endpoints that are ready"
        );
        assert_eq!(
            unknown(
                "table ip kube-proxy, chain service-PFISGYVC-default/web/tcp/",
                ""
            ),
            "EndpointSlices of default/web: endpoints that are ready"
        );
        assert_eq!(
            unknown(
                "table ip6 kube-proxy, chain endpoint-W2BRTWSS-default/web/tcp/p__10.244.2.5/8080",
                ""
            ),
            "Service default/web, port p: sessionAffinity: ClientIP"
        );
        // This comment does not begin with the name of a Service, so the origin names no Service.
        assert_eq!(
            unknown(
                "nat KUBE-SERVICES",
                "-A KUBE-SERVICES -m comment --comment \"kubernetes service nodeports; NOTE: this\" -j KUBE-NODEPORTS"
            ),
            "Services: spec.clusterIPs, spec.externalIPs, status.loadBalancer.ingress"
        );
    }

    #[test]
    fn rules_of_other_programs_are_marked_as_not_of_kube_proxy() {
        assert_eq!(
            unknown("filter DOCKER-USER", "-A DOCKER-USER -j DROP"),
            "not kube-proxy's: chain DOCKER-USER"
        );
        assert_eq!(
            unknown("filter INPUT", "-A INPUT -p tcp -j DROP"),
            "not kube-proxy's: a rule in chain INPUT of table filter"
        );
        assert_eq!(
            unknown("table inet firewalld, chain filter_INPUT", "reject"),
            "not kube-proxy's: table firewalld of nftables"
        );
        // A rule in a built-in chain belongs to kube-proxy if it jumps to kube-proxy's chain.
        let jump =
            "-A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES";
        assert!(unknown("nat PREROUTING", jump).starts_with("Services: "));
        let theirs = "-A cali-x -m set --match-set KUBE-CLUSTER-IP dst,dst -j DROP";
        assert!(
            known(
                "filter cali-x",
                theirs,
                &["KUBE-CLUSTER-IP 10.96.0.10,tcp:80"]
            )
            .starts_with(NOT_OURS)
        );
    }

    proptest! {
        #[test]
        fn arbitrary_kernel_entries_never_panic_the_origin_lookup(
            place in "(nat |table ip |IPVS|)?.{0,30}(, chain .{0,30})?",
            entry in "(-j |comment \"?|)?.{0,40}",
            member in ".{0,20}",
        ) {
            let members = [member];
            let met = PathStep { place: &place, entry: &entry, members: &members };
            let objects = objects();
            let _ = origin(&met, objects.places().next().as_ref(), MODES);
            let _ = origin(&met, None, MODES);
        }
    }

    #[test]
    fn steps_of_the_kernel_itself_have_no_origin() {
        assert_eq!(unknown("routing", "by eth0"), "");
        assert_eq!(
            unknown("routing", "local 10.96.0.10 dev kube-ipvs0"),
            "Services: the addresses that this node serves"
        );
    }
}
