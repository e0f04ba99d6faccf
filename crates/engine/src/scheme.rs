//! What a mode is to the engine.

use std::time::Instant;

use hashbrown::HashSet;
use proxy::{Drains, Model, NamespacedName, Notice, ServiceAddress, UnavailableOption, Unreadable};
use reconcile::Rows;

use crate::kinds::Kinds;
use crate::served::Served;
use crate::state::State;

/// What the flags say to a mode.
pub(crate) type ConfigOf<S> = <<S as Scheme>::Kinds as Kinds>::Config;

/// A mode's kernel threads.
pub(crate) type LaneOf<S> = <<S as Scheme>::Kinds as Kinds>::Lane;

/// What a mode reads.
pub(crate) type PartOf<S> = <<S as Scheme>::Kinds as Kinds>::Part;

/// What a lane of a mode writes in one go.
pub(crate) type PlanOf<S> = <<S as Scheme>::Kinds as Kinds>::Plan;

/// What a lane does next, in one go: it carries out the plan, and then asks.
pub struct Step<S: Scheme> {
    /// What it writes.
    pub plan: Option<PlanOf<S>>,
    /// What it asks.
    pub query: Option<S::Query>,
}

impl<S: Scheme> Step<S> {
    /// Nothing is due.
    pub const NONE: Self = Self {
        plan: None,
        query: None,
    };
}

/// So many Services are not put in order.
const MANY: usize = 1_000;

/// Of which Services the entries are computed again.
#[derive(Debug, Clone, Copy)]
pub enum Extent<'a> {
    /// Of all, for the first time.
    First,
    /// Of all: something changed that each of them depends on.
    All,
    /// Of these.
    These(&'a HashSet<NamespacedName>),
}

impl Extent<'_> {
    /// The Services that are meant, of a model and those that already claim something: some of
    /// these may be gone. Few are in the order of their names, so that the same changes lead to the
    /// same plans.
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

/// Whom it concerns that a part is not as it is to be, or not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Concern {
    /// Those who are served: it is late, and without progress it is stuck.
    Clients,
    /// The same, but it waits for somebody who mends something else: to start anew would not help.
    Operator,
    /// Nobody, as the mode is set up.
    Nobody,
}

/// A proxy mode for one IP family: its tables, its order and what it reads and writes. Pure.
pub trait Scheme: Sized + Send + 'static {
    /// Its kinds of things.
    type Kinds: Kinds;
    /// What became of a plan.
    type Outcomes: Send + 'static;
    /// What was found of a part.
    type Found: Send + 'static;
    /// What a lane asks the kernel, beside reading parts.
    type Query: Send + 'static;
    /// What the kernel says to that.
    type Answer: Send + 'static;

    /// The part that tells the node's addresses.
    const ADDRESSES: PartOf<Self>;
    /// The parts that say what is ours: as long as one is not known, nothing is taken away.
    const EVIDENCE: &'static [PartOf<Self>];
    /// The lanes that write: while one works, the mode is not settled.
    const WRITING: &'static [LaneOf<Self>];
    /// Those that those who are served wait for, and that go on until another mode takes over.
    const SERVING: &'static [LaneOf<Self>];

    /// A scheme that wants nothing yet, where nothing is known to be there.
    fn new(state: &State<Self::Kinds>) -> Self;

    // ---- tables ----

    /// Says what time it is to all tables whose entries can be late.
    fn begin(&mut self, now: Instant);

    /// The tables of what is in a part.
    fn tables(&self, part: PartOf<Self>) -> impl Iterator<Item = &dyn Rows>;

    /// The table of the entries by which Services are served: where none of them is there, nobody
    /// is.
    fn served(&self) -> &dyn Served;

    /// The table of entries that two Services may both claim, which is told. By default it is the
    /// same.
    fn disputed(&self) -> &dyn Served {
        self.served()
    }

    /// Whether all that a Service wants is there.
    fn is_settled(&self, service: &NamespacedName) -> bool;

    /// Returns whom it concerns when a part is not as it is to be. By default nobody needs the
    /// node's addresses where NodePorts are served at all of them.
    fn concern(&self, state: &State<Self::Kinds>, part: PartOf<Self>) -> Concern {
        if part == Self::ADDRESSES && state.node.serves_node_ports_everywhere() {
            Concern::Nobody
        } else {
            Concern::Clients
        }
    }

    // ---- what is wanted ----

    /// What nobody wants may be taken away from now on, or no longer: [`State::may_delete`]. At
    /// first it may not.
    fn removals_change(&mut self, state: &State<Self::Kinds>);

    /// Takes over which addresses serve NodePorts, after [`State::node`] may have changed; whether
    /// every Service has to be compiled again for it.
    fn node_changed(&mut self, state: &mut State<Self::Kinds>) -> bool;

    /// Computes again what Services want.
    fn update(&mut self, state: &mut State<Self::Kinds>, model: &Model, extent: Extent<'_>);

    /// Takes in what the kernel has told of service addresses, or of the mode's rules; whether all
    /// addresses have to be read.
    fn notice(&mut self, state: &mut State<Self::Kinds>, notice: &Notice) -> bool;

    /// Has the kernel compared with what is believed to be there: once in each sync period.
    fn check(&mut self, state: &mut State<Self::Kinds>);

    // ---- what is done next ----

    /// Wants what follows from what is there, before the lanes are asked what they do.
    fn prepare(&mut self, _: &mut State<Self::Kinds>) {}

    /// What a lane that is free does. It has nothing to read, and something is wanted.
    fn next(&mut self, lane: LaneOf<Self>, state: &mut State<Self::Kinds>) -> Step<Self>;

    /// When something is due beside retries and reading; later than `now`, or now if there is more
    /// to do at once.
    fn next_due(&self, _now: Instant) -> Option<Instant> {
        None
    }

    /// The entries by which Services are served that another program holds: the kernel refuses ours
    /// until it lets go of them, and the node is none the worse for that.
    fn held_by_others(&self) -> Vec<ServiceAddress> {
        Vec::new()
    }

    /// Values of Services' options that the kernel cannot give.
    fn unavailable_options(&self) -> Vec<UnavailableOption> {
        Vec::new()
    }

    /// What drains, of which at most so many are named.
    fn drains(&self, _named: usize) -> Drains {
        Drains::default()
    }

    /// Time does not pass from now on: nothing waits for others to be quicker.
    fn forgo_waiting(&mut self) {}

    // ---- what came of it ----

    /// Takes over what was found of a part.
    fn observe(&mut self, state: &mut State<Self::Kinds>, model: &Model, found: Self::Found);

    /// True if Services are to be compiled again for what was found: [`update`](Self::update) then
    /// knows which.
    fn wants_update(&self) -> bool {
        false
    }

    /// Draws the conclusions once all that was read together is known.
    fn after_reading(&mut self, _: &mut State<Self::Kinds>) {}

    /// Books what became of a plan.
    fn settle(
        &mut self,
        state: &mut State<Self::Kinds>,
        plan: &PlanOf<Self>,
        outcomes: Self::Outcomes,
    );

    /// What becomes of a plan of which all is done.
    fn as_done(plan: &PlanOf<Self>) -> Self::Outcomes;

    /// Takes over what the kernel has said to a query.
    fn take(&mut self, state: &mut State<Self::Kinds>, answer: Self::Answer);
}

/// How a scheme reads and writes a kernel, each on the thread of a lane.
pub trait KernelAccess<K>: Scheme {
    /// Reads a part.
    ///
    /// # Errors
    ///
    /// It cannot be read: why, and what to do.
    fn read(
        kernel: &mut K,
        config: &ConfigOf<Self>,
        part: PartOf<Self>,
    ) -> Result<Self::Found, Unreadable>;

    /// Carries out a plan.
    fn write(kernel: &mut K, plan: &PlanOf<Self>) -> Self::Outcomes;

    /// Asks.
    fn query(kernel: &mut K, config: &ConfigOf<Self>, query: Self::Query) -> Self::Answer;
}
