//! Computes the writes that a mode would make, for `kube-proxy check`, `plan` and `diff`.

use anyhow::Result;
use engine::{Engine, KernelAccess, Kinds, Part as _, Scheme};
use proxy::{Changes, EntryChange, IpFamily, Mode as _, UnavailableOption, Unreadable};
use serde::Serialize;

use super::definition::Start;
use crate::sysctl::setting::Setting;

/// Value of the family column for changes that belong to no family.
pub const NODE: &str = "node";

/// Kind of the entries that other modes have left.
pub const OTHER_MODES: &str = "other modes";

/// The writes that a mode would make.
#[derive(Debug, Default)]
pub struct Preview {
    /// Settings that are written once and do not depend on Services.
    pub settings: Vec<Setting>,
    /// Changes, in the order in which the mode would make them.
    pub changes: Vec<Change>,
    /// Number of writes, by family. Writes for the whole node are counted separately.
    pub writes: Vec<(String, usize)>,
    /// Number of entries that are up to date, by family and part.
    pub kept: Vec<CurrentEntryCount>,
    /// Form of each family's entries, such as `IPv4: layout flat`, in a mode that may change it.
    pub forms: Vec<String>,
    /// Warnings for the operator.
    pub warnings: Vec<String>,
    /// Option values of Services that the kernel does not support.
    pub unavailable: Vec<UnavailableOption>,
    /// Foreign state that would make the kernel reject writes, with the next step for the operator.
    pub obstacles: Vec<Obstacle>,
}

/// Foreign state that makes the kernel reject writes at a start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Obstacle {
    /// Kind of the state, such as `sets`.
    pub kind: &'static str,
    /// Sentence with the finding, its consequence, and the next step.
    pub message: String,
}

/// Number of entries that are up to date, for one part of the kernel's state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CurrentEntryCount {
    /// Family of the entries: `IPv4` or `IPv6`.
    pub of: String,
    /// Part of the kernel's state, such as `the virtual servers`.
    pub part: &'static str,
    /// Number of entries that a start keeps.
    pub entries: usize,
}

/// One change of an entry.
#[derive(Debug, Clone, Serialize)]
pub struct Change {
    /// Scope of the change: `node`, `IPv4` or `IPv6`.
    pub of: String,
    /// Kind of the entry, such as `virtual servers` or `rules`.
    pub kind: &'static str,
    /// Action: adding, changing or removing the entry.
    pub action: Action,
    /// Description of the change.
    pub write: String,
    /// Kernel thread that makes the change, or the step of a start.
    pub lane: &'static str,
    /// Name of the changed entry.
    pub entry: String,
    /// Current state of the entry, if it consists of more than a name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// State of the entry after the change, if it consists of more than a name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Rules of a chain that is replaced. Removed rules begin with `- `, added rules with `+ `.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<String>,
    /// Service port of the entry, if known, such as `default/web:http`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
}

/// Effect of a change on its entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// The entry is added.
    Add,
    /// The entry is changed.
    Change,
    /// The entry is removed.
    Remove,
}

impl Change {
    /// Returns the change of a kernel setting.
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

    /// Returns a change of iptables rules. The first word of `line` determines the action.
    pub(super) fn rule(of: IpFamily, lane: &'static str, line: String) -> Self {
        Self::told(of, lane, "rules", line)
    }

    /// Returns a change of this kind. The first word of `line` determines the action.
    pub fn told(of: IpFamily, lane: &'static str, kind: &'static str, line: String) -> Self {
        let (verb, rest) = line.split_once(' ').unwrap_or(("", &line));
        let action = match verb {
            "add" => Action::Add,
            "remove" | "delete" => Action::Remove,
            _ => Action::Change,
        };
        // The chain is flushed and filled again, so it counts as changed.
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

    /// Returns the change of one entry of this kind.
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

    /// Returns the removal of an entry that another mode has left.
    pub fn left_by_another(line: &str) -> Self {
        Self {
            of: NODE.to_owned(),
            kind: OTHER_MODES,
            action: Action::Remove,
            write: format!("remove leftovers of another mode: {line}"),
            lane: "clearing up",
            entry: line.to_owned(),
            before: None,
            after: None,
            rules: Vec::new(),
            service: None,
        }
    }
}

/// Type of the plan of a scheme.
pub type PlanOf<S> = <<S as Scheme>::Kinds as Kinds>::Plan;

/// A plan as the preview shows it: the number of writes and the changes.
pub struct PlanPreview {
    /// Number of writes that reach the kernel.
    pub writes: usize,
    /// Changes of the plan.
    pub changes: Vec<Change>,
}

impl Preview {
    /// Adds the writes that modes of a scheme would make after the changes `told`. `show` converts
    /// each plan, given its family and the scheme's state before the plan.
    ///
    /// # Errors
    ///
    /// The kernel cannot be read.
    pub async fn add<S: KernelAccess<K>, K: Send + 'static>(
        &mut self,
        modes: Vec<Engine<S, K>>,
        start: &Start<'_>,
        told: &Changes,
        show: impl Fn(IpFamily, &S, &PlanOf<S>) -> PlanPreview,
    ) -> Result<()> {
        let Start { model, now, .. } = *start;
        for mut mode in modes {
            let family = mode.family();
            let read = mode.read(model, now).await;
            read.map_err(unreadable(family))?;
            mode.update(model, told, now);
            self.unavailable.extend(mode.unavailable_options());
            let kept = mode.kept(now).into_iter();
            self.kept
                .extend(kept.map(|(part, entries)| CurrentEntryCount {
                    of: family.to_string(),
                    part: part.name(),
                    entries,
                }));
            let form = mode.form().map(|form| format!("{family}: {form}"));
            self.forms.extend(form);
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

/// Returns the error for an unreadable part of the kernel's state.
fn unreadable(family: IpFamily) -> impl Fn(Unreadable) -> anyhow::Error {
    move |unreadable| anyhow::anyhow!("{family}: {unreadable}")
}
