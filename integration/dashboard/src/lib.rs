//! The Grafana dashboard and the alert rules of `manifests/monitoring`, against a daemon in the lab
//! that Debian's Prometheus scrapes.
//!
//! ```text
//!   daemon ──/metrics──▶ Prometheus ──HTTP──▶ Dashboard's expressions ──▶ asserted, and drawn
//!                            └── rules.yaml ──▶ alerts that are pending or firing
//! ```
//!
//! There is no Grafana in Debian, nor in any registry that the tests may use. So what it does between
//! the file and Prometheus is done here: variables are filled in ([`Dashboard`]), and panels are
//! drawn where the file has them ([`picture`]). What Grafana itself makes of the file is not tested.

pub mod picture;

mod grafana;
mod prometheus;
mod rules;

pub use grafana::{Dashboard, Panel, Range, Target};
pub use prometheus::{Prometheus, Series};
pub use rules::quickened;
