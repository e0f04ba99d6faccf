//! A rule as data, and its one rendering: as `iptables-save` prints it, so that what is wanted can be compared with what is
//! read back.

use std::fmt::{self, Write as _};

use ipnet::IpNet;
use proxy::{IpFamily, LocalDetector, Protocol};

use crate::chain::Chain;
use crate::nfacct::Counter;

/// What a rule matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Match {
    Source(IpNet),
    NotSource(IpNet),
    Destination(IpNet),
    NotDestination(IpNet),
    InInterface(String),
    NotInInterface(String),
    Protocol(Protocol),
    Comment(String),
    /// The destination port, of this protocol.
    Port(Protocol, u16),
    /// The module of this protocol, which a target with ports asks for.
    Module(Protocol),
    /// `addrtype` options.
    AddressType(&'static str),
    /// `conntrack` options.
    State(&'static str),
    Mark(u32),
    NotMark(u32),
    /// Matches always, and counts.
    Counted(Counter),
    /// One in so many, by chance.
    OneIn(usize),
    /// The source has been sent to this endpoint within so many seconds.
    SeenWithin(Chain, u32, IpFamily),
    /// Remembers that the source is sent to this endpoint.
    Remember(Chain, IpFamily),
}

impl Match {
    /// `iptables-save` prints these parts first, in this order, and the others as they were given.
    fn rank(&self) -> u8 {
        match self {
            Self::Source(_) | Self::NotSource(_) => 0,
            Self::Destination(_) | Self::NotDestination(_) => 1,
            Self::InInterface(_) | Self::NotInInterface(_) => 2,
            Self::Protocol(_) => 3,
            _ => 4,
        }
    }
}

/// What comes from this node's pods; `None` where that is not told apart.
pub(crate) fn local(detector: &LocalDetector) -> Option<Match> {
    Some(match detector {
        LocalDetector::None => return None,
        LocalDetector::SourceNet(net) => Match::Source(*net),
        LocalDetector::Bridge(name) => Match::InInterface(name.clone()),
        LocalDetector::InterfacePrefix(prefix) => Match::InInterface(format!("{prefix}+")),
    })
}

/// What does not.
pub(crate) fn not_local(detector: &LocalDetector) -> Option<Match> {
    Some(match local(detector)? {
        Match::Source(net) => Match::NotSource(net),
        Match::InInterface(name) => Match::NotInInterface(name),
        other => other,
    })
}

/// One rule of a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rule {
    matches: Vec<Match>,
    /// Without one, the rule only counts.
    target: Option<String>,
}

impl Rule {
    pub(crate) fn new(matches: impl IntoIterator<Item = Match>, target: impl fmt::Display) -> Self {
        Self {
            target: Some(target.to_string()),
            ..Self::without_target(matches)
        }
    }

    pub(crate) fn without_target(matches: impl IntoIterator<Item = Match>) -> Self {
        let mut matches: Vec<Match> = matches.into_iter().collect();
        matches.sort_by_key(Match::rank);
        Self {
            matches,
            target: None,
        }
    }

    /// Appends it to `text` as a line for `chain`, which ends without a line feed.
    pub(crate) fn render(&self, chain: impl fmt::Display, text: &mut String) {
        // Writing to a String cannot fail.
        let _ = write!(text, "-A {chain}");
        for part in &self.matches {
            let _ = write!(text, " {part}");
        }
        if let Some(target) = &self.target {
            let _ = write!(text, " -j {target}");
        }
    }

    /// As a line for `chain`.
    pub(crate) fn line(&self, chain: impl fmt::Display) -> String {
        let mut line = String::new();
        self.render(chain, &mut line);
        line
    }
}

impl fmt::Display for Match {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Source(net) => write!(f, "-s {}", net.trunc()),
            Self::NotSource(net) => write!(f, "! -s {}", net.trunc()),
            Self::Destination(net) => write!(f, "-d {}", net.trunc()),
            Self::NotDestination(net) => write!(f, "! -d {}", net.trunc()),
            Self::InInterface(name) => write!(f, "-i {name}"),
            Self::NotInInterface(name) => write!(f, "! -i {name}"),
            Self::Protocol(protocol) => write!(f, "-p {}", protocol.lower()),
            Self::Comment(text) => write!(f, "-m comment --comment \"{}\"", Quoted(text)),
            Self::Port(protocol, port) => write!(f, "-m {} --dport {port}", protocol.lower()),
            Self::Module(protocol) => write!(f, "-m {}", protocol.lower()),
            Self::AddressType(options) => write!(f, "-m addrtype {options}"),
            Self::State(options) => write!(f, "-m conntrack {options}"),
            Self::Mark(mark) => write!(f, "-m mark --mark {mark:#x}/{mark:#x}"),
            Self::NotMark(mark) => write!(f, "-m mark ! --mark {mark:#x}/{mark:#x}"),
            // The second blank is iptables'.
            Self::Counted(counter) => write!(f, "-m nfacct --nfacct-name  {}", counter.name()),
            Self::OneIn(count) => {
                write!(
                    f,
                    "-m statistic --mode random --probability {:.11}",
                    probability(*count)
                )
            }
            Self::SeenWithin(chain, seconds, family) => write!(
                f,
                "-m recent --rcheck --seconds {seconds} --reap --name {chain} --mask {} --rsource",
                whole(*family)
            ),
            Self::Remember(chain, family) => write!(
                f,
                "-m recent --set --name {chain} --mask {} --rsource",
                whole(*family)
            ),
        }
    }
}

/// The mask of a single address.
fn whole(family: IpFamily) -> &'static str {
    match family {
        IpFamily::V4 => "255.255.255.255",
        IpFamily::V6 => "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
    }
}

/// One in `count`, as upstream gives it, with ten digits, and as the kernel keeps it, in units of 2⁻³¹.
fn probability(count: usize) -> f64 {
    const UNITS: f64 = 2_147_483_648.0;
    #[allow(
        clippy::cast_precision_loss,
        reason = "a Service has fewer than 2⁵² endpoints"
    )]
    let given = format!("{:.10}", 1.0 / count as f64);
    (given.parse::<f64>().unwrap_or(1.0) * UNITS).round() / UNITS
}

/// Text within quotation marks: nothing in it can end them, or the line.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars().filter(|character| !character.is_control()) {
            if matches!(character, '"' | '\\' | '\'') {
                f.write_char('\\')?;
            }
            f.write_char(character)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_are_the_kernels() {
        let shown = |count| format!("{:.11}", probability(count));
        assert_eq!(shown(2), "0.50000000000");
        assert_eq!(shown(3), "0.33333333349");
        assert_eq!(shown(10), "0.10000000009");
        assert_eq!(shown(10_000), "0.00009999983");
    }

    #[test]
    fn parts_stand_as_iptables_prints_them() {
        let net = |net: &str| net.parse::<IpNet>().unwrap();
        let rule = Rule::new(
            [
                Match::Comment("a \"b\"\nc".to_owned()),
                Match::Port(Protocol::Tcp, 80),
                Match::Protocol(Protocol::Tcp),
                Match::NotInInterface("cni0".to_owned()),
                Match::Destination(net("10.0.0.1/32")),
                Match::NotSource(net("10.0.0.9/8")),
            ],
            "X",
        );
        assert_eq!(
            rule.line("C"),
            "-A C ! -s 10.0.0.0/8 -d 10.0.0.1/32 ! -i cni0 -p tcp -m comment --comment \"a \\\"b\\\"c\" -m tcp --dport 80 -j X"
        );
    }
}
