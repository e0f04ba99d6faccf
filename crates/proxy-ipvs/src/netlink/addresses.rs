//! The link `kube-ipvs0`, the service addresses on it, and the other addresses of this node, over rtnetlink.
//!
//! The link is a dummy that is down: an address on it is local to this node all the same, and is announced to nobody.
//! A link of that name but another kind is taken as it is, as upstream does. What makes an address local is a route of type
//! local, which the kernel adds with it; with [`VipMode::Route`] that route is all there is, in the same table and by a protocol
//! number that tells it from the kernel's. The link has to be ready for routes: IPv6 ones need it up, and the IPv4 ones go with its
//! last IPv4 address, so that it keeps one which means nothing to anybody ([`ANCHOR`]).
//!
//! With very many addresses one such route stands beside them ([`LANDMARK`]): without any, the kernel searches a chain of them
//! all for each packet that comes in.
//!
//! Source: `include/uapi/linux/rtnetlink.h`, `if_link.h`, `if_addr.h`; `net/ipv4/devinet.c`, `fib_semantics.c`,
//! `fib_frontend.c`, `net/ipv6/addrconf.c`, `route.c`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::thread::sleep;
use std::time::{Duration, Instant};

use netlink_batch::{
    Attributes, Batch, Connection, Error, Malformed, NLM_F_CREATE, NLM_F_EXCL, Protocol, Refusal,
    Reply, Writer,
};
use proxy::IpFamily;

use super::reason::{refused, refused_or_wrong, said, surprise, unsent, wrong};
use crate::config::VipMode;
use crate::kernel::FoundAddresses;
use crate::plan::{Op, Outcome};

const LINK: &str = "kube-ipvs0";

const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
const RTM_SETLINK: u16 = 19;
const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_GETADDR: u16 = 22;
const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;
const RTM_GETROUTE: u16 = 26;

const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

/// `struct ifinfomsg`
const IFINFOMSG: usize = 16;
const IFLA_IFNAME: u16 = 3;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_AF_SPEC: u16 = 26;
const IFLA_INET6_ADDR_GEN_MODE: u16 = 8;
const IN6_ADDR_GEN_MODE_NONE: u8 = 1;
const IFF_UP: u32 = 1;

/// `struct ifaddrmsg`
const IFADDRMSG: usize = 8;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
/// Nobody else can be asked on a link that is down, and each question would be a job for the kernel's work queue.
const IFA_F_NODAD: u8 = 0x02;
const IFA_F_PERMANENT: u8 = 0x80;

/// `struct rtmsg`
const RTMSG: usize = 12;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RT_TABLE_LOCAL: u8 = 255;
const RT_SCOPE_HOST: u8 = 254;
const RTN_LOCAL: u8 = 2;
const RTPROT_KERNEL: u8 = 2;
/// Nobody's in `/etc/iproute2/rt_protos`: 'k'.
const PROTOCOL: u8 = 107;

/// Keeps IPv4 on the link when service addresses are routes: with the last address of a link, the kernel removes its routes
/// (`fib_disable_ip`). Local to the node anyway, like all of 127.0.0.0/8, and of scope host, so nobody's source address.
const ANCHOR: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 107, 0, 1));

/// One local route makes the kernel ask its routing table whether a packet's source is one of its own addresses, instead of
/// walking through a 256th of all addresses (`fib_validate_source`, where `rp_filter` is 0 and there are no rules of others):
/// `fib_has_custom_local_routes` is set by the first such route over netlink, and stays until the network namespace ends.
/// The address is local to the node anyway, like all of 127.0.0.0/8, and in nobody's way. As a route on the link it is in the dump that
/// is read anyway, shows a restart that nothing is to be done, and goes with the link.
const LANDMARK: Ipv4Addr = Ipv4Addr::new(127, 107, 0, 2);

/// From how many addresses on [`LANDMARK`] is worth it: with 2,000 the walk is the cheaper way, with 5,000 both cost about the same, with
/// 10,000 it is the dearer one (docs/operating.md).
const MANY: usize = 4_096;

/// So many IPv6 addresses are bound again in some hundredths of a second; the time grows with the square
/// (`netlink-batch/examples/address_cost.rs`).
const SOON_BOUND: usize = 1_000;

/// How long none of the kernel's own routes may appear until those missing are given up.
const ROUTED_WITHIN: Duration = Duration::from_secs(2);

/// Links and addresses of one family.
#[derive(Debug)]
pub(super) struct Addresses {
    connection: Connection,
    family: IpFamily,
    /// The form of the service addresses.
    pub(super) vip_mode: VipMode,
    /// Addresses on the link that have another prefix length than this proxy gives: to remove one its own must be named.
    foreign_prefixes: BTreeMap<IpAddr, u8>,
    /// Whether a dump has found [`ANCHOR`].
    is_anchored: bool,
    /// How many addresses are on the link, by the last dump and what was done since.
    bound: usize,
    landmark: Landmark,
    /// Whether the link could not be made ready: that addresses have none is no surprise then.
    is_link_refused: bool,
}

/// What is known of [`LANDMARK`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Landmark {
    Missing,
    There,
    /// Not to be had, and the log says why.
    Refused,
}

#[derive(Debug, Clone, Copy)]
struct Link {
    index: u32,
    is_up: bool,
}

/// The IPv6 addresses of the link.
#[derive(Default)]
struct OnLink {
    of_services: usize,
    /// The link-local ones.
    own: Vec<Held>,
}

/// One answer to `RTM_GETADDR`.
struct Held {
    index: u32,
    prefix: u8,
    address: IpAddr,
}

impl Addresses {
    pub(super) fn open(family: IpFamily, vip_mode: VipMode) -> Result<Self, Error> {
        Ok(Self {
            connection: Connection::open(Protocol::Route)?,
            family,
            vip_mode,
            foreign_prefixes: BTreeMap::new(),
            is_anchored: false,
            bound: 0,
            landmark: Landmark::Missing,
            is_link_refused: false,
        })
    }

    pub(super) fn sent(&self) -> u32 {
        self.connection.sent()
    }

    pub(super) fn dump(&mut self) -> Result<FoundAddresses, Error> {
        self.connection = Connection::open(Protocol::Route)?;
        let link = self.link()?;
        let header = ifaddrmsg(self.family, 0, 0, 0);
        let dump = self
            .connection
            .dump(RTM_GETADDR, 0, |message| message.bytes(&header))?;
        let mut found = FoundAddresses::default();
        self.foreign_prefixes.clear();
        self.is_anchored = false;
        let mut has_own_address = false;
        for (_, payload) in dump.iter() {
            let Some(held) = Held::decode(payload)? else {
                continue;
            };
            let is_on_link = Some(held.index) == link.map(|link| link.index);
            self.is_anchored |= is_on_link && held.address == ANCHOR;
            has_own_address |= is_on_link && is_link_local(held.address);
            if !counts(held.address) || IpFamily::of(held.address) != self.family {
                continue;
            }
            if !is_on_link {
                found.interface_addresses.insert(held.address);
                continue;
            }
            if held.prefix != full_prefix(held.address) {
                self.foreign_prefixes.insert(held.address, held.prefix);
            }
            found.bound.insert(held.address);
        }
        if let Some(link) = link {
            found.has_link = match (self.vip_mode, self.family) {
                (VipMode::Address, _) if !link.is_up => true,
                // Whoever sets it down takes the IPv6 addresses away: that is for who binds them.
                (VipMode::Address, IpFamily::V4) => {
                    let ipv6 = self.ipv6_on(link.index)?;
                    ipv6.own.is_empty() || ipv6.of_services > 0
                }
                (VipMode::Address, IpFamily::V6) => !has_own_address,
                (VipMode::Route, IpFamily::V4) => self.is_anchored,
                (VipMode::Route, IpFamily::V6) => link.is_up,
            };
            found.bound_otherwise = self.routes(link.index, PROTOCOL)?;
        }
        self.bound = found.bound.len();
        let has_landmark = found.bound_otherwise.remove(&LANDMARK.into());
        self.landmark = match self.landmark {
            _ if has_landmark => Landmark::There,
            Landmark::Refused => Landmark::Refused,
            _ => Landmark::Missing,
        };
        if self.vip_mode == VipMode::Route {
            std::mem::swap(&mut found.bound, &mut found.bound_otherwise);
        }
        Ok(found)
    }

    /// Local routes on the link, of one protocol. Where the kernel does not filter (before Linux 4.20), others are passed over
    /// here.
    fn routes(&mut self, link: u32, protocol: u8) -> Result<BTreeSet<IpAddr>, Error> {
        let header = rtmsg(self.family, 0, protocol, 0);
        let dump = self
            .connection
            .dump(RTM_GETROUTE, 0, |message| message.bytes(&header))?;
        let mut found = BTreeSet::new();
        for (_, payload) in dump.iter() {
            found.extend(route(payload, self.family, protocol, link)?);
        }
        Ok(found)
    }

    /// Waits until IPv6 addresses lead somewhere without our routes: the kernel makes theirs a little later, by a worker. One
    /// that never gets it (marked `dadfailed`) holds nobody up for long.
    fn await_kernel_routes(&mut self, link: u32) -> Result<(), Error> {
        let mut missing = usize::MAX;
        let mut deadline = Instant::now() + ROUTED_WITHIN;
        loop {
            let bound = self.dump()?.bound;
            let left = bound.difference(&self.routes(link, RTPROT_KERNEL)?).count();
            if left < missing {
                missing = left;
                deadline = Instant::now() + ROUTED_WITHIN;
            }
            if missing == 0 || Instant::now() >= deadline {
                return Ok(());
            }
            sleep(Duration::from_millis(10));
        }
    }

    /// Creates the link where there is none, and makes it ready for what it is to hold.
    pub(super) fn create_link(&mut self) -> Outcome {
        let mut outcome = self.try_create_link();
        if outcome == Outcome::Done {
            outcome = match (self.vip_mode, self.family) {
                (VipMode::Address, _) => self.set_link_down(),
                (VipMode::Route, IpFamily::V4) => self.anchor(),
                (VipMode::Route, IpFamily::V6) => self.set_link_up(),
            };
        }
        self.is_link_refused = outcome != Outcome::Done;
        outcome
    }

    fn try_create_link(&mut self) -> Outcome {
        let mut batch = Batch::new();
        batch.push(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, |message| {
            message.bytes(&[0; IFINFOMSG]);
            message.attr_str(IFLA_IFNAME, LINK);
            message.nest(IFLA_LINKINFO, |info| info.attr_str(IFLA_INFO_KIND, "dummy"));
        });
        let refusal = match self
            .connection
            .execute(&batch)
            .map(|mut replies| replies.pop())
        {
            Ok(Some(Reply::Refused(refusal))) => refusal,
            Ok(Some(Reply::Done)) => return Outcome::Done,
            Ok(Some(Reply::Unknown) | None) => return Outcome::Unknown,
            Err(error) => return unsent(&error),
        };
        match refusal.errno {
            libc::EEXIST => Outcome::Done,
            libc::EOPNOTSUPP => refused(said(
                &refusal,
                "the kernel has no dummy links: run `modprobe dummy` on the host (CONFIG_DUMMY)",
            )),
            _ => refused(said(
                &refusal,
                "try `ip link add kube-ipvs0 type dummy` by hand",
            )),
        }
    }

    fn anchor(&mut self) -> Outcome {
        let index = match self.link() {
            Ok(Some(link)) => link.index,
            Ok(None) => return self.without_link(&Op::CreateLink),
            Err(error) => return unsent(&error),
        };
        let mut batch = Batch::new();
        push(&mut batch, RTM_NEWADDR, ANCHOR, 32, IFA_F_PERMANENT, index);
        match self
            .connection
            .execute(&batch)
            .map(|mut replies| replies.pop())
        {
            Ok(Some(reply)) => outcome(&Op::BindAddress(ANCHOR), reply),
            Ok(None) => Outcome::Unknown,
            Err(error) => unsent(&error),
        }
    }

    fn set_link_up(&mut self) -> Outcome {
        let mut batch = Batch::new();
        // Not even a link-local address; a kernel that cannot do without gives it one, which hurts nobody.
        push_without_own_address(&mut batch);
        push_state(&mut batch, IFF_UP);
        self.set_link(&batch, "try `ip link set kube-ipvs0 up` by hand")
    }

    /// Sets the link down, if it is up: service addresses are local without, and up it has an IPv6 address of its own and takes part in
    /// what is told to neighbours. IPv6 addresses on it go with that, and are to be bound again; where that takes long, the link stays up,
    /// and loses only the address of its own.
    fn set_link_down(&mut self) -> Outcome {
        let ipv6 = match self.link() {
            Ok(Some(Link { index, is_up: true })) => self.ipv6_on(index),
            Ok(_) => return Outcome::Done,
            Err(error) => return unsent(&error),
        };
        let ipv6 = match ipv6 {
            Ok(ipv6) => ipv6,
            Err(error) => return unsent(&error),
        };
        if ipv6.own.is_empty() {
            // As it is when service addresses were routes, which would go.
            return Outcome::Done;
        }
        let mut batch = Batch::new();
        if ipv6.of_services <= SOON_BOUND {
            push_state(&mut batch, 0);
        } else {
            push_without_own_address(&mut batch);
            for own in ipv6.own {
                let Held {
                    index,
                    prefix,
                    address,
                } = own;
                push(&mut batch, RTM_DELADDR, address, prefix, 0, index);
            }
        }
        self.set_link(&batch, "try `ip link set kube-ipvs0 down` by hand")
    }

    /// The IPv6 addresses of the link.
    fn ipv6_on(&mut self, link: u32) -> Result<OnLink, Error> {
        let header = ifaddrmsg(IpFamily::V6, 0, 0, 0);
        let dump = self
            .connection
            .dump(RTM_GETADDR, 0, |message| message.bytes(&header))?;
        let mut found = OnLink::default();
        for (_, payload) in dump.iter() {
            match Held::decode(payload)? {
                Some(held) if held.index != link => {}
                Some(held) if is_link_local(held.address) => found.own.push(held),
                Some(held) => found.of_services += usize::from(held.address.is_ipv6()),
                None => {}
            }
        }
        Ok(found)
    }

    fn set_link(&mut self, batch: &Batch, next: &str) -> Outcome {
        match self
            .connection
            .execute(batch)
            .map(|mut replies| replies.pop())
        {
            Ok(Some(Reply::Done)) => Outcome::Done,
            Ok(Some(Reply::Refused(refusal))) => refused(said(&refusal, next)),
            Ok(Some(Reply::Unknown) | None) => Outcome::Unknown,
            Err(error) => unsent(&error),
        }
    }

    /// The kind of the link: `dummy`, `veth`, ...; empty for hardware. `None` if there is no such link.
    pub(super) fn link_kind(&mut self) -> Result<Option<String>, Error> {
        let answer = self.connection.request(RTM_GETLINK, 0, by_name);
        let answer = match answer {
            Err(Error::Refused(Refusal {
                errno: libc::ENODEV,
                ..
            })) => return Ok(None),
            answer => answer?,
        };
        let (_, payload) = answer.iter().next().ok_or(Error::LostReply)?;
        Ok(Some(kind(payload)?))
    }

    /// Removes the link with its addresses. What is gone already is removed.
    pub(super) fn remove_link(&mut self) -> Result<(), Error> {
        let mut batch = Batch::new();
        batch.push(RTM_DELLINK, 0, by_name);
        match self.connection.execute(&batch)?.pop() {
            Some(
                Reply::Done
                | Reply::Refused(Refusal {
                    errno: libc::ENODEV,
                    ..
                }),
            ) => Ok(()),
            Some(Reply::Refused(refusal)) => Err(Error::Refused(refusal)),
            Some(Reply::Unknown) | None => Err(Error::LostReply),
        }
    }

    /// Binds and unbinds.
    pub(super) fn apply(&mut self, run: &[Op]) -> Vec<Outcome> {
        let index = match self.link() {
            Ok(Some(link)) => link.index,
            Ok(None) => return run.iter().map(|op| self.without_link(op)).collect(),
            Err(error) => return run.iter().map(|_| unsent(&error)).collect(),
        };
        let is_route = self.vip_mode == VipMode::Route;
        let gives_up_routes =
            !is_route && run.iter().any(|op| matches!(op, Op::UnbindOtherwise(_)));
        if gives_up_routes
            && self.family == IpFamily::V6
            && let Err(error) = self.await_kernel_routes(index)
        {
            return run.iter().map(|_| unsent(&error)).collect();
        }
        let mut batch = Batch::new();
        for op in run {
            match op {
                Op::BindAddress(address) if is_route => {
                    // Beside an address, whose own route has the same destination.
                    push_route(&mut batch, RTM_NEWROUTE, NLM_F_CREATE, *address, index);
                }
                Op::UnbindAddress(address) if is_route => {
                    push_route(&mut batch, RTM_DELROUTE, 0, *address, index);
                }
                Op::UnbindOtherwise(address) if !is_route => {
                    push_route(&mut batch, RTM_DELROUTE, 0, *address, index);
                }
                Op::BindAddress(address) => {
                    let flags = match address {
                        IpAddr::V4(_) => IFA_F_PERMANENT,
                        IpAddr::V6(_) => IFA_F_PERMANENT | IFA_F_NODAD,
                    };
                    let prefix = full_prefix(*address);
                    push(&mut batch, RTM_NEWADDR, *address, prefix, flags, index);
                }
                Op::UnbindAddress(address) | Op::UnbindOtherwise(address) => {
                    let foreign = self.foreign_prefixes.get(address).copied();
                    let prefix = foreign.unwrap_or_else(|| full_prefix(*address));
                    push(&mut batch, RTM_DELADDR, *address, prefix, 0, index);
                }
                _ => {}
            }
        }
        if gives_up_routes && self.is_anchored {
            push(&mut batch, RTM_DELADDR, ANCHOR, 32, 0, index);
        }
        self.count(run);
        let sets_landmark = self.wants_landmark();
        if sets_landmark {
            let landmark = LANDMARK.into();
            push_route(&mut batch, RTM_NEWROUTE, NLM_F_CREATE, landmark, index);
        }
        match self.connection.execute(&batch) {
            Ok(mut replies) => {
                if sets_landmark {
                    self.landmark = landmark(replies.pop());
                }
                run.iter()
                    .zip(replies)
                    .map(|(op, reply)| outcome(op, reply))
                    .collect()
            }
            Err(error) => run.iter().map(|_| unsent(&error)).collect(),
        }
    }

    /// Follows the number of addresses. What is refused is put right by the next dump.
    fn count(&mut self, run: &[Op]) {
        let of = |wanted: fn(&Op) -> bool| run.iter().filter(|op| wanted(op)).count();
        self.bound += of(|op| matches!(op, Op::BindAddress(_)));
        self.bound = self
            .bound
            .saturating_sub(of(|op| matches!(op, Op::UnbindAddress(_))));
    }

    fn wants_landmark(&self) -> bool {
        (self.vip_mode, self.family, self.landmark)
            == (VipMode::Address, IpFamily::V4, Landmark::Missing)
            && self.bound >= MANY
    }

    fn without_link(&self, op: &Op) -> Outcome {
        match op {
            Op::UnbindAddress(_) | Op::UnbindOtherwise(_) => Outcome::Done,
            _ if self.is_link_refused => {
                refused("ENODEV, there is no link kube-ipvs0; it could not be made".to_owned())
            }
            // Somebody has just removed it: to read what is there says the rest.
            _ => Outcome::Unknown,
        }
    }

    /// The link, if it exists.
    fn link(&mut self) -> Result<Option<Link>, Error> {
        let answer = self.connection.request(RTM_GETLINK, 0, by_name);
        let answer = match answer {
            Err(Error::Refused(Refusal {
                errno: libc::ENODEV,
                ..
            })) => return Ok(None),
            answer => answer?,
        };
        let link = answer.iter().next().map(|(_, payload)| match payload {
            [_, _, _, _, index @ ..] => Some(Link {
                index: word(index)?,
                is_up: word(index.get(4..)?)? & IFF_UP != 0,
            }),
            _ => None,
        });
        match link {
            Some(Some(link)) => Ok(Some(link)),
            Some(None) => Err(short(IFINFOMSG, 0).into()),
            None => Err(Error::LostReply),
        }
    }
}

/// What has become of [`LANDMARK`]. Nothing but time depends on it.
fn landmark(reply: Option<Reply>) -> Landmark {
    match reply {
        Some(Reply::Refused(refusal)) if refusal.errno != libc::EEXIST => {
            tracing::warn!(
                "each packet to or through this node costs the more, the more addresses kube-ipvs0 has: no local route {LANDMARK} can be set there, which would spare it: {}",
                said(
                    &refusal,
                    "set net.ipv4.conf.all.rp_filter to 2, or use --ipvs-vip-mode=route, if that matters here",
                ),
            );
            Landmark::Refused
        }
        Some(Reply::Done | Reply::Refused(_)) => Landmark::There,
        Some(Reply::Unknown) | None => Landmark::Missing,
    }
}

/// Has the kernel give the link no link-local address when it is set up.
fn push_without_own_address(batch: &mut Batch) {
    batch.push(RTM_SETLINK, 0, |message| {
        by_name(message);
        message.nest(IFLA_AF_SPEC, |families| {
            families.nest(u16::from(AF_INET6), |six| {
                six.attr_u8(IFLA_INET6_ADDR_GEN_MODE, IN6_ADDR_GEN_MODE_NONE);
            });
        });
    });
}

/// Sets the link up (`IFF_UP`) or down (0).
fn push_state(batch: &mut Batch, state: u32) {
    batch.push(RTM_SETLINK, 0, |message| {
        // `struct ifinfomsg` ends with the flags, and which of them count.
        message.bytes(&[0; IFINFOMSG - 8]);
        message.bytes(&state.to_ne_bytes());
        message.bytes(&IFF_UP.to_ne_bytes());
        message.attr_str(IFLA_IFNAME, LINK);
    });
}

/// The content of a message about the link.
fn by_name(message: &mut Writer<'_>) {
    message.bytes(&[0; IFINFOMSG]);
    message.attr_str(IFLA_IFNAME, LINK);
}

/// The kind in an answer to `RTM_GETLINK`; empty for hardware.
fn kind(payload: &[u8]) -> Result<String, Malformed> {
    for attribute in Attributes::after(IFINFOMSG, payload)? {
        let attribute = attribute?;
        if attribute.kind != IFLA_LINKINFO {
            continue;
        }
        for part in attribute.nested() {
            let part = part?;
            if part.kind == IFLA_INFO_KIND {
                return Ok(part.string()?.to_owned());
            }
        }
    }
    Ok(String::new())
}

impl Held {
    fn decode(payload: &[u8]) -> Result<Option<Self>, Malformed> {
        let [_, prefix, _, _, index @ ..] = payload else {
            return Err(short(IFADDRMSG, payload.len()));
        };
        let index = word(index).ok_or_else(|| short(IFADDRMSG, payload.len()))?;
        let (mut local, mut address) = (None, None);
        for attribute in Attributes::after(IFADDRMSG, payload)? {
            let attribute = attribute?;
            let ip = || match attribute.payload.len() {
                4 => attribute.array::<4>().map(IpAddr::from),
                _ => attribute.array::<16>().map(IpAddr::from),
            };
            match attribute.kind {
                IFA_LOCAL => local = Some(ip()?),
                IFA_ADDRESS => address = Some(ip()?),
                _ => {}
            }
        }
        // Between two points IFA_ADDRESS is the other end's; without another end IPv6 has no IFA_LOCAL.
        Ok(local.or(address).map(|address| Self {
            index,
            prefix: *prefix,
            address,
        }))
    }
}

fn push(batch: &mut Batch, kind: u16, address: IpAddr, prefix: u8, flags: u8, index: u32) {
    // NLM_F_EXCL's bit means NLM_F_BULK in a removal.
    let request = if kind == RTM_NEWADDR {
        NLM_F_CREATE | NLM_F_EXCL
    } else {
        0
    };
    batch.push(kind, request, |message| {
        let mut header = ifaddrmsg(IpFamily::of(address), prefix, flags, index);
        if address.is_loopback() {
            header[3] = RT_SCOPE_HOST;
        }
        message.bytes(&header);
        for attribute in [IFA_LOCAL, IFA_ADDRESS] {
            match address {
                IpAddr::V4(v4) => message.attr(attribute, &v4.octets()),
                IpAddr::V6(v6) => message.attr(attribute, &v6.octets()),
            }
        }
    });
}

fn push_route(batch: &mut Batch, kind: u16, request: u16, address: IpAddr, index: u32) {
    // Within scope host the kernel asks for no link that is up; IPv6 has no scopes.
    let scope = if address.is_ipv4() { RT_SCOPE_HOST } else { 0 };
    let header = rtmsg(IpFamily::of(address), full_prefix(address), PROTOCOL, scope);
    batch.push(kind, request, |message| {
        message.bytes(&header);
        match address {
            IpAddr::V4(v4) => message.attr(RTA_DST, &v4.octets()),
            IpAddr::V6(v6) => message.attr(RTA_DST, &v6.octets()),
        }
        message.attr_u32(RTA_OIF, index);
    });
}

fn rtmsg(family: IpFamily, prefix: u8, protocol: u8, scope: u8) -> [u8; RTMSG] {
    let family = family_number(family);
    [
        family,
        prefix,
        0,
        0,
        RT_TABLE_LOCAL,
        protocol,
        scope,
        RTN_LOCAL,
        0,
        0,
        0,
        0,
    ]
}

/// The address in an answer to `RTM_GETROUTE`, if it is a local route of this protocol on this link.
fn route(
    payload: &[u8],
    family: IpFamily,
    protocol: u8,
    link: u32,
) -> Result<Option<IpAddr>, Malformed> {
    let Some([found, prefix, _, _, table, by, _, kind]) = payload.first_chunk() else {
        return Err(short(RTMSG, payload.len()));
    };
    let (mut address, mut index) = (None, None);
    for attribute in Attributes::after(RTMSG, payload)? {
        let attribute = attribute?;
        match attribute.kind {
            RTA_DST if attribute.payload.len() == 4 => {
                address = Some(attribute.array::<4>()?.into());
            }
            RTA_DST => address = Some(attribute.array::<16>()?.into()),
            RTA_OIF => index = Some(attribute.u32()?),
            _ => {}
        }
    }
    let is_one = (*found, *table, *by, *kind)
        == (family_number(family), RT_TABLE_LOCAL, protocol, RTN_LOCAL)
        && index == Some(link);
    Ok(address.filter(|address| is_one && *prefix == full_prefix(*address)))
}

fn family_number(family: IpFamily) -> u8 {
    match family {
        IpFamily::V4 => AF_INET,
        IpFamily::V6 => AF_INET6,
    }
}

fn ifaddrmsg(family: IpFamily, prefix: u8, flags: u8, index: u32) -> [u8; IFADDRMSG] {
    let family = family_number(family);
    let [a, b, c, d] = index.to_ne_bytes();
    [family, prefix, flags, 0, a, b, c, d]
}

fn outcome(op: &Op, reply: Reply) -> Outcome {
    let refusal = match reply {
        Reply::Done => return Outcome::Done,
        Reply::Unknown => return Outcome::Unknown,
        Reply::Refused(refusal) => refusal,
    };
    match (op, refusal.errno) {
        (Op::BindAddress(_), libc::EEXIST)
        | (
            Op::UnbindAddress(_) | Op::UnbindOtherwise(_),
            libc::EADDRNOTAVAIL | libc::ESRCH | libc::ENODEV,
        ) => Outcome::Done,
        (_, libc::ENETDOWN) => surprise(said(
            &refusal,
            "the link kube-ipvs0 is down; it is set up again",
        )),
        (_, libc::ENODEV) => surprise(said(
            &refusal,
            "the link kube-ipvs0 is gone; it is made again",
        )),
        (Op::BindAddress(IpAddr::V6(_)), libc::EACCES) => refused(said(
            &refusal,
            "run `sysctl -w net.ipv6.conf.kube-ipvs0.disable_ipv6=0`, and look where it is set to 1 (/etc/sysctl.d)",
        )),
        (Op::BindAddress(IpAddr::V6(_)), libc::EOPNOTSUPP) => refused(said(
            &refusal,
            "the kernel has no IPv6: run `modprobe ipv6`, and look for ipv6.disable=1 in /proc/cmdline",
        )),
        (Op::BindAddress(_), libc::EINVAL | libc::EADDRNOTAVAIL) => wrong(said(
            &refusal,
            "it is no address that a node can have: correct the Service",
        )),
        _ => refused_or_wrong(&refusal, "try it with `ip address` on kube-ipvs0 by hand"),
    }
}

fn full_prefix(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

/// Whether an address makes a difference to upstream.
fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

fn counts(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => !v4.is_loopback(),
        IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unicast_link_local(),
    }
}

fn word(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().map(|word| u32::from_ne_bytes(*word))
}

fn short(expected: usize, actual: usize) -> Malformed {
    Malformed::Size {
        kind: 0,
        expected,
        actual,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message(attributes: &[(u16, IpAddr)]) -> Vec<u8> {
        let mut batch = Batch::new();
        batch.push(RTM_NEWADDR, 0, |message| {
            message.bytes(&ifaddrmsg(IpFamily::V4, 32, 0, 7));
            for (kind, address) in attributes {
                match address {
                    IpAddr::V4(v4) => message.attr(*kind, &v4.octets()),
                    IpAddr::V6(v6) => message.attr(*kind, &v6.octets()),
                }
            }
        });
        batch.get(0).unwrap().payload.to_vec()
    }

    #[test]
    fn the_own_end_of_a_point_to_point_link_counts() {
        let (own, other) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        let held = Held::decode(&message(&[(IFA_ADDRESS, other), (IFA_LOCAL, own)]))
            .unwrap()
            .unwrap();
        assert_eq!((held.address, held.prefix, held.index), (own, 32, 7));
        let six = "fd00::1".parse().unwrap();
        let held = Held::decode(&message(&[(IFA_ADDRESS, six)]))
            .unwrap()
            .unwrap();
        assert_eq!(held.address, six);
        assert!(Held::decode(&message(&[])).unwrap().is_none());
    }

    #[test]
    fn loopback_and_link_local_addresses_do_not_count() {
        let counted = ["10.0.0.1", "169.254.0.1", "fd00::1", "2001:db8::1"];
        assert!(counted.iter().all(|text| counts(text.parse().unwrap())));
        let passed = ["127.0.0.1", "127.1.2.3", "::1", "fe80::1"];
        assert!(!passed.iter().any(|text| counts(text.parse().unwrap())));
    }

    #[test]
    fn a_refused_landmark_is_not_tried_again() {
        let refusal = |errno| {
            Reply::Refused(Refusal {
                errno,
                message: None,
                request: Vec::new(),
            })
        };
        assert_eq!(landmark(Some(Reply::Done)), Landmark::There);
        assert_eq!(landmark(Some(refusal(libc::EEXIST))), Landmark::There);
        assert_eq!(landmark(Some(refusal(libc::EPERM))), Landmark::Refused);
        assert_eq!(landmark(Some(Reply::Unknown)), Landmark::Missing);
    }

    proptest! {
        #[test]
        fn foreign_bytes_never_panic(payload in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = (Held::decode(&payload), kind(&payload), route(&payload, IpFamily::V4, PROTOCOL, 7));
        }
    }
}
