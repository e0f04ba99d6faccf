//! Rules of the table in words, for the operator: nearly as `nft` lists them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use nftables_netlink::{
    Comparison, Expression, LookupFor, Membership, MetaKey, NatKind, PayloadBase, Register, Rule,
    SetRef, Verdict,
};
/// A rule in words.
pub(super) fn text(rule: &Rule) -> String {
    let mut reader = Reader {
        held: BTreeMap::new(),
        words: Vec::new(),
    };
    for expression in &rule.expressions {
        reader.read(expression);
    }
    let mut text = reader.words.join(" ");
    if let Some(comment) = &rule.comment {
        // A `String` takes all that is written.
        let _ = write!(text, " comment \"{comment}\"");
    }
    text
}

/// What the registers hold, in words.
struct Reader {
    held: BTreeMap<Register, String>,
    words: Vec<String>,
}

impl Reader {
    fn hold(&mut self, to: Register, what: String) {
        // What stood behind the first one is of a clause before.
        if to == Register::FIRST {
            self.held.clear();
        }
        self.held.insert(to, what);
    }

    fn held(&self, register: Register) -> String {
        self.held.get(&register).cloned().unwrap_or_default()
    }

    fn all_held(&self) -> String {
        let held: Vec<&str> = self.held.values().map(String::as_str).collect();
        held.join(" . ")
    }

    fn read(&mut self, expression: &Expression) {
        match expression {
            Expression::Payload {
                base,
                offset,
                len,
                to,
            } => {
                let what = field(*base, *offset, *len);
                self.hold(*to, what);
            }
            Expression::Meta { key, to } => self.hold(*to, meta(*key).to_owned()),
            Expression::Ct { to, .. } => self.hold(*to, "ct state".to_owned()),
            Expression::Fib { to, .. } => self.hold(*to, "fib daddr type".to_owned()),
            Expression::Bitwise {
                from,
                to,
                mask,
                xor,
            } => {
                let what = self.masked(*from, mask, xor);
                self.held.insert(*to, what);
            }
            Expression::Compare {
                register,
                how,
                with,
            } => {
                let what = self.held(*register);
                let compared = compared(&what, with);
                let how = match how {
                    Comparison::Equal if what.contains('&') => "== ",
                    Comparison::Equal => "",
                    _ => "!= ",
                };
                let is_state = what.starts_with("ct state");
                self.words.push(if is_state {
                    "ct state new".to_owned()
                } else {
                    format!("{what} {how}{compared}")
                });
            }
            Expression::Lookup { set, what, .. } => {
                let name = match set {
                    SetRef::Named(name) => format!("@{name}"),
                    SetRef::Anonymous(_) => "{ … }".to_owned(),
                };
                let how = match what {
                    LookupFor::Membership(Membership::NotIn) => "!= ",
                    LookupFor::Membership(Membership::In) => "",
                    LookupFor::Value(_) => "map ",
                    LookupFor::Verdict => "vmap ",
                };
                let what = self.all_held();
                self.words.push(format!("{what} {how}{name}"));
            }
            Expression::SetMeta { key, from } => {
                let what = self.held(*from);
                let key = meta(*key);
                self.words.push(format!("{key} set {what}"));
            }
            Expression::Nat { kind, .. } => {
                let kind = match kind {
                    NatKind::Source => "snat",
                    NatKind::Destination => "dnat",
                };
                let what = self.all_held();
                self.words.push(format!("{kind} to {what}"));
            }
            Expression::Masquerade { flags: 0 } => self.words.push("masquerade".to_owned()),
            Expression::Masquerade { .. } => {
                self.words.push("masquerade fully-random".to_owned());
            }
            Expression::Reject { .. } => self.words.push("reject".to_owned()),
            Expression::Verdict(verdict) => self.words.push(verdict_text(verdict)),
            Expression::Counter { .. } => self.words.push("counter".to_owned()),
            other => self.words.push(format!("{other:?}")),
        }
    }

    fn masked(&self, from: Register, mask: &[u8], xor: &[u8]) -> String {
        let what = self.held(from);
        let number = |bytes: &[u8]| <[u8; 4]>::try_from(bytes).map(u32::from_ne_bytes);
        match (number(mask), number(xor)) {
            (Ok(mask), Ok(0)) if what == "meta mark" => format!("{what} & {mask:#010x}"),
            (Ok(u32::MAX), Ok(xor)) if what == "meta mark" => format!("{what} ^ {xor:#010x}"),
            (Ok(_), Ok(xor)) if what == "meta mark" => format!("{what} | {xor:#010x}"),
            _ if what == "ct state" => what,
            _ => match address(mask) {
                Some(mask) => format!("{what} & {mask}"),
                None => format!("{what} & {mask:02x?}"),
            },
        }
    }
}

fn field(base: PayloadBase, offset: u32, len: u32) -> String {
    match (base, offset) {
        (PayloadBase::Network, 12) => "ip saddr".to_owned(),
        (PayloadBase::Network, 16) => "ip daddr".to_owned(),
        (PayloadBase::Network, 8) => "ip6 saddr".to_owned(),
        (PayloadBase::Network, 24) => "ip6 daddr".to_owned(),
        (PayloadBase::Transport, 2) => "th dport".to_owned(),
        _ => format!("@{base:?},{},{}", offset * 8, len * 8),
    }
}

fn compared(what: &str, with: &[u8]) -> String {
    let number = || <[u8; 4]>::try_from(with).map(u32::from_ne_bytes).ok();
    match what {
        "fib daddr type" => match number() {
            Some(2) => "local".to_owned(),
            other => format!("{other:?}"),
        },
        "meta l4proto" => match with.first() {
            Some(6) => "tcp".to_owned(),
            Some(17) => "udp".to_owned(),
            Some(132) => "sctp".to_owned(),
            other => format!("{other:?}"),
        },
        "iifname" => {
            let end = with.iter().position(|byte| *byte == 0);
            let name = with.get(..end.unwrap_or(with.len())).unwrap_or_default();
            let star = if end.is_some() { "" } else { "*" };
            format!("\"{}{star}\"", String::from_utf8_lossy(name))
        }
        _ if what.starts_with("meta mark") => number()
            .map(|mark| format!("{mark:#010x}"))
            .unwrap_or_default(),
        _ => {
            let len = if what.starts_with("ip6") { 16 } else { 4 };
            let mut filled = with.to_vec();
            filled.resize(len, 0);
            let prefix = with.len() * 8;
            match address(&filled) {
                Some(address) if with.len() < len => format!("{address}/{prefix}"),
                Some(address) => address.to_string(),
                None => format!("{with:02x?}"),
            }
        }
    }
}

fn meta(key: MetaKey) -> &'static str {
    match key {
        MetaKey::Mark => "meta mark",
        MetaKey::L4Proto => "meta l4proto",
        MetaKey::IifName => "iifname",
        MetaKey::OifName => "oifname",
        MetaKey::Iif => "iif",
        MetaKey::Oif => "oif",
        MetaKey::NfProto => "meta nfproto",
        // The shim has no other.
        _ => "meta",
    }
}

fn verdict_text(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Accept => "accept".to_owned(),
        Verdict::Drop => "drop".to_owned(),
        Verdict::Continue => "continue".to_owned(),
        Verdict::Return => "return".to_owned(),
        Verdict::Jump(chain) => format!("jump {chain}"),
        Verdict::Goto(chain) => format!("goto {chain}"),
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(|bytes| Ipv4Addr::from(bytes).into());
    let v6 = || <[u8; 16]>::try_from(bytes).map(|bytes| Ipv6Addr::from(bytes).into());
    v4.or_else(|_| v6()).ok()
}
