//! Services of very many ports, computed some ports at a time: a change of another Service is taken
//! over in between.

use std::collections::VecDeque;
use std::sync::Arc;

use proxy::{NamespacedName, Owner};

/// The Services that are being computed.
#[derive(Debug, Default)]
pub(crate) struct Pieces(pub(crate) VecDeque<Piece>);

#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) service: NamespacedName,
    /// How many of its ports are computed, and whose claims these are.
    pub(crate) ports: usize,
    pub(crate) owners: Vec<Arc<Owner>>,
}

impl Pieces {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn contains(&self, service: &NamespacedName) -> bool {
        self.0.iter().any(|piece| piece.service == *service)
    }

    /// Forgets a Service: it is computed as a whole, or anew.
    pub(crate) fn forget(&mut self, service: &NamespacedName) {
        self.0.retain(|piece| piece.service != *service);
    }
}
