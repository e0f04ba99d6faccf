//! Computes the writes that a start of a mode would make, for `kube-proxy check`, `plan` and
//! `diff`.

use anyhow::Result;
use engine::{Engine, KernelAccess, Kinds, Part as _, Scheme};
use proxy::{Changes, EntryChange, IpFamily, Mode as _, UnavailableOption, Unreadable};
use serde::Serialize;

use super::definition::Start;
use crate::sysctl::setting::Setting;

/// Value of [`Change::of`] for changes that affect the whole node.
pub const NODE: &str = "node";

/// Value of [`Change::kind`] for changes that remove entries of another mode.
pub const OTHER_MODES: &str = "other modes";

/// The writes that a start of a mode would make.
#[derive(Debug, Default)]
pub struct Preview {
    /// Kernel settings that the daemon writes once, when it starts. These settings do not depend on
    /// Services.
    pub settings: Vec<Setting>,
    /// Changes, in the order in which the mode would make them.
    pub changes: Vec<Change>,
    /// Number of writes for each IP family, or for the node. Excludes `settings`.
    pub writes: Vec<(String, usize)>,
    /// Number of up-to-date entries in each part of the kernel's state, for each IP family.
    pub kept: Vec<CurrentEntryCount>,
    /// Variant of the entries in each IP family, such as `IPv4: layout flat`. Empty if the mode has
    /// only one variant.
    pub forms: Vec<String>,
    /// Warnings for the operator, one sentence each.
    pub warnings: Vec<String>,
    /// Values of Services' options that this node's kernel does not support.
    pub unavailable: Vec<UnavailableOption>,
    /// Objects of other programs that would make the kernel refuse writes.
    pub obstacles: Vec<Obstacle>,
}

/// An object of another program that would make the kernel refuse the daemon's writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Obstacle {
    /// Kind of the other program's object, such as `sets`.
    pub kind: &'static str,
    /// Text for the operator: the finding, its consequence, and the next step.
    pub message: String,
}

/// Number of up-to-date entries in one part of the kernel's state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CurrentEntryCount {
    /// IP family of the entries: `IPv4` or `IPv6`.
    pub of: String,
    /// Part of the kernel's state, such as `the virtual servers`.
    pub part: &'static str,
    /// Number of entries that a start of the daemon would keep.
    pub entries: usize,
}

/// A change that a mode would make to one kernel entry.
#[derive(Debug, Clone, Serialize)]
pub struct Change {
    /// Scope of the change: `node`, `IPv4` or `IPv6`.
    pub of: String,
    /// Kind of the entry, such as `virtual servers` or `rules`.
    pub kind: &'static str,
    /// Effect of the change: adding, changing or removing the entry.
    pub action: Action,
    /// Text of the write, as one line.
    pub write: String,
    /// Lane (worker thread) that would make the change, or a step of the daemon's start.
    pub lane: &'static str,
    /// Name of the changed entry.
    pub entry: String,
    /// Current details of the entry. `None` if the entry is new, or if it has only a name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// Details of the entry after the change. `None` if the change removes the entry, or if it has
    /// only a name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Changed rules of a replaced chain: removed ones begin with `- `, added ones with `+ `.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<String>,
    /// Service port that wants the entry, such as `default/web:http`. `None` if it is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
}

/// Effect of a change on a kernel entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// The change adds the entry.
    Add,
    /// The change modifies the entry.
    Change,
    /// The change removes the entry.
    Remove,
}

impl Change {
    /// Returns the change to a kernel setting.
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

    /// Returns a change of iptables rules. The first word of `line`, such as `add`, decides the
    /// action.
    pub(super) fn rule(of: IpFamily, lane: &'static str, line: String) -> Self {
        Self::told(of, lane, "rules", line)
    }

    /// Returns a change of an entry of the kind `kind`. The first word of `line`, such as `add` or
    /// `delete`, decides the action.
    pub fn told(of: IpFamily, lane: &'static str, kind: &'static str, line: String) -> Self {
        let (verb, rest) = line.split_once(' ').unwrap_or(("", &line));
        let action = match verb {
            "add" => Action::Add,
            "remove" | "delete" => Action::Remove,
            _ => Action::Change,
        };
        // To write an existing chain, the mode flushes it and adds its rules again. The preview
        // reports this as a change of the chain.
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

    /// Returns a change of one entry. The action follows from the entry's states before and after.
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

    /// Returns the removal of an entry that another mode has left behind.
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

/// Type of the plans of a mode (a scheme).
pub type PlanOf<S> = <<S as Scheme>::Kinds as Kinds>::Plan;

/// Preview of one plan: its number of writes, and its changes.
pub struct PlanPreview {
    /// Number of writes to the kernel.
    pub writes: usize,
    /// Changes that the plan makes to kernel entries.
    pub changes: Vec<Change>,
}

impl Preview {
    /// Adds the writes that `modes` would make. `told` lists the changed objects.
    ///
    /// `show` converts a plan into its preview. Its arguments are the IP family, the mode's state
    /// before the plan, and the plan.
    ///
    /// # Errors
    ///
    /// Fails if the kernel cannot be read.
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

/// Returns a function that adds the IP family to the error of an unreadable part of the kernel's
/// state.
fn unreadable(family: IpFamily) -> impl Fn(Unreadable) -> anyhow::Error {
    move |unreadable| anyhow::anyhow!("{family}: {unreadable}")
}
