//! What can be seen of a running daemon: the objects that `/api/v1/...` answers as JSON, and that the
//! subcommands show. docs/api.md describes them for others.
//!
//! They are for people and programs, so they say everything in words of Kubernetes, and nothing by
//! numbers that only this program knows. Fields are only ever added.

mod explanation;
mod services;
mod shown;
mod status;
mod top;

pub use explanation::{Chance, Explanation, Fate, Journey, Step, Walk};
pub use services::{
    ANOTHER_PROGRAM, Address, AddressKind, Condition, Counters, Drain, Endpoint, EndpointCounts,
    Port, Service, ServiceList, ServiceName, ServiceOption,
};
pub use shown::shown;
pub use status::{
    Conflict, Draining, Drifted, Family, Feature, Limit, OFF, Refused, Source, State, Status,
    Unreadable,
};
pub use top::{Rate, Top, TopEndpoint, TopPort};
