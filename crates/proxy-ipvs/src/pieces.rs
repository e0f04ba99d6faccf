//! Services of very many ports, computed some ports at a time: a change of another Service is taken
//! over in between.

use std::collections::VecDeque;
use std::slice;
use std::sync::Arc;

use engine::Extent;
use proxy::pieces::SHARE;
use proxy::{Model, NamespacedName, Owner};

use crate::compile::compile_ports;
use crate::kinds::State;
use crate::proxier::Ipvs;
use crate::server::VirtualServerKey;

/// The Services that are being computed.
#[derive(Debug, Default)]
pub(crate) struct Pieces(VecDeque<Piece>);

#[derive(Debug)]
struct Piece {
    service: NamespacedName,
    /// How many of its ports are computed, and whose claims these are.
    ports: usize,
    owners: Vec<Arc<Owner>>,
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

impl Ipvs {
    /// Begins with a Service that has changed alone, if it is much work. One that changes with others
    /// may exchange addresses with them, and is computed with them.
    pub(crate) fn begin_pieces(
        &mut self,
        state: &mut State,
        model: &Model,
        extent: Extent<'_>,
    ) -> bool {
        let Extent::These(names) = extent else {
            return false;
        };
        let [Some(service), None] = [names.iter().next(), names.iter().nth(1)] else {
            return false;
        };
        let family = state.node.family;
        let is_much = model.view(service).is_some_and(|view| {
            view.service.cluster_ip(family).is_some()
                && view.service.ports.len() > 1
                && view.work() > SHARE
        });
        self.pieces.forget(service);
        if is_much {
            self.pieces.0.push_back(Piece {
                service: service.clone(),
                ports: 0,
                owners: Vec::new(),
            });
            state.news.changed(service);
        }
        is_much
    }

    /// Computes the next ports; the virtual servers that Services had that lose one by it.
    pub(crate) fn go_on_with_pieces(
        &mut self,
        state: &mut State,
        model: &Model,
    ) -> Vec<VirtualServerKey> {
        let Some(mut piece) = self.pieces.0.pop_front() else {
            return Vec::new();
        };
        let Some(view) = model.view(&piece.service) else {
            return self.compute(state, model, slice::from_ref(&piece.service));
        };
        let scheduler = self.schedulers.of(view.service, &state.config);
        let all = &view.service.ports;
        let at_once = (SHARE * all.len() / view.work().max(1)).max(1);
        let ports = all.iter().skip(piece.ports).take(at_once);
        let ports: Vec<_> = ports.cloned().collect();
        let fragments = compile_ports(&view, &ports, &state.node, &self.node_ports, &scheduler);
        piece.ports += ports.len();
        let (claims, tables) = (&mut self.claims, &mut self.tables);
        let owners = claims.put_some(&piece.service, fragments, tables);
        piece.owners.extend(owners);
        if piece.ports < all.len() {
            self.pieces.0.push_front(piece);
        } else {
            claims.release_others(&piece.service, &piece.owners, tables);
            state.news.review();
        }
        self.compute(state, model, &[])
    }
}
