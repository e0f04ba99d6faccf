//! What the loop is asked.

use std::sync::Arc;

use tokio::sync::oneshot::Sender;

use super::facts::Facts;
use super::owners::{Owners, Wanted};

/// A question to the loop, with the end at which its answer is awaited. Each takes it about 2 ms at
/// most.
pub(crate) enum Question {
    /// How it stands.
    Facts(Sender<Facts>),
    /// Whose these addresses are, among the Services behind the first so many.
    Owners(Arc<Wanted>, usize, Sender<Owners>),
}
