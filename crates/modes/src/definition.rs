//! What the daemon asks of a mode, before there is one: a trait that each mode's file implements.
//!
//! ```text
//!   Flags ─▶ Settings ─▶ open ─▶ Opened ─┬─▶ into_modes ─▶ proxy::Mode, one for each family
//!                 │                      ├─▶ preview (kube-proxy check)
//!                 │                      └─▶ predecessor
//!                 └─▶ prepare, probe (--init-only); sysctls; metrics
//! ```

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use flags::Flags;
use footprint::uses::Uses;
use futures::future::LocalBoxFuture;
use proxy::{Changes, IpFamily, Mode, Model, NodeFacts, NodePortAddresses};
use service_counters::ReadCounters;
use source::ServiceCidrs;

use super::families::{Access, LeftOut};
use super::predecessor::Predecessor;
use super::preview::Preview;
use super::programs::Programs;
use super::rulesets::Notices;
use super::settings::Settings;
use crate::metrics::OfMode;
use crate::sysctl;
use crate::sysctl::machine::Machine;
use crate::sysctl::row::{Row, Wanted};

/// A mode of this build. What has a default is nothing in most modes.
pub trait Definition: Sync {
    /// As `--proxy-mode` names it, and its section of the configuration file.
    fn name(&self) -> &'static str;

    /// The paths of the fields of the configuration file that it hears, and not every mode, sorted.
    fn fields(&self) -> &'static [&'static str];

    /// Flags that it hears where there is no configuration file, though it does not hear their
    /// fields in one.
    fn flags_without_file(&self) -> &'static [&'static str] {
        &[]
    }

    /// Says in the settings that only a file has what flags say for them, where there is no file.
    fn take_flags(&self, _flags: &mut Flags) {}

    /// The feature gate that refuses the mode if it is given as false.
    fn gate(&self) -> Option<&'static str> {
        None
    }

    /// Which addresses serve NodePorts where nothing says so.
    fn node_port_addresses(&self) -> NodePortAddresses {
        NodePortAddresses::All
    }

    /// Flags that no other mode hears, and that no field of the configuration file says.
    fn flags(&self) -> &'static [OwnFlag] {
        &[]
    }

    /// How often it is to write, and to look.
    fn periods(&self, flags: &Flags) -> Periods;

    /// Opens the kernel, by blocking, for each family that can be served. To read, nothing changes;
    /// to write, nothing of a Service does.
    ///
    /// # Errors
    ///
    /// No family can be served, or not with these settings.
    fn open(
        &self,
        settings: &Settings,
        programs: &Programs,
        access: Access,
    ) -> Result<Box<dyn Opened>>;

    /// Does what needs more privileges than serving, beside the sysctls (`--init-only`).
    ///
    /// # Errors
    ///
    /// The mode cannot be served here.
    fn prepare(&self, _settings: &Settings, _programs: &Programs) -> Result<()> {
        Ok(())
    }

    /// Tries, by blocking, what it cannot do without in a family. Nothing stays.
    ///
    /// # Errors
    ///
    /// The family cannot be served.
    fn probe(&self, settings: &Settings, programs: &Programs, family: IpFamily) -> Result<()>;

    /// The settings of the kernel that it knows, with the values that it wants; with none where
    /// another mode is chosen, which `None` says.
    fn sysctls(&self, facts: Option<&Facts<'_>>) -> Vec<Wanted>;

    /// Settings of the kernel that are as this mode sets them if it is asked, which it is not; a
    /// line each.
    fn unasked_sysctls(&self, _asked: &sysctl::settings::Settings, _root: &Path) -> Vec<String> {
        Vec::new()
    }

    /// Takes out of the settings what needs this setting of the kernel, which cannot be written.
    fn go_without(&self, _missing: &Row, _settings: &mut Settings) {}

    /// Whether this mode has programmed this network namespace.
    fn has_served(&self, _root: &Path) -> bool {
        false
    }

    /// A line about the settings of the kernel that it may have left, for a mode that is about to
    /// clear it away. Costs no process where there is none.
    fn left_behind(&self, _programs: &Programs) -> Option<String> {
        None
    }

    /// Whether it asks for the networks that ClusterIPs come from.
    fn service_cidrs(&self) -> ServiceCidrs {
        ServiceCidrs::NotWatched
    }

    /// The kernel modules that it uses on the usual node, by their own names.
    fn modules(&self, settings: &Settings) -> Vec<Module>;

    /// Whether it writes rules of iptables with these settings, where it can.
    fn uses_iptables(&self, _settings: &Settings) -> bool {
        false
    }

    /// What it counts beside what all modes do.
    fn metrics(&self) -> Option<Arc<dyn OfMode>> {
        None
    }
}

/// Carries on what the process itself carries, for a while, by blocking; a line about what it cuts.
pub type Ending = Box<dyn FnOnce() -> Option<String> + Send>;

/// The kernel, opened for a mode, in each family that can be served.
pub trait Opened: Send {
    /// The families that cannot.
    fn left_out(&self) -> &[LeftOut];

    /// What is to be cleared away once this mode serves; `None` if the mode does that itself.
    fn predecessor(&self, settings: &Settings) -> Option<Predecessor>;

    /// What the kernel tells of the mode's own rules, beside what it tells of addresses. Called
    /// within a tokio runtime, before the modes are made.
    ///
    /// # Errors
    ///
    /// It cannot be followed.
    fn notices(&self) -> Result<Vec<Notices>> {
        Ok(Vec::new())
    }

    /// How what the kernel has counted for it is read. Nothing is opened before somebody asks.
    fn counters(&self) -> Box<dyn ReadCounters>;

    /// What it is made of here: its forms, and the parts of the kernel that it needs; without the
    /// families that are left out.
    fn uses(&self, settings: &Settings) -> Uses;

    /// What is to be done when the process ends, after the last write.
    fn ending(&self) -> Option<Ending> {
        None
    }

    /// One mode for each family.
    ///
    /// # Errors
    ///
    /// There is no thread for it.
    fn into_modes(self: Box<Self>, start: &Start<'_>) -> Result<Vec<Box<dyn Mode>>>;

    /// What the modes would write after they were told `told`, which is all that the model knows.
    ///
    /// # Errors
    ///
    /// The kernel cannot be read.
    fn preview<'a>(
        self: Box<Self>,
        start: &'a Start<'a>,
        told: &'a Changes,
    ) -> LocalBoxFuture<'a, Result<Preview>>;
}

/// What modes start with.
pub struct Start<'a> {
    /// May be without what cannot be done here, and so not those that the kernel was opened with.
    pub settings: &'a Settings,
    /// The name of this node.
    pub node: &'a str,
    /// It may know the Node object.
    pub model: &'a Model,
    /// The moment of the start.
    pub now: Instant,
}

impl Start<'_> {
    /// What a mode of this family begins to know of the node.
    pub(super) fn node_facts(&self, family: IpFamily) -> NodeFacts {
        let mut facts = NodeFacts::new(family, self.node);
        facts.node_port_addresses = self.settings.shared.node_port_addresses.clone();
        facts
    }
}

/// A kernel module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module {
    /// The module's own name.
    pub name: Cow<'static, str>,
    /// The reason to need it.
    pub need: ModuleNeed,
}

/// Who needs a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModuleNeed {
    /// The mode as a whole.
    All,
    /// Some of what it writes, or one of the forms that it can take.
    Some,
}

/// Modules that are needed so.
pub(super) fn modules<'a>(
    names: &'a [&'static str],
    need: ModuleNeed,
) -> impl Iterator<Item = Module> + 'a {
    names.iter().map(move |name| Module {
        name: Cow::Borrowed(*name),
        need,
    })
}

/// A flag that only one mode hears.
pub struct OwnFlag {
    /// Without its dashes.
    pub name: &'static str,
    /// Whether its value in the first differs from that in the second.
    pub differs: fn(&Flags, &Flags) -> bool,
}

/// How often a mode writes, and looks; each with its flag.
#[derive(Debug, Clone, Copy)]
pub struct Periods {
    /// The longest time between two comparisons with the kernel.
    pub sync: (&'static str, Duration),
    /// The shortest time between the end of a sync and the start of the next.
    pub min_sync: (&'static str, Duration),
}

/// What the values of kernel settings depend on.
pub struct Facts<'a> {
    /// What the modes read.
    pub settings: &'a Settings,
    /// What flags ask for by name.
    pub asked: &'a sysctl::settings::Settings,
    /// The machine that it runs on.
    pub machine: &'a Machine,
}
