//! How the table is laid out: as upstream's, or flatter. The same verdict falls for every packet.
//!
//! What differs is asked for here, and nowhere else: what is there whatever the Services are
//! ([`base`](crate::base)), and what a Service port is compiled to ([`port`](crate::port)).

/// How the table is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Layout {
    /// Upstream's: a chain for each Service port, which chooses an endpoint. Upstream takes it over
    /// without a write.
    #[default]
    Upstream,
    /// Most Service ports have no chain: their endpoints are elements of maps that all share. A
    /// changed endpoint costs the kernel the same, however many Services there are
    /// (docs/nftables-cost.md).
    Flat,
}
