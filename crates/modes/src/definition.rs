//! The interface between the daemon and a mode: the traits `Definition`, `OpenedKernel` and
//! `IntoProxiers`. The module of each mode implements them.
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
use cleanup::ServingMode;
use flags::Flags;
use footprint::uses::Uses;
use futures::future::{FutureExt as _, LocalBoxFuture};
use proxy::{Changes, IpFamily, Mode, Model, NodeFacts, NodePortAddresses};
use service_counters::ReadCounters;
use source::ServiceCidrWatch;

use super::families::{Access, SkippedFamily};
use super::predecessor::Predecessor;
use super::preview::Preview;
use super::programs::Programs;
use super::rulesets::Notices;
use super::settings::Settings;
use crate::metrics::ModeLabels;
use crate::sysctl;
use crate::sysctl::machine::Machine;
use crate::sysctl::row::{SysctlRow, WantedSetting};

/// A proxy mode of this build. The default methods suit a mode without special needs.
pub trait Definition: Sync {
    /// Returns the mode's name in `--proxy-mode`, which is also the name of its section in the
    /// configuration file.
    fn name(&self) -> &'static str;

    /// Returns the sorted paths of the configuration file fields that this mode reads and that at
    /// least one other mode ignores.
    fn fields(&self) -> &'static [&'static str];

    /// Returns the flags that this mode ignores if the daemon has a configuration file. Their
    /// values then come from fields of the mode's own section.
    fn flags_without_file(&self) -> &'static [&'static str] {
        &[]
    }

    /// Copies flags that another mode also reads into settings of this mode. The daemon calls this
    /// function only without a configuration file.
    fn take_flags(&self, _flags: &mut Flags) {}

    /// Returns the name of the mode's feature gate, or `None` if the mode has none. A gate that is
    /// set to false disables the mode.
    fn gate(&self) -> Option<&'static str> {
        None
    }

    /// Returns the addresses that serve NodePorts by default.
    fn node_port_addresses(&self) -> NodePortAddresses {
        NodePortAddresses::All
    }

    /// Returns the flags that only this mode reads and that have no field in the configuration
    /// file.
    fn flags(&self) -> &'static [OwnFlag] {
        &[]
    }

    /// Returns the longest and the shortest time between two syncs, from this mode's flags.
    fn periods(&self, flags: &Flags) -> Periods;

    /// Opens the kernel for each IP family that this node can serve. Blocks. With [`Access::Read`],
    /// changes nothing. With [`Access::Write`], may load kernel modules, but writes no entry of a
    /// Service.
    ///
    /// # Errors
    ///
    /// Fails if the node can serve no family, or if the settings cannot be applied.
    fn open(
        &self,
        settings: &Settings,
        programs: &Programs,
        access: Access,
    ) -> Result<Box<dyn Opened>>;

    /// Does the work of `--init-only` except sysctls. This work needs more privileges than serving.
    ///
    /// # Errors
    ///
    /// Fails if this node cannot run the mode.
    fn prepare(&self, _settings: &Settings, _programs: &Programs) -> Result<()> {
        Ok(())
    }

    /// Checks that the kernel has all features that the mode needs for `family`. Blocks. Leaves no
    /// entry in the kernel.
    ///
    /// # Errors
    ///
    /// Fails if the kernel lacks such a feature.
    fn probe(&self, settings: &Settings, programs: &Programs, family: IpFamily) -> Result<()>;

    /// Returns the kernel settings (sysctls) that the mode writes. They have wanted values only if
    /// `facts` is given, which means that this mode is the chosen one.
    fn sysctls(&self, facts: Option<&Facts<'_>>) -> Vec<WantedSetting>;

    /// Returns one line for each kernel setting that still has the value of a flag of this mode,
    /// although the flag is not set now.
    fn unasked_sysctls(&self, _asked: &sysctl::settings::Settings, _root: &Path) -> Vec<String> {
        Vec::new()
    }

    /// Turns off the feature of the mode that needs the kernel setting `missing`, which the daemon
    /// could not write.
    fn go_without(&self, _missing: &SysctlRow, _settings: &mut Settings) {}

    /// Reports whether kernel objects show that this mode has run in this network namespace.
    fn has_served(&self, _root: &Path) -> bool {
        false
    }

    /// Returns a log line about kernel settings that this mode may have left behind, or `None`. The
    /// daemon calls this function when it starts in another mode. Starts no process if no setting
    /// has this mode's value.
    fn left_behind(&self, _programs: &Programs) -> Option<String> {
        None
    }

    /// Returns whether the source watches ServiceCIDRs for this mode, given the flags.
    fn service_cidrs(&self, _flags: &Flags) -> ServiceCidrWatch {
        ServiceCidrWatch::Off
    }

    /// Returns the kernel modules that the mode uses on a typical node, with these settings.
    fn modules(&self, settings: &Settings) -> Vec<Module>;

    /// Reports whether the mode writes iptables rules with these settings, on a node that supports
    /// iptables.
    fn uses_iptables(&self, _settings: &Settings) -> bool {
        false
    }

    /// Returns the metrics that only this mode has, or `None` if it has no such metrics.
    fn metrics(&self) -> Option<Arc<dyn ModeLabels>> {
        None
    }
}

/// Last work of a process that itself relays connections: waits until they end. Blocks. Returns a
/// log line about connections that the process closed early, or `None` if all ended.
pub type Ending = Box<dyn FnOnce() -> Option<String> + Send>;

/// An open kernel connection of a mode, for each family that the node can serve.
pub trait OpenedKernel: Send {
    /// Returns the IP families that the node cannot serve, with the reasons.
    fn left_out(&self) -> &[SkippedFamily];

    /// Returns this mode's entries, which the daemon must keep when it removes entries of other
    /// modes. Returns `None` if this mode itself removes those entries.
    fn serving(&self) -> Option<ServingMode>;

    /// Returns the cleanup of earlier modes, which starts once this mode serves all Services, or
    /// `None` if this mode itself cleans up.
    fn predecessor(&self, settings: &Settings) -> Option<Predecessor> {
        Some(Predecessor {
            serving: self.serving()?,
            excluded: settings.shared.exclude_cidrs.clone(),
            drain_timeout: settings.ipvs.drain_timeout,
        })
    }

    /// Returns streams of the kernel's notifications about the mode's own rules. (The daemon itself
    /// subscribes to address changes.) The caller must run in a tokio runtime, and call this
    /// function before `into_modes`.
    ///
    /// # Errors
    ///
    /// Fails if the subscription fails.
    fn notices(&self) -> Result<Vec<Notices>> {
        Ok(Vec::new())
    }

    /// Returns a reader of the mode's packet and connection counters. The reader opens no socket
    /// before its first read.
    fn counters(&self) -> Box<dyn ReadCounters>;

    /// Returns the mode's variants, such as `backend nft`, and the kernel features that it uses on
    /// this node. Omits IP families that the node cannot serve.
    fn uses(&self, settings: &Settings) -> Uses;

    /// Returns the work that the process does after its last write, or `None` if the mode has no
    /// such work.
    fn ending(&self) -> Option<Ending> {
        None
    }
}

/// An open kernel connection of a mode. The daemon converts it into one [`Mode`] for each IP
/// family, or into a preview.
pub trait Opened: OpenedKernel {
    /// Creates one [`Mode`] for each IP family that the node can serve.
    ///
    /// # Errors
    ///
    /// Fails if a worker thread cannot be started.
    fn into_modes(self: Box<Self>, start: &Start<'_>) -> Result<Vec<Box<dyn Mode>>>;

    /// Returns the writes that a start of the mode would make. `told` lists all objects of the
    /// model as changed.
    ///
    /// # Errors
    ///
    /// Fails if the kernel cannot be read.
    fn preview<'a>(
        self: Box<Self>,
        start: &'a Start<'a>,
        told: &'a Changes,
    ) -> LocalBoxFuture<'a, Result<Preview>>;
}

/// A typed variant of [`Opened`], which names the type of the mode's proxiers.
pub(super) trait IntoProxiers: OpenedKernel + Sized + 'static {
    /// Type that implements [`Mode`] for one IP family.
    type Proxier: Mode + 'static;

    /// Creates one proxier for each IP family (see [`Opened::into_modes`]).
    fn into_proxiers(self, start: &Start<'_>) -> Result<Vec<Self::Proxier>>;

    /// Returns the writes that a start of the mode would make (see [`Opened::preview`]).
    async fn preview(self, start: &Start<'_>, told: &Changes) -> Result<Preview>;
}

impl<T: IntoProxiers> Opened for T {
    fn into_modes(self: Box<Self>, start: &Start<'_>) -> Result<Vec<Box<dyn Mode>>> {
        let boxed = |mode| Box::new(mode) as Box<dyn Mode>;
        Ok(self.into_proxiers(start)?.into_iter().map(boxed).collect())
    }

    fn preview<'a>(
        self: Box<Self>,
        start: &'a Start<'a>,
        told: &'a Changes,
    ) -> LocalBoxFuture<'a, Result<Preview>> {
        IntoProxiers::preview(*self, start, told).boxed_local()
    }
}

/// Inputs for the start of a mode.
pub struct Start<'a> {
    /// Settings reduced to the options that this node supports. So they may differ from the
    /// settings with which the mode opened the kernel.
    pub settings: &'a Settings,
    /// Name of this node in the cluster.
    pub node: &'a str,
    /// Model of the cluster. It may lack the Node object of this node.
    pub model: &'a Model,
    /// Time at which the mode starts.
    pub now: Instant,
}

impl Start<'_> {
    /// Returns the facts about the node with which the mode starts in `family`.
    pub(super) fn node_facts(&self, family: IpFamily) -> NodeFacts {
        let mut facts = NodeFacts::new(family, self.node);
        facts.flag_ip = self.settings.shared.node_ip(family);
        facts.node_port_addresses = self.settings.shared.node_port_addresses.clone();
        facts
    }
}

/// A kernel module that a mode uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module {
    /// Name of the module.
    pub name: Cow<'static, str>,
    /// Reason why the mode needs the module.
    pub need: ModuleNeed,
}

/// Extent to which a mode needs a kernel module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModuleNeed {
    /// The mode does not work without the module.
    All,
    /// Only some entries, or one variant of the mode, need the module.
    Some,
}

/// Returns `names` as modules, all with the same need.
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
    /// Name of the flag, without the leading dashes.
    pub name: &'static str,
    /// Function that reports whether two sets of flags have different values of this flag.
    pub differs: fn(&Flags, &Flags) -> bool,
}

/// Declares flags that only one mode reads: `"NAME" FIELD`, with a field of [`Flags`].
macro_rules! own_flags {
    ($($name:literal $field:ident),+ $(,)?) => {
        &[$($crate::definition::OwnFlag {
            name: $name,
            differs: |one, other| one.$field != other.$field,
        }),+]
    };
}
pub(super) use own_flags;

/// Sync periods of a mode, each with the name of the flag that sets it.
#[derive(Debug, Clone, Copy)]
pub struct Periods {
    /// Longest time between two comparisons with the kernel.
    pub sync: (&'static str, Duration),
    /// Shortest time between the end of a sync and the start of the next sync.
    pub min_sync: (&'static str, Duration),
}

/// Inputs from which a mode computes the values of its kernel settings.
pub struct Facts<'a> {
    /// Settings of all modes, with the chosen mode.
    pub settings: &'a Settings,
    /// Kernel settings for which flags give the values, such as conntrack limits.
    pub asked: &'a sysctl::settings::Settings,
    /// Properties of the machine, such as the number of CPUs.
    pub machine: &'a Machine,
}
