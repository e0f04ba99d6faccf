//! Renders rules and elements as `nft` 1.0.6 lists them. An expression that this crate cannot
//! render appears as its name in the kernel.

mod constant;
mod members;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::expression::{
    Comparison, DynsetOperation, Expression, LookupFor, Membership, NatKind, NumGenKind,
    PayloadBase, Rule, SetRef,
};
use crate::object::{AnonymousSet, Element};
use crate::value::{Family, Register};
use constant::Kind;

pub use members::element;

/// Largest number of elements of an anonymous set that the text shows in full. For a larger set,
/// the text shows only the element that matched.
const SHOWN: usize = 8;

/// Renders a rule as text. `found` contains the elements of anonymous sets that a packet matched,
/// each with the index of the expression that looked up the set.
pub fn rule(family: Family, rule: &Rule, found: &[(usize, Element)]) -> String {
    let mut renderer = Renderer {
        family,
        found,
        at: 0,
        held: BTreeMap::new(),
        protocol: None,
        words: Vec::new(),
    };
    for (at, expression) in rule.expressions.iter().enumerate() {
        renderer.at = at;
        renderer.read(expression);
    }
    let words = renderer.words.into_iter().map(|word| word.text);
    let mut text = words.collect::<Vec<_>>().join(" ");
    if let Some(comment) = &rule.comment {
        // Cannot fail, because a `String` accepts every write.
        let _ = write!(text, " comment \"{comment}\"");
    }
    text
}

/// Text of a statement or match in a rule.
struct Statement {
    text: String,
    /// True if the statement only matches the protocol. Like `nft`, the renderer omits the
    /// statement if the next match implies the protocol.
    is_protocol: bool,
}

/// Text of a value in a register.
#[derive(Debug, Clone)]
struct RegisterText {
    text: String,
    kind: Kind,
    mask: Option<Vec<u8>>,
}

impl RegisterText {
    /// Returns the value's text, followed by its mask if it has one. `nft` prints a mask in this
    /// way outside of comparisons.
    fn masked(self) -> String {
        match &self.mask {
            Some(mask) => format!("{} & {}", self.text, self.kind.text(mask)),
            None => self.text,
        }
    }
}

struct Renderer<'a> {
    family: Family,
    found: &'a [(usize, Element)],
    at: usize,
    held: BTreeMap<Register, RegisterText>,
    /// Protocol that the rule has matched so far, if any.
    protocol: Option<String>,
    words: Vec<Statement>,
}

impl Renderer<'_> {
    fn say(&mut self, text: impl Into<String>) {
        self.words.push(Statement {
            text: text.into(),
            is_protocol: false,
        });
    }

    fn hold(&mut self, to: Register, text: impl Into<String>, kind: Kind) {
        let text = text.into();
        let mask = None;
        self.held.insert(to, RegisterText { text, kind, mask });
    }

    fn held(&self, from: Register) -> RegisterText {
        self.held.get(&from).cloned().unwrap_or(RegisterText {
            text: "?".to_owned(),
            kind: Kind::Bytes,
            mask: None,
        })
    }

    /// Returns the text of a lookup's key, which begins in the register `from`.
    fn key(&mut self, from: Register) -> String {
        let parts = self.held.split_off(&from);
        let parts: Vec<String> = parts.into_values().map(RegisterText::masked).collect();
        parts.join(" . ")
    }

    fn read(&mut self, expression: &Expression) {
        match expression {
            Expression::Payload {
                base,
                offset,
                len,
                to,
            } => self.payload(*base, *offset, *len, *to),
            Expression::Meta { key, to } => {
                let (text, kind) = constant::meta(*key);
                self.hold(*to, text, kind);
            }
            Expression::Ct { key, to } => {
                let (text, kind) = constant::ct(*key);
                self.hold(*to, text, kind);
            }
            Expression::CtTuple { key, direction, to } => {
                let (text, kind) = constant::tuple(*key, *direction);
                self.hold(*to, text, kind);
            }
            Expression::Fib { result, flags, to } => {
                let (text, kind) = constant::fib(*result, *flags);
                self.hold(*to, text, kind);
            }
            Expression::Immediate { to, data } => {
                self.hold(*to, "", Kind::Constant(data.to_vec()));
            }
            Expression::Bitwise {
                from,
                to,
                mask,
                xor,
            } => {
                let held = constant_masked(self.held(*from), mask, xor);
                self.held.insert(*to, held);
            }
            Expression::ByteOrder { from, to, .. } => {
                let mut held = self.held(*from);
                held.kind = held.kind.turned();
                self.held.insert(*to, held);
            }
            Expression::Compare {
                register,
                how,
                with,
            } => self.compare(*register, *how, with),
            Expression::Range {
                register,
                how,
                from,
                to,
            } => {
                let held = self.held(*register);
                let not = sense(*how);
                let (from, to) = (held.kind.text(from), held.kind.text(to));
                self.say(format!("{} {not}{from}-{to}", held.text));
            }
            Expression::Lookup { key, set, what } => self.lookup(*key, set, *what),
            Expression::NumGen {
                how,
                modulus,
                offset,
                to,
            } => {
                let how = match how {
                    NumGenKind::Incremental => "inc",
                    NumGenKind::Random => "random",
                };
                let text = format!("numgen {how} mod {modulus}{}", from_on(*offset));
                self.hold(*to, text, Kind::Number);
            }
            Expression::Jhash {
                from,
                modulus,
                seed,
                offset,
                to,
                ..
            } => {
                let key = self.key(*from);
                let seed = seed.map_or(String::new(), |seed| format!(" seed {seed:#x}"));
                let text = format!("jhash {key} mod {modulus}{seed}{}", from_on(*offset));
                self.hold(*to, text, Kind::Number);
            }
            other => self.statement(other),
        }
    }

    fn payload(&mut self, base: PayloadBase, offset: u32, len: u32, to: Register) {
        let ports = |name| {
            let protocol = self.protocol.as_deref().unwrap_or("th");
            (format!("{protocol} {name}"), Kind::Port)
        };
        let icmp = self.protocol.as_deref().and_then(constant::icmp_type);
        let (text, kind) = match (base, offset, len) {
            (PayloadBase::Transport, 0, 1) if let Some((field, kind)) = icmp => {
                (field.into(), kind)
            }
            (PayloadBase::Transport, 0, 2) => ports("sport"),
            (PayloadBase::Transport, 2, 2) => ports("dport"),
            (PayloadBase::Network, 12, 1..=4) => ("ip saddr".into(), Kind::Address4),
            (PayloadBase::Network, 16, 1..=4) => ("ip daddr".into(), Kind::Address4),
            (PayloadBase::Network, 9, 1) if self.family != Family::Ip6 => {
                ("ip protocol".into(), Kind::Protocol)
            }
            (PayloadBase::Network, 8, 1..=16) => ("ip6 saddr".into(), Kind::Address6),
            (PayloadBase::Network, 24, 1..=16) => ("ip6 daddr".into(), Kind::Address6),
            (base, offset, len) => {
                let base = match base {
                    PayloadBase::Link => "ll",
                    PayloadBase::Network => "nh",
                    PayloadBase::Transport => "th",
                };
                let (offset, len) = (u64::from(offset) * 8, u64::from(len) * 8);
                (format!("@{base},{offset},{len}"), Kind::Bytes)
            }
        };
        self.hold(to, text, kind);
    }

    fn compare(&mut self, register: Register, how: Comparison, with: &[u8]) {
        let held = self.held(register);
        let is_0 = with.iter().all(|byte| *byte == 0);
        let sign = match how {
            Comparison::Equal => "",
            Comparison::NotEqual => "!= ",
            Comparison::Less => "< ",
            Comparison::LessOrEqual => "<= ",
            Comparison::Greater => "> ",
            Comparison::GreaterOrEqual => ">= ",
        };
        let text = match &held.mask {
            Some(mask) if held.kind.has_flags() && is_0 => {
                let not = if how == Comparison::Equal { "! " } else { "" };
                format!("{} {not}{}", held.text, held.kind.text(mask))
            }
            Some(mask) => {
                let value = held.kind.text(with);
                if let Some(prefix) = held.kind.prefix(mask) {
                    format!("{} {sign}{value}/{prefix}", held.text)
                } else {
                    let sign = if sign.is_empty() { "== " } else { sign };
                    format!("{} & {} {sign}{value}", held.text, held.kind.text(mask))
                }
            }
            None => match held.kind.presence(how, with) {
                Some(word) => format!("{} {word}", held.text),
                None => format!("{} {sign}{}", held.text, held.kind.text(with)),
            },
        };
        let is_protocol = held.kind == Kind::Protocol && how == Comparison::Equal;
        if is_protocol {
            self.protocol = Some(held.kind.text(with));
        }
        self.leave_out_protocol(&text);
        self.words.push(Statement { text, is_protocol });
    }

    /// Removes the statement that matches only the protocol, if the match `follows` implies the
    /// same protocol.
    fn leave_out_protocol(&mut self, follows: &str) {
        let Some(protocol) = &self.protocol else {
            return;
        };
        let is_implied = match constant::icmp_type(protocol) {
            Some((field, _)) => follows.contains(field),
            None => [" sport", " dport"]
                .iter()
                .any(|port| follows.contains(&format!("{protocol}{port}"))),
        };
        if is_implied {
            self.words.pop_if(|word| word.is_protocol);
        }
    }

    fn lookup(&mut self, key: Register, set: &SetRef, what: LookupFor) {
        let key = self.key(key);
        self.leave_out_protocol(&key);
        let (set, kind) = match set {
            SetRef::Named(name) => (format!("@{name}"), Kind::Bytes),
            SetRef::Anonymous(set) => (self.anonymous(set), Kind::Bytes),
        };
        match what {
            LookupFor::Membership(how) => self.say(format!("{key} {}{set}", sense(how))),
            LookupFor::Verdict => self.say(format!("{key} vmap {set}")),
            LookupFor::Value(to) => self.hold(to, format!("{key} map {set}"), kind),
        }
    }

    /// Renders an anonymous set: all elements of a small set, otherwise only the element that
    /// matched.
    fn anonymous(&self, set: &AnonymousSet) -> String {
        let mut found = self.found.iter().filter(|(at, _)| *at == self.at);
        let is_long = set.elements.len() > SHOWN;
        let shown = match found.next() {
            Some((_, element)) if is_long => {
                let element = members::element(&set.key, &set.kind, element, None);
                format!("{element}, ...")
            }
            _ if is_long => "...".to_owned(),
            _ => members::all(set).join(", "),
        };
        format!("{{ {shown} }}")
    }

    fn statement(&mut self, expression: &Expression) {
        let text = match expression {
            Expression::Verdict(verdict) => members::verdict(verdict),
            Expression::SetMeta { key, from } => {
                format!("{} set {}", constant::meta(*key).0, self.value(*from))
            }
            Expression::SetCt { key, from } => {
                format!("{} set {}", constant::ct(*key).0, self.value(*from))
            }
            Expression::Nat {
                kind,
                family,
                address,
                port,
                flags,
            } => self.nat(*kind, *family, (*address, *port), *flags),
            Expression::Masquerade { flags } => format!("masquerade{}", nat_flags(*flags)),
            Expression::Redirect { port, flags } => {
                let port = port.map(|port| self.port(port));
                let port = port.map_or(String::new(), |port| format!(" to :{port}"));
                format!("redirect{port}{}", nat_flags(*flags))
            }
            Expression::Reject { kind, code } => constant::reject(self.family, *kind, *code),
            Expression::Counter { bytes, packets } => {
                format!("counter packets {packets} bytes {bytes}")
            }
            Expression::Limit {
                rate,
                seconds,
                bytes,
                over,
            } => {
                let over = if *over { "over " } else { "" };
                let what = if *bytes { " bytes" } else { "" };
                format!("limit rate {over}{rate}{what}/{}", constant::per(*seconds))
            }
            Expression::Log { prefix: None } => "log".to_owned(),
            Expression::Log {
                prefix: Some(prefix),
            } => format!("log prefix \"{prefix}\""),
            Expression::NoTrack => "notrack".to_owned(),
            Expression::Object { kind, name } => {
                format!("{} name \"{name}\"", constant::object(*kind))
            }
            Expression::Dynset {
                set,
                operation,
                key,
                timeout,
            } => {
                let operation = match operation {
                    DynsetOperation::Add => "add",
                    DynsetOperation::Update => "update",
                    DynsetOperation::Delete => "delete",
                };
                let set = match set {
                    SetRef::Named(name) => name,
                    SetRef::Anonymous(_) => "?",
                };
                let timeout = timeout.map_or(String::new(), |ms| format!(" timeout {ms}ms"));
                let key = self.key(*key);
                format!("{operation} @{set} {{ {key}{timeout} }}")
            }
            other => format!("[{}]", other.name()),
        };
        self.say(text);
    }

    /// Returns the text of the value in a register that a statement uses. An untyped constant is
    /// rendered as a mark.
    fn value(&self, from: Register) -> String {
        let held = self.held(from);
        match &held.kind {
            Kind::Constant(bytes) => Kind::Mark.text(bytes),
            _ => held.masked(),
        }
    }

    fn port(&self, from: Register) -> String {
        let held = self.held(from);
        match &held.kind {
            Kind::Constant(bytes) => Kind::Port.text(bytes),
            _ => held.text,
        }
    }

    fn nat(
        &self,
        kind: NatKind,
        family: Family,
        (address, port): (Option<Register>, Option<Register>),
        flags: u32,
    ) -> String {
        let kind = match kind {
            NatKind::Source => "snat",
            NatKind::Destination => "dnat",
        };
        let of = match family {
            Family::Ip6 => Kind::Address6,
            _ => Kind::Address4,
        };
        let flags = nat_flags(flags);
        let address = address.map(|from| self.held(from));
        let constant = match &address {
            Some(RegisterText {
                kind: Kind::Constant(bytes),
                ..
            }) => Some(of.text(bytes)),
            Some(_) => None,
            None => Some(String::new()),
        };
        match (constant, address, port) {
            (Some(address), _, Some(port)) => {
                let port = self.port(port);
                let address = match of {
                    Kind::Address6 if !address.is_empty() => format!("[{address}]"),
                    _ => address,
                };
                format!("{kind} to {address}:{port}{flags}")
            }
            (Some(address), _, None) => format!("{kind} to {address}{flags}"),
            (None, Some(from), Some(_)) => {
                let of = if of == Kind::Address6 { "ip6" } else { "ip" };
                format!("{kind} {of} to {}{flags}", from.text)
            }
            (None, Some(from), None) => format!("{kind} to {}{flags}", from.text),
            (None, None, _) => kind.to_owned(),
        }
    }
}

fn sense(how: Membership) -> &'static str {
    match how {
        Membership::In => "",
        Membership::NotIn => "!= ",
    }
}

fn from_on(offset: u32) -> String {
    match offset {
        0 => String::new(),
        offset => format!(" offset {offset}"),
    }
}

/// Renders NAT flags (`NF_NAT_RANGE_*`, linux/netfilter/nf_nat.h).
fn nat_flags(flags: u32) -> String {
    let words = [(4, "random"), (16, "fully-random"), (8, "persistent")];
    let set = words.into_iter().filter(|(bit, _)| flags & bit != 0);
    let words: Vec<&str> = set.map(|(_, word)| word).collect();
    match words.as_slice() {
        [] => String::new(),
        words => format!(" {}", words.join(",")),
    }
}

/// Renders `(held & mask) ^ xor` for a constant mask.
fn constant_masked(held: RegisterText, mask: &[u8], xor: &[u8]) -> RegisterText {
    let all = |byte: u8| mask.iter().all(|of| *of == byte);
    if xor.iter().all(|byte| *byte == 0) {
        return RegisterText {
            mask: Some(mask.to_vec()),
            ..held
        };
    }
    let sets = mask.iter().zip(xor).all(|(mask, xor)| *mask == !xor);
    let sign = if all(0xff) {
        "^"
    } else if sets {
        "|"
    } else {
        return RegisterText {
            text: format!(
                "{} & {} ^ {}",
                held.text,
                held.kind.text(mask),
                held.kind.text(xor)
            ),
            ..held
        };
    };
    RegisterText {
        text: format!("{} {sign} {}", held.text, held.kind.text(xor)),
        ..held
    }
}
