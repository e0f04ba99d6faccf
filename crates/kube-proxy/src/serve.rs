//! The servers of health and metrics: what they read of the flags, and the pages of the second. The
//! pages of the first are in `healthz`.

pub(crate) mod pages;
pub mod settings;
pub mod ui;
mod zpages;
