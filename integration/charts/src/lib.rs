//! Charts as plain SVG without scripts. They are readable on light and dark pages: colours have a
//! middle lightness, text follows the reader's scheme, and there is no background.
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
