//! Obstacles in iptables tables that nft has created: dormant tables, and chains of nft that have
//! the name of an iptables chain.

use std::fmt;

use inet::IpFamily;

/// An iptables chain whose name nft has given to a chain of another kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TakenChain {
    /// Family and name of the table in nftables, such as `ip filter`.
    pub table: String,
    /// Name of the iptables chain that nft blocks.
    pub chain: String,
    /// Type, hook and priority of the chain that nft has created, as text.
    pub found: String,
    /// True for a built-in chain. False for a `KUBE-*` chain that nft has created as a base chain,
    /// so that no rule can jump to it.
    pub is_built_in: bool,
}

impl fmt::Display for TakenChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            table,
            chain,
            found,
            is_built_in,
        } = self;
        write!(
            f,
            "chain {chain} of table {table} was made by nft ({found})"
        )?;
        if *is_built_in {
            write!(
                f,
                " and is not the chain that iptables writes to: rename it, or move it to a table of its own (`nft list chain \
                 {table} {chain}` shows it)"
            )
        } else {
            write!(
                f,
                " and has the name of a chain of kube-proxy, which is no base chain: no rule can lead to it. Rename it (`nft \
                 rename chain {table} {chain} NAME`), or delete it; kube-proxy then makes its own"
            )
        }
    }
}

/// An iptables table that nft has made dormant (`flags dormant`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DormantTable {
    /// IP family of the table.
    pub family: IpFamily,
    /// Name of the table in iptables.
    pub name: &'static str,
}

impl DormantTable {
    /// Reports whether kube-proxies write rules for Service traffic to a table with this name.
    pub fn serves(self) -> bool {
        matches!(self.name, "filter" | "nat")
    }
}

impl fmt::Display for DormantTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (family, name) = (nft_name(self.family), self.name);
        write!(
            f,
            "table {family} {name} is dormant: no packet meets the rules in it. Somebody has switched it off by nft (`flags \
             dormant`), and as others have rules in it, too, kube-proxy leaves it so; `nft add table {family} {name}` switches \
             it on"
        )
    }
}

pub(crate) fn nft_name(family: IpFamily) -> &'static str {
    match family {
        IpFamily::V4 => "ip",
        IpFamily::V6 => "ip6",
    }
}
