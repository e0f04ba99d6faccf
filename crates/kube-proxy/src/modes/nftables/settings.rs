//! What nftables mode alone reads of the flags.

use std::time::Duration;

use proxy_nftables::Layout;

use crate::flags::Flags;
use crate::flags::unusable::UnusableFlag;
use crate::flags::words::word;
use crate::modes::shared::mark_bit;

/// The words of `--nftables-layout`.
const LAYOUTS: [(&str, Layout); 2] = [("upstream", Layout::Upstream), ("flat", Layout::Flat)];

/// What nftables mode alone reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Whether all traffic to cluster IPs is masqueraded.
    pub masquerade_all: bool,
    /// The bit of the packet mark that says "masquerade", 0 to 31.
    pub masquerade_bit: u8,
    /// How the table is laid out.
    pub layout: Layout,
}

impl Settings {
    pub(in crate::modes) fn read(flags: &Flags) -> Result<Self, UnusableFlag> {
        Ok(Self {
            masquerade_all: flags.nftables_masquerade_all,
            masquerade_bit: mark_bit("nftables-masquerade-bit", flags.nftables_masquerade_bit)?,
            layout: word("nftables-layout", &flags.nftables_layout, &LAYOUTS)?,
        })
    }

    /// The bit as a mask.
    pub(super) fn masquerade_mark(&self) -> u32 {
        1 << self.masquerade_bit
    }
}

/// Says in the fields of this mode what flags say for it, where there is no file: upstream's
/// command line has no flag for the mark's bit, and those of iptables mode for the rest.
pub(super) fn take_flags(flags: &mut Flags) {
    flags.nftables_masquerade_all = flags.masquerade_all;
    flags.nftables_sync_period = flags.iptables_sync_period;
    flags.nftables_min_sync_period = flags.iptables_min_sync_period;
}

/// How often it looks and writes, each with what says so.
pub(super) fn periods(flags: &Flags) -> [(&'static str, Duration); 2] {
    let (sync, min_sync) = if flags.config.is_empty() {
        ("iptables-sync-period", "iptables-min-sync-period")
    } else {
        ("nftables-sync-period", "nftables-min-sync-period")
    };
    [
        (sync, flags.nftables_sync_period),
        (min_sync, flags.nftables_min_sync_period),
    ]
}
