//! The interface between a mode and the engine.

use std::time::Instant;

use hashbrown::HashSet;
use proxy::{Drains, Model, NamespacedName, Notice, ServiceAddress, UnavailableOption, Unreadable};
use reconcile::Rows;

use crate::kinds::Kinds;
use crate::served::Served;
use crate::state::State;

/// Settings type of a mode.
pub(crate) type ConfigOf<S> = <<S as Scheme>::Kinds as Kinds>::Config;

/// The lanes of a mode. Each lane is a worker thread.
pub(crate) type LaneOf<S> = <<S as Scheme>::Kinds as Kinds>::Lane;

/// The parts of the kernel's state that a mode reads.
pub(crate) type PartOf<S> = <<S as Scheme>::Kinds as Kinds>::Part;

/// Writes of one lane (worker thread) in one step.
pub(crate) type PlanOf<S> = <<S as Scheme>::Kinds as Kinds>::Plan;

/// The next work of a lane (worker thread). The lane first writes the plan, and then sends the
/// query.
pub struct Step<S: Scheme> {
    /// The plan to write, or `None` if no write is due.
    pub plan: Option<PlanOf<S>>,
    /// The query to send after the plan, or `None` for no query.
    pub query: Option<S::Query>,
}

impl<S: Scheme> Step<S> {
    /// A step without work.
    pub const NONE: Self = Self {
        plan: None,
        query: None,
    };
}

/// Number of Services up to which they are sorted.
const MANY: usize = 1_000;

/// The Services whose wanted entries the scheme must compute again.
#[derive(Debug, Clone, Copy)]
pub enum Extent<'a> {
    /// All Services, for the first time after the start.
    First,
    /// All Services, because a fact that affects each of them has changed.
    All,
    /// Only these Services, which have changed.
    These(&'a HashSet<NamespacedName>),
}

impl Extent<'_> {
    /// Returns the Services in the model, and deleted Services that still have claims. Sorts them
    /// by name if they are few, so that the same changes lead to the same plans.
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

/// Effect of a part that is out of date or unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Concern {
    /// Clients are affected. Pending changes of the part count as late. If they make no progress,
    /// they count as stuck.
    Clients,
    /// Clients are affected, but only an operator can remove the cause. A restart would not help.
    Operator,
    /// No client is affected in this configuration.
    Nobody,
}

/// A proxy mode for one IP family: its tables, the order of its writes, and how it records reads
/// and writes. Pure.
pub trait Scheme: Sized + Send + 'static {
    /// The types of the mode that its components use.
    type Kinds: Kinds;
    /// Outcomes of the writes in a plan.
    type Outcomes: Send + 'static;
    /// Content of a part, as read from the kernel.
    type PartContent: Send + 'static;
    /// A query to the kernel, other than the read of a part.
    type Query: Send + 'static;
    /// The kernel's response to a query.
    type QueryResponse: Send + 'static;

    /// The part with the node's addresses.
    const ADDRESSES: PartOf<Self>;
    /// Parts of the kernel's state that show which entries belong to this program. The engine
    /// deletes no entry while one of these parts is unknown.
    const EVIDENCE: &'static [PartOf<Self>];
    /// Lanes (worker threads) that write. While such a lane works, the mode is not settled.
    const WRITING: &'static [LaneOf<Self>];
    /// Lanes (worker threads) whose writes serve traffic: new connections wait for these writes.
    /// During a change of mode, these lanes continue to write until the new mode serves.
    const SERVING: &'static [LaneOf<Self>];

    /// Creates a scheme without wanted or actual entries.
    fn new(state: &State<Self::Kinds>) -> Self;

    // ---- tables ----

    /// Sets the current time in each table whose entries can be late.
    fn begin(&mut self, now: Instant);

    /// Returns the tables that hold the entries of a part.
    fn tables(&self, part: PartOf<Self>) -> impl Iterator<Item = &dyn Rows>;

    /// Returns the table of the entries that serve Services. If the kernel has none of its entries,
    /// the node serves no client.
    fn served(&self) -> &dyn Served;

    /// Returns the table of the entries for which Services may conflict. By default, this is the
    /// [`served`](Self::served) table.
    fn disputed(&self) -> &dyn Served {
        self.served()
    }

    /// Reports whether the kernel has all entries that a Service needs.
    fn is_settled(&self, service: &NamespacedName) -> bool;

    /// Returns the effect of an outdated part. By default, outdated addresses of the node affect no
    /// client if all addresses serve NodePorts.
    fn concern(&self, state: &State<Self::Kinds>, part: PartOf<Self>) -> Concern {
        if part == Self::ADDRESSES && state.node.serves_node_ports_everywhere() {
            Concern::Nobody
        } else {
            Concern::Clients
        }
    }

    // ---- wanted entries ----

    /// Allows or forbids the deletion of unwanted entries. The engine calls this function when
    /// [`State::may_delete`] has changed. At first, deletion is forbidden.
    fn removals_change(&mut self, state: &State<Self::Kinds>);

    /// Applies the addresses that serve NodePorts. The engine calls this function when
    /// [`State::node`] may have changed. Returns true if the engine must compile every Service
    /// again.
    fn node_changed(&mut self, state: &mut State<Self::Kinds>) -> bool;

    /// Computes the entries that Services want.
    fn update(&mut self, state: &mut State<Self::Kinds>, model: &Model, extent: Extent<'_>);

    /// Handles a notification about service addresses or the mode's rules. Returns true if the
    /// engine must read all addresses.
    fn notice(&mut self, state: &mut State<Self::Kinds>, notice: &Notice) -> bool;

    /// Starts to compare the kernel with the recorded state. The daemon requests this once in each
    /// sync period.
    fn check(&mut self, state: &mut State<Self::Kinds>);

    // ---- next work ----

    /// Adds wanted entries that follow from the kernel's state. The engine calls this function
    /// before it requests the lanes' next steps.
    fn prepare(&mut self, _: &mut State<Self::Kinds>) {}

    /// Returns the next step of an idle lane that has no pending reads. The engine calls this
    /// function once the Services are known.
    fn next(&mut self, lane: LaneOf<Self>, state: &mut State<Self::Kinds>) -> Step<Self>;

    /// Returns the time of the next work, except retries and reads. Returns `now` if more work is
    /// ready.
    fn next_due(&self, _now: Instant) -> Option<Instant> {
        None
    }

    /// Returns the addresses at which another program owns the entries. The kernel refuses this
    /// program's entries at these addresses, but the node stays healthy.
    fn held_by_others(&self) -> Vec<ServiceAddress> {
        Vec::new()
    }

    /// Returns the Services' option values that this node's kernel does not support.
    fn unavailable_options(&self) -> Vec<UnavailableOption> {
        Vec::new()
    }

    /// Returns the number of draining endpoints, and details of at most `named` of them.
    fn drains(&self, _named: usize) -> Drains {
        Drains::default()
    }

    /// Returns the form of the entries, such as `layout flat`, or `None` if the mode has only one
    /// form.
    fn form(&self, _state: &State<Self::Kinds>) -> Option<&'static str> {
        None
    }

    /// Makes the scheme plan all writes at once, without waiting for other writes. A preview needs
    /// this, because no time passes during the preview.
    fn forgo_waiting(&mut self) {}

    // ---- results ----

    /// Applies the content of a part that was read.
    fn observe(&mut self, state: &mut State<Self::Kinds>, model: &Model, found: Self::PartContent);

    /// Reports whether the last read makes the compilation of some Services necessary.
    /// [`update`](Self::update) finds these Services.
    fn wants_update(&self) -> bool {
        false
    }

    /// Completes a read, after the engine has applied the content of all its parts.
    fn after_reading(&mut self, _: &mut State<Self::Kinds>) {}

    /// Applies the result of a plan.
    fn settle(
        &mut self,
        state: &mut State<Self::Kinds>,
        plan: &PlanOf<Self>,
        outcomes: Self::Outcomes,
    );

    /// Returns the outcomes of a plan whose writes all succeeded. A preview uses them.
    fn as_done(plan: &PlanOf<Self>) -> Self::Outcomes;

    /// Applies the response to a query.
    fn take(&mut self, state: &mut State<Self::Kinds>, answer: Self::QueryResponse);
}

/// Reads and writes of the kernel for one scheme, on the worker thread of a [`Lane`](Kinds::Lane).
pub trait KernelAccess<K>: Scheme {
    /// Reads a part.
    ///
    /// # Errors
    ///
    /// The part cannot be read. The error has the reason and advice for the operator.
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
