//! The interface between a mode and the engine.

use std::time::Instant;

use hashbrown::HashSet;
use proxy::{Drains, Model, NamespacedName, Notice, ServiceAddress, UnavailableOption, Unreadable};
use reconcile::Rows;

use crate::kinds::Kinds;
use crate::served::Served;
use crate::state::State;

/// Settings of a mode.
pub(crate) type ConfigOf<S> = <<S as Scheme>::Kinds as Kinds>::Config;

/// Kernel threads of a mode.
pub(crate) type LaneOf<S> = <<S as Scheme>::Kinds as Kinds>::Lane;

/// Parts that a mode reads.
pub(crate) type PartOf<S> = <<S as Scheme>::Kinds as Kinds>::Part;

/// Work that a lane of a mode writes at once.
pub(crate) type PlanOf<S> = <<S as Scheme>::Kinds as Kinds>::Plan;

/// The next work of a lane: it carries out the plan, and then sends the query.
pub struct Step<S: Scheme> {
    /// The plan to write.
    pub plan: Option<PlanOf<S>>,
    /// The query to send.
    pub query: Option<S::Query>,
}

impl<S: Scheme> Step<S> {
    /// No work.
    pub const NONE: Self = Self {
        plan: None,
        query: None,
    };
}

/// Number of Services up to which they are sorted.
const MANY: usize = 1_000;

/// The Services whose entries are computed again.
#[derive(Debug, Clone, Copy)]
pub enum Extent<'a> {
    /// All Services, for the first time.
    First,
    /// All Services: something changed that each of them depends on.
    All,
    /// These Services.
    These(&'a HashSet<NamespacedName>),
}

impl Extent<'_> {
    /// Returns the Services in the model, and those that have claims but are gone. Few Services are
    /// sorted by name, so that the same changes lead to the same plans.
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

/// Who is affected when a part is out of date or unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Concern {
    /// Clients are affected: the part is late, and without progress it is stuck.
    Clients,
    /// Clients are affected, but an operator must repair something else: a restart would not help.
    Operator,
    /// Nobody is affected in this configuration.
    Nobody,
}

/// A proxy mode for one IP family: its tables, its order, and its reads and writes. Pure.
pub trait Scheme: Sized + Send + 'static {
    /// The mode's types.
    type Kinds: Kinds;
    /// Result of a plan.
    type Outcomes: Send + 'static;
    /// Content of a part that was read.
    type PartContent: Send + 'static;
    /// Query to the kernel, besides reading parts.
    type Query: Send + 'static;
    /// Response to a query.
    type QueryResponse: Send + 'static;

    /// The part with the node's addresses.
    const ADDRESSES: PartOf<Self>;
    /// The parts that show which entries are ours: nothing is deleted while one is unknown.
    const EVIDENCE: &'static [PartOf<Self>];
    /// The lanes that write: the mode is not settled while one works.
    const WRITING: &'static [LaneOf<Self>];
    /// The lanes that clients wait for; they continue until another mode takes over.
    const SERVING: &'static [LaneOf<Self>];

    /// Creates a scheme that wants nothing yet, and knows no entries.
    fn new(state: &State<Self::Kinds>) -> Self;

    // ---- tables ----

    /// Sets the current time in all tables whose entries can be late.
    fn begin(&mut self, now: Instant);

    /// Returns the tables of a part.
    fn tables(&self, part: PartOf<Self>) -> impl Iterator<Item = &dyn Rows>;

    /// Returns the table of the entries that serve Services: if none of them exists, no client is
    /// served.
    fn served(&self) -> &dyn Served;

    /// Returns the table of the entries that two Services may claim. It is `served` by default.
    fn disputed(&self) -> &dyn Served {
        self.served()
    }

    /// Reports whether all entries that a Service wants exist.
    fn is_settled(&self, service: &NamespacedName) -> bool;

    /// Returns who is affected when a part is out of date. By default nobody needs the node's
    /// addresses if all of them serve NodePorts.
    fn concern(&self, state: &State<Self::Kinds>, part: PartOf<Self>) -> Concern {
        if part == Self::ADDRESSES && state.node.serves_node_ports_everywhere() {
            Concern::Nobody
        } else {
            Concern::Clients
        }
    }

    // ---- wanted entries ----

    /// Allows or forbids to delete unwanted entries, after [`State::may_delete`] changed. At first
    /// it is forbidden.
    fn removals_change(&mut self, state: &State<Self::Kinds>);

    /// Applies the addresses that serve NodePorts, after [`State::node`] may have changed. Returns
    /// true if every Service must be compiled again.
    fn node_changed(&mut self, state: &mut State<Self::Kinds>) -> bool;

    /// Computes the entries that Services want.
    fn update(&mut self, state: &mut State<Self::Kinds>, model: &Model, extent: Extent<'_>);

    /// Handles a notification about service addresses or the mode's rules. Returns true if all
    /// addresses must be read.
    fn notice(&mut self, state: &mut State<Self::Kinds>, notice: &Notice) -> bool;

    /// Starts to compare the kernel with the recorded state; called once in each sync period.
    fn check(&mut self, state: &mut State<Self::Kinds>);

    // ---- next work ----

    /// Wants entries that follow from the kernel's state, before the lanes get their next steps.
    fn prepare(&mut self, _: &mut State<Self::Kinds>) {}

    /// Returns the next step of a free lane that has nothing to read. Services are known.
    fn next(&mut self, lane: LaneOf<Self>, state: &mut State<Self::Kinds>) -> Step<Self>;

    /// Returns when there is work besides retries and reading: after `now`, or `now` if there is
    /// more work at once.
    fn next_due(&self, _now: Instant) -> Option<Instant> {
        None
    }

    /// Returns the entries that another program has in place of ours. The kernel refuses ours until
    /// then, but this does not make the node unhealthy.
    fn held_by_others(&self) -> Vec<ServiceAddress> {
        Vec::new()
    }

    /// Returns values of Services' options that the kernel does not support.
    fn unavailable_options(&self) -> Vec<UnavailableOption> {
        Vec::new()
    }

    /// Returns the draining endpoints, of which at most `named` are listed.
    fn drains(&self, _named: usize) -> Drains {
        Drains::default()
    }

    /// Stops to wait for other entries, since time does not pass in a preview.
    fn forgo_waiting(&mut self) {}

    // ---- results ----

    /// Applies the content of a part.
    fn observe(&mut self, state: &mut State<Self::Kinds>, model: &Model, found: Self::PartContent);

    /// Reports whether Services must be compiled again after reading: [`update`](Self::update)
    /// knows which.
    fn wants_update(&self) -> bool {
        false
    }

    /// Finishes after all parts of one read are applied.
    fn after_reading(&mut self, _: &mut State<Self::Kinds>) {}

    /// Applies the result of a plan.
    fn settle(
        &mut self,
        state: &mut State<Self::Kinds>,
        plan: &PlanOf<Self>,
        outcomes: Self::Outcomes,
    );

    /// Returns the outcomes of a plan if all of it is done.
    fn as_done(plan: &PlanOf<Self>) -> Self::Outcomes;

    /// Applies the response to a query.
    fn take(&mut self, state: &mut State<Self::Kinds>, answer: Self::QueryResponse);
}

/// A scheme's reads and writes of a kernel, on the thread of a lane.
pub trait KernelAccess<K>: Scheme {
    /// Reads a part.
    ///
    /// # Errors
    ///
    /// Returns the reason and the advice if the part cannot be read.
    fn read(
        kernel: &mut K,
        config: &ConfigOf<Self>,
        part: PartOf<Self>,
    ) -> Result<Self::PartContent, Unreadable>;

    /// Carries out a plan.
    fn write(kernel: &mut K, plan: &PlanOf<Self>) -> Self::Outcomes;

    /// Sends a query.
    fn query(kernel: &mut K, config: &ConfigOf<Self>, query: Self::Query) -> Self::QueryResponse;
}
