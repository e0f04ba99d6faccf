//! What a mode would write, for `kube-proxy check`.

use proxy::{IpFamily, Unreadable};
use serde::Serialize;

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
        let action = match line.split(' ').next() {
            Some("add") => Action::Add,
            Some("remove") => Action::Remove,
            _ => Action::Change,
        };
        Self {
            of: of.to_owned(),
            kind: "rules",
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

/// That there is no preview, because a part of the kernel's state cannot be read.
pub(super) fn unreadable(family: IpFamily) -> impl Fn(Unreadable) -> anyhow::Error {
    move |Unreadable { part, reason }| anyhow::anyhow!("{family}: cannot read {part}: {reason}")
}
