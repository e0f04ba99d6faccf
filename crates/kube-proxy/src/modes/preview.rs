//! What a mode would write, for `kube-proxy check`.

use anyhow::Result;
use engine::{Engine, KernelAccess, Kinds, Scheme};
use proxy::{Changes, IpFamily, Mode as _, Unreadable};
use serde::Serialize;

use super::definition::Start;

/// Of what is not of one family.
pub(crate) const NODE: &str = "node";

/// What a mode would write.
#[derive(Debug, Default)]
pub(crate) struct Preview {
    /// What is set once, whatever the Services are; a line each.
    pub(crate) settings: Vec<String>,
    /// In the order they would be made.
    pub(crate) changes: Vec<Change>,
    /// How many writes the kernel would see, of each family, and of the node.
    pub(crate) writes: Vec<(String, usize)>,
    /// What the operator should know.
    pub(crate) warnings: Vec<String>,
}

/// One change.
#[derive(Debug, Serialize)]
pub(crate) struct Change {
    /// `node`, `IPv4` or `IPv6`.
    pub(crate) of: String,
    /// `virtual servers`, `rules`, ...
    pub(crate) kind: &'static str,
    pub(crate) action: Action,
    /// The change in words.
    pub(crate) write: String,
}

/// What is done to what a change is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Action {
    Add,
    Change,
    Remove,
}

impl Change {
    /// Of a setting of the kernel.
    pub(crate) fn setting(write: String) -> Self {
        Self {
            of: NODE.to_owned(),
            kind: "settings",
            action: Action::Change,
            write,
        }
    }

    /// Of rules; the first word says what is done.
    pub(super) fn rule(of: &str, line: String) -> Self {
        Self::told(of, "rules", line)
    }

    /// Of something of this kind; the first word says what is done.
    pub(super) fn told(of: &str, kind: &'static str, line: String) -> Self {
        let action = match line.split(' ').next() {
            Some("add") => Action::Add,
            Some("remove" | "delete") => Action::Remove,
            _ => Action::Change,
        };
        Self {
            of: of.to_owned(),
            kind,
            action,
            write: line,
        }
    }

    /// Of a line that says what would be removed.
    pub(super) fn left_by_another(line: &str) -> Self {
        Self {
            of: NODE.to_owned(),
            kind: "other modes",
            action: Action::Remove,
            write: format!("remove what another mode has left: {line}"),
        }
    }
}

/// What a scheme's plan is.
type PlanOf<S> = <<S as Scheme>::Kinds as Kinds>::Plan;

/// A plan as it is shown: how many writes the kernel would see of it, and what they change.
pub(super) struct Shown {
    pub(super) writes: usize,
    pub(super) changes: Vec<Change>,
}

impl Preview {
    /// Adds what modes of a scheme would write after they were told `told`. `show` is given each
    /// plan, and whose it is.
    ///
    /// # Errors
    ///
    /// The kernel cannot be read.
    pub(super) async fn add<S: KernelAccess<K>, K: Send + 'static>(
        &mut self,
        modes: Vec<Engine<S, K>>,
        start: &Start<'_>,
        told: &Changes,
        show: impl Fn(&str, &PlanOf<S>) -> Shown,
    ) -> Result<()> {
        let Start { model, now, .. } = *start;
        for mut mode in modes {
            let family = mode.family();
            let read = mode.read(model, now).await;
            read.map_err(unreadable(family))?;
            mode.update(model, told, now);
            let plans = Box::pin(mode.preview(now)).await;
            let of = family.to_string();
            let mut writes = 0;
            for plan in &plans {
                let shown = show(&of, plan);
                writes += shown.writes;
                self.changes.extend(shown.changes);
            }
            self.writes.push((of, writes));
        }
        Ok(())
    }
}

/// That there is no preview, because a part of the kernel's state cannot be read.
fn unreadable(family: IpFamily) -> impl Fn(Unreadable) -> anyhow::Error {
    move |unreadable| anyhow::anyhow!("{family}: {unreadable}")
}
