//! Options of the health and metrics servers.

use std::net::SocketAddr;

use flags::unusable_flag::UnusableFlag;
use flags::{Flags, go};
use http_server::ConflictPolicy;

use crate::metrics;

/// Options of the health server and the metrics server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Listen address of the health server, or `None` for no server.
    pub healthz_address: Option<SocketAddr>,
    /// Listen address of the metrics server, or `None` for no server.
    pub metrics_address: Option<SocketAddr>,
    /// Reaction of a server if it cannot bind its address: failure or retry.
    pub when_taken: ConflictPolicy,
    /// Options of the metrics of single Services (`--metrics-per-service`).
    pub services: metrics::services::settings::Settings,
}

impl Settings {
    /// Converts flags to the options of both servers.
    ///
    /// # Errors
    ///
    /// Fails if an address is invalid.
    pub(crate) fn read(flags: &Flags) -> Result<Self, UnusableFlag> {
        Ok(Self {
            healthz_address: listen(
                "healthz-bind-address",
                &flags.healthz_bind_address,
                flags.healthz_port,
            )?,
            metrics_address: listen(
                "metrics-bind-address",
                &flags.metrics_bind_address,
                flags.metrics_port,
            )?,
            when_taken: if flags.bind_address_hard_fail {
                ConflictPolicy::Fail
            } else {
                ConflictPolicy::Retry
            },
            services: metrics::services::settings::Settings::read(flags)?,
        })
    }
}

fn listen(flag: &'static str, text: &str, port: i32) -> Result<Option<SocketAddr>, UnusableFlag> {
    go::listen(text, port).map_err(|advice| UnusableFlag::new(flag, text, advice))
}
