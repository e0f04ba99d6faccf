//! What this mode can be set to, what it reads and where, what it writes: by their types.

use engine::Kinds;

use crate::config::Config;
use crate::part::{Lane, Part};
use crate::plan::Plan;

/// The types that the [`engine`] is told of for this mode.
pub enum UserspaceKinds {}

/// What the engine keeps for this mode.
pub(crate) type State = engine::State<UserspaceKinds>;

impl Kinds for UserspaceKinds {
    type Config = Config;
    type Lane = Lane;
    type Part = Part;
    type Plan = Plan;
}
