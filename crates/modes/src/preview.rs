//! What a mode would write, for `kube-proxy check`, `plan` and `diff`.

use anyhow::Result;
use engine::{Engine, KernelAccess, Kinds, Part as _, Scheme};
use proxy::{Changes, EntryChange, IpFamily, Mode as _, UnavailableOption, Unreadable};
use serde::Serialize;

use super::definition::Start;
use crate::sysctl::setting::Setting;

/// Of what is not of one family.
pub const NODE: &str = "node";

/// The kind of what other modes have left.
pub const OTHER_MODES: &str = "other modes";

/// What a mode would write.
#[derive(Debug, Default)]
pub struct Preview {
    /// What is set once, whatever the Services are.
    pub settings: Vec<Setting>,
    /// In the order they would be made.
    pub changes: Vec<Change>,
    /// How many writes the kernel would see, of each family, and of the node.
    pub writes: Vec<(String, usize)>,
    /// How many entries of each family and part are there as they are to be.
    pub kept: Vec<Kept>,
    /// What the operator should know.
    pub warnings: Vec<String>,
    /// Values of Services' options that the kernel cannot give.
    pub unavailable: Vec<UnavailableOption>,
    /// State of others because of which the kernel would refuse writes, and what to do.
    pub obstacles: Vec<Obstacle>,
}

/// State of others that makes the kernel refuse writes of a start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Obstacle {
    /// Its kind: `sets`, ...
    pub kind: &'static str,
    /// A sentence: the finding, its consequence, and the next step.
    pub message: String,
}

/// What stays as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Kept {
    /// `IPv4` or `IPv6`.
    pub of: String,
    /// `the virtual servers`, ...
    pub part: &'static str,
    /// Number of entries.
    pub entries: usize,
}

/// One change.
#[derive(Debug, Clone, Serialize)]
pub struct Change {
    /// `node`, `IPv4` or `IPv6`.
    pub of: String,
    /// `virtual servers`, `rules`, ...
    pub kind: &'static str,
    /// The write: an entry comes, goes or becomes another.
    pub action: Action,
    /// The change in words.
    pub write: String,
    /// The kernel thread that makes it, or the step of a start.
    pub lane: &'static str,
    /// What it is of.
    pub entry: String,
    /// What there is, where more is known than that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// What there is to be, likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Of a chain that is written whole: each rule that is there and should not be, from `- ` on, and
    /// each that should be and is not, from `+ ` on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<String>,
    /// Whose it is, where that is known: `default/web:http`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
}

/// What is done to what a change is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// An entry that is added.
    Add,
    /// An entry that is changed.
    Change,
    /// An entry that is removed.
    Remove,
}

impl Change {
    /// Of a setting of the kernel.
    pub fn setting(setting: Setting) -> Self {
        Self {
            of: NODE.to_owned(),
            kind: "settings",
            action: Action::Change,
            write: setting.to_string(),
            lane: "settings",
            entry: setting.name,
            before: Some(setting.found),
            after: Some(setting.wanted),
            rules: Vec::new(),
            service: None,
        }
    }

    /// Of rules; the first word says what is done.
    pub(super) fn rule(of: IpFamily, lane: &'static str, line: String) -> Self {
        Self::told(of, lane, "rules", line)
    }

    /// Of something of this kind; the first word says what is done.
    pub(super) fn told(of: IpFamily, lane: &'static str, kind: &'static str, line: String) -> Self {
        let (verb, rest) = line.split_once(' ').unwrap_or(("", &line));
        let action = match verb {
            "add" => Action::Add,
            "remove" | "delete" => Action::Remove,
            _ => Action::Change,
        };
        // A chain that is emptied is one that is filled anew.
        let (entry, after) = match (action, verb) {
            (Action::Change, "flush") => (rest, Some("written anew".to_owned())),
            (Action::Change, _) => (&*line, None),
            _ => (rest.strip_prefix("in ").unwrap_or(rest), None),
        };
        Self {
            of: of.to_string(),
            kind,
            action,
            lane,
            entry: entry.to_owned(),
            before: None,
            after,
            rules: Vec::new(),
            service: None,
            write: line,
        }
    }

    /// Of one entry of this kind.
    pub(super) fn of_entry(
        of: IpFamily,
        lane: &'static str,
        kind: &'static str,
        change: EntryChange,
        write: String,
    ) -> Self {
        let EntryChange {
            entry,
            before,
            after,
            owner,
        } = change;
        let action = match (&before, &after) {
            (None, _) => Action::Add,
            (Some(_), None) => Action::Remove,
            (Some(_), Some(_)) => Action::Change,
        };
        let some = |text: Option<String>| text.filter(|text| !text.is_empty());
        Self {
            of: of.to_string(),
            kind,
            action,
            write,
            lane,
            entry,
            before: some(before),
            after: some(after),
            rules: Vec::new(),
            service: owner.map(|owner| owner.to_string()),
        }
    }

    /// Of a line that says what would be removed.
    pub fn left_by_another(line: &str) -> Self {
        Self {
            of: NODE.to_owned(),
            kind: OTHER_MODES,
            action: Action::Remove,
            write: format!("remove what another mode has left: {line}"),
            lane: "clearing up",
            entry: line.to_owned(),
            before: None,
            after: None,
            rules: Vec::new(),
            service: None,
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
    /// plan, whose it is, and the scheme, which still knows what was there before.
    ///
    /// # Errors
    ///
    /// The kernel cannot be read.
    pub(super) async fn add<S: KernelAccess<K>, K: Send + 'static>(
        &mut self,
        modes: Vec<Engine<S, K>>,
        start: &Start<'_>,
        told: &Changes,
        show: impl Fn(IpFamily, &S, &PlanOf<S>) -> Shown,
    ) -> Result<()> {
        let Start { model, now, .. } = *start;
        for mut mode in modes {
            let family = mode.family();
            let read = mode.read(model, now).await;
            read.map_err(unreadable(family))?;
            mode.update(model, told, now);
            self.unavailable.extend(mode.unavailable_options());
            let kept = mode.kept(now).into_iter();
            self.kept.extend(kept.map(|(part, entries)| Kept {
                of: family.to_string(),
                part: part.name(),
                entries,
            }));
            let mut writes = 0;
            let changes = &mut self.changes;
            let see = |scheme: &S, plan: &PlanOf<S>| {
                let shown = show(family, scheme, plan);
                writes += shown.writes;
                changes.extend(shown.changes);
            };
            Box::pin(mode.preview(now, see)).await;
            self.writes.push((family.to_string(), writes));
        }
        Ok(())
    }
}

/// That there is no preview, because a part of the kernel's state cannot be read.
fn unreadable(family: IpFamily) -> impl Fn(Unreadable) -> anyhow::Error {
    move |unreadable| anyhow::anyhow!("{family}: {unreadable}")
}
