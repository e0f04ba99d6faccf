//! Parses the targets of iptables rules.

use std::borrow::Cow;
use std::iter::Peekable;
use std::net::{IpAddr, SocketAddr};

use iptables::Words;

use super::rule::{ConnectionMark, Nat, Side, Target};

/// Names of targets that do not affect a packet's path.
const HARMLESS: [&str; 17] = [
    "LOG",
    "NFLOG",
    "ULOG",
    "TRACE",
    "AUDIT",
    "CHECKSUM",
    "CLASSIFY",
    "DSCP",
    "ECN",
    "HL",
    "IDLETIMER",
    "LED",
    "RATEEST",
    "SET",
    "TCPMSS",
    "TOS",
    "TTL",
];
/// Name that iptables prints for a target of an nft rule that iptables cannot express.
pub(super) const WORDLESS: &str = "[nft]";
/// Names of targets that this crate does not support. A name that is in no list is a chain.
const UNKNOWN: [&str; 14] = [
    WORDLESS,
    "BALANCE",
    "CLUSTERIP",
    "CONNSECMARK",
    "DNPT",
    "HMARK",
    "NETMAP",
    "NFQUEUE",
    "QUEUE",
    "SECMARK",
    "SNPT",
    "SYNPROXY",
    "TEE",
    "TPROXY",
];

/// Parses a target with its options, which are the last words of a rule.
pub(super) fn read(name: &str, words: &mut RemainingWords<'_>) -> Target {
    let options: Vec<Cow<'_, str>> = words.collect();
    let unknown = || {
        let mut text = format!("-j {name}");
        for option in &options {
            text.push(' ');
            text.push_str(option);
        }
        Target::Unknown(text)
    };
    let value = |wanted: &str| {
        let at = options.iter().position(|option| option == wanted)?;
        options.get(at + 1).map(|value| &**value)
    };
    let read = match name {
        "ACCEPT" => Some(Target::Accept),
        "DROP" => Some(Target::Drop),
        "RETURN" => Some(Target::Return),
        "MASQUERADE" => Some(Target::Masquerade),
        "NOTRACK" => Some(Target::NoTrack),
        "CT" if options.iter().any(|option| option == "--notrack") => Some(Target::NoTrack),
        // Without `--notrack`, the target sets a helper, a zone or a timeout, which this crate does
        // not support.
        "CT" => None,
        "REJECT" => {
            let with = value("--reject-with").unwrap_or("icmp-port-unreachable");
            Some(Target::Reject(message(with)))
        }
        "MARK" => mark(&value),
        "SET" if options.iter().any(|option| option == "--map-mark") => map_mark(&options),
        "CONNMARK" => connection_mark(&options, &value),
        "DNAT" => value("--to-destination").and_then(nat).map(Target::Dnat),
        "SNAT" => value("--to-source").and_then(nat).map(Target::Snat),
        "REDIRECT" => match value("--to-ports") {
            None => Some(Target::Redirect(None)),
            Some(port) => port.parse().ok().map(|port| Target::Redirect(Some(port))),
        },
        name if HARMLESS.contains(&name) => Some(Target::Harmless(name.to_owned())),
        name if UNKNOWN.contains(&name) => None,
        name => Some(Target::Jump(name.to_owned())),
    };
    read.unwrap_or_else(unknown)
}

/// Returns the message that the sender of a rejected packet gets, from the value of
/// `--reject-with`.
fn message(with: &str) -> String {
    match with {
        "tcp-reset" => "a TCP reset".to_owned(),
        "icmp-port-unreachable" | "icmp6-port-unreachable" | "port-unreach" => {
            "ICMP port unreachable".to_owned()
        }
        other => {
            let words = other
                .trim_start_matches("icmp6-")
                .trim_start_matches("icmp-");
            format!("ICMP {}", words.replace('-', " "))
        }
    }
}

fn mark<'a>(value: &impl Fn(&str) -> Option<&'a str>) -> Option<Target> {
    let (value, mask) = if let Some(text) = value("--set-xmark") {
        masked(text)?
    } else if let Some(text) = value("--set-mark") {
        let (value, mask) = masked(text)?;
        (value, mask | value)
    } else if let Some(text) = value("--or-mark") {
        let bits = number(text)?;
        (bits, bits)
    } else if let Some(text) = value("--and-mark") {
        (0, !number(text)?)
    } else {
        (number(value("--xor-mark")?)?, 0)
    };
    Some(Target::Mark { value, mask })
}

/// Parses `--map-set SET dst,dst --map-mark`. Other options do not affect the packet's path.
fn map_mark(options: &[Cow<'_, str>]) -> Option<Target> {
    let at = options.iter().position(|option| option == "--map-set")?;
    let sides = sides(options.get(at + 2)?)?;
    Some(Target::MapMark(options.get(at + 1)?.to_string(), sides))
}

/// Parses a list such as `dst,src`: source or destination for each part of a set member.
pub(super) fn sides(text: &str) -> Option<Vec<Side>> {
    let side = |side: &str| match side {
        "src" => Some(Side::Source),
        "dst" => Some(Side::Destination),
        _ => None,
    };
    text.split(',').map(side).collect()
}

fn connection_mark<'a>(
    options: &[Cow<'_, str>],
    value: &impl Fn(&str) -> Option<&'a str>,
) -> Option<Target> {
    let has = |wanted: &str| options.iter().any(|option| option == wanted);
    let mask = |name| value(name).map_or(Some(u32::MAX), number);
    let set = value("--set-xmark").or_else(|| value("--set-mark"));
    let what = if let Some(text) = set {
        let (value, mask) = masked(text)?;
        ConnectionMark::Set { value, mask }
    } else if has("--save-mark") || has("--restore-mark") {
        let (packet, connection) = match value("--mask") {
            Some(both) => (number(both)?, number(both)?),
            None => (mask("--nfmask")?, mask("--ctmask")?),
        };
        if has("--save-mark") {
            let (from, to) = (packet, connection);
            ConnectionMark::Save { from, to }
        } else {
            let (from, to) = (connection, packet);
            ConnectionMark::Restore { from, to }
        }
    } else {
        return None;
    };
    Some(Target::ConnectionMark(what))
}

/// Parses the new address or port of a translation: `10.0.0.1:80`, `10.0.0.1`, `:80` or
/// `[fd00::1]:80`. Returns `None` for a range.
fn nat(text: &str) -> Option<Nat> {
    if let Ok(both) = text.parse::<SocketAddr>() {
        return Some(Nat {
            address: Some(both.ip()),
            port: Some(both.port()),
        });
    }
    if let Some(port) = text.strip_prefix(':').filter(|rest| !rest.contains(':')) {
        return Some(Nat {
            address: None,
            port: Some(port.parse().ok()?),
        });
    }
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    let address: IpAddr = bare.parse().ok()?;
    Some(Nat {
        address: Some(address),
        port: None,
    })
}

pub(super) type RemainingWords<'a> = Peekable<Words<'a>>;

/// Parses a value with its mask, such as `0x4000/0x4000`. Without a mask, all bits are compared.
pub(super) fn masked(text: &str) -> Option<(u32, u32)> {
    match text.split_once('/') {
        None => Some((number(text)?, u32::MAX)),
        Some((value, mask)) => Some((number(value)?, number(mask)?)),
    }
}

pub(super) fn number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}
