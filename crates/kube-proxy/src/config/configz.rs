//! The page `/configz`: the configuration in effect, as a configuration file in JSON.
//!
//! - **Version**: upstream 1.36 returns `v1alpha1` (kubernetes/kubernetes#136044). Earlier versions
//!   returned the internal type with Go's field names.
//! - **Sync periods**: upstream's internal type has only the periods of the chosen mode
//!   (`pkg/proxy/apis/config/v1alpha1/conversion.go`). So upstream shows 0 for the periods of all
//!   other modes, and so does this page.

use std::sync::{Arc, Mutex, PoisonError};

use serde_json::json;

use super::{Configuration, Period};

/// Body of the page `/configz`. `set` replaces it when the configuration changes.
#[derive(Debug, Clone, Default)]
pub struct Configz(Arc<Mutex<String>>);

impl Configz {
    /// Creates the page `/configz` with this configuration.
    pub fn new(configuration: &Configuration) -> Self {
        let page = Self::default();
        page.set(configuration);
        page
    }

    /// Replaces the configuration that the page `/configz` shows.
    pub fn set(&self, configuration: &Configuration) {
        let configuration = of_its_mode(configuration.clone()).as_upstream();
        let body = json!({ "kubeproxy.config.k8s.io": configuration }).to_string();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = body;
    }

    /// Returns the body of the page `/configz`, a JSON object.
    pub fn body(&self) -> String {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// Sets the sync periods of all modes to 0, except those of the chosen mode.
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
