//! The Grafana dashboard and the alert rules of `manifests/monitoring`, tested on a daemon in the lab
//! that Debian's Prometheus scrapes.
//!
//! ```text
//!   daemon ──/metrics──▶ Prometheus ──HTTP──▶ the dashboard's queries ──▶ assertions, picture
//!                            └── rules.yaml ──▶ alerts that are pending or firing
//! ```
//!
//! Debian has no Grafana. So this crate does the work between the file and Prometheus: [`Dashboard`]
//! replaces variables, and [`picture`] draws panels at their positions. Grafana itself is not tested.

pub mod picture;

mod grafana;
mod prometheus;
mod rules;

pub use grafana::{Dashboard, Panel, Range, Target};
pub use prometheus::{Prometheus, Series};
pub use rules::shorten_durations;
