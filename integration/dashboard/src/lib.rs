//! Tests the Grafana dashboard and the alert rules of `manifests/monitoring`. Debian's Prometheus
//! scrapes a daemon in the lab.
//!
//! ```text
//!   daemon ──/metrics──▶ Prometheus ──HTTP──▶ the dashboard's queries ──▶ assertions, picture
//!                            └── rules.yaml ──▶ alerts that are pending or firing
//! ```
//!
//! Grafana itself is not tested, because Debian has no package of Grafana. Instead, [`Dashboard`]
//! replaces the variables of queries, and [`picture`] draws the panels at their positions.

pub mod picture;

mod grafana;
mod prometheus;
mod rules;

pub use grafana::{Dashboard, Panel, Range, Target};
pub use prometheus::{Prometheus, Series};
pub use rules::shorten_durations;
