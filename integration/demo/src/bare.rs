//! Hides the programs of iptables and ipset in a VM, and reports that neither these programs nor
//! iptables rules exist.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use lab::Place;

use crate::account::Account;

/// Script that hides the programs of iptables and ipset. It mounts a directory with all other
/// programs over `/usr/sbin`. The mount lasts until the VM ends with the demo.
const HIDE: &str = "real=$(mktemp -d) bare=$(mktemp -d)
mount --bind /usr/sbin $real
for program in $real/*; do
    case ${program##*/} in
        *iptables* | *ip6tables* | *xtables* | ipset*) ;;
        *) ln -s $program $bare ;;
    esac
done
mount --bind $bare /usr/sbin";

/// Names of the iptables and ipset programs that must be absent.
const PROGRAMS: [&str; 8] = [
    "iptables-save",
    "iptables-restore",
    "iptables-nft-restore",
    "iptables-legacy-restore",
    "ip6tables-restore",
    "xtables-nft-multi",
    "xtables-legacy-multi",
    "ipset",
];

/// Hides the programs of iptables and ipset in the whole VM.
pub(crate) fn hide_programs() -> Result<()> {
    if std::env::var("LAB_LANE").is_ok_and(|lane| lane == "host") {
        bail!("programs are hidden from a guest alone: LAB_LANE=B");
    }
    let hidden = Command::new("sh").args(["-ec", HIDE]).status();
    ensure!(
        hidden.context("there is no sh")?.success(),
        "cannot hide them"
    );
    Ok(())
}

/// Reports whether all programs in [`PROGRAMS`] are absent from the PATH.
pub(crate) fn claim_that_no_program_is_there(account: &mut Account) {
    let script = format!("command -v {}", PROGRAMS.join(" "));
    let found = Command::new("sh").args(["-c", &script]).output();
    let found = found.map_or_else(
        |error| error.to_string(),
        |found| String::from_utf8_lossy(&found.stdout).into_owned(),
    );
    let seen = if found.is_empty() {
        format!("{}: not found", PROGRAMS.join(", "))
    } else {
        found.clone()
    };
    account.claim(
        "this guest has no program of iptables or ipset",
        found.is_empty(),
        &seen,
    );
}

/// Reports whether the node has no iptables tables, and only the shim's nftables tables.
pub(crate) fn claim_that_iptables_is_unused(account: &mut Account, node: &Place) -> Result<()> {
    let script = "cat /proc/net/ip_tables_names /proc/net/ip6_tables_names 2>/dev/null || true";
    let names = node.read(["sh", "-c", script])?;
    account.claim(
        "no table of ip_tables was ever asked for",
        names.is_empty(),
        if names.is_empty() { "none" } else { &names },
    );
    let tables = node.read(["nft", "list", "tables"])?;
    let tables: Vec<&str> = tables.lines().collect();
    let is_alone = tables
        .iter()
        .all(|table| table.ends_with(" kube-proxy-ipvs"));
    account.claim(
        "of nf_tables there is the shim alone",
        is_alone && !tables.is_empty(),
        &tables.join(", "),
    );
    Ok(())
}

/// Returns the elements of an nftables set of the shim, in the format of ipset members.
pub(crate) fn members(node: &Place, set: &str) -> Result<BTreeSet<String>> {
    let listed = node.read(["nft", "list", "set", "ip", "kube-proxy-ipvs", set])?;
    let elements = listed.split_once("elements = {");
    let elements = elements.and_then(|(_, rest)| rest.split_once('}'));
    let elements = elements.map_or("", |(elements, _)| elements);
    Ok(elements
        .split(',')
        .map(str::trim)
        .filter(|element| !element.is_empty())
        .map(as_member)
        .collect())
}

/// Converts an nftables element into an ipset member: `10.96.0.1 . tcp . 80` becomes
/// `10.96.0.1,tcp:80`.
fn as_member(element: &str) -> String {
    let parts: Vec<&str> = element.split(" . ").collect();
    match *parts.as_slice() {
        [address, protocol, port] => format!("{address},{protocol}:{port}"),
        [address, protocol, port, source] => format!("{address},{protocol}:{port},{source}"),
        _ => element.to_owned(),
    }
}
