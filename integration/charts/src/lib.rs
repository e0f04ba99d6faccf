//! Charts as plain SVG without scripts, readable on a light and on a dark page: colours of middle
//! lightness, text that follows the reader's scheme, no background.
//!
//! [`lines`] and [`bars`] are what benchmarks draw, over the number of Services; [`over_time`] is
//! what a soak draws.

mod figure;
mod frame;
mod logarithmic;
mod time;

pub use figure::{grouped, short};
pub use frame::Line;
pub use logarithmic::{bars, lines};
pub use time::over_time;
