//! Changes of IPVS mode's flags between two starts.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;

use chance::Chance;
use iptables::Backend;
use proxy_ipvs::{Config, LeftoverPlace, MarkBits, Rules, Semantics, ShimStyle, VipMode};

use super::Ipvs;
use crate::subject::Subject as _;

pub(super) const EXACT: Semantics = Semantics::Exact(MarkBits::DEFAULT);

impl Ipvs {
    /// Changes a flag of IPVS mode for the next start. Returns a description, or `None` if the form
    /// allows no change.
    pub(super) fn switch_settings(&mut self, chance: &mut Chance) -> Option<String> {
        if self.exact.is_some() && chance.is_one_in(2) {
            return Some(self.switch_semantics(chance));
        }
        if chance.is_one_in(2) {
            return self.switch_vip_mode(chance);
        }
        self.switch_shim(chance)
    }

    /// Changes `--ipvs-semantics` to its other value. `exact` needs an `--ipvs-vip-mode` with
    /// routes (`route` or `range`); `upstream` supports every value.
    fn switch_semantics(&mut self, chance: &mut Chance) -> String {
        let vip_mode = self.config.vip_mode;
        if self.config.semantics.is_exact() {
            self.config.semantics = Semantics::Upstream;
            if chance.is_one_in(2) {
                self.set_vip_mode(VipMode::Address);
            }
        } else {
            self.config.semantics = EXACT;
            if !vip_mode.uses_routes() {
                self.set_vip_mode(self.routed);
            }
        }
        let Config {
            semantics,
            vip_mode,
            ..
        } = &self.config;
        format!("--ipvs-semantics={semantics:?} --ipvs-vip-mode={vip_mode:?}")
    }

    fn switch_vip_mode(&mut self, chance: &mut Chance) -> Option<String> {
        let is_exact = self.config.semantics.is_exact();
        let next = match self.config.vip_mode {
            VipMode::Route if is_exact && self.routed == VipMode::Route => return None,
            VipMode::Address | VipMode::Route if is_exact => self.routed,
            VipMode::Range if is_exact => VipMode::Route,
            VipMode::Address => self.routed,
            VipMode::Range if chance.is_one_in(2) => VipMode::Route,
            VipMode::Route | VipMode::Range => VipMode::Address,
        };
        self.set_vip_mode(next);
        Some(format!("--ipvs-vip-mode={next:?}"))
    }

    fn set_vip_mode(&mut self, next: VipMode) {
        let before = mem::replace(&mut self.config.vip_mode, next);
        if before.uses_routes() != next.uses_routes() {
            let there = &mut self.kernel.state().snapshot;
            mem::swap(&mut there.bound, &mut there.bound_otherwise);
        }
    }

    fn switch_shim(&mut self, chance: &mut Chance) -> Option<String> {
        let is_real = self.is_real();
        let mut state = self.kernel.state();
        let styles = [ShimStyle::Upstream, ShimStyle::Lean, ShimStyle::Nftables];
        let before = self.config.shim;
        let style = *chance.one_of(&styles)?;
        let real = self.real.as_ref();
        if style == before || real.is_some_and(|real| !real.borrow().has(style)) {
            return None;
        }
        self.config.shim = style;
        state.shim = style;
        let is_native = |style| style == ShimStyle::Nftables;
        if !is_real && is_native(before) != is_native(self.config.shim) {
            // Moves the sets of the present shim to `former`, as leftovers for the daemon to
            // remove. If a switch back follows before they are removed, they become the present
            // sets again.
            let there = &mut state.snapshot;
            let is_left = there.leftovers.iter().flatten().next().is_some();
            let mut other = if is_left {
                mem::take(&mut self.former)
            } else {
                (BTreeMap::new(), BTreeMap::new(), Rules::default())
            };
            mem::swap(&mut there.sets, &mut other.0);
            mem::swap(&mut there.set_sizes, &mut other.1);
            let rules = there.rules.get_or_insert_default();
            mem::swap(rules, &mut other.2);
            self.former = other;
            let places: &[_] = if is_native(before) {
                &[LeftoverPlace::OwnTable]
            } else {
                &[LeftoverPlace::Other(Backend::Legacy), LeftoverPlace::Ipsets]
            };
            let leftovers = places.iter().map(|place| (*place, Arc::default()));
            there.leftovers = Some(leftovers.collect());
        }
        Some(format!("--ipvs-shim={:?}", self.config.shim))
    }
}
