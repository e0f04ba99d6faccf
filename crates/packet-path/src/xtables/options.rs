//! Parses the options of an iptables rule into tests and a target.

use std::borrow::Cow;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use ipnet::IpNet;
use iptables::Words;

use super::rule::{Bridge, ConntrackState, Ipvs, PortSide, Property, Rule, Side, Target, Test};
use super::targets::{self, RemainingWords, masked, sides};

/// Supported match extensions (`-m`). All options of another match form one unsupported test.
const MODULES: [&str; 17] = [
    "comment",
    "tcp",
    "udp",
    "sctp",
    "multiport",
    "conntrack",
    "state",
    "mark",
    "connmark",
    "addrtype",
    "set",
    "physdev",
    "ipvs",
    "statistic",
    "recent",
    "nfacct",
    "icmp",
];

/// Parses the words of a rule after `-A CHAIN`. Unsupported options become tests with unknown
/// outcome.
pub(super) fn read(words: Words<'_>) -> Rule {
    let mut words = words.peekable();
    let mut parser = RuleParser::default();
    let mut target = Target::None;
    while let Some(word) = words.next() {
        match &*word {
            "!" => parser.is_inverted = true,
            "-m" | "--match" => parser.begin(words.next(), &mut words),
            "-j" | "--jump" => {
                target = targets::read(&words.next().unwrap_or_default(), &mut words);
                break;
            }
            "-g" | "--goto" => {
                target = Target::Goto(words.next().unwrap_or_default().into_owned());
                break;
            }
            // Skips the two counters that `-c` has in the format of `iptables -S -v`.
            "-c" => {
                words.next();
                words.next();
            }
            option => parser.option(option, &mut words),
        }
    }
    parser.end();
    Rule {
        tests: parser.tests,
        target,
    }
}

/// State of the parser within one rule.
#[derive(Debug, Default)]
struct RuleParser {
    tests: Vec<Test>,
    is_inverted: bool,
    module: String,
    /// Options of the match `ipvs` so far, which together form one test.
    ipvs: Option<Ipvs>,
    /// Options of the match `recent` so far, which together form one test: true if it searches its
    /// list, and the name of the list.
    recent: Option<(bool, String)>,
    types: Vec<(Side, Vec<String>, bool)>,
    limit: Option<Side>,
}

impl RuleParser {
    fn begin(&mut self, module: Option<Cow<'_, str>>, words: &mut RemainingWords<'_>) {
        self.end();
        self.module = module.unwrap_or_default().into_owned();
        match &*self.module {
            "icmp6" | "icmpv6" => "icmp".clone_into(&mut self.module),
            module if !MODULES.contains(&module) => {
                let mut text = format!("-m {module}");
                while let Some(word) = words.next_if(|word| !is_next(word)) {
                    text.push(' ');
                    text.push_str(&word);
                }
                self.push(Property::Unknown(text));
            }
            _ => {}
        }
    }

    /// Ends the current match: adds the tests that several of its options form together.
    fn end(&mut self) {
        if let Some(ipvs) = self.ipvs.take() {
            self.push(Property::Ipvs(ipvs));
        }
        if let Some((is_asked, name)) = self.recent.take() {
            self.is_inverted &= is_asked;
            self.push(if is_asked {
                Property::Remembered(name)
            } else {
                Property::Always(true)
            });
        }
        for (side, types, is_inverted) in std::mem::take(&mut self.types) {
            self.is_inverted = is_inverted;
            self.push(Property::AddressType(side, types, self.limit));
        }
        self.limit = None;
        self.is_inverted = false;
    }

    fn push(&mut self, property: Property) {
        let is_inverted = std::mem::take(&mut self.is_inverted);
        self.tests.push(Test {
            is_inverted,
            property,
        });
    }

    fn option(&mut self, option: &str, words: &mut RemainingWords<'_>) {
        match self.known(option, words) {
            Some(Some(ask)) => self.push(ask),
            // The option only completes a test of several options, or tests nothing.
            Some(None) => self.is_inverted = false,
            None => {
                let mut text = option.to_owned();
                while let Some(word) = words.next_if(|word| !is_next(word)) {
                    text.push(' ');
                    text.push_str(&word);
                }
                self.push(Property::Unknown(text));
            }
        }
    }

    /// Parses an option of the current match. Returns `None` if it is not supported, and
    /// `Some(None)` if it adds no test by itself.
    #[allow(clippy::option_option, reason = "three cases, named above")]
    fn known(&mut self, option: &str, words: &mut RemainingWords<'_>) -> Option<Option<Property>> {
        let flag = match (&*self.module, option) {
            ("physdev", "--physdev-is-in") => Some(Property::Bridge(Bridge::IsIn)),
            ("physdev", "--physdev-is-out" | "--physdev-is-bridged") => {
                Some(Property::Bridge(Bridge::IsOut))
            }
            ("ipvs", "--ipvs") => {
                if std::mem::take(&mut self.is_inverted) {
                    return None;
                }
                self.ipvs.get_or_insert_default();
                return Some(None);
            }
            ("recent", "--set" | "--rcheck" | "--update" | "--remove" | "--reap" | "--rttl") => {
                self.recent(option);
                return Some(None);
            }
            ("recent", "--rsource" | "--rdest") => return Some(None),
            ("addrtype", "--limit-iface-in") => {
                self.limit = Some(Side::Source);
                return Some(None);
            }
            ("addrtype", "--limit-iface-out") => {
                self.limit = Some(Side::Destination);
                return Some(None);
            }
            _ => None,
        };
        if flag.is_some() {
            return Some(flag);
        }
        let value = words.peek()?.clone();
        let read = self.valued(option, &value, words)?;
        Some(read)
    }

    /// Parses an option with values. Consumes the values if the option is supported.
    #[allow(clippy::option_option, reason = "as of `known`")]
    fn valued(
        &mut self,
        option: &str,
        value: &str,
        words: &mut RemainingWords<'_>,
    ) -> Option<Option<Property>> {
        let ask = match (&*self.module, option) {
            (_, "-s" | "--source") => Property::Address(Side::Source, network(value)?),
            (_, "-d" | "--destination") => Property::Address(Side::Destination, network(value)?),
            (_, "-i" | "--in-interface") => Property::Interface(Side::Source, value.to_owned()),
            (_, "-o" | "--out-interface") => {
                Property::Interface(Side::Destination, value.to_owned())
            }
            (_, "-p" | "--protocol") => match protocol(value)? {
                0 => Property::Always(true),
                number => Property::Protocol(number),
            },
            // These options add no test of their own.
            ("comment", "--comment")
            | ("statistic", "--mode" | "--packet")
            | ("recent", "--seconds" | "--hitcount" | "--mask") => {
                words.next();
                return Some(None);
            }
            ("nfacct", "--nfacct-name") => Property::Always(true),
            ("tcp" | "udp" | "sctp", "--dport" | "--destination-port")
            | ("multiport", "--dports") => {
                Property::Ports(PortSide::Of(Side::Destination), ports(value)?)
            }
            ("tcp" | "udp" | "sctp", "--sport" | "--source-port") | ("multiport", "--sports") => {
                Property::Ports(PortSide::Of(Side::Source), ports(value)?)
            }
            ("multiport", "--ports") => Property::Ports(PortSide::Either, ports(value)?),
            ("tcp", "--tcp-flags") => return flags(words),
            // This crate does not follow ICMP packets, so the test never matches.
            ("icmp", "--icmp-type" | "--icmpv6-type") => Property::Always(false),
            ("conntrack", "--ctstate") | ("state", "--state") => Property::State(states(value)?),
            ("conntrack", "--ctstatus") => Property::State(statuses(value)?),
            ("conntrack", "--ctdir") => Property::IsAnswer(value == "REPLY"),
            ("conntrack", "--ctorigdst") => {
                Property::OriginalAddress(Side::Destination, network(value)?)
            }
            ("conntrack", "--ctorigsrc") => {
                Property::OriginalAddress(Side::Source, network(value)?)
            }
            ("conntrack", "--ctorigdstport") => Property::OriginalPort(range(value)?),
            ("conntrack", "--ctproto") => Property::Protocol(protocol(value)?),
            ("mark", "--mark") => {
                let (value, mask) = masked(value)?;
                Property::Mark(value, mask)
            }
            ("connmark", "--mark") => {
                let (value, mask) = masked(value)?;
                Property::ConnectionMark(value, mask)
            }
            ("addrtype", "--src-type" | "--dst-type") => {
                let side = if option == "--src-type" {
                    Side::Source
                } else {
                    Side::Destination
                };
                let types = value.split(',').map(str::to_owned).collect();
                let is_inverted = std::mem::take(&mut self.is_inverted);
                self.types.push((side, types, is_inverted));
                words.next();
                return Some(None);
            }
            ("set", "--match-set") => return set(words),
            ("ipvs", _) => {
                self.ipvs(option, value)?;
                words.next();
                return Some(None);
            }
            ("statistic", "--probability") => Property::Chance(chance(value)?),
            ("statistic", "--every") => {
                let every: u32 = value.parse().ok().filter(|every| *every > 0)?;
                Property::Chance(1.0 / f64::from(every))
            }
            ("recent", "--name") => {
                let (_, name) = self.recent.get_or_insert_default();
                value.clone_into(name);
                words.next();
                return Some(None);
            }
            _ => return None,
        };
        words.next();
        Some(Some(ask))
    }

    fn recent(&mut self, option: &str) {
        let (is_asked, _) = self.recent.get_or_insert_default();
        *is_asked |= matches!(option, "--rcheck" | "--update" | "--remove");
    }

    fn ipvs(&mut self, option: &str, value: &str) -> Option<()> {
        let ipvs = self.ipvs.get_or_insert_default();
        let is_wanted = !std::mem::take(&mut self.is_inverted);
        match option {
            "--vproto" => ipvs.protocol = Some((protocol(value)?, is_wanted)),
            "--vaddr" => ipvs.address = Some((network(value)?, is_wanted)),
            "--vport" => ipvs.port = Some((value.parse().ok()?, is_wanted)),
            // Accepts only usual values: a first packet has the direction ORIGINAL, and every
            // kube-proxy uses IPVS's forwarding method MASQ.
            "--vdir" if value == "ORIGINAL" && is_wanted => {}
            "--vmethod" if value == "MASQ" && is_wanted => {}
            _ => return None,
        }
        Some(())
    }
}

#[allow(clippy::option_option, reason = "as of `RuleParser::known`")]
fn set(words: &mut RemainingWords<'_>) -> Option<Option<Property>> {
    let name = words.next()?.into_owned();
    let sides = sides(&words.next()?)?;
    Some(Some(Property::Set(name, sides)))
}

#[allow(clippy::option_option, reason = "as of `RuleParser::known`")]
fn flags(words: &mut RemainingWords<'_>) -> Option<Option<Property>> {
    let mask = tcp_flags(&words.next()?)?;
    let set = tcp_flags(&words.next()?)?;
    Some(Some(Property::TcpFlags(mask, set)))
}

/// Reports whether a word begins an option outside of the current match.
fn is_next(word: &str) -> bool {
    matches!(
        word,
        "-m" | "-j" | "-g" | "-s" | "-d" | "-i" | "-o" | "-p" | "--match" | "--jump" | "--goto"
    )
}

/// Parses an address, optionally with a prefix length or a netmask.
fn network(text: &str) -> Option<IpNet> {
    if let Ok(net) = text.parse() {
        return Some(net);
    }
    match text.split_once('/') {
        None => text.parse().ok().map(|address: IpAddr| address.into()),
        Some((address, mask)) => {
            IpNet::with_netmask(address.parse().ok()?, mask.parse().ok()?).ok()
        }
    }
}

/// Parses a protocol name or an IANA number. The number 0 stands for all protocols.
fn protocol(text: &str) -> Option<u8> {
    const NAMES: [(&str, u8); 12] = [
        ("all", 0),
        ("icmp", 1),
        ("igmp", 2),
        ("ipencap", 4),
        ("tcp", 6),
        ("udp", 17),
        ("gre", 47),
        ("esp", 50),
        ("ah", 51),
        ("ipv6-icmp", 58),
        ("icmpv6", 58),
        ("sctp", 132),
    ];
    let named = NAMES.iter().find(|(name, _)| *name == text);
    named.map_or_else(|| text.parse().ok(), |(_, number)| Some(*number))
}

/// Parses ports and ranges of ports, such as `80`, `80:90` or `80,443,8000:8080`.
fn ports(text: &str) -> Option<Vec<RangeInclusive<u16>>> {
    text.split(',').map(range).collect()
}

fn range(text: &str) -> Option<RangeInclusive<u16>> {
    match text.split_once(':') {
        None => {
            let port = text.parse().ok()?;
            Some(port..=port)
        }
        Some((from, to)) => {
            let or = |text: &str, or| {
                if text.is_empty() {
                    Some(or)
                } else {
                    text.parse().ok()
                }
            };
            Some(or(from, 0)?..=or(to, u16::MAX)?)
        }
    }
}

fn states(text: &str) -> Option<Vec<ConntrackState>> {
    let state = |name| {
        Some(match name {
            "NEW" => ConntrackState::New,
            "INVALID" => ConntrackState::Invalid,
            "UNTRACKED" => ConntrackState::Untracked,
            "DNAT" => ConntrackState::Dnat,
            "SNAT" => ConntrackState::Snat,
            "ESTABLISHED" => ConntrackState::Established,
            "RELATED" => ConntrackState::Later,
            _ => return None,
        })
    };
    text.split(',').map(state).collect()
}

/// Parses connection statuses (`--ctstatus`). A first packet has none of them, because its
/// connection is not confirmed yet.
fn statuses(text: &str) -> Option<Vec<ConntrackState>> {
    let status = |name| match name {
        "SEEN_REPLY" | "CONFIRMED" => Some(ConntrackState::Established),
        "EXPECTED" | "ASSURED" => Some(ConntrackState::Later),
        _ => None,
    };
    text.split(',').map(status).collect()
}

fn chance(text: &str) -> Option<f64> {
    let chance: f64 = text.parse().ok()?;
    (0.0..=1.0).contains(&chance).then_some(chance)
}

fn tcp_flags(text: &str) -> Option<u8> {
    let flag = |name| {
        Some(match name {
            "FIN" => 0x01,
            "SYN" => super::SYN,
            "RST" => 0x04,
            "PSH" => 0x08,
            "ACK" => 0x10,
            "URG" => 0x20,
            "ALL" => 0x3f,
            "NONE" => 0,
            _ => return None,
        })
    };
    text.split(',')
        .try_fold(0, |all, name| Some(all | flag(name)?))
}
