//! What another mode may have left in the kernel, which goes once this one serves.

use ipnet::IpNet;
use iptables::Iptables;
use tokio::task::{JoinError, spawn_blocking};
use tracing::{error, info, warn};

use super::preview::{Change, NODE, Preview};
use crate::footprints;

/// Whoever served here before, in another mode.
pub(crate) struct Predecessor {
    /// The iptables that this mode writes with: its rules are not touched.
    pub(super) iptables: Iptables,
    /// Networks in which virtual servers are left alone.
    pub(super) excluded: Vec<IpNet>,
}

impl Predecessor {
    /// Takes away what it has left, and says so.
    pub(crate) async fn clear(self) {
        let Self { iptables, excluded } = self;
        // Blocks on the kernel and on programs.
        let clear = move || ::cleanup::clean_up_beside(footprints::ALL, &iptables, &excluded);
        match spawn_blocking(clear).await {
            Ok(cleanup) => {
                for line in cleanup.removed {
                    info!("removed what another mode had left: {line}");
                }
                for line in cleanup.left {
                    warn!("left by another mode: {line}");
                }
            }
            Err(error) => error!(%error, "what another mode has left stays"),
        }
    }

    /// What [`clear`](Self::clear) would take away. Nothing changes.
    pub(crate) async fn preview(self) -> Result<Preview, JoinError> {
        let Self { iptables, excluded } = self;
        let foresee = move || ::cleanup::foresee_beside(footprints::ALL, &iptables, &excluded);
        let found = spawn_blocking(foresee).await?;
        let removed = found.removed.iter();
        Ok(Preview {
            writes: vec![(NODE.to_owned(), found.removed.len())],
            changes: removed.map(|line| Change::left_by_another(line)).collect(),
            warnings: found.left,
            ..Preview::default()
        })
    }
}
