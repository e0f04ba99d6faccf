//! What every proxy mode shares: the model of Services and endpoints, and who serves which traffic.
//!
//! ```text
//!   sources ──Event──▶ Model ──Changes──▶ Mode::update ──▶ proceed, book ──▶ Report
//!                        │                     ▲
//!                        └── ServiceView ──────┤   one Service and its slices
//!            NodeFacts ────────────────────────┘   this node: name, zone, addresses
//! ```
//!
//! Everything here is pure: no clock, no I/O, no kernel, no Kubernetes client. Sources decode what
//! they read into the compact types of [`object`]; a mode (`proxy-ipvs`) compiles a [`ServiceView`]
//! into the kernel entries it wants.

mod admission;
mod changes;
pub mod contested;
mod detect;
mod entry;
mod event;
mod health;
pub mod limits;
mod mode;
mod model;
mod names;
mod node;
pub mod object;
pub mod options;
mod owner;
mod pieces;
mod released;
mod service_cidrs;
mod shares;
mod stale_flows;
mod topology;
mod unheeded;
mod view;
mod writes;

pub use admission::{AddressField, AddressRules, Refusal, RefusedAddress};
pub use changes::{Changes, FamilySet, Left, Trigger, Vanished};
pub use detect::LocalDetector;
pub use entry::EntryChange;
pub use event::{Event, Kind};
pub use health::HealthCheck;
pub use limits::Excess;
pub use mode::{
    Conflict, Draining, Drains, Drift, Drifted, Failure, IptablesReport, Mode, NftablesReport,
    Notice, Report, Standing, Unreadable,
};
pub use model::{ExternalIps, Model};
pub use names::{IpFamily, NamespacedName, Protocol, ServicePortName};
pub use node::{NodeFacts, NodePortAddresses, NodePorts, Selection, is_outside};
pub use object::{
    Endpoint, EndpointList, EndpointPort, EndpointSlice, EndpointView, Node, Placement, Service,
    ServiceAddress, ServiceCidr, ServicePort, ServiceType,
};
pub use options::{OptionRow, Scheduler, ServiceOptions, UnavailableOption, WrongOption};
pub use owner::{Owner, Rank};
pub use pieces::Pieces;
pub use released::released;
pub use shares::{Share, Shares};
pub use stale_flows::{Frontend, StaleOf, UdpService, UdpServices};
pub use topology::{Backends, Endpoints, Judged, Reason, Target};
pub use unheeded::{Heeding, Unheeded};
pub use view::ServiceView;
pub use writes::{Fate, Subject, Writes};
