//! The pages of the metrics server, and the page that shows the daemon. Pages of health are in
//! `health::healthz`.

pub(crate) mod pages;
pub mod ui;
mod zpages;
