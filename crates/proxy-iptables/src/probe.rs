//! Checks that the kernel has the features that this mode needs.

use iptables::{FlowState, Iptables, IptablesError, Line, Match, Rule, SourcePort, Table, Target};
use proxy::{IpFamily, Protocol};

use crate::nfacct::{Counter, NfacctSocket};

/// Writes rules with every match and target that any cluster needs into a new chain, and removes
/// them again.
///
/// # Errors
///
/// Fails if iptables refuses a rule. Returns the first refusal.
pub fn probe(iptables: &Iptables, family: IpFamily) -> Result<(), IptablesError> {
    const MARK: u32 = 0x4000;
    let localhost = family.localhost();
    let ports = [
        Match::Protocol(Protocol::Tcp),
        Match::Port(Protocol::Tcp, 1),
    ];
    let nat = [
        Rule::new([Match::comment("probe"), Match::OneIn(2)], Target::Return),
        Rule::new([Match::NotMark(MARK)], Target::Return),
        Rule::new([Match::DestinationLocal], Target::set_mark(MARK)),
        Rule::new(ports, Target::Dnat((localhost, 1).into())),
        Rule::new([], Target::Masquerade(SourcePort::Kept)),
    ];
    let new = Match::State(&[FlowState::New]);
    let rules = nat.map(|rule| (Table::Nat, rule)).into_iter();
    let rules = rules.chain([(Table::Filter, Rule::new([new], Target::Reject(family)))]);
    iptables.try_rules(family, &rules.collect::<Vec<_>>())
}

/// Reports whether table filter of a family has a rule with an nfacct counter. This mode has such a
/// rule for INVALID packets, unless `nf_conntrack_tcp_be_liberal` is set.
pub fn has_counting_rules(family: IpFamily, iptables: &Iptables) -> bool {
    if iptables.is_empty(family) {
        return false;
    }
    let mut has_some = false;
    let mut look = |line: &str| {
        if let Some(Line::Rule(rule)) = Line::parse(line) {
            has_some |= rule.options().any(|option| option == "--nfacct-name");
        }
    };
    let read = iptables.save_lines(family, Some(Table::Filter), &mut look);
    read.is_ok() && has_some
}

/// Checks that the kernel has nfacct counters and that iptables can use them. Creates missing
/// counters.
///
/// Starts a process that looks for rules with counters. If no rule has a counter, starts another
/// process that writes such a rule.
///
/// # Errors
///
/// Returns the reason as text.
pub fn probe_counters(family: IpFamily, iptables: &Iptables) -> Result<(), String> {
    let ensured = NfacctSocket::open().and_then(|mut accounting| accounting.ensure());
    ensured.map_err(|error| error.to_string())?;
    if has_counting_rules(family, iptables) {
        return Ok(());
    }
    let counted = Match::Counted(Counter::InvalidDropped.name());
    let rule = Rule::new([counted], Target::Drop);
    let probed = iptables.try_rule(family, Table::Filter, &rule);
    probed.map_err(|error| error.to_string())
}
