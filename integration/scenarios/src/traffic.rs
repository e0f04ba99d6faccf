//! Asking several times, and who answered.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use anyhow::{Context as _, Result};
use lab::{Place, Transport};

use crate::cluster::ANSWERED_WITHIN;

/// How often who answered, and whom it saw: `near from 10.244.1.99`.
pub type Tally = BTreeMap<String, usize>;

/// Opens a connection (UDP: a flow) so many times, and asks once on each.
pub fn tally(from: &Place, transport: Transport, to: SocketAddr, times: usize) -> Result<Tally> {
    let mut tally = Tally::new();
    for number in 1..=times {
        let answer = from
            .dial(transport, to)
            .timeout(ANSWERED_WITHIN)
            .reset_on_close()
            .ask()
            .with_context(|| {
                format!(
                    "{} asks {to} over {transport:?}, time {number}",
                    from.name()
                )
            })?;
        *tally
            .entry(format!("{} from {}", answer.who, answer.seen_source.ip()))
            .or_default() += 1;
    }
    Ok(tally)
}
