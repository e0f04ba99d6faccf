//! Reads the kernel: its iptables rules, and other state by single queries ([`LiveKernel`]).
//!
//! - All functions read the network namespace of the calling thread.
//! - They block while the kernel and the iptables programs work, so do not call them in an event
//!   loop.
//! - They load no kernel modules, because a module that is not loaded has no entries.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::Hash;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::Path;

use inet::IpFamily;
use ipset_netlink::{Entry, IpProtocol, Ipset, Key, Mark, Reason};
use iptables::{Backend, DormantTable, Iptables};
use ipvs_netlink::{Ipvs, ServiceKey};
use route_netlink::{Address, Family, Lookup, RouteRefusal, Rtnetlink};
use rustix::io::Errno;
use rustix::net::netdevice::index_to_name;
use rustix::net::{AddressFamily, SocketType, socket};

use crate::kernel::{AddressType, Kernel, ReadFailure, Route, RouteQuestion, Server, SetKey};
use crate::packet::Interface;
use crate::xtables::Xtables;

/// Maximum number of members of an ipset that this reader lists to find a member's network or mark.
const MOST_LISTED: u32 = 4096;

/// The iptables rules of one IP family.
#[derive(Debug, Default)]
pub struct Rules {
    /// Rules of each iptables backend (legacy, nft) that has any.
    pub backends: Vec<(Backend, Xtables)>,
    /// Dormant tables, which the kernel skips for all packets.
    pub dormant: Vec<DormantTable>,
    /// Failed reads, such as the rules of one backend.
    pub unread: Vec<ReadFailure>,
}

/// Reads all iptables rules of both backends, because iptables can only list whole tables. Starts
/// one process for each backend that has rules.
///
/// In iptables mode, the rules of 50,000 Services with one endpoint each take 24 MB of memory.
pub fn rules(family: IpFamily) -> Rules {
    let mut rules = Rules::default();
    let part = |backend: Backend| format!("the rules of iptables-{backend}");
    let installed = match Iptables::installed() {
        Ok(installed) => installed,
        Err(error) => {
            rules.unread.push(unread("the rules of iptables", &error));
            return rules;
        }
    };
    for program in &installed {
        let mut tables = Xtables::default();
        let dormant = program.dormant_tables(family).unwrap_or_else(|error| {
            rules.unread.push(unread(part(program.backend()), &error));
            Vec::new()
        });
        match program.save_counted(family, None, &mut |line| tables.read(line)) {
            Ok(()) if tables.is_empty() => {}
            Ok(()) => {
                for table in &dormant {
                    tables.switch_off(table.name);
                }
                rules.dormant.extend(dormant);
                rules.backends.push((program.backend(), tables));
            }
            Err(error) => rules.unread.push(unread(part(program.backend()), &error)),
        }
    }
    for backend in Backend::ALL {
        let is_installed = installed.iter().any(|program| program.backend() == backend);
        if is_installed {
            continue;
        }
        let said = match backend.chains(family) {
            Some(chains) if chains.is_empty() => continue,
            Some(_) => "there are some",
            None => "there may be some",
        };
        rules.unread.push(ReadFailure {
            part: part(backend),
            reason: format!("{said}, but no program iptables-{backend}-save"),
        });
    }
    rules
}

/// The running kernel, read by single queries. Caches the responses, so that all steps of a
/// packet's path see the same state.
#[derive(Debug)]
pub struct LiveKernel {
    routing: RefCell<Rtnetlink>,
    ipset: RefCell<Option<Ipset>>,
    ipvs: RefCell<Option<Ipvs>>,
    routes: Cache<RouteQuestion, Route>,
    types: Cache<IpAddr, AddressType>,
    addresses: Cache<(Interface, Family), Vec<Address>>,
    kinds: Cache<String, String>,
    set_types: Cache<String, Option<String>>,
    members: Cache<(String, SetKey), Option<String>>,
    marks: Cache<(String, SetKey), Option<Mark>>,
    servers: Cache<ServiceKey, Option<Server>>,
    settings: Cache<String, Option<String>>,
}

/// Responses by query, so that equal queries reach the kernel only once.
#[derive(Debug)]
struct Cache<Q, A>(RefCell<HashMap<Q, Result<A, ReadFailure>>>);

impl<Q, A> Default for Cache<Q, A> {
    fn default() -> Self {
        Self(RefCell::default())
    }
}

impl<Q: Hash + Eq + Clone, A: Clone> Cache<Q, A> {
    fn or_ask(
        &self,
        question: &Q,
        ask: impl FnOnce() -> Result<A, ReadFailure>,
    ) -> Result<A, ReadFailure> {
        if let Some(answer) = self.0.borrow().get(question) {
            return answer.clone();
        }
        let answer = ask();
        let mut kept = self.0.borrow_mut();
        kept.insert(question.clone(), answer.clone());
        answer
    }
}

impl LiveKernel {
    /// Opens the socket for routes. Other sockets are opened when they are first needed.
    ///
    /// # Errors
    ///
    /// Fails if the socket cannot be opened.
    pub fn open() -> Result<Self, ReadFailure> {
        let routing = Rtnetlink::open().map_err(|error| unread("the routes", &error))?;
        Ok(Self {
            routing: RefCell::new(routing),
            ipset: RefCell::default(),
            ipvs: RefCell::default(),
            routes: Cache::default(),
            types: Cache::default(),
            addresses: Cache::default(),
            kinds: Cache::default(),
            set_types: Cache::default(),
            members: Cache::default(),
            marks: Cache::default(),
            servers: Cache::default(),
            settings: Cache::default(),
        })
    }

    /// Returns the kind of an interface as `ip link add` names it, such as `bridge` or `veth`.
    /// Returns an empty text for a hardware device, or if the interface does not exist.
    ///
    /// # Errors
    ///
    /// Fails if the query cannot be sent, or its response cannot be read.
    pub fn link_kind(&self, name: &str) -> Result<String, ReadFailure> {
        self.kinds.or_ask(&name.to_owned(), || {
            let link = self.routing.borrow_mut().link(name);
            let link = link.map_err(|error| unread(format!("the interface {name}"), &error))?;
            Ok(link.map_or_else(String::new, |link| link.kind))
        })
    }

    fn ask_route(&self, question: &RouteQuestion) -> Result<Route, ReadFailure> {
        let part = || format!("the route to {}", question.destination);
        let link = match &question.iif {
            None => None,
            Some(iif) => Some(self.index(iif)?),
        };
        let asked = Lookup {
            destination: question.destination,
            source: question.source,
            link,
            mark: question.mark,
        };
        let answer = self.routing.borrow_mut().way(&asked);
        let way = match answer.map_err(|error| unread(part(), &error))? {
            Ok(way) => way,
            Err(why) => {
                let (why, is_told) = self.no_way(why, question)?;
                return Ok(Route::None { why, is_told });
            }
        };
        if !way.is_local()
            && let Some(why) = self.refuses_to_forward(question)?
        {
            let is_told = false;
            return Ok(Route::None { why, is_told });
        }
        if way.is_local() {
            let source = way.source.or(Some(question.destination));
            return Ok(Route::Local { source });
        }
        let Some(link) = way.link else {
            let reason = "the kernel names no interface".to_owned();
            return Err(ReadFailure {
                part: part(),
                reason,
            });
        };
        Ok(Route::Out {
            interface: named(link).map_err(|error| unread(part(), &error))?,
            gateway: way.gateway,
            source: way.source,
        })
    }

    /// Returns the reason why the node does not forward an IPv6 packet, or `None` if it does. The
    /// kernel's IPv6 route look-up does not check the setting `forwarding`, so this function reads
    /// it.
    fn refuses_to_forward(&self, question: &RouteQuestion) -> Result<Option<String>, ReadFailure> {
        let Some(iif) = question.iif.as_ref().filter(|iif| !iif.is_loopback()) else {
            return Ok(None);
        };
        if question.destination.is_ipv4() {
            return Ok(None);
        }
        let is = |setting: Option<String>, value: &str| setting.as_deref() == Some(value);
        let is_off = is(self.setting("net/ipv6/conf/all/forwarding")?, "0");
        // The kernel has this setting since Linux 6.17.
        let forced = format!("net/ipv6/conf/{}/force_forwarding", iif.name);
        if is_off && !is(self.setting(&forced)?, "1") {
            let why = "this node forwards nothing (net.ipv6.conf.all.forwarding is 0)";
            return Ok(Some(why.to_owned()));
        }
        Ok(None)
    }

    /// Returns the reason why a packet has no route. The `bool` is true if the kernel notifies the
    /// packet's sender (`ip_error`).
    fn no_way(
        &self,
        why: RouteRefusal,
        question: &RouteQuestion,
    ) -> Result<(String, bool), ReadFailure> {
        let by = question.iif.as_ref().map_or("", |iif| &iif.name);
        let silent = |why: String| (why, question.iif.is_none());
        Ok(match why {
            RouteRefusal::NoRoute => ("no route to there".to_owned(), true),
            RouteRefusal::WrongLink => silent(format!(
                "the way back does not lead by {by} (net.ipv4.conf.{by}.rp_filter)"
            )),
            RouteRefusal::Martian => silent(match question.source {
                Some(source) if self.address_type(source, None)? == AddressType::Local => {
                    format!("this node has its source {source} itself (martian)")
                }
                _ => "a source or destination that may not be there (martian)".to_owned(),
            }),
            RouteRefusal::NotForwarded => {
                let is_off = |name: &str| Ok(self.setting(name)?.as_deref() == Some("0"));
                let can_be = question.destination.is_ipv4() && question.iif.is_some();
                if can_be && is_off("net/ipv4/ip_forward")? {
                    silent("this node forwards nothing (net.ipv4.ip_forward is 0)".to_owned())
                } else if can_be && is_off(&format!("net/ipv4/conf/{by}/forwarding"))? {
                    silent(format!(
                        "this node forwards nothing that comes in by {by} (net.ipv4.conf.{by}.forwarding is 0)"
                    ))
                } else {
                    ("no route to there, or one that refuses".to_owned(), true)
                }
            }
            // The route is of type `prohibit`.
            RouteRefusal::Other(errno) if errno == Errno::ACCESS.raw_os_error() => {
                ("a route that prohibits it".to_owned(), true)
            }
            RouteRefusal::Other(errno) => silent(format!("the kernel refuses ({errno})")),
        })
    }

    fn index(&self, interface: &Interface) -> Result<u32, ReadFailure> {
        if let Some(index) = interface.index {
            return Ok(index);
        }
        let part = || format!("the interface {}", interface.name);
        let link = self.routing.borrow_mut().link(&interface.name);
        match link.map_err(|error| unread(part(), &error))? {
            Some(link) => Ok(link.index),
            None => Err(ReadFailure {
                part: part(),
                reason: "there is none".to_owned(),
            }),
        }
    }

    fn addresses(&self, interface: &Interface, to: IpAddr) -> Result<Vec<Address>, ReadFailure> {
        let family = Family::of(to);
        let question = (interface.clone(), family);
        self.addresses.or_ask(&question, || {
            let index = self.index(interface)?;
            let found = self.routing.borrow_mut().addresses_of(index, family);
            found.map_err(|error| unread(format!("the addresses of {}", interface.name), &error))
        })
    }

    fn with_ipset<A>(
        &self,
        set: &str,
        ask: impl FnOnce(&mut Ipset) -> Result<A, ipset_netlink::Error>,
    ) -> Result<Option<A>, ReadFailure> {
        let told = |error: &ipset_netlink::Error| unread(format!("the ipset {set}"), error);
        let mut slot = self.ipset.borrow_mut();
        let ipset = match &mut *slot {
            Some(open) => open,
            None => slot.insert(Ipset::open().map_err(|error| told(&error))?),
        };
        match ask(ipset) {
            Err(ipset_netlink::Error::Refused {
                reason: Reason::NoSuchSet,
                ..
            }) => Ok(None),
            Err(error) => {
                let told = told(&error);
                // Closes the socket, because it cannot be used after an error.
                *slot = None;
                Err(told)
            }
            Ok(answer) => Ok(Some(answer)),
        }
    }

    fn ask_member(&self, set: &str, key: &SetKey) -> Result<Option<String>, ReadFailure> {
        let type_name = self.set_type(set)?.unwrap_or_default();
        // Members of a bitmap are port numbers without protocol.
        let has_protocol = type_name != "bitmap:port";
        let protocol = key.port.filter(|_| has_protocol);
        let asked = Key {
            ip: key.ip,
            protocol: protocol.map(|(protocol, _)| IpProtocol(protocol)),
            port: key.port.map(|(_, port)| port),
            ip2: key.ip2,
        };
        let is_in = self.with_ipset(set, |ipset| ipset.test(set, &asked))?;
        if is_in != Some(true) {
            return Ok(None);
        }
        let found = if type_name.contains("net") {
            self.network(set, key)?
        } else {
            None
        };
        Ok(Some(found.unwrap_or_else(|| written(&type_name, key))))
    }

    /// Returns the set's member whose network contains the key. Returns `None` if there is none, or
    /// if the set is too large to list.
    fn network(&self, set: &str, key: &SetKey) -> Result<Option<String>, ReadFailure> {
        let entries = self.listed(set)?.unwrap_or_default();
        let found = entries.into_iter().find(|entry| holds(entry, key));
        Ok(found.map(|entry| entry.to_string()))
    }

    /// Returns the members of a set, or `None` if the set does not exist or is too large to list.
    fn listed(&self, set: &str) -> Result<Option<Vec<Entry>>, ReadFailure> {
        let found = self.with_ipset(set, |ipset| {
            let count = ipset.header(set)?.entries;
            if count.is_none_or(|count| count > MOST_LISTED) {
                return Ok(None);
            }
            Ok(Some(ipset.list(set)?.entries))
        })?;
        Ok(found.flatten())
    }

    fn ask_mark(&self, set: &str, key: &SetKey) -> Result<Option<Mark>, ReadFailure> {
        if self.member(set, key)?.is_none() {
            return Ok(None);
        }
        let Some(entries) = self.listed(set)? else {
            return Err(ReadFailure {
                part: format!("the marks of ipset {set}"),
                reason: format!(
                    "it has more than {MOST_LISTED} members: `ipset list {set}` shows them"
                ),
            });
        };
        let of_key = |entry: Entry| match entry {
            Entry::IpPortMark {
                ip,
                protocol,
                port,
                mark,
            } if key.ip == Some(ip) && key.port == Some((protocol.0, port)) => Some(mark),
            _ => None,
        };
        let mark = entries.into_iter().find_map(of_key);
        Ok(Some(mark.unwrap_or(Mark::NONE)))
    }

    fn ask_server(&self, key: &ServiceKey) -> Result<Option<Server>, ReadFailure> {
        // An IPVS socket would make the kernel load the IPVS module. Without this module, there are
        // no virtual servers, so no query is needed.
        if !Path::new("/proc/thread-self/net/ip_vs").exists() {
            return Ok(None);
        }
        let told = |error: ipvs_netlink::Error| unread("the virtual servers of IPVS", &error);
        let mut slot = self.ipvs.borrow_mut();
        let ipvs = match &mut *slot {
            Some(open) => open,
            None => slot.insert(Ipvs::open().map_err(told)?),
        };
        let Some(entry) = ipvs.service(key).map_err(told)? else {
            return Ok(None);
        };
        let destinations = ipvs.destinations(key).map_err(told)?;
        Ok(Some(Server {
            entry,
            destinations,
        }))
    }
}

impl Kernel for LiveKernel {
    fn route(&self, question: &RouteQuestion) -> Result<Route, ReadFailure> {
        self.routes.or_ask(question, || self.ask_route(question))
    }

    fn address_type(
        &self,
        address: IpAddr,
        interface: Option<&Interface>,
    ) -> Result<AddressType, ReadFailure> {
        if let Some(interface) = interface {
            let addresses = self.addresses(interface, address)?;
            let is_its = addresses.iter().any(|held| held.address == address);
            return Ok(if is_its {
                AddressType::Local
            } else {
                AddressType::Unicast
            });
        }
        self.types.or_ask(&address, || {
            let asked = Lookup {
                destination: address,
                source: None,
                link: None,
                mark: 0,
            };
            let part = || format!("the route to {address}");
            let answer = self.routing.borrow_mut().way(&asked);
            Ok(match answer.map_err(|error| unread(part(), &error))? {
                Ok(way) => match way.kind {
                    2 => AddressType::Local,
                    3 => AddressType::Broadcast,
                    5 => AddressType::Multicast,
                    _ => AddressType::Unicast,
                },
                Err(RouteRefusal::NotForwarded) => AddressType::Unreachable,
                Err(_) => AddressType::Unicast,
            })
        })
    }

    fn address_of(&self, interface: &Interface, to: IpAddr) -> Result<Option<IpAddr>, ReadFailure> {
        let addresses = self.addresses(interface, to)?;
        let is_near = |held: &&Address| {
            let net = ipnet::IpNet::new(held.address, held.prefix);
            net.is_ok_and(|net| net.contains(&to))
        };
        let near = addresses.iter().find(is_near).or(addresses.first());
        Ok(near.map(|held| held.address))
    }

    fn is_bridge(&self, interface: &Interface) -> Result<bool, ReadFailure> {
        let name = &interface.name;
        Ok(self.link_kind(name)? == "bridge")
    }

    fn set_type(&self, set: &str) -> Result<Option<String>, ReadFailure> {
        self.set_types.or_ask(&set.to_owned(), || {
            self.with_ipset(set, |ipset| ipset.type_name(set))
        })
    }

    fn member(&self, set: &str, key: &SetKey) -> Result<Option<String>, ReadFailure> {
        let question = (set.to_owned(), key.clone());
        self.members.or_ask(&question, || self.ask_member(set, key))
    }

    fn mark(&self, set: &str, key: &SetKey) -> Result<Option<Mark>, ReadFailure> {
        let question = (set.to_owned(), key.clone());
        self.marks.or_ask(&question, || self.ask_mark(set, key))
    }

    fn server(&self, key: &ServiceKey) -> Result<Option<Server>, ReadFailure> {
        self.servers.or_ask(key, || self.ask_server(key))
    }

    fn setting(&self, name: &str) -> Result<Option<String>, ReadFailure> {
        self.settings.or_ask(&name.to_owned(), || {
            match std::fs::read_to_string(Path::new("/proc/sys").join(name)) {
                Ok(text) => Ok(Some(text.trim().to_owned())),
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
                Err(error) => Err(unread(format!("the setting {name}"), &error)),
            }
        })
    }
}

fn unread(part: impl Into<String>, error: &dyn std::error::Error) -> ReadFailure {
    ReadFailure {
        part: part.into(),
        reason: error.to_string(),
    }
}

fn named(index: u32) -> rustix::io::Result<Interface> {
    let any = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    Ok(Interface {
        index: Some(index),
        name: index_to_name(any, index)?,
    })
}

/// Formats a key as a member, like `ipset`.
fn written(type_name: &str, key: &SetKey) -> String {
    let parts = type_name.split_once(':').map_or("", |(_, parts)| parts);
    let mut addresses = [key.ip, key.ip2].into_iter().flatten();
    let texts = parts.split(',').map(|part| match (part, key.port) {
        ("port", Some((_, port))) if parts == "port" => port.to_string(),
        ("port", Some((protocol, port))) => format!("{}:{port}", IpProtocol(protocol)),
        _ => addresses
            .next()
            .map_or_else(String::new, |address| address.to_string()),
    });
    texts.collect::<Vec<_>>().join(",")
}

fn holds(entry: &Entry, key: &SetKey) -> bool {
    match entry {
        Entry::IpPortNet {
            ip,
            protocol,
            port,
            net,
        } => {
            key.ip == Some(*ip)
                && key.port == Some((protocol.0, *port))
                && key.ip2.is_some_and(|address| net.contains(&address))
        }
        _ => false,
    }
}
