//! Layout of the table: upstream's, or a flatter one. Both layouts give every packet the same
//! verdict.
//!
//! The layouts differ in two kinds of objects: objects that do not depend on Services
//! ([`base`](crate::base)), and objects of a Service port ([`port`](crate::port)).

/// Layout of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Layout {
    /// Upstream's layout: a chain for each Service port chooses an endpoint. Upstream can adopt
    /// this layout without a write.
    #[default]
    Upstream,
    /// Layout in which most Service ports have no chain, because their endpoints are elements of
    /// shared maps. The kernel's cost of a changed endpoint does not depend on the number of
    /// Services (docs/design/nftables-cost.md).
    Flat,
}
