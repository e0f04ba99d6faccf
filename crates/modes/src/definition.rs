//! The interface between the daemon and a mode. Each mode's file implements both traits.
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

/// A mode of this build. Methods with a default do nothing in most modes.
pub trait Definition: Sync {
    /// Returns the mode's name in `--proxy-mode`, which also names its section of the configuration
    /// file.
    fn name(&self) -> &'static str;

    /// Returns the paths of configuration file fields that this mode reads and some other mode does
    /// not, sorted.
    fn fields(&self) -> &'static [&'static str];

    /// Returns flags that the mode reads only without a configuration file. In a file it ignores
    /// their fields.
    fn flags_without_file(&self) -> &'static [&'static str] {
        &[]
    }

    /// Copies flags into settings that only a file can give. Called only without a configuration
    /// file.
    fn take_flags(&self, _flags: &mut Flags) {}

    /// Returns the feature gate that forbids the mode if it is set to false.
    fn gate(&self) -> Option<&'static str> {
        None
    }

    /// Returns the addresses that serve NodePorts by default.
    fn node_port_addresses(&self) -> NodePortAddresses {
        NodePortAddresses::All
    }

    /// Returns flags that only this mode reads and that have no field in the configuration file.
    fn flags(&self) -> &'static [OwnFlag] {
        &[]
    }

    /// Returns the sync period and the shortest pause between syncs.
    fn periods(&self, flags: &Flags) -> Periods;

    /// Opens the kernel, by blocking, for each family that can be served. With read access, nothing
    /// changes. With write access, nothing is written for a Service yet.
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

    /// Does the work that needs more privileges than serving (`--init-only`), apart from sysctls.
    ///
    /// # Errors
    ///
    /// This node cannot run the mode.
    fn prepare(&self, _settings: &Settings, _programs: &Programs) -> Result<()> {
        Ok(())
    }

    /// Tries, by blocking, the kernel features without which a family cannot be served. Leaves
    /// nothing behind.
    ///
    /// # Errors
    ///
    /// The family cannot be served.
    fn probe(&self, settings: &Settings, programs: &Programs, family: IpFamily) -> Result<()>;

    /// Returns the mode's kernel settings with the values that it wants. With `None`, another mode
    /// is chosen, and the settings have no values.
    fn sysctls(&self, facts: Option<&Facts<'_>>) -> Vec<Wanted>;

    /// Lists kernel settings that have this mode's value although no flag asks for it, a line each.
    fn unasked_sysctls(&self, _asked: &sysctl::settings::Settings, _root: &Path) -> Vec<String> {
        Vec::new()
    }

    /// Turns off the settings that depend on a kernel setting that cannot be written.
    fn go_without(&self, _missing: &Row, _settings: &mut Settings) {}

    /// Reports whether this mode has programmed this network namespace.
    fn has_served(&self, _root: &Path) -> bool {
        false
    }

    /// Returns a line about kernel settings that this mode may have left, for the mode that cleans
    /// up after it. Starts no process if there are none.
    fn left_behind(&self, _programs: &Programs) -> Option<String> {
        None
    }

    /// Says if the mode needs the networks that ClusterIPs come from.
    fn service_cidrs(&self) -> ServiceCidrs {
        ServiceCidrs::NotWatched
    }

    /// Returns the kernel modules that the mode uses on a usual node, by their own names.
    fn modules(&self, settings: &Settings) -> Vec<Module>;

    /// Reports whether the mode writes iptables rules with these settings, if the node supports
    /// them.
    fn uses_iptables(&self, _settings: &Settings) -> bool {
        false
    }

    /// Returns the mode's own metrics, in addition to those of all modes.
    fn metrics(&self) -> Option<Arc<dyn OfMode>> {
        None
    }
}

/// Drains connections that the process carries itself, by blocking. Returns a line about the
/// connections that it cuts.
pub type Ending = Box<dyn FnOnce() -> Option<String> + Send>;

/// The kernel, opened for a mode in each family that can be served.
pub trait Opened: Send {
    /// Returns the families that cannot be served.
    fn left_out(&self) -> &[LeftOut];

    /// Returns the cleanup to run once this mode serves; `None` if the mode cleans up by itself.
    fn predecessor(&self, settings: &Settings) -> Option<Predecessor>;

    /// Returns the kernel's notifications about the mode's own rules; address changes are
    /// subscribed elsewhere. Must be called within a tokio runtime, before `into_modes`.
    ///
    /// # Errors
    ///
    /// The subscription fails.
    fn notices(&self) -> Result<Vec<Notices>> {
        Ok(Vec::new())
    }

    /// Returns a reader of the mode's counters. It opens nothing before the first read.
    fn counters(&self) -> Box<dyn ReadCounters>;

    /// Returns the mode's forms and the kernel features that it needs on this node, without the
    /// families that are left out.
    fn uses(&self, settings: &Settings) -> Uses;

    /// Returns the work to do when the process ends, after the last write.
    fn ending(&self) -> Option<Ending> {
        None
    }

    /// Makes one mode for each family.
    ///
    /// # Errors
    ///
    /// A kernel thread cannot be started.
    fn into_modes(self: Box<Self>, start: &Start<'_>) -> Result<Vec<Box<dyn Mode>>>;

    /// Returns the writes that the modes would make after the changes `told`, which are everything
    /// that the model knows.
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

/// Inputs of a mode's start.
pub struct Start<'a> {
    /// Settings, possibly without what this node cannot do; the kernel may have been opened with
    /// others.
    pub settings: &'a Settings,
    /// Name of this node.
    pub node: &'a str,
    /// The model, which may know the Node object.
    pub model: &'a Model,
    /// Time of the start.
    pub now: Instant,
}

impl Start<'_> {
    /// Returns the node facts that a mode of this family starts with.
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

/// The part of a mode that needs a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModuleNeed {
    /// The mode as a whole.
    All,
    /// Some of its entries, or one of its forms.
    Some,
}

/// Returns modules with the same need.
pub(super) fn modules<'a>(
    names: &'a [&'static str],
    need: ModuleNeed,
) -> impl Iterator<Item = Module> + 'a {
    names.iter().map(move |name| Module {
        name: Cow::Borrowed(*name),
        need,
    })
}

/// A flag that only one mode reads.
pub struct OwnFlag {
    /// Name without dashes.
    pub name: &'static str,
    /// Reports whether the flag's values differ between two sets of flags.
    pub differs: fn(&Flags, &Flags) -> bool,
}

/// Periods of a mode's syncs, each with the name of its flag.
#[derive(Debug, Clone, Copy)]
pub struct Periods {
    /// Longest time between two comparisons with the kernel.
    pub sync: (&'static str, Duration),
    /// Shortest time between the end of a sync and the start of the next.
    pub min_sync: (&'static str, Duration),
}

/// Inputs for the values of kernel settings.
pub struct Facts<'a> {
    /// Settings of the modes.
    pub settings: &'a Settings,
    /// Kernel settings that flags ask for by name.
    pub asked: &'a sysctl::settings::Settings,
    /// The machine.
    pub machine: &'a Machine,
}
