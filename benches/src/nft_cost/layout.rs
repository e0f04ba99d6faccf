//! The table of nftables mode: upstream's layout, and flatter ones that give the same verdicts.

use super::wire::{ANONYMOUS, CONSTANT, Data, Element, Expressions, MAP, SetOf, Transaction};

/// Where a Service's endpoints are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Layout {
    /// Upstream's: a chain for each Service, with an anonymous map of its endpoints.
    Upstream,
    /// The same with names for the anonymous maps, so that the kernel need not find free ones.
    Named,
    /// A chain for each Service, endpoints of all in one map.
    Shared,
    /// No chain for a Service: the verdict map leads to a chain for each number of endpoints, which
    /// takes one of all Services' map.
    Sized,
    /// By size, and no chain but those of nat, which only the first packet of a flow meets: what is
    /// rejected or dropped is a verdict of the same map.
    Nat,
    /// As `Nat`, but Services of few endpoints are not in the verdict map: behind it, each small
    /// number has a rule and a map of its own; and maps and rules are a protocol's.
    Flat,
    /// No verdict map: a rule and a map for each number of endpoints, one after another until a
    /// lookup does not miss.
    Missed,
}

pub(crate) const SERVICE_KEY: u32 = 12;
/// What is few for the layout `Flat`.
const FEW: u32 = 3;
/// Numbers of endpoints that the layout by size has rules for.
pub(crate) const SIZES: std::ops::RangeInclusive<u32> = 1..=20;
const PROTOCOLS: [u8; 3] = [6, 17, 132];
const BASE: u32 = 0x0a60_0100;
const ENDPOINTS: u32 = 0x0a80_0100;
/// Addresses of endpoints that take the place of others.
const OTHERS: u32 = 0x0ac0_0000;

pub(crate) fn vip(service: u32) -> [u8; 4] {
    (BASE + service).to_be_bytes()
}

/// Address, protocol, port: each a multiple of four bytes.
pub(crate) fn key(service: u32, protocol: u8) -> Vec<u8> {
    [vip(service), [protocol, 0, 0, 0], [0, 80, 0, 0]].concat()
}

/// The address of a Service's first endpoint.
pub(crate) fn first_endpoint(content: Content, service: u32) -> [u8; 4] {
    (ENDPOINTS + service * content.endpoints).to_be_bytes()
}

fn endpoint(number: u32) -> Vec<u8> {
    value(ENDPOINTS + number)
}

/// An endpoint as a value of a map.
pub(crate) fn value(address: u32) -> Vec<u8> {
    [address.to_be_bytes(), [0x1f, 0x90, 0, 0]].concat()
}

pub(crate) fn chain(service: u32) -> String {
    let hash = service.wrapping_mul(0x9e37_79b1);
    format!("service-{hash:08X}-bench/svc-{service}/tcp/http")
}

fn to_size(size: u32) -> String {
    format!("endpoints-{size}")
}

fn map_of(size: u32) -> String {
    format!("service-endpoints-{size}")
}

/// As the daemon names them in its flat layout.
fn endpoints_of(protocol: u8) -> String {
    format!("endpoints-{}", name_of(protocol))
}

fn few_of(protocol: u8, size: u32) -> String {
    format!("{}-{size}", endpoints_of(protocol))
}

fn chooser(protocol: u8, size: u32) -> String {
    format!("endpoints-of-{}-{size}", name_of(protocol))
}

fn name_of(protocol: u8) -> &'static str {
    match protocol {
        6 => "tcp",
        17 => "udp",
        _ => "sctp",
    }
}

/// What a table holds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Content {
    pub(crate) layout: Layout,
    pub(crate) services: u32,
    pub(crate) endpoints: u32,
    /// That of all Services.
    pub(crate) protocol: u8,
}

impl Content {
    /// The fixed chains, sets and rules.
    pub(crate) fn base(&self, family: u8) -> Transaction {
        let mut to = Transaction::new(family);
        to.table();
        for (name, kind, hook, priority) in [
            ("filter-prerouting-pre-dnat", "filter", 0, -110),
            ("filter-output-pre-dnat", "filter", 3, -110),
            ("filter-input", "filter", 1, 0),
            ("filter-forward", "filter", 2, 0),
            ("filter-output", "filter", 3, 0),
            ("nat-prerouting", "nat", 0, -100),
            ("nat-output", "nat", 3, -100),
            ("nat-postrouting", "nat", 4, 100),
        ] {
            if kind == "filter" && self.is_nat() {
                continue;
            }
            to.base_chain(name, kind, hook, priority);
        }
        for name in [
            "services",
            "masquerading",
            "nodeport-endpoints-check",
            "service-endpoints-check",
            "firewall-check",
            "cluster-ips-check",
            "reject-chain",
        ] {
            to.chain(name);
        }
        sets(&mut to);
        to.rule("reject-chain", |rule| {
            rule.reject();
        });
        to.rule("masquerading", |rule| {
            rule.load_mark(1);
            rule.bitwise(1, 0x4000, 0);
            rule.compare(1, 1, &[0; 4]);
            rule.load_mark(1);
            rule.bitwise(1, !0, 0x4000);
            rule.set_mark(1);
            rule.masquerade();
        });
        to.rule("masquerading", |rule| {
            rule.conntrack(2, 0x20);
            rule.payload(1, 1, 12, 4);
            rule.payload(9, 1, 16, 4);
            rule.l4proto(10);
            rule.payload(11, 2, 2, 2);
            rule.lookup(1, "hairpin-connections", 0, None);
            rule.masquerade();
        });
        to.rule("services", |rule| {
            let not_local = |rule: &mut Expressions<'_, '_>| {
                rule.payload(1, 1, 12, 2);
                rule.compare(1, 1, &[10, 200]);
            };
            // The compare is cheaper than the lookup, and ends it for pods.
            if self.is_nat() {
                not_local(rule);
            }
            rule.payload(1, 1, 16, 4);
            rule.lookup(1, "cluster-ips", 0, None);
            if !self.is_nat() {
                not_local(rule);
            }
            rule.load_mark(1);
            rule.bitwise(1, !0x4000, 0x4000);
            rule.set_mark(1);
        });
        self.dispatch(&mut to);
        to.rule("services", |rule| {
            rule.payload(1, 1, 16, 4);
            rule.lookup(1, "nodeport-ips", 0, None);
            rule.l4proto(1);
            rule.payload(9, 2, 2, 2);
            rule.lookup(1, "service-nodeports", 0, Some(0));
        });
        to.rule("cluster-ips-check", |rule| {
            rule.payload(1, 1, 16, 4);
            rule.lookup(1, "cluster-ips", 0, None);
            rule.reject();
        });
        for (from, target) in [
            ("nat-prerouting", "services"),
            ("nat-output", "services"),
            ("nat-postrouting", "masquerading"),
        ] {
            to.rule(from, |rule| rule.jump(target));
        }
        if self.is_nat() {
            // As the daemon: behind what leads to Services, for what has found no endpoint.
            for from in ["nat-prerouting", "nat-output"] {
                to.rule(from, |rule| rule.jump("cluster-ips-check"));
            }
        } else {
            checks(&mut to);
        }
        to
    }

    /// How a packet gets from the chain `services` to a Service's endpoint.
    fn dispatch(&self, to: &mut Transaction) {
        match self.layout {
            Layout::Missed => {
                for size in SIZES {
                    let map = map_of(size);
                    slots(to, &map, 16);
                    to.rule("services", |rule| one_of(rule, self.protocol, size, &map));
                }
                return;
            }
            Layout::Flat => {
                let many = endpoints_of(self.protocol);
                slots(to, &many, 12);
                let more = Some(self.endpoints).filter(|size| !SIZES.contains(size));
                for size in SIZES.chain(more) {
                    let chain = chooser(self.protocol, size);
                    to.chain(&chain);
                    to.rule(&chain, |rule| {
                        one_of_protocol(rule, size, self.protocol, &many);
                    });
                }
            }
            Layout::Sized | Layout::Nat => {
                slots(to, "service-endpoints", 16);
                for size in SIZES {
                    to.chain(&to_size(size));
                    to.rule(&to_size(size), |rule| {
                        one_of(rule, self.protocol, size, "service-endpoints");
                    });
                }
            }
            Layout::Shared => slots(to, "service-endpoints", 16),
            Layout::Upstream | Layout::Named => {}
        }
        to.rule("services", |rule| {
            service(rule, 1);
            rule.lookup(1, "service-ips", 0, Some(0));
        });
        if self.layout == Layout::Flat {
            for protocol in PROTOCOLS {
                for size in 1..=FEW {
                    // Those of the other protocols are for what it costs to pass them.
                    let map = few_of(protocol, size);
                    slots(to, &map, 12);
                    to.rule("services", |rule| {
                        one_of_protocol(rule, size, protocol, &map);
                    });
                }
            }
        }
    }

    fn is_nat(&self) -> bool {
        matches!(self.layout, Layout::Nat | Layout::Flat)
    }

    /// A Service with its endpoints.
    pub(crate) fn add_service(&self, to: &mut Transaction, service: u32, size: u32) {
        to.add(
            "cluster-ips",
            0,
            &[Element::new(vip(service).into(), Data::None)],
        );
        let first = service * self.endpoints;
        match self.layout {
            Layout::Upstream | Layout::Named => {
                to.chain(&chain(service));
                self.rule(to, service, size, 0);
            }
            Layout::Shared => {
                to.chain(&chain(service));
                to.rule(&chain(service), |rule| {
                    one_of(rule, self.protocol, size, "service-endpoints");
                });
            }
            Layout::Sized | Layout::Nat | Layout::Flat | Layout::Missed => {}
        }
        if let Some(map) = self.slots_of(size) {
            for index in 0..size {
                let value = Data::Value(endpoint(first + index));
                to.add(&map, 0, &[Element::new(self.slot(index, service), value)]);
            }
        }
        if let Some(chain) = self.target(service, size) {
            let element = Element::new(key(service, self.protocol), Data::Goto(chain));
            to.add("service-ips", 0, &[element]);
        }
    }

    /// What Services without chains are, by set: their elements.
    pub(crate) fn elements_of(
        &self,
        services: std::ops::Range<u32>,
    ) -> Vec<(String, Vec<Element>)> {
        let size = self.endpoints;
        let addresses = services
            .clone()
            .map(|service| Element::new(vip(service).into(), Data::None));
        let mut all = vec![("cluster-ips".to_owned(), addresses.collect())];
        if let Some(map) = self.slots_of(size) {
            let ends = services.clone().flat_map(|service| {
                (0..size).map(move |index| {
                    let value = Data::Value(endpoint(service * size + index));
                    Element::new(self.slot(index, service), value)
                })
            });
            all.push((map, ends.collect()));
        }
        let targets: Vec<Element> = services
            .filter_map(|service| {
                let chain = self.target(service, size)?;
                Some(Element::new(key(service, self.protocol), Data::Goto(chain)))
            })
            .collect();
        if !targets.is_empty() {
            all.push(("service-ips".to_owned(), targets));
        }
        all
    }

    /// One of its endpoints is another; `values` are all of them by now.
    pub(crate) fn replace_endpoint(
        &self,
        to: &mut Transaction,
        service: u32,
        index: usize,
        values: Vec<Vec<u8>>,
    ) {
        let number = u32::try_from(index).unwrap_or(u32::MAX);
        if let (Some(map), Some(value)) =
            (self.slots_of(self.endpoints), values.into_iter().nth(index))
        {
            let at = self.slot(number, service);
            to.delete(&map, &[Element::new(at.clone(), Data::None)]);
            to.add(&map, 0, &[Element::new(at, Data::Value(value))]);
        }
    }

    /// What takes it away again; a chain that a verdict led to stays, empty.
    pub(crate) fn remove_service(&self, to: &mut Transaction, service: u32, size: u32) {
        to.delete(
            "cluster-ips",
            &[Element::new(vip(service).into(), Data::None)],
        );
        if self.target(service, size).is_some() {
            to.delete(
                "service-ips",
                &[Element::new(key(service, self.protocol), Data::None)],
            );
        }
        if self.has_chain() {
            to.flush_chain(&chain(service));
        }
        if let Some(map) = self.slots_of(size) {
            for index in 0..size {
                to.delete(&map, &[Element::new(self.slot(index, service), Data::None)]);
            }
        }
    }

    /// Its last endpoint is another one.
    pub(crate) fn change_endpoint(&self, to: &mut Transaction, service: u32, turn: u32) {
        let size = self.endpoints;
        let Some(map) = self.slots_of(size) else {
            to.chain(&chain(service));
            to.flush_chain(&chain(service));
            self.rule(to, service, size, turn);
            return;
        };
        let at = self.slot(size - 1, service);
        to.delete(&map, &[Element::new(at.clone(), Data::None)]);
        let value = Data::Value(value(OTHERS + turn));
        to.add(&map, 0, &[Element::new(at, value)]);
    }

    /// It gets one endpoint more, or loses it again.
    pub(crate) fn resize(&self, to: &mut Transaction, service: u32, from: u32, size: u32) {
        if self.has_chain() {
            to.chain(&chain(service));
            to.flush_chain(&chain(service));
        }
        match self.layout {
            Layout::Upstream | Layout::Named => return self.rule(to, service, size, 0),
            Layout::Shared => {
                to.rule(&chain(service), |rule| {
                    one_of(rule, self.protocol, size, "service-endpoints");
                });
            }
            Layout::Sized | Layout::Nat | Layout::Flat | Layout::Missed => {
                if self.target(service, from).is_some() {
                    to.delete(
                        "service-ips",
                        &[Element::new(key(service, self.protocol), Data::None)],
                    );
                }
                if let Some(chain) = self.target(service, size) {
                    let element = Element::new(key(service, self.protocol), Data::Goto(chain));
                    to.add("service-ips", 0, &[element]);
                }
            }
        }
        let (Some(old), Some(new)) = (self.slots_of(from), self.slots_of(size)) else {
            return;
        };
        let kept = if old == new { from.min(size) } else { 0 };
        let first = service * self.endpoints;
        for index in kept..from {
            to.delete(&old, &[Element::new(self.slot(index, service), Data::None)]);
        }
        for index in kept..size {
            let value = Data::Value(endpoint(first + index));
            to.add(&new, 0, &[Element::new(self.slot(index, service), value)]);
        }
    }

    pub(crate) fn has_chain(&self) -> bool {
        matches!(
            self.layout,
            Layout::Upstream | Layout::Named | Layout::Shared
        )
    }

    /// A Service's rule with an anonymous map.
    fn rule(&self, to: &mut Transaction, service: u32, size: u32, turn: u32) {
        let first = service * self.endpoints;
        let values: Vec<Vec<u8>> = (0..size)
            .map(|index| match turn {
                1.. if index + 1 == size => value(OTHERS + turn),
                _ => endpoint(first + index),
            })
            .collect();
        self.rule_of(to, service, values, turn);
    }

    /// The same with these endpoints.
    pub(crate) fn rule_of(
        &self,
        to: &mut Transaction,
        service: u32,
        values: Vec<Vec<u8>>,
        turn: u32,
    ) {
        // Unique in the transaction, as libnftnl counts.
        let id = u32::try_from(to.len()).unwrap_or(u32::MAX);
        let size = u32::try_from(values.len()).unwrap_or(u32::MAX);
        let name = match self.layout {
            Layout::Named => format!("__map{service}-{turn}-{size}"),
            _ => "__map%d".to_owned(),
        };
        to.set(&SetOf {
            name: &name,
            flags: ANONYMOUS | CONSTANT | MAP,
            key_len: 4,
            data_len: 8,
            size,
            id,
            ..SetOf::default()
        });
        let elements: Vec<Element> = (0_u32..)
            .zip(values)
            .map(|(index, value)| Element::new(index.to_ne_bytes().into(), Data::Value(value)))
            .collect();
        // The kernel looks for a name in the list of all sets; a number it looks for among those of
        // this transaction.
        let by_name = if self.layout == Layout::Named {
            ""
        } else {
            &name
        };
        to.add(by_name, id, &elements);
        to.rule(&chain(service), |rule| {
            rule.l4proto(1);
            rule.compare(1, 0, &[self.protocol]);
            rule.random(1, size);
            rule.lookup(1, &name, id, Some(1));
            rule.dnat(1, 9);
        });
    }

    fn slots_of(&self, size: u32) -> Option<String> {
        match self.layout {
            Layout::Upstream | Layout::Named => None,
            Layout::Flat if size <= FEW => Some(few_of(self.protocol, size)),
            Layout::Flat => Some(endpoints_of(self.protocol)),
            Layout::Shared | Layout::Sized | Layout::Nat => Some("service-endpoints".into()),
            Layout::Missed => Some(map_of(size)),
        }
    }

    /// The key of one of a Service's endpoints: its number, the address, where the map is not a
    /// protocol's the protocol, the port.
    fn slot(&self, index: u32, service: u32) -> Vec<u8> {
        let index = index.to_ne_bytes().to_vec();
        match self.layout {
            Layout::Flat => [index, vip(service).into(), vec![0, 80, 0, 0]].concat(),
            _ => [index, key(service, self.protocol)].concat(),
        }
    }

    /// Where the verdict map leads.
    fn target(&self, service: u32, size: u32) -> Option<String> {
        match self.layout {
            Layout::Upstream | Layout::Named | Layout::Shared => Some(chain(service)),
            Layout::Flat if size <= FEW => None,
            Layout::Flat => Some(chooser(self.protocol, size)),
            Layout::Sized | Layout::Nat => Some(to_size(size)),
            Layout::Missed => None,
        }
    }
}

/// The filter chains.
fn checks(to: &mut Transaction) {
    for (chain, map) in [
        ("service-endpoints-check", "no-endpoint-services"),
        ("firewall-check", "firewall-ips"),
    ] {
        to.rule(chain, |rule| {
            service(rule, 1);
            rule.lookup(1, map, 0, Some(0));
        });
    }
    to.rule("nodeport-endpoints-check", |rule| {
        rule.payload(1, 1, 16, 4);
        rule.lookup(1, "nodeport-ips", 0, None);
        rule.l4proto(1);
        rule.payload(9, 2, 2, 2);
        rule.lookup(1, "no-endpoint-nodeports", 0, Some(0));
    });
    for (from, target) in [
        ("filter-prerouting-pre-dnat", "firewall-check"),
        ("filter-output-pre-dnat", "firewall-check"),
        ("filter-input", "nodeport-endpoints-check"),
        ("filter-input", "service-endpoints-check"),
        ("filter-forward", "service-endpoints-check"),
        ("filter-forward", "cluster-ips-check"),
        ("filter-output", "service-endpoints-check"),
        ("filter-output", "cluster-ips-check"),
    ] {
        to.rule(from, |rule| {
            rule.conntrack(0, 8);
            rule.jump(target);
        });
    }
}

fn sets(to: &mut Transaction) {
    for (name, flags, key_len) in [
        ("cluster-ips", 0, 4),
        ("nodeport-ips", 0, 4),
        ("hairpin-connections", 0, 16),
        ("no-endpoint-services", MAP, SERVICE_KEY),
        ("no-endpoint-nodeports", MAP, 8),
        ("firewall-ips", MAP, SERVICE_KEY),
        ("service-ips", MAP, SERVICE_KEY),
        ("service-nodeports", MAP, 8),
    ] {
        let id = u32::try_from(to.len()).unwrap_or(u32::MAX);
        to.set(&SetOf {
            name,
            flags,
            key_len,
            id,
            ..SetOf::default()
        });
    }
}

/// A map of endpoints by number, address, protocol and port.
fn slots(to: &mut Transaction, name: &str, key_len: u32) {
    let id = u32::try_from(to.len()).unwrap_or(u32::MAX);
    to.set(&SetOf {
        name,
        flags: MAP,
        key_len,
        data_len: 8,
        id,
        ..SetOf::default()
    });
}

/// Address, protocol and port of where a packet goes, from a register of four bytes on (1 is
/// register 8).
fn service(rule: &mut Expressions<'_, '_>, first: u32) {
    rule.payload(first, 1, 16, 4);
    let next = if first == 1 { 9 } else { first + 1 };
    rule.l4proto(next);
    rule.payload(next + 1, 2, 2, 2);
}

fn one_of(rule: &mut Expressions<'_, '_>, protocol: u8, size: u32, map: &str) {
    rule.l4proto(1);
    rule.compare(1, 0, &[protocol]);
    rule.random(1, size);
    service(rule, 9);
    rule.lookup(1, map, 0, Some(1));
    rule.dnat(1, 9);
}

fn one_of_protocol(rule: &mut Expressions<'_, '_>, size: u32, protocol: u8, map: &str) {
    rule.l4proto(1);
    rule.compare(1, 0, &[protocol]);
    rule.random(1, size);
    rule.payload(9, 1, 16, 4);
    rule.payload(10, 2, 2, 2);
    rule.lookup(1, map, 0, Some(1));
    rule.dnat(1, 9);
}
