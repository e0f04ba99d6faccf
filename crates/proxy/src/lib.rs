//! Parts that all proxy modes share: the model of Services and endpoints, the choice of endpoints
//! for each Service port, and the interface of a mode.
//!
//! ```text
//!   sources ──Event──▶ Model ──Changes──▶ Mode::update ──▶ proceed, book ──▶ Report
//!                        │                     ▲
//!                        └── ServiceView ──────┤   one Service and its slices
//!            NodeFacts ────────────────────────┘   this node: name, zone, addresses
//! ```
//!
//! - This crate is pure: it has no clock, no I/O, no kernel access and no Kubernetes client.
//! - Sources decode their input into the compact types of [`object`].
//! - A mode, such as `proxy-ipvs`, compiles a [`ServiceView`] into the kernel entries that the mode
//!   wants.

mod admission;
mod changes;
pub mod contested;
mod detect;
mod entry;
mod event;
mod health;
mod ignored_options;
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
mod view;
mod writes;

pub use admission::{AddressField, AddressRules, Refusal, RefusedAddress};
pub use changes::{Changes, FormerPlaces, MissingObjects, Trigger};
pub use detect::LocalDetector;
pub use entry::EntryChange;
pub use event::{Event, Kind};
pub use health::HealthCheck;
pub use ignored_options::{IgnoredOption, OptionSupport};
pub use limits::Excess;
pub use mode::{
    Conflict, DrainingEndpoint, Drains, Drift, DriftedEntries, Failure, IptablesReport, Mode,
    NftablesReport, Notice, Report, Standing, Unreadable,
};
pub use model::{ExternalIps, Model};
pub use names::{FamilySet, IpFamily, NamespacedName, Protocol, ServicePortName};
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
pub use topology::{Backends, EndpointVerdict, Endpoints, Reason, Target};
pub use view::ServiceView;
pub use writes::{EntryKind, Fate, Writes};
