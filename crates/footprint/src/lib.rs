//! What each mode of kube-proxy leaves in the kernel, as data: by it a mode, `--check` and
//! `--cleanup` find what others have left, and remove it.
//!
//! ```text
//!   a Footprint for each mode ─┬─▶ Finder ◀── iptables-save       what goes = theirs, less mine, less the kubelet's
//!                              │     └─▶ Leftovers ──▶ iptables-restore
//!                              └─▶ nft tables
//! ```
//!
//! A mode knows its own footprint, and is given those of the others: a further mode adds one, and
//! nothing in its siblings.

mod leftovers;
pub mod nft;

use iptables::{Jump, Table};

pub use leftovers::{Finder, Held, Leftovers};

/// Chains that are the kubelet's, even where a mode makes or fills them, too. They stay, as upstream leaves them.
const KUBELET: [&str; 4] = [
    "KUBE-FIREWALL",
    "KUBE-MARK-DROP",
    "KUBE-KUBELET-CANARY",
    "KUBE-IPTABLES-HINT",
];

/// What one mode leaves, older versions included.
#[derive(Debug, Clone, Copy)]
pub struct Footprint {
    /// The name of the mode, as `--proxy-mode` has it.
    pub mode: &'static str,
    /// Chains of its own.
    pub chains: &'static [(Table, &'static str)],
    /// How the names of further ones begin.
    pub prefixes: &'static [(Table, &'static str)],
    /// Its rules in built-in chains.
    pub jumps: &'static [Jump],
    /// How the comments of those begin that older versions had.
    pub older_comments: &'static [&'static str],
    /// Its tables in nftables, by the name that they have in the families `ip` and `ip6`.
    pub nft_tables: &'static [&'static str],
}

impl Footprint {
    /// That of a mode which leaves nothing.
    pub const fn none(mode: &'static str) -> Self {
        Self {
            mode,
            chains: &[],
            prefixes: &[],
            jumps: &[],
            older_comments: &[],
            nft_tables: &[],
        }
    }

    /// Whether a chain is this mode's, and not the kubelet's as well.
    pub fn has_chain(&self, table: Table, name: &str) -> bool {
        let is_named = self.chains.contains(&(table, name));
        let mut prefixes = self.prefixes.iter();
        let has = is_named || prefixes.any(|(of, prefix)| *of == table && name.starts_with(prefix));
        has && !KUBELET.contains(&name)
    }

    /// Whether the comment of a rule in a built-in chain is one of this mode's.
    fn has_comment(&self, comment: &str) -> bool {
        let mut jumps = self.jumps.iter();
        let mut older = self.older_comments.iter();
        jumps.any(|jump| jump.comment == Some(comment))
            || older.any(|known| comment.starts_with(known))
    }
}

impl PartialEq for Footprint {
    /// There is one for each mode.
    fn eq(&self, other: &Self) -> bool {
        self.mode == other.mode
    }
}

impl Eq for Footprint {}

/// Those of several modes.
pub type Footprints = &'static [&'static Footprint];

/// That of upstream's nftables mode.
pub const NFTABLES: Footprint = Footprint {
    nft_tables: &["kube-proxy"],
    ..Footprint::none("nftables")
};
