//! iptables mode on this machine's kernel.

use std::collections::BTreeSet;
use std::net::IpAddr;

use iptables::{Backend, Iptables};
use proxy::IpFamily;
use proxy_iptables::fake::{FakeKernel, FakeState};

use crate::real::{set_addresses, shell};

/// Access to the real kernel for the test itself, which reads and damages the kernel's state.
pub(super) struct RealKernel {
    family: IpFamily,
    /// Reader of iptables rules for the test. It shares no cache with the daemon's reader.
    iptables: Iptables,
}

#[allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a kernel that cannot be read or damaged ends the history"
)]
impl RealKernel {
    /// Opens the kernel's interfaces in the network namespace of the calling thread.
    pub(super) fn open(family: IpFamily) -> Result<Self, String> {
        let iptables = Iptables::choose(None).map_err(|error| error.to_string())?;
        iptables.check(family).map_err(|error| error.to_string())?;
        Ok(Self { family, iptables })
    }

    /// Returns the iptables programs for a simulated process of the daemon, with the backend of the
    /// test's own programs.
    pub(super) fn programs(&self) -> Iptables {
        let chosen = Iptables::choose(Some(self.iptables.backend()));
        chosen.expect("iptables, which was there")
    }

    fn addresses(&self) -> BTreeSet<IpAddr> {
        route_netlink::all_addresses(self.family, &[]).expect("the addresses")
    }

    /// Reads the real kernel's state into `there`.
    pub(super) fn look(&mut self, there: &FakeKernel) {
        let saved = self.iptables.save(self.family).expect("the rules");
        there.flush();
        there.load(&saved);
        there.state().addresses = self.addresses();
    }

    /// Makes another program's change in the real kernel: from the state `before` to the state
    /// `after`.
    pub(super) fn follow(&mut self, before: &FakeState, after: &FakeKernel) {
        set_addresses(&before.addresses, &after.state().addresses);
        if before.tables == after.state().tables {
            return;
        }
        let program = match (self.family, self.iptables.backend()) {
            (IpFamily::V4, Backend::Legacy) => "iptables-legacy-restore",
            (IpFamily::V4, Backend::Nft) => "iptables-nft-restore",
            (IpFamily::V6, Backend::Legacy) => "ip6tables-legacy-restore",
            (IpFamily::V6, Backend::Nft) => "ip6tables-nft-restore",
        };
        let text = after.saved();
        // No line of the rules is `END`, which ends the input.
        let restored = shell(&format!("{program} -w 5 <<'END'\n{text}END\n"));
        assert!(restored.is_some(), "{program} does not take\n{text}");
    }
}
