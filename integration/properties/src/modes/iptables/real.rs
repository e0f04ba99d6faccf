//! The iptables mode on this machine's kernel.

use std::collections::BTreeSet;
use std::net::IpAddr;

use iptables::{Backend, Iptables};
use proxy::IpFamily;
use proxy_iptables::fake::{FakeKernel, FakeState};

use crate::real::{set_addresses, shell};

/// Access to the kernel for observing and damaging its state.
pub(super) struct RealKernel {
    family: IpFamily,
    /// Reader of iptables for the test. Like the reader of another program, it shares no cache with
    /// the daemon.
    iptables: Iptables,
}

#[allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a kernel that cannot be read or damaged ends the history"
)]
impl RealKernel {
    /// Opens the kernel, in the calling thread's network namespace.
    pub(super) fn open(family: IpFamily) -> Result<Self, String> {
        let iptables = Iptables::choose(None).map_err(|error| error.to_string())?;
        iptables.check(family).map_err(|error| error.to_string())?;
        Ok(Self { family, iptables })
    }

    /// Returns the iptables programs for a simulated daemon process. They have the same backend as
    /// the test's own programs.
    pub(super) fn programs(&self) -> Iptables {
        let chosen = Iptables::choose(Some(self.iptables.backend()));
        chosen.expect("iptables, which was there")
    }

    fn addresses(&self) -> BTreeSet<IpAddr> {
        route_netlink::all_addresses(self.family, &[]).expect("the addresses")
    }

    /// Reads the kernel's present state into `there`.
    pub(super) fn look(&mut self, there: &FakeKernel) {
        let saved = self.iptables.save(self.family).expect("the rules");
        there.flush();
        there.load(&saved);
        there.state().addresses = self.addresses();
    }

    /// Changes the kernel from the state `before` to the state `after`, as another program would.
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
        // None of these rules contains a shell quote.
        let restored = shell(&format!("{program} -w 5 <<'END'\n{text}END\n"));
        assert!(restored.is_some(), "{program} does not take\n{text}");
    }
}
