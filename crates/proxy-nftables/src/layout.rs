//! The layout of the table: upstream's, or a flatter one. Both give every packet the same verdict.
//!
//! They differ only in two places: the objects that do not depend on Services
//! ([`base`](crate::base)), and the objects of a Service port ([`port`](crate::port)).

/// The layout of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Layout {
    /// Upstream's layout: a chain for each Service port, which chooses an endpoint. Upstream can
    /// adopt it without a write.
    #[default]
    Upstream,
    /// Most Service ports have no chain: their endpoints are elements of shared maps. The kernel's
    /// cost of a changed endpoint does not depend on the number of Services
    /// (docs/design/nftables-cost.md).
    Flat,
}
