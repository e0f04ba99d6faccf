//! The interface between a mode and the engine.

use std::time::Instant;

use hashbrown::HashSet;
use proxy::{Drains, Model, NamespacedName, Notice, ServiceAddress, UnavailableOption, Unreadable};
use reconcile::Rows;

use crate::kinds::Kinds;
use crate::served::Served;
use crate::state::State;

/// Type of a mode's settings.
pub(crate) type ConfigOf<S> = <<S as Scheme>::Kinds as Kinds>::Config;

/// The lanes of a mode. A lane is a worker thread.
pub(crate) type LaneOf<S> = <<S as Scheme>::Kinds as Kinds>::Lane;

/// The parts of the kernel's state that a mode reads.
pub(crate) type PartOf<S> = <<S as Scheme>::Kinds as Kinds>::Part;

/// Batch of kernel writes that one lane (worker thread) makes in one step.
pub(crate) type PlanOf<S> = <<S as Scheme>::Kinds as Kinds>::Plan;

/// The next work of a lane (worker thread). The lane first writes the plan, then sends the query.
pub struct Step<S: Scheme> {
    /// The plan to write, or `None` if there is nothing to write.
    pub plan: Option<PlanOf<S>>,
    /// The query to send after the plan, if any.
    pub query: Option<S::Query>,
}

impl<S: Scheme> Step<S> {
    /// Step with neither a plan nor a query.
    pub const NONE: Self = Self {
        plan: None,
        query: None,
    };
}

/// Number of Services at which [`Extent::services`] stops sorting them by name.
const MANY: usize = 1_000;

/// The Services for which the scheme must compute the wanted entries again.
#[derive(Debug, Clone, Copy)]
pub enum Extent<'a> {
    /// All Services, for the first time after the start.
    First,
    /// All Services, because a fact that affects each of them has changed.
    All,
    /// Only the Services in this set, which have changed.
    These(&'a HashSet<NamespacedName>),
}

impl Extent<'_> {
    /// Returns the names of the Services to compute, including deleted Services that still have
    /// claims. Sorts a short list by name, so that the same changes lead to the same plans.
    pub fn services<'a>(
        self,
        model: &'a Model,
        claiming: impl Iterator<Item = &'a NamespacedName>,
    ) -> Vec<NamespacedName> {
        let mut services: Vec<NamespacedName> = match self {
            Self::These(names) => names.iter().cloned().collect(),
            Self::First | Self::All => {
                let gone = claiming.filter(|name| model.view(name).is_none());
                model.service_names().chain(gone).cloned().collect()
            }
        };
        if services.len() < MANY {
            services.sort_unstable();
        }
        services
    }
}

/// People affected while a part of the kernel's state is out of date or unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Concern {
    /// Clients are affected. Pending changes to this part of the kernel's state count as overdue,
    /// and as stuck if they make no progress.
    Clients,
    /// Clients are affected, but only an operator can remove the cause. A restart would not help,
    /// so this part of the kernel's state does not count as stuck.
    Operator,
    /// Nobody is affected: in this configuration, no client needs this part of the kernel's state.
    Nobody,
}

/// A mode's own code for one IP family: its tables, the order of its writes, and the recording of
/// reads and writes. Pure.
pub trait Scheme: Sized + Send + 'static {
    /// The mode's types of settings, lanes, parts and plans.
    type Kinds: Kinds;
    /// Outcomes of all writes in a plan.
    type Outcomes: Send + 'static;
    /// Content of a part of the kernel's state, as a lane (worker thread) has read it.
    type PartContent: Send + 'static;
    /// A query to the kernel in addition to the reads of parts, for example for open connections.
    type Query: Send + 'static;
    /// The kernel's response to a query.
    type QueryResponse: Send + 'static;

    /// Part of the kernel's state that contains the node's addresses.
    const ADDRESSES: PartOf<Self>;
    /// Parts of the kernel's state that show which entries belong to this program. The engine
    /// deletes entries only once it knows all these parts.
    const EVIDENCE: &'static [PartOf<Self>];
    /// Lanes (worker threads) that write. The mode is not settled while one of them works.
    const WRITING: &'static [LaneOf<Self>];
    /// Lanes (worker threads) that write the entries that clients wait for. During a change of
    /// mode, only these lanes of the old mode continue to write, until the new mode replaces the
    /// old mode.
    const SERVING: &'static [LaneOf<Self>];

    /// Creates a scheme with no wanted and no actual entries.
    fn new(state: &State<Self::Kinds>) -> Self;

    // ---- tables ----

    /// Passes the current time to each table whose entries can be late.
    fn begin(&mut self, now: Instant);

    /// Returns the tables with the entries of a part of the kernel's state.
    fn tables(&self, part: PartOf<Self>) -> impl Iterator<Item = &dyn Rows>;

    /// Returns the table of the entries that serve Services. While the kernel has no entry of this
    /// table, the node serves no client.
    fn served(&self) -> &dyn Served;

    /// Returns the table of the entries that several Services may claim. By default, this is the
    /// [`served`](Self::served) table.
    fn disputed(&self) -> &dyn Served {
        self.served()
    }

    /// Reports whether the kernel has all entries that a Service needs.
    fn is_settled(&self, service: &NamespacedName) -> bool;

    /// Returns who is affected while a part of the kernel's state is out of date. By default,
    /// clients are affected. But if every address of the node serves NodePorts, an outdated list of
    /// these addresses affects nobody.
    fn concern(&self, state: &State<Self::Kinds>, part: PartOf<Self>) -> Concern {
        if part == Self::ADDRESSES && state.node.serves_node_ports_everywhere() {
            Concern::Nobody
        } else {
            Concern::Clients
        }
    }

    // ---- wanted entries ----

    /// Allows or forbids the deletion of unwanted entries, according to [`State::may_delete`]. The
    /// engine calls this function when that value has changed. At first, deletion is forbidden.
    fn removals_change(&mut self, state: &State<Self::Kinds>);

    /// Applies a possible change of [`State::node`], such as other addresses that serve NodePorts.
    /// Returns true if the engine must compile every Service again.
    fn node_changed(&mut self, state: &mut State<Self::Kinds>) -> bool;

    /// Computes the wanted entries of the Services in `extent`.
    fn update(&mut self, state: &mut State<Self::Kinds>, model: &Model, extent: Extent<'_>);

    /// Handles a notification of the kernel about service addresses or the mode's rules. Returns
    /// true if the engine must read all addresses.
    fn notice(&mut self, state: &mut State<Self::Kinds>, notice: &Notice) -> bool;

    /// Starts a comparison of the kernel's entries with the tables, to find drift. The daemon
    /// requests one comparison in each sync period.
    fn check(&mut self, state: &mut State<Self::Kinds>);

    // ---- next work ----

    /// Adds wanted entries that follow from the kernel's state. The engine calls this function
    /// before it requests the next step of each lane.
    fn prepare(&mut self, _: &mut State<Self::Kinds>) {}

    /// Returns the next step of an idle lane (worker thread) that has no requested reads. The
    /// engine calls this function only once the Services are known.
    fn next(&mut self, lane: LaneOf<Self>, state: &mut State<Self::Kinds>) -> Step<Self>;

    /// Returns when the scheme next has work other than retries and reads: `now` if work is ready,
    /// `None` if no work is scheduled.
    fn next_due(&self, _now: Instant) -> Option<Instant> {
        None
    }

    /// Returns addresses for which another program owns the kernel's entries. The kernel refuses
    /// this program's entries there, but the node stays healthy.
    fn held_by_others(&self) -> Vec<ServiceAddress> {
        Vec::new()
    }

    /// Returns the values of Services' options that this node's kernel does not support.
    fn unavailable_options(&self) -> Vec<UnavailableOption> {
        Vec::new()
    }

    /// Returns the number of draining endpoints, and details of at most `named` of them.
    fn drains(&self, _named: usize) -> Drains {
        Drains::default()
    }

    /// Returns the variant of the mode's kernel entries, such as `layout flat`. Returns `None` if
    /// the mode has only one variant.
    fn form(&self, _state: &State<Self::Kinds>) -> Option<&'static str> {
        None
    }

    /// Makes the scheme plan all writes now, without waiting for earlier writes. A preview
    /// needs this, because nothing is written during a preview.
    fn forgo_waiting(&mut self) {}

    // ---- results ----

    /// Applies the content of a part of the kernel's state that a lane (worker thread) has read.
    fn observe(&mut self, state: &mut State<Self::Kinds>, model: &Model, found: Self::PartContent);

    /// Reports whether some Services must be compiled again because of the last read.
    /// [`update`](Self::update) finds these Services.
    fn wants_update(&self) -> bool {
        false
    }

    /// Runs after a read, once the engine has applied the content of every part that was read.
    fn after_reading(&mut self, _: &mut State<Self::Kinds>) {}

    /// Records the outcomes of a plan in the tables.
    fn settle(
        &mut self,
        state: &mut State<Self::Kinds>,
        plan: &PlanOf<Self>,
        outcomes: Self::Outcomes,
    );

    /// Returns the outcomes that a plan has if all its writes succeed. A preview uses them.
    fn as_done(plan: &PlanOf<Self>) -> Self::Outcomes;

    /// Records the kernel's response to a query.
    fn take(&mut self, state: &mut State<Self::Kinds>, answer: Self::QueryResponse);
}

/// Access of a scheme to the kernel. A [`Lane`](Kinds::Lane)'s worker thread calls these functions.
pub trait KernelAccess<K>: Scheme {
    /// Reads a part of the kernel's state.
    ///
    /// # Errors
    ///
    /// Fails if the part cannot be read. The error has the reason and advice for the operator.
    fn read(
        kernel: &mut K,
        config: &ConfigOf<Self>,
        part: PartOf<Self>,
    ) -> Result<Self::PartContent, Unreadable>;

    /// Writes a plan to the kernel.
    fn write(kernel: &mut K, plan: &PlanOf<Self>) -> Self::Outcomes;

    /// Sends a query to the kernel, and returns the response.
    fn query(kernel: &mut K, config: &ConfigOf<Self>, query: Self::Query) -> Self::QueryResponse;
}
