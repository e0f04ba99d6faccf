//! Reads the chains of an iptables table, with their rules, from the kernel.
//!
//! For the kinds of rules that kube-proxies add to built-in chains, the text equals the output of
//! `iptables-save`. For any other rule, the text contains only [`NATIVE`] and the target.
//!
//! Source: `linux/netfilter/nf_tables.h`, `linux/netfilter/xt_conntrack.h`,
//! `linux/netfilter/xt_addrtype.h`, `linux/netfilter/xt_comment.h`.

use inet::IpFamily;
use netlink_batch::{Attribute, Attributes, Batch, Connection, Error, Malformed, Protocol};

use super::{
    FIRST, INFO, NFNL_MSG_BATCH_BEGIN, NFNL_MSG_BATCH_END, NFT_MSG_DELRULE, NFT_MSG_GETCHAIN,
    NFT_MSG_GETRULE, NFTA_CHAIN_HOOK, NFTA_CHAIN_NAME, NFTA_CHAIN_TYPE, NFTA_EXPR_DATA,
    NFTA_HOOK_HOOKNUM, NFTA_HOOK_PRIORITY, NFTA_RULE_CHAIN, NFTA_RULE_EXPRESSIONS,
    NFTA_RULE_HANDLE, REVISION, header, is_missing, of_batch, read,
};
use crate::rule::{FlowState, Match, Rule};
use crate::saved::NATIVE;

const NFTA_CHAIN_POLICY: u16 = 5;
const NFTA_COUNTER_BYTES: u16 = 1;
const NFTA_COUNTER_PACKETS: u16 = 2;
const NFTA_IMMEDIATE_DATA: u16 = 2;
const NFTA_DATA_VERDICT: u16 = 2;
const NFTA_VERDICT_CODE: u16 = 1;
const NFTA_VERDICT_CHAIN: u16 = 2;
/// Codes of verdicts in rules: `NF_DROP`, `NF_ACCEPT`, `NFT_JUMP`, `NFT_GOTO`, `NFT_RETURN`.
const DROP: u32 = 0;
const ACCEPT: u32 = 1;
const JUMP: u32 = (-3_i32).cast_unsigned();
const GOTO: u32 = (-4_i32).cast_unsigned();
const RETURN: u32 = (-5_i32).cast_unsigned();

/// A connection to nf_tables for reads of one family's tables.
pub(crate) struct KernelReader {
    connection: Connection,
    family: IpFamily,
}

/// A chain of an iptables table in nf_tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KernelChain {
    pub(crate) name: String,
    /// Hook of a base chain, or `None` for a regular chain.
    pub(crate) hook: Option<Hook>,
}

/// Hook at which packets enter a base chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hook {
    pub(crate) number: u32,
    pub(crate) priority: i32,
    /// Type of the chain: `filter`, `nat` or `route`.
    pub(crate) kind: String,
    pub(crate) drops: bool,
}

/// A rule of an iptables chain in nf_tables.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ListedRule {
    /// Text of the rule as `iptables-save` prints it. [`NATIVE`] replaces the parts that iptables
    /// cannot express.
    pub(crate) text: String,
    /// Numbers of packets and bytes that the rule has counted.
    pub(crate) counted: (u64, u64),
    /// Handle of the rule in the kernel.
    pub(crate) handle: u64,
    /// True if `iptables-nft` itself could have written all expressions of the rule.
    pub(crate) looks_compatible: bool,
}

impl ListedRule {
    /// Reports whether the text omits a part of the rule.
    pub(crate) fn is_native(&self) -> bool {
        self.text.contains(NATIVE)
    }
}

impl KernelReader {
    /// Opens a connection. Returns `None` if the kernel lacks nf_tables.
    pub(crate) fn open(family: IpFamily) -> Result<Option<Self>, Error> {
        match Connection::open(Protocol::Netfilter) {
            Ok(connection) => Ok(Some(Self { connection, family })),
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the names of the existing iptables tables, and the generation of the ruleset.
    pub(crate) fn tables(&mut self) -> Result<(Vec<&'static str>, Option<u32>), Error> {
        match read(&mut self.connection, self.family) {
            Err(error) if is_missing(&error) => Ok((Vec::new(), None)),
            read => read,
        }
    }

    /// Returns the chains of a table, in the kernel's order.
    pub(crate) fn chains(&mut self, table: &str) -> Result<Vec<KernelChain>, Error> {
        let family = self.family;
        let answer = self
            .connection
            .dump(NFT_MSG_GETCHAIN, 0, |w| header(w, family))?;
        let mut chains = Vec::new();
        for (_, payload) in answer.iter() {
            if let Some(chain) = chain(payload, table)? {
                chains.push(chain);
            }
        }
        Ok(chains)
    }

    /// Deletes rules in one transaction. Each entry is the table, chain and handle of a rule.
    pub(crate) fn delete_rules(&mut self, rules: &[(&str, String, u64)]) -> Result<(), Error> {
        let family = self.family;
        let mut batch = Batch::new();
        batch.push(NFNL_MSG_BATCH_BEGIN, 0, of_batch);
        for (table, chain, handle) in rules {
            let index = batch.push(NFT_MSG_DELRULE, 0, |w| {
                header(w, family);
                w.attr_str(FIRST, table);
                w.attr_str(NFTA_RULE_CHAIN, chain);
                w.attr(NFTA_RULE_HANDLE, &handle.to_be_bytes());
            });
            batch.acknowledge(index);
        }
        batch.push(NFNL_MSG_BATCH_END, 0, of_batch);
        let answers = self.connection.transact(&mut batch)?;
        match answers.refused.into_iter().next() {
            Some((_, refusal)) => Err(Error::Refused(refusal)),
            None => Ok(()),
        }
    }

    /// Returns the rules of a chain, in order.
    pub(crate) fn rules(&mut self, table: &str, chain: &str) -> Result<Vec<ListedRule>, Error> {
        let family = self.family;
        let answer = self.connection.dump(NFT_MSG_GETRULE, 0, |w| {
            header(w, family);
            w.attr_str(FIRST, table);
            w.attr_str(NFTA_RULE_CHAIN, chain);
        })?;
        let mut rules = Vec::new();
        for (_, payload) in answer.iter() {
            // Some kernels ignore the filter in the request, and also return other rules.
            if let Some(rule) = rule(payload, table, chain)? {
                rules.push(rule);
            }
        }
        Ok(rules)
    }
}

fn chain(payload: &[u8], table: &str) -> Result<Option<KernelChain>, Malformed> {
    let (mut name, mut is_of_table, mut is_base) = (String::new(), false, false);
    let mut hook = Hook {
        number: 0,
        priority: 0,
        kind: String::new(),
        drops: false,
    };
    for attribute in Attributes::after(4, payload)? {
        let attribute = attribute?;
        match attribute.kind {
            FIRST => is_of_table = attribute.string()? == table,
            NFTA_CHAIN_NAME => attribute.string()?.clone_into(&mut name),
            NFTA_CHAIN_TYPE => attribute.string()?.clone_into(&mut hook.kind),
            NFTA_CHAIN_POLICY => hook.drops = attribute.be32()? == DROP,
            NFTA_CHAIN_HOOK => {
                is_base = true;
                for attribute in Attributes::new(attribute.payload) {
                    let attribute = attribute?;
                    match attribute.kind {
                        NFTA_HOOK_HOOKNUM => hook.number = attribute.be32()?,
                        NFTA_HOOK_PRIORITY => {
                            hook.priority = attribute.be32()?.cast_signed();
                        }
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    let hook = is_base.then_some(hook);
    Ok(is_of_table.then_some(KernelChain { name, hook }))
}

fn rule(payload: &[u8], table: &str, chain: &str) -> Result<Option<ListedRule>, Malformed> {
    let mut parts = RuleParts::default();
    let (mut is_of_table, mut is_of_chain) = (false, false);
    for attribute in Attributes::after(4, payload)? {
        let attribute = attribute?;
        match attribute.kind {
            FIRST => is_of_table = attribute.string()? == table,
            NFTA_RULE_CHAIN => is_of_chain = attribute.string()? == chain,
            NFTA_RULE_HANDLE => parts.handle = be64(&attribute),
            NFTA_RULE_EXPRESSIONS => {
                for element in Attributes::new(attribute.payload) {
                    parts.expression(element?.payload)?;
                }
            }
            _ => {}
        }
    }
    Ok((is_of_table && is_of_chain).then(|| parts.into_rule(chain)))
}

/// Parts of a rule, collected from its expressions.
#[derive(Debug, Default)]
struct RuleParts {
    matches: Vec<Match>,
    /// The target with its option and a leading space, such as ` -j CHAIN`.
    target: String,
    counted: (u64, u64),
    handle: u64,
    is_native: bool,
    looks_native: bool,
}

impl RuleParts {
    fn expression(&mut self, payload: &[u8]) -> Result<(), Malformed> {
        let (mut name, mut data) = ("", &[][..]);
        for attribute in Attributes::new(payload) {
            let attribute = attribute?;
            match attribute.kind {
                FIRST => name = attribute.string()?,
                NFTA_EXPR_DATA => data = attribute.payload,
                _ => {}
            }
        }
        match name {
            "counter" => self.counter(data),
            "immediate" => self.immediate(data),
            "match" => {
                match known_match(data)? {
                    Some(known) => self.matches.push(known),
                    None => self.is_native = true,
                }
                Ok(())
            }
            // iptables itself may write these expressions. A rule with one of them still counts as
            // native, because no kube-proxy uses such expressions in rules of built-in chains.
            "target" | "payload" | "meta" | "cmp" | "bitwise" | "log" | "limit" => {
                self.is_native = true;
                Ok(())
            }
            _ => {
                self.is_native = true;
                self.looks_native = true;
                Ok(())
            }
        }
    }

    fn counter(&mut self, data: &[u8]) -> Result<(), Malformed> {
        for attribute in Attributes::new(data) {
            let attribute = attribute?;
            match attribute.kind {
                NFTA_COUNTER_BYTES => self.counted.1 = be64(&attribute),
                NFTA_COUNTER_PACKETS => self.counted.0 = be64(&attribute),
                _ => {}
            }
        }
        Ok(())
    }

    fn immediate(&mut self, data: &[u8]) -> Result<(), Malformed> {
        let (mut code, mut chain) = (None, "");
        for attribute in Attributes::new(data) {
            let attribute = attribute?;
            if attribute.kind != NFTA_IMMEDIATE_DATA {
                continue;
            }
            for attribute in Attributes::new(attribute.payload) {
                let attribute = attribute?;
                if attribute.kind != NFTA_DATA_VERDICT {
                    continue;
                }
                for attribute in Attributes::new(attribute.payload) {
                    let attribute = attribute?;
                    match attribute.kind {
                        NFTA_VERDICT_CODE => code = Some(attribute.be32()?),
                        NFTA_VERDICT_CHAIN => chain = attribute.string()?,
                        _ => {}
                    }
                }
            }
        }
        self.target = match code {
            Some(JUMP) => format!(" -j {chain}"),
            Some(GOTO) => format!(" -g {chain}"),
            Some(ACCEPT) => " -j ACCEPT".to_owned(),
            Some(DROP) => " -j DROP".to_owned(),
            Some(RETURN) => " -j RETURN".to_owned(),
            _ => {
                self.is_native = true;
                String::new()
            }
        };
        Ok(())
    }

    fn into_rule(self, chain: &str) -> ListedRule {
        let mut text = if self.is_native {
            format!("-A {chain} {NATIVE}")
        } else {
            Rule::without_target(self.matches).line(chain)
        };
        if self.is_native && self.target.is_empty() {
            // iptables cannot express the target of this rule either.
            text.push_str(" -j ");
            text.push_str(NATIVE);
        }
        text.push_str(&self.target);
        ListedRule {
            text,
            counted: self.counted,
            handle: self.handle,
            looks_compatible: !self.looks_native,
        }
    }
}

/// Parses a match that kube-proxies use in rules of built-in chains. Returns `None` for any other
/// match.
fn known_match(data: &[u8]) -> Result<Option<Match>, Malformed> {
    let (mut name, mut revision, mut info) = ("", 0, &[][..]);
    for attribute in Attributes::new(data) {
        let attribute = attribute?;
        match attribute.kind {
            FIRST => name = attribute.string()?,
            REVISION => revision = attribute.be32()?,
            INFO => info = attribute.payload,
            _ => {}
        }
    }
    Ok(match (name, revision) {
        ("comment", 0) => {
            let text = info.split(|byte| *byte == 0).next().unwrap_or_default();
            str::from_utf8(text)
                .ok()
                .map(|text| Match::comment(text.to_owned()))
        }
        ("conntrack", 3) => first_packets(info).then_some(Match::State(&[FlowState::New])),
        ("addrtype", 1) => is_local_destination(info).then_some(Match::DestinationLocal),
        _ => None,
    })
}

/// Reports whether a `struct xt_conntrack_mtinfo3` matches exactly the state `NEW`.
fn first_packets(info: &[u8]) -> bool {
    /// Fields of the match: the match flag `XT_CONNTRACK_STATE`, no inverse flags, and a state mask
    /// with only the bit of `IP_CT_NEW`.
    const WANTED: [u16; 3] = [1, 0, 1 << 3];
    let field = |at: usize| {
        let bytes = info.get(at..at + 2)?.try_into().ok()?;
        Some(u16::from_ne_bytes(bytes))
    };
    [146, 148, 150].map(field) == WANTED.map(Some)
}

/// Reports whether a `struct xt_addrtype_info_v1` matches exactly local destinations.
fn is_local_destination(info: &[u8]) -> bool {
    let local = (1_u16 << 2).to_ne_bytes();
    info.get(..8) == Some(&[0, 0, local[0], local[1], 0, 0, 0, 0])
}

fn be64(attribute: &Attribute<'_>) -> u64 {
    let bytes = attribute.payload.try_into();
    bytes.map_or(0, u64::from_be_bytes)
}

/// Returns the names of the iptables tables that exist in nf_tables. Returns no names if the kernel
/// lacks nf_tables.
pub(crate) fn tables(family: IpFamily) -> Result<Vec<&'static str>, Error> {
    let Some(mut reader) = KernelReader::open(family)? else {
        return Ok(Vec::new());
    };
    reader.tables().map(|(tables, _)| tables)
}
