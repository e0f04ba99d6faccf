//! The configuration in effect as `/configz` tells it: the file that says all of it, as JSON.
//!
//! Upstream 1.36 serves `v1alpha1` (k/k#136044; before, it was the internal type, in Go's own
//! names), converted from its internal type, which has one pair of periods: those of the mode
//! (`pkg/proxy/apis/config/v1alpha1/conversion.go`). So the periods of other modes are 0 there, and
//! here.

use std::sync::{Arc, Mutex, PoisonError};

use serde_json::json;

use super::{Configuration, Period};

/// The page's body, for those who serve it; replaced when the configuration is.
#[derive(Debug, Clone, Default)]
pub struct Configz(Arc<Mutex<String>>);

impl Configz {
    /// A page that tells `configuration`.
    pub fn new(configuration: &Configuration) -> Self {
        let page = Self::default();
        page.set(configuration);
        page
    }

    /// Tells another one from now on.
    pub fn set(&self, configuration: &Configuration) {
        let configuration = of_its_mode(configuration.clone()).as_upstream();
        let body = json!({ "kubeproxy.config.k8s.io": configuration }).to_string();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = body;
    }

    /// JSON.
    pub fn body(&self) -> String {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// With the periods of other modes 0.
fn of_its_mode(mut from: Configuration) -> Configuration {
    let mode = from.mode.clone().unwrap_or_default();
    for (of, sync, min_sync) in [
        (
            "iptables",
            &mut from.iptables.sync_period,
            &mut from.iptables.min_sync_period,
        ),
        (
            "ipvs",
            &mut from.ipvs.sync_period,
            &mut from.ipvs.min_sync_period,
        ),
        (
            "nftables",
            &mut from.nftables.sync_period,
            &mut from.nftables.min_sync_period,
        ),
    ] {
        if mode != of {
            (*sync, *min_sync) = (Some(Period::default()), Some(Period::default()));
        }
    }
    from
}
