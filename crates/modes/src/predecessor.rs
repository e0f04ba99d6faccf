//! Removes the entries of a mode that served before this one.

use ::cleanup::{Cleanup, Serving, clean_up_beside, disarm_ended, foresee_beside};
use ipnet::IpNet;
use tokio::task::{JoinError, spawn_blocking};
use tracing::{error, info, warn};

use super::preview::{Change, NODE, Preview};
use crate::footprints;

/// Cleanup of the entries of modes that served on this node before.
pub struct Predecessor {
    /// Current mode. The cleanup keeps its entries.
    pub(super) serving: Serving,
    /// Networks in which virtual servers stay.
    pub(super) excluded: Vec<IpNet>,
}

impl Predecessor {
    /// Removes the entries of other modes, and logs them.
    pub async fn clear(self) {
        let Self { serving, excluded } = self;
        // The cleanup blocks while it waits for the kernel and programs.
        let clear = move || clean_up_beside(footprints::ALL, &serving, &excluded);
        tell(spawn_blocking(clear).await);
    }

    /// Returns the removals that [`clear`](Self::clear) would make. Changes nothing.
    pub async fn preview(self) -> Result<Preview, JoinError> {
        let Self { serving, excluded } = self;
        let foresee = move || foresee_beside(footprints::ALL, &serving, &excluded);
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

/// Makes packets bypass the rules of modes whose process has ended. Called while the mode `serving`
/// serves.
pub async fn disarm(serving: &'static str) {
    // The cleanup blocks while it waits for the kernel and programs.
    let disarm = move || disarm_ended(footprints::ALL, serving);
    tell(spawn_blocking(disarm).await);
}

fn tell(cleanup: Result<Cleanup, JoinError>) {
    match cleanup {
        Ok(cleanup) => {
            for line in cleanup.removed {
                info!("removed leftovers of another mode: {line}");
            }
            for line in cleanup.left {
                warn!("left by another mode: {line}");
            }
        }
        Err(error) => error!(%error, "leftovers of another mode stay"),
    }
}
