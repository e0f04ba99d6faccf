//! Finds the endpoints that packets can reach through an iptables nat table. Parses the table in
//! the kernel's binary layout (`struct ipt_entry`).
//!
//! ```text
//!  PREROUTING ── KUBE-SERVICES ── -d 10.96.1.0/32 --dport 80
//!  (byte 0)                                  │
//!                                            └─ KUBE-SVC-… ─┬─ KUBE-SEP-… ── DNAT 10.128.1.0:8080
//!                                                           └─ KUBE-SEP-… ── DNAT 10.128.1.1:8080
//!
//!  KUBE-SVC-…, KUBE-SEP-… without a jump to them: no packet gets there
//! ```
//!
//! - This module follows a packet from rule to rule. It knows the packet's destination address,
//!   protocol and port, but not its source, its interface or the result of a random choice.
//! - If a rule depends on something unknown, the module follows both cases: the rule matches, and
//!   it does not match.
//! - Chains to which no rule jumps have no effect. kube-proxy leaves such chains behind, and
//!   deletes them later.
//!
//! Source: `linux/netfilter_ipv4/ip_tables.h`, `linux/netfilter/x_tables.h`,
//! `linux/netfilter/xt_tcpudp.h`, `linux/netfilter/nf_nat.h`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddrV4};

use anyhow::{Context as _, Result, bail, ensure};

/// Endpoints by Service address and port: the part of the state that every mode has.
pub(crate) type Servers = BTreeMap<SocketAddrV4, BTreeSet<SocketAddrV4>>;

/// Destinations to which rules may translate a packet (DNAT).
type Targets = BTreeSet<SocketAddrV4>;

/// An IPv4 nat table as the kernel returns it: a sequence of `struct ipt_entry`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules<'a> {
    entries: &'a [u8],
}

/// A rule of the table: one `struct ipt_entry` with its matches and its target.
#[derive(Debug, Clone, Copy)]
struct Rule<'a> {
    bytes: &'a [u8],
    /// Offset of the target in the rule, at which the matches end.
    target: usize,
    /// Offset of the next rule in the table.
    next: usize,
}

/// Certainty with which a rule matches a packet of which only some fields are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum RuleEffect {
    Never,
    Maybe,
    Always,
}

/// Effect of a rule on a packet that it matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// The packet goes on to the next rule.
    On,
    /// The packet enters the chain at this offset. At its end, it returns to the next rule.
    Jump(usize),
    /// The packet enters the chain at this offset. At its end, it returns to the caller of the
    /// present chain.
    Goto(usize),
    /// The packet returns to the caller of the present chain.
    Back,
    /// The packet leaves this table.
    End,
    /// The rule translates the packet's destination to this address and port. `None`: the port does
    /// not change.
    To(Ipv4Addr, Option<u16>),
}

/// Offsets of fields in `struct ipt_ip`: source and destination with their masks, interface masks,
/// protocol, flags and inverse flags.
const SOURCE: usize = 0;
const DESTINATION: usize = 4;
const SOURCE_MASK: usize = 8;
const DESTINATION_MASK: usize = 12;
const INTERFACE_MASKS: std::ops::Range<usize> = 48..80;
const PROTOCOL: usize = 80;
const FLAGS: usize = 82;
const INVERTED: usize = 83;
/// Flags in `struct ipt_ip`: `IPT_F_FRAG` and `IPT_F_GOTO`.
const FRAGMENT: u8 = 0x01;
const GOTO: u8 = 0x02;
/// Inverse flags in `struct ipt_ip`: `IPT_INV_DSTIP`, `IPT_INV_FRAG` and `IPT_INV_PROTO`.
const NOT_DESTINATION: u8 = 0x10;
const NOT_FRAGMENT: u8 = 0x20;
const NOT_PROTOCOL: u8 = 0x40;
/// Offsets in `struct ipt_entry`: the field `target_offset`, the field `next_offset`, and the end
/// of the structure.
const TARGET_OFFSET: usize = 88;
const NEXT_OFFSET: usize = 90;
const ENTRY: usize = 112;
/// Offsets in `struct xt_entry_match` and `struct xt_entry_target`: name, revision, and the
/// extension's data.
const NAME: std::ops::Range<usize> = 2..31;
const REVISION: usize = 31;
const OWN: usize = 32;
/// Verdict `XT_RETURN`: the packet returns to the calling chain.
const RETURN: i32 = -5;
/// NAT range flags: `NF_NAT_RANGE_MAP_IPS` and `NF_NAT_RANGE_PROTO_SPECIFIED`.
const HAS_ADDRESS: u32 = 1;
const HAS_PORT: u32 = 2;
/// Targets at which this module stops following a packet, because it leaves the table, or because
/// the effect is unknown. After any target that is not listed, the packet goes on to the next rule.
const ENDS: [&[u8]; 8] = [
    b"MASQUERADE",
    b"NETMAP",
    b"NFQUEUE",
    b"REDIRECT",
    b"REJECT",
    b"SNAT",
    b"SYNPROXY",
    b"TPROXY",
];
/// Maximum depth of nested chains. kube-proxy nests at most four.
const DEEP: usize = 32;

impl<'a> Rules<'a> {
    /// Wraps the entries of a nat table, in which PREROUTING must be the first chain. Empty if the
    /// table does not exist.
    pub(crate) fn new(entries: &'a [u8]) -> Self {
        Self { entries }
    }

    /// Returns the destinations to which the rules may translate a new TCP connection to `at`.
    /// Empty if no rule translates it.
    pub(crate) fn targets(&self, at: SocketAddrV4) -> Result<Targets> {
        let mut targets = Targets::new();
        if !self.entries.is_empty() {
            self.follow(0, at, &mut targets, 0)?;
        }
        Ok(targets)
    }

    /// Returns each address and port that has a rule for incoming packets, with the destinations to
    /// which the rules may translate it. Skips rules for a network or for several ports.
    pub(crate) fn servers(&self) -> Result<Servers> {
        let mut found = BTreeMap::new();
        if !self.entries.is_empty() {
            self.gather(0, &mut BTreeSet::new(), &mut found)?;
        }
        let servers = found.into_iter();
        Ok(servers.map(|(at, (targets, _))| (at, targets)).collect())
    }

    /// Follows a packet from the rule at the offset `from`, and adds its possible destinations to
    /// `targets`. Returns true if the packet may come to the end of the chain or return from it.
    fn follow(
        &self,
        from: usize,
        packet: SocketAddrV4,
        targets: &mut Targets,
        depth: usize,
    ) -> Result<bool> {
        ensure!(depth < DEEP, "chains call each other {DEEP} deep");
        let mut may_return = false;
        let mut at = from;
        loop {
            let rule = self.rule(at)?;
            match rule.takes(packet)? {
                RuleEffect::Never => {}
                takes => {
                    let goes_on = match rule.fate(at)? {
                        Fate::On => true,
                        Fate::Jump(to) => self.follow(to, packet, targets, depth + 1)?,
                        Fate::Goto(to) => {
                            may_return |= self.follow(to, packet, targets, depth + 1)?;
                            false
                        }
                        Fate::Back => {
                            may_return = true;
                            false
                        }
                        Fate::End => false,
                        Fate::To(address, port) => {
                            let port = port.unwrap_or(packet.port());
                            targets.insert(SocketAddrV4::new(address, port));
                            false
                        }
                    };
                    if takes == RuleEffect::Always && !goes_on {
                        return Ok(may_return);
                    }
                }
            }
            at = rule.next;
        }
    }

    /// Visits all rules of the chain at the offset `from`, and of the chains that it calls for all
    /// packets.
    ///
    /// For a rule that matches a single address and port, follows a packet to it, and adds the
    /// packet's possible destinations to `found`. The flag in `found` is true once no such packet
    /// can pass the rule. Later rules still count for packets to other addresses.
    fn gather(
        &self,
        from: usize,
        seen: &mut BTreeSet<usize>,
        found: &mut BTreeMap<SocketAddrV4, (Targets, bool)>,
    ) -> Result<()> {
        if !seen.insert(from) {
            return Ok(());
        }
        ensure!(seen.len() < DEEP, "{DEEP} chains are for all packets");
        let mut at = from;
        loop {
            let rule = self.rule(at)?;
            let fate = rule.fate(at)?;
            if let Some(packet) = rule.only()? {
                let (targets, are_all) = found.entry(packet).or_default();
                if !*are_all {
                    let goes_on = match fate {
                        Fate::Jump(to) | Fate::Goto(to) => self.follow(to, packet, targets, 1)?,
                        Fate::To(address, port) => {
                            let port = port.unwrap_or(packet.port());
                            targets.insert(SocketAddrV4::new(address, port));
                            false
                        }
                        Fate::On => true,
                        Fate::Back | Fate::End => false,
                    };
                    *are_all = !goes_on && rule.takes(packet)? == RuleEffect::Always;
                }
            } else {
                match fate {
                    Fate::Jump(to) | Fate::Goto(to) => self.gather(to, seen, found)?,
                    Fate::On | Fate::Back | Fate::End | Fate::To(..) => {}
                }
                if rule.is_for_all()
                    && matches!(fate, Fate::Goto(_) | Fate::Back | Fate::End | Fate::To(..))
                {
                    return Ok(());
                }
            }
            at = rule.next;
        }
    }

    fn rule(&self, at: usize) -> Result<Rule<'a>> {
        let read = || {
            let bytes = self.entries.get(at..)?;
            let length = usize::from(short(bytes, NEXT_OFFSET)?);
            let target = usize::from(short(bytes, TARGET_OFFSET)?);
            let bytes = bytes.get(..length)?;
            (ENTRY..=length.checked_sub(OWN)?)
                .contains(&target)
                .then_some(Rule {
                    bytes,
                    target,
                    next: at + length,
                })
        };
        read().with_context(|| format!("no rule begins at byte {at} of the table"))
    }
}

impl<'a> Rule<'a> {
    /// Returns whether the rule matches a TCP packet to `packet`, whose source is unknown.
    fn takes(&self, packet: SocketAddrV4) -> Result<RuleEffect> {
        // Checks the destination first, because among tens of thousands of rules, nearly all are
        // for another address.
        let wanted = self.number(DESTINATION)?;
        let mask = self.number(DESTINATION_MASK)?;
        let inverted = self.byte(INVERTED)?;
        let address = u32::from_ne_bytes(packet.ip().octets());
        if (address & mask == wanted) == (inverted & NOT_DESTINATION != 0) {
            return Ok(RuleEffect::Never);
        }
        let protocol = self.bytes(PROTOCOL..PROTOCOL + 2)?;
        let is_tcp = protocol == [0, 0] || protocol == TCP;
        if is_tcp == (inverted & NOT_PROTOCOL != 0) {
            return Ok(RuleEffect::Never);
        }
        let is_for_fragments = self.byte(FLAGS)? & FRAGMENT != 0;
        if is_for_fragments && inverted & NOT_FRAGMENT == 0 {
            return Ok(RuleEffect::Never);
        }
        let any = |bytes: &[u8]| bytes.iter().any(|byte| *byte != 0);
        let asks = self.number(SOURCE_MASK)? != 0 || any(self.bytes(INTERFACE_MASKS)?);
        let mut takes = if asks {
            RuleEffect::Maybe
        } else {
            RuleEffect::Always
        };
        for one in self.matches() {
            takes = takes.min(one?.takes(packet)?);
        }
        Ok(takes)
    }

    /// Returns the address and port that the rule matches, or `None` if it matches several. Ignores
    /// other conditions of the rule.
    fn only(&self) -> Result<Option<SocketAddrV4>> {
        let is_one = self.number(DESTINATION_MASK)? == u32::MAX
            && self.byte(INVERTED)? & (NOT_DESTINATION | NOT_PROTOCOL) == 0
            && self.bytes(PROTOCOL..PROTOCOL + 2)? == TCP;
        if !is_one {
            return Ok(None);
        }
        for one in self.matches() {
            if let Some(port) = one?.only_port()? {
                let address = Ipv4Addr::from(self.number(DESTINATION)?.to_ne_bytes());
                return Ok(Some(SocketAddrV4::new(address, port)));
            }
        }
        Ok(None)
    }

    /// Returns true if the rule has no conditions.
    fn is_for_all(&self) -> bool {
        let head = self.bytes.get(SOURCE..FLAGS).unwrap_or_default();
        head.iter().all(|byte| *byte == 0) && self.target == ENTRY
    }

    /// Returns the effect of the rule on packets that it matches. `at` is the rule's offset in the
    /// table.
    fn fate(&self, at: usize) -> Result<Fate> {
        let target = Extension::at(self.bytes.get(self.target..).unwrap_or_default())
            .with_context(|| format!("the rule at byte {at} has no target"))?;
        let number = |at| target.number(at);
        Ok(match target.name {
            // The standard target has an empty name. Its data is a verdict (negative), or the
            // offset of a chain.
            b"" => match i32::from_ne_bytes(number(0)?.to_ne_bytes()) {
                RETURN => Fate::Back,
                verdict if verdict < 0 => Fate::End,
                to => match usize::try_from(to)? {
                    to if to == self.next => Fate::On,
                    to if self.byte(FLAGS)? & GOTO != 0 => Fate::Goto(to),
                    to => Fate::Jump(to),
                },
            },
            b"DNAT" => {
                // DNAT has `struct nf_nat_ipv4_multi_range_compat` in revision 0, and
                // `struct nf_nat_range2` in revision 2, in which an address has 16 bytes.
                let (flags, address, to, port) = match target.revision {
                    0 => (4, 8, 12, 16),
                    2 => (0, 4, 20, 36),
                    other => bail!("a DNAT of revision {other} is not understood"),
                };
                let flags = number(flags)?;
                ensure!(
                    flags & HAS_ADDRESS != 0 && number(address)? == number(to)?,
                    "a DNAT to more than one address is not understood"
                );
                let port = target.network(port)?;
                Fate::To(
                    Ipv4Addr::from(number(address)?.to_ne_bytes()),
                    (flags & HAS_PORT != 0).then_some(port),
                )
            }
            // A target ERROR marks the start of a user-defined chain, and the end of the table.
            b"ERROR" => bail!("the chain before byte {at} has no end"),
            name if ENDS.contains(&name) => Fate::End,
            _ => Fate::On,
        })
    }

    fn matches(&self) -> impl Iterator<Item = Result<Extension<'a>>> {
        let mut rest = self.bytes.get(ENTRY..self.target).unwrap_or_default();
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let one = Extension::at(rest).context("a match goes beyond its rule");
            rest = match &one {
                Ok(one) => rest.get(one.size..).unwrap_or_default(),
                Err(_) => &[],
            };
            Some(one)
        })
    }

    fn bytes(&self, range: std::ops::Range<usize>) -> Result<&'a [u8]> {
        self.bytes.get(range).context("a rule is too short")
    }

    fn byte(&self, at: usize) -> Result<u8> {
        self.bytes.get(at).copied().context("a rule is too short")
    }

    /// Reads a 32-bit number of the rule, in native byte order.
    fn number(&self, at: usize) -> Result<u32> {
        number(self.bytes, at).context("a rule is too short")
    }
}

/// `IPPROTO_TCP`, in the byte order of `struct ipt_ip`.
const TCP: [u8; 2] = 6_u16.to_ne_bytes();

/// A match or a target of a rule (an extension), such as `tcp` or `DNAT`.
#[derive(Debug, Clone, Copy)]
struct Extension<'a> {
    name: &'a [u8],
    revision: u8,
    /// Size of the extension in bytes, including its header.
    size: usize,
    own: &'a [u8],
}

impl<'a> Extension<'a> {
    /// Reads the extension at the start of `bytes`. Returns `None` if `bytes` is too short.
    fn at(bytes: &'a [u8]) -> Option<Self> {
        let size = usize::from(short(bytes, 0)?);
        let name = bytes.get(NAME)?;
        Some(Self {
            name: name.split(|byte| *byte == 0).next()?,
            revision: *bytes.get(REVISION)?,
            size,
            own: bytes.get(OWN..size)?,
        })
    }

    /// Returns whether this match accepts a TCP packet to `packet`, whose source is unknown.
    fn takes(&self, packet: SocketAddrV4) -> Result<RuleEffect> {
        match self.name {
            b"comment" => Ok(RuleEffect::Always),
            b"tcp" => {
                let tcp = self.tcp()?;
                let is_in = tcp.to.contains(&packet.port());
                Ok(if is_in == (tcp.inverted & NOT_TO_PORT != 0) {
                    RuleEffect::Never
                } else if tcp.asks_more {
                    RuleEffect::Maybe
                } else {
                    RuleEffect::Always
                })
            }
            _ => Ok(RuleEffect::Maybe),
        }
    }

    /// Returns the destination port that this match accepts, or `None` if it accepts several.
    fn only_port(&self) -> Result<Option<u16>> {
        if self.name != b"tcp" {
            return Ok(None);
        }
        let tcp = self.tcp()?;
        let is_one = tcp.to.start() == tcp.to.end() && tcp.inverted & NOT_TO_PORT == 0;
        Ok(is_one.then_some(*tcp.to.start()))
    }

    /// Parses the data of the match `tcp` (`struct xt_tcp`).
    fn tcp(&self) -> Result<Tcp> {
        let port = |at| short(self.own, at).context("a match of TCP is too short");
        let byte = |at| self.own.get(at).copied().unwrap_or_default();
        let (option, flags, inverted) = (byte(8), byte(9), byte(11));
        Ok(Tcp {
            to: port(4)?..=port(6)?,
            asks_more: (port(0)?, port(2)?) != (0, u16::MAX)
                || inverted & !NOT_TO_PORT != 0
                || option != 0
                || flags != 0,
            inverted,
        })
    }

    /// Reads a 32-bit number of the extension's data, in native byte order.
    fn number(&self, at: usize) -> Result<u32> {
        number(self.own, at).context("a target is too short")
    }

    fn network(&self, at: usize) -> Result<u16> {
        let number = short(self.own, at).context("a target is too short")?;
        Ok(u16::from_be_bytes(number.to_ne_bytes()))
    }
}

/// Inverse flag in `struct xt_tcp`: `XT_TCP_INV_DSTPT`.
const NOT_TO_PORT: u8 = 0x02;

/// Conditions of a match `tcp` (`struct xt_tcp`).
#[derive(Debug)]
struct Tcp {
    to: std::ops::RangeInclusive<u16>,
    /// True if the match has conditions besides the destination port.
    asks_more: bool,
    inverted: u8,
}

fn short(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..at + 2)?;
    Some(u16::from_ne_bytes(bytes.try_into().ok()?))
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at + 4)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Tables in the kernel's layout, built from `leftovers.rules` and (in [`WAYS`]) from
    /// `ways.rules`. `examples/capture_rules.rs` has captured them.
    pub(crate) const LEFTOVERS: &str = include_str!("../tests/data/leftovers.hex");
    pub(crate) const WAYS: &str = include_str!("../tests/data/ways.hex");

    pub(crate) fn table(hex: &str) -> Vec<u8> {
        let digits: Vec<u8> = hex.bytes().filter(|byte| *byte != b'\n').collect();
        let pairs = digits.as_chunks::<2>().0.iter();
        let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        pairs.map(|pair| byte(pair)).collect()
    }

    /// Returns the destinations that a packet to the address and port `at` can reach, as text.
    fn targets(table: &[u8], at: &str) -> Vec<String> {
        let targets = Rules::new(table).targets(at.parse().unwrap()).unwrap();
        targets.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn an_endpoint_chain_without_a_jump_is_not_reachable() {
        let table = table(LEFTOVERS);
        // The table still has the chain of a replaced endpoint, to which no rule jumps.
        let old = [10, 128, 1, 1];
        assert!(table.as_chunks::<4>().0.contains(&old));
        assert_eq!(
            targets(&table, "10.96.1.0:80"),
            ["10.128.1.0:8080", "10.192.0.7:8080"]
        );
        assert_eq!(
            targets(&table, "10.96.1.1:80"),
            ["10.128.1.2:8080", "10.128.1.3:8080"]
        );
        // No rule leads from these addresses and ports to an endpoint.
        for gone in ["10.96.1.2:80", "10.96.1.3:80", "10.96.1.0:81"] {
            assert!(targets(&table, gone).is_empty(), "{gone}");
        }
        assert_eq!(
            targets(&table, "10.96.1.4:80"),
            ["10.128.1.8:8080", "10.128.1.9:8080"]
        );
    }

    #[test]
    fn a_search_for_all_services_finds_the_same_endpoints_as_a_search_by_address() {
        let table = table(LEFTOVERS);
        let servers = Rules::new(&table).servers().unwrap();
        let found: Vec<String> = servers.keys().map(ToString::to_string).collect();
        assert_eq!(found, ["10.96.1.0:80", "10.96.1.1:80", "10.96.1.4:80"]);
        for (at, reals) in servers {
            assert_eq!(reals, Rules::new(&table).targets(at).unwrap(), "{at}");
        }
    }

    #[test]
    fn each_path_of_a_packet_through_a_nat_table_is_followed() {
        let table = table(WAYS);
        let wanted = [
            "10.0.0.1:8080",
            "10.0.0.2:8080",
            "10.0.0.3:8080",
            "10.0.0.4:80",
            "10.0.0.5:8080",
        ];
        assert_eq!(targets(&table, "10.96.0.1:80"), wanted);
        assert_eq!(targets(&table, "10.97.0.1:80"), [""; 0]);
        assert_eq!(targets(&table, "11.0.0.1:80"), ["10.0.0.99:1"]);
    }

    #[test]
    fn an_empty_table_has_no_reachable_endpoint() {
        assert!(targets(&[], "10.96.1.0:80").is_empty());
        assert!(Rules::new(&[]).servers().unwrap().is_empty());
    }

    #[test]
    fn invalid_rule_bytes_are_an_error() {
        let whole = table(LEFTOVERS);
        let at = "10.96.1.0:80".parse().unwrap();
        for cut in [1, ENTRY, whole.len() / 2] {
            let cut = whole.get(..cut).unwrap();
            assert!(Rules::new(cut).targets(at).is_err());
            assert!(Rules::new(cut).servers().is_err());
        }
        // Changes each byte of the rules in turn. The result may be wrong, but the parser must not
        // panic.
        let mut bytes = whole;
        for index in 0..bytes.len() {
            *bytes.get_mut(index).unwrap() ^= 0xff;
            let _ = Rules::new(&bytes).targets(at);
            let _ = Rules::new(&bytes).servers();
            *bytes.get_mut(index).unwrap() ^= 0xff;
        }
    }
}
