//! Charts as plain SVG without scripts. They are readable on light and dark pages: the colours have
//! a medium lightness, the text follows the reader's colour scheme, and there is no background.
//!
//! [`lines`] and [`bars`] are for benchmarks, over the number of Services. [`over_time`] is for
//! soak tests.

mod figure;
mod frame;
mod logarithmic;
mod time;

pub use figure::{grouped, short};
pub use frame::Line;
pub use logarithmic::{bars, lines};
pub use time::over_time;
