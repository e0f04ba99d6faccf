//! Queries nftables over netlink, without running a program: which tables exist, whether they have
//! changed, and whether the kernel supports iptables rules.
//!
//! The queries write nothing. Like `nft --check`, a query sends a transaction without its end. The
//! kernel checks each message, loads the modules that the message needs, and rolls back.
//!
//! Source: `linux/netfilter/nf_tables.h`, `linux/netfilter/nf_tables_compat.h`,
//! `net/netfilter/nfnetlink.c` (`nfnetlink_rcv_batch`).

pub(crate) mod kernel_rules;

use inet::IpFamily;
use netlink_batch::{
    Attributes, Batch, Connection, Dump, Error, NLM_F_APPEND, NLM_F_CREATE, Protocol, Refusal,
    Reply, Writer,
};

use crate::modules;
use crate::reading::{RuleSupport, TablesState};
use crate::table::Table;

const NFNL_MSG_BATCH_BEGIN: u16 = 0x10;
const NFNL_MSG_BATCH_END: u16 = 0x11;
const NFNL_SUBSYS_NFTABLES: u8 = 10;
const NFT_MSG_NEWTABLE: u16 = message(0);
const NFT_MSG_GETTABLE: u16 = message(1);
const NFT_MSG_NEWCHAIN: u16 = message(3);
const NFT_MSG_GETCHAIN: u16 = message(4);
const NFT_MSG_NEWRULE: u16 = message(6);
const NFT_MSG_GETRULE: u16 = message(7);
const NFT_MSG_DELRULE: u16 = message(8);
const NFT_MSG_GETGEN: u16 = message(16);
/// Message type that queries a match or target: `NFNL_SUBSYS_NFT_COMPAT`, `NFNL_MSG_COMPAT_GET`.
const NFNL_MSG_COMPAT_GET: u16 = 11 << 8;
/// Number of the first attribute of a message, an expression or a list: `NFTA_TABLE_NAME`,
/// `NFTA_CHAIN_TABLE`, `NFTA_RULE_TABLE`, `NFTA_GEN_ID`, `NFTA_LIST_ELEM`, and the name of an
/// expression, a match or a target.
const FIRST: u16 = 1;
const NFTA_TABLE_FLAGS: u16 = 2;
const NFT_TABLE_F_DORMANT: u32 = 1;
const NFTA_CHAIN_NAME: u16 = 3;
const NFTA_CHAIN_HOOK: u16 = 4;
const NFTA_CHAIN_TYPE: u16 = 7;
const NFTA_HOOK_HOOKNUM: u16 = 1;
const NFTA_HOOK_PRIORITY: u16 = 2;
const NFTA_RULE_CHAIN: u16 = 2;
const NFTA_RULE_HANDLE: u16 = 3;
const NFTA_RULE_EXPRESSIONS: u16 = 4;
const NFTA_EXPR_DATA: u16 = 2;
/// Attribute of an extension's revision: `NFTA_MATCH_REV`, `NFTA_TARGET_REV`.
const REVISION: u16 = 2;
/// Attribute of an extension's data: `NFTA_MATCH_INFO`, `NFTA_TARGET_INFO`.
const INFO: u16 = 3;

/// Names of the iptables tables.
const TABLES: [&str; 5] = ["filter", "nat", "mangle", "raw", "security"];
/// Kernel modules that iptables rules in nftables need.
const MODULES: [&str; 2] = ["nft_compat", "nft_chain_nat"];
/// Name of the table in the test transaction, which never completes.
const PROBE: &str = "kube-proxy-probe";
const CHAIN: &str = "prerouting";

const fn message(command: u16) -> u16 {
    (NFNL_SUBSYS_NFTABLES as u16) << 8 | command
}

/// Returns the state of a family's iptables tables, or `None` if the query fails. As with
/// `iptables-nft-save`, the query makes the kernel load `nf_tables`.
pub(crate) fn state(family: IpFamily) -> Option<TablesState> {
    let mut connection = match Connection::open(Protocol::Netfilter) {
        Ok(connection) => connection,
        Err(error) => return is_missing(&error).then_some(TablesState::Unsupported),
    };
    match read(&mut connection, family) {
        Ok((tables, _)) if tables.is_empty() => match probe_table(&mut connection, family) {
            RuleSupport::Works => Some(TablesState::Empty),
            RuleSupport::Never => Some(TablesState::Unsupported),
            RuleSupport::Lacks | RuleSupport::Unknown => None,
        },
        Ok((_, generation)) => Some(TablesState::Holds(generation.map(u64::from))),
        Err(error) => is_missing(&error).then_some(TablesState::Unsupported),
    }
}

/// Returns the dormant iptables tables, whose base chains receive no packets.
pub(crate) fn dormant_tables(family: IpFamily) -> Result<Vec<&'static str>, Error> {
    let mut connection = match Connection::open(Protocol::Netfilter) {
        Ok(connection) => connection,
        Err(error) if is_missing(&error) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let answer = match connection.dump(NFT_MSG_GETTABLE, 0, |w| header(w, family)) {
        Err(error) if is_missing(&error) => return Ok(Vec::new()),
        answer => answer?,
    };
    let tables = iptables_tables(&answer)?.into_iter();
    let dormant = tables.filter(|(_, flags)| flags & NFT_TABLE_F_DORMANT != 0);
    Ok(dormant.map(|(table, _)| table).collect())
}

/// Returns the iptables tables in a dump, with their flags.
fn iptables_tables(dump: &Dump) -> Result<Vec<(&'static str, u32)>, Error> {
    let mut tables = Vec::new();
    for (_, payload) in dump.iter() {
        let (mut name, mut flags) = ("", 0);
        for attribute in Attributes::after(4, payload)? {
            let attribute = attribute?;
            match attribute.kind {
                FIRST => name = attribute.string()?,
                NFTA_TABLE_FLAGS => flags = attribute.be32()?,
                _ => {}
            }
        }
        let known = TABLES.into_iter().filter(|table| *table == name);
        tables.extend(known.map(|table| (table, flags)));
    }
    Ok(tables)
}

/// Reads the existing iptables tables, and the generation of the ruleset.
fn read(
    connection: &mut Connection,
    family: IpFamily,
) -> Result<(Vec<&'static str>, Option<u32>), Error> {
    // Queries the generation first, so that a later change to the tables has another generation.
    let answer = connection.request(NFT_MSG_GETGEN, 0, |w| w.bytes(&[0; 4]))?;
    let mut generation = None;
    for (_, payload) in answer.iter() {
        for attribute in Attributes::after(4, payload)? {
            let attribute = attribute?;
            if attribute.kind == FIRST {
                generation = Some(attribute.be32()?);
            }
        }
    }
    let tables = connection.dump(NFT_MSG_GETTABLE, 0, |w| header(w, family))?;
    let tables = iptables_tables(&tables)?.into_iter();
    Ok((tables.map(|(table, _)| table).collect(), generation))
}

/// Returns the chains of the tables mangle, filter and nat, or `None` if the query fails. Returns
/// no chains if the kernel lacks nf_tables.
pub(crate) fn chains(family: IpFamily) -> Option<Vec<(Table, String)>> {
    let chains = Connection::open(Protocol::Netfilter).and_then(|mut connection| {
        let answer = connection.dump(NFT_MSG_GETCHAIN, 0, |w| header(w, family))?;
        let mut chains = Vec::new();
        for (_, payload) in answer.iter() {
            let (mut table, mut name) = (None, None);
            for attribute in Attributes::after(4, payload)? {
                let attribute = attribute?;
                match attribute.kind {
                    FIRST => table = Table::find(attribute.string()?),
                    NFTA_CHAIN_NAME => name = Some(attribute.string()?.into()),
                    _ => {}
                }
            }
            chains.extend(table.zip(name));
        }
        Ok(chains)
    });
    match chains {
        Ok(chains) => Some(chains),
        Err(error) => is_missing(&error).then(Vec::new),
    }
}

/// Reports whether the kernel lacks support for iptables rules of a family: it lacks nf_tables, the
/// family, or the matches that rules of every mode use.
pub(crate) fn is_absent(family: IpFamily) -> bool {
    let has_no_matches = || {
        let refused = has_match(family, "addrtype", 1);
        refused.is_err_and(|error| is_unknown(&error))
    };
    probe(family) == RuleSupport::Never || has_no_matches()
}

/// Reports whether the error means that the kernel lacks the match, or supports no queries for
/// matches.
pub(crate) fn is_unknown(error: &Error) -> bool {
    let is_no = |errno| matches!(errno, libc::ENOENT | libc::EINVAL | libc::EPROTONOSUPPORT);
    match error {
        Error::Open { source, .. } => source.raw_os_error() == Some(libc::EPROTONOSUPPORT),
        Error::Refused(Refusal { errno, .. }) => is_no(*errno),
        _ => false,
    }
}

/// Loads the modules in `needed`, and the modules that iptables rules in nftables need. Loads
/// nothing if the kernel lacks nf_tables.
pub(crate) fn load_modules(needed: &[&str]) {
    let works = |mut connection| probe_table(&mut connection, IpFamily::V4) == RuleSupport::Works;
    if modules::is_loadable(MODULES[0]) && Connection::open(Protocol::Netfilter).is_ok_and(works) {
        modules::load(&MODULES, needed);
    }
}

/// Checks that the kernel would accept a NAT chain, and an iptables match and target.
pub(crate) fn probe(family: IpFamily) -> RuleSupport {
    match Connection::open(Protocol::Netfilter) {
        Ok(mut connection) => match probe_table(&mut connection, family) {
            RuleSupport::Works => probe_rule(&mut connection, family),
            verdict => verdict,
        },
        Err(error) if is_missing(&error) => RuleSupport::Never,
        Err(_) => RuleSupport::Unknown,
    }
}

/// Checks that the kernel has this revision of an iptables match for rules in nftables.
pub(crate) fn has_match(family: IpFamily, name: &str, revision: u8) -> Result<(), Error> {
    let mut connection = Connection::open(Protocol::Netfilter)?;
    let answer = connection.request(NFNL_MSG_COMPAT_GET, 0, |w| {
        header(w, family);
        w.attr_str(FIRST, name);
        w.attr_be32(REVISION, revision.into());
        // `NFTA_COMPAT_TYPE`: 0 is a match.
        w.attr_be32(INFO, 0);
    });
    answer.map(drop)
}

/// Checks that nf_tables supports tables of this IP family.
fn probe_table(connection: &mut Connection, family: IpFamily) -> RuleSupport {
    dry_run(connection, &begin(family))
}

fn probe_rule(connection: &mut Connection, family: IpFamily) -> RuleSupport {
    let mut batch = begin(family);
    batch.push(NFT_MSG_NEWCHAIN, NLM_F_CREATE, |w| {
        header(w, family);
        w.attr_str(FIRST, PROBE);
        w.attr_str(NFTA_CHAIN_NAME, CHAIN);
        w.nest(NFTA_CHAIN_HOOK, |w| {
            w.attr_be32(NFTA_HOOK_HOOKNUM, 0);
            w.attr_be32(NFTA_HOOK_PRIORITY, 0);
        });
        w.attr_str(NFTA_CHAIN_TYPE, "nat");
    });
    batch.push(NFT_MSG_NEWRULE, NLM_F_CREATE | NLM_F_APPEND, |w| {
        header(w, family);
        w.attr_str(FIRST, PROBE);
        w.attr_str(NFTA_RULE_CHAIN, CHAIN);
        w.nest(NFTA_RULE_EXPRESSIONS, |w| {
            // `struct xt_addrtype_info_v1`: source, destination (a bit for RTN_LOCAL), flags.
            let mut addrtype = [0; 8];
            addrtype[2..4].copy_from_slice(&(1_u16 << 2).to_ne_bytes());
            extension(w, "match", "addrtype", 1, &addrtype);
            // `struct xt_mark_tginfo2`: mark, mask.
            extension(w, "target", "MARK", 2, &[0; 8]);
        });
    });
    dry_run(connection, &batch)
}

fn extension(w: &mut Writer<'_>, kind: &str, name: &str, revision: u32, info: &[u8]) {
    w.nest(FIRST, |w| {
        w.attr_str(FIRST, kind);
        w.nest(NFTA_EXPR_DATA, |w| {
            w.attr_str(FIRST, name);
            w.attr_be32(REVISION, revision);
            w.attr(INFO, info);
        });
    });
}

/// Returns the messages that begin a test transaction. They create a dormant table, so that the
/// kernel registers no hook.
fn begin(family: IpFamily) -> Batch {
    let mut batch = Batch::new();
    batch.push(NFNL_MSG_BATCH_BEGIN, 0, of_batch);
    batch.push(NFT_MSG_NEWTABLE, NLM_F_CREATE, |w| {
        header(w, family);
        w.attr_str(FIRST, PROBE);
        w.attr_be32(NFTA_TABLE_FLAGS, NFT_TABLE_F_DORMANT);
    });
    batch
}

/// Writes the body of the first and last message of a transaction: `struct nfgenmsg`.
fn of_batch(w: &mut Writer<'_>) {
    w.bytes(&[0, 0, 0, NFNL_SUBSYS_NFTABLES]);
}

fn dry_run(connection: &mut Connection, batch: &Batch) -> RuleSupport {
    match connection.execute(batch) {
        Ok(replies) if replies.iter().all(|reply| matches!(reply, Reply::Done)) => {
            RuleSupport::Works
        }
        Ok(replies) => {
            // A kernel without nf_tables refuses the first message. A kernel without the family
            // refuses the second message, which creates the table.
            let mut first = replies.iter().take(2).filter_map(Reply::errno);
            if first.any(|errno| errno == libc::EOPNOTSUPP || errno == libc::EAFNOSUPPORT) {
                RuleSupport::Never
            } else if replies.iter().any(|of| of.errno() == Some(libc::ENOENT)) {
                // The kernel lacks the chain type, the match or the target.
                RuleSupport::Lacks
            } else {
                RuleSupport::Unknown
            }
        }
        Err(_) => RuleSupport::Unknown,
    }
}

/// Reports whether the error means that the kernel lacks nfnetlink or nf_tables, or a module that
/// nf_tables needs.
fn is_missing(error: &Error) -> bool {
    match error {
        Error::Open { source, .. } => source.raw_os_error() == Some(libc::EPROTONOSUPPORT),
        Error::Refused(Refusal { errno, .. }) => *errno == libc::EINVAL,
        _ => false,
    }
}

fn header(w: &mut Writer<'_>, family: IpFamily) {
    let protocol = match family {
        IpFamily::V4 => libc::NFPROTO_IPV4,
        IpFamily::V6 => libc::NFPROTO_IPV6,
    };
    // `struct nfgenmsg`: family, version, resource.
    w.bytes(&[u8::try_from(protocol).unwrap_or_default(), 0, 0, 0]);
}
