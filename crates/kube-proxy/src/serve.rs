//! Pages of the metrics server, and the page `/ui/` that shows the daemon's state. The health pages
//! are in `health::healthz`.

pub(crate) mod pages;
pub mod ui;
mod zpages;
