//! Describes the effects of a rule on a packet, as text for the user.

use std::net::SocketAddr;
use std::sync::Arc;

use inet::IpFamily;
use nftables_netlink::{Expression, KernelRule, Rule, Verdict, text};

use super::reader::ObjectId;
use super::run::{Effect, Run};
use crate::branch::{Counters, End, Step};
use crate::packet::SourceNat;

/// Returns the table and name of a chain as text, such as `table ip kube-proxy, chain services`.
pub(super) fn place(chain: &ObjectId) -> String {
    let table = table(chain);
    format!("{table}, chain {}", chain.name)
}

/// Returns the family and name of a table as text, such as `table ip kube-proxy`.
pub(super) fn table(of: &ObjectId) -> String {
    let family = of.family.name();
    format!("table {family} {}", of.table)
}

/// Describes the effect of a rule as a step. Returns `None` if the rule had no effect.
pub(super) fn step(
    chain: &ObjectId,
    found: &KernelRule,
    run: &Run,
    verdict: Option<&Verdict>,
) -> Option<Step> {
    let mut says: Vec<String> = run.did.iter().map(did_words).collect();
    let has_translated = run.did.iter().any(Effect::is_translation);
    match (&run.branch.end, verdict) {
        (Some(End::Refused(message)), _) => says.push(format!("refuses it: {message}")),
        (_, Some(Verdict::Drop)) => says.push("drops it without an error to the sender".to_owned()),
        (_, Some(Verdict::Accept)) if !has_translated => {
            says.push(
                "accepts it in this base chain; other base chains may still drop \
                       it"
                .to_owned(),
            );
        }
        (_, Some(Verdict::Return)) => {
            says.push("passes over the other rules of this chain".to_owned());
        }
        (_, Some(Verdict::Jump(to) | Verdict::Goto(to))) => {
            says.push(format!("goes on in chain {to}"));
        }
        _ => {}
    }
    if says.is_empty() {
        return None;
    }
    match run.choices {
        Some(choices @ 2..) => says.push(format!("one of {choices} by chance")),
        Some(1) => says.push("the only one".to_owned()),
        _ => {}
    }
    let mut step = Step::new(
        place(chain),
        text::rule(chain.family, &found.rule, &run.found),
        says.join(", "),
    );
    step.members.clone_from(&run.members);
    step.counters = found.rule.expressions.iter().find_map(|of| match of {
        Expression::Counter { bytes, packets } => Some(Counters {
            packets: *packets,
            bytes: *bytes,
        }),
        _ => None,
    });
    Some(step)
}

fn did_words(did: &Effect) -> String {
    match did {
        Effect::Mark(before, after) => mark(*before, *after),
        Effect::Destination(address, port) => {
            format!(
                "its destination becomes {}",
                SocketAddr::new(*address, *port)
            )
        }
        Effect::Kept => "keeps its destination: no other rule of type nat changes it".to_owned(),
        Effect::Redirected(Some(address), port) => {
            let to = SocketAddr::new(*address, *port);
            format!("leads it to this node itself, {to}")
        }
        Effect::Redirected(None, _) => {
            "drops it: the interface that it came by has no address to redirect it to".to_owned()
        }
        Effect::Source(SourceNat::Masquerade(Some(address))) => {
            format!("masquerades it: its source becomes {address}, an address of this node")
        }
        Effect::Source(SourceNat::Masquerade(None)) => {
            "masquerades it: its source becomes an address of the interface that it leaves by"
                .to_owned()
        }
        Effect::Source(SourceNat::To(address, port)) => {
            let address = address.map(|address| format!(" address {address}"));
            let port = port.map(|port| format!(" port {port}"));
            let both = [address, port].into_iter().flatten().collect::<Vec<_>>();
            format!("its source becomes{}", both.join(","))
        }
        Effect::Noted(set) => format!("remembers it in set {set}"),
        Effect::Forgotten(set) => format!("takes it out of set {set}"),
        Effect::Untracked => "keeps connection tracking from it".to_owned(),
    }
}

fn mark(before: u32, after: u32) -> String {
    let (set, cleared) = (after & !before, before & !after);
    match (set, cleared) {
        (set, 0) => format!("sets its mark {set:#x}"),
        (0, cleared) => format!("clears its mark {cleared:#x}"),
        _ => format!("its mark becomes {after:#x}"),
    }
}

/// Returns the message that the sender of a rejected packet gets. `kind` is `NFT_REJECT_*`, and
/// `code` the ICMP code.
pub(super) fn refusal(family: IpFamily, kind: u32, code: u8) -> String {
    let what = match (kind, family, code) {
        (1, ..) => return "TCP reset".to_owned(),
        (0, IpFamily::V4, 0) | (2, _, 0) => "network unreachable",
        (0, IpFamily::V4, 1) | (2, _, 2) => "host unreachable",
        (0, IpFamily::V4, 2) => "protocol unreachable",
        (0, IpFamily::V4, 3) | (0, IpFamily::V6, 4) | (2, _, 1) => "port unreachable",
        (0, IpFamily::V6, 0) => "no route",
        (0, IpFamily::V6, 3) => "address unreachable",
        (0, IpFamily::V4, 9 | 10 | 13) | (0, IpFamily::V6, 1) | (2, _, 3) => {
            "administratively prohibited"
        }
        _ => return format!("ICMP, code {code}"),
    };
    format!("ICMP {what}")
}

fn quoted(chain: &ObjectId, rule: &Rule) -> String {
    let text = text::rule(chain.family, rule, &[]);
    format!("{}: `{text}`", place(chain))
}

/// Describes a rule with unknown outcome, because it tests data of the packet that is unknown.
pub(super) fn open(chain: &ObjectId, rule: &Rule, why: &str) -> Arc<str> {
    format!("{}: {why}", quoted(chain, rule)).into()
}

/// Describes a rule with unknown outcome, because it has an expression that this program does not
/// support.
pub(super) fn not_understood(chain: &ObjectId, rule: &Rule, expression: &Expression) -> Arc<str> {
    let what = expression.name();
    format!("{}: its `{what}` is not understood", quoted(chain, rule)).into()
}

/// Describes a rule after which the path is unknown, because an unsupported expression may change
/// the packet.
pub(super) fn lost(chain: &ObjectId, rule: &Rule, expression: &Expression) -> String {
    let what = expression.name();
    let rule = quoted(chain, rule);
    format!("{rule}: what its `{what}` does to the packet is unknown")
}

/// Describes a rule at which the evaluation stops, because there are too many paths.
pub(super) fn too_many(chain: &ObjectId, rule: &Rule) -> String {
    let rule = quoted(chain, rule);
    format!("{rule}: up to here there are too many ways and rules to follow them further")
}

/// Describes jumps that are nested deeper than the kernel allows.
pub(super) fn too_deep(to: &ObjectId) -> String {
    format!("{}: jumps lead deeper than the kernel allows", place(to))
}
