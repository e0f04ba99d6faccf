//! JSON objects in responses to `/api/v1/...`. The subcommands print them, the page `/ui/` shows
//! them, and docs/api.md documents them.
//!
//! People and programs read these objects. So the fields use the words of Kubernetes and contain no
//! internal numbers. New fields may be added, but no field is removed.

mod explanation;
mod output;
mod services;
mod status;
mod terminal_text;
mod top;

pub use explanation::{Chance, Explanation, Fate, Journey, Step, Walk};
pub use output::{LostOutput, print, print_error};
pub use services::{
    ANOTHER_PROGRAM, Address, AddressKind, Condition, Counters, Drain, Endpoint, EndpointCounts,
    Port, Service, ServiceList, ServiceName, ServiceOption,
};
pub use status::{
    Conflict, Draining, Family, Feature, Limit, OFF, RejectedEntry, RepairedEntries, Source,
    Status, SyncState, Unreadable,
};
pub use terminal_text::shown;
pub use top::{Rate, Top, TopEndpoint, TopPort};
