//! The layout of the nftables table: upstream's layout, or the layout `flat`. Both layouts give
//! every packet the same verdict.
//!
//! The layouts differ in two parts:
//!
//! - the objects that do not depend on Services ([`base`](crate::base));
//! - the objects of a Service port ([`port`](crate::port)).

/// Layout of the nftables table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Layout {
    /// Upstream's layout, in which each Service port has a chain that chooses an endpoint.
    /// Upstream's kube-proxy adopts such a table without a write.
    #[default]
    Upstream,
    /// Layout in which most Service ports have no chain, because their endpoints are elements of
    /// shared maps. So the cost of a changed endpoint does not depend on the number of Services
    /// (docs/design/nftables-cost.md).
    Flat,
}

impl Layout {
    /// Returns `layout upstream` or `layout flat`, for log messages.
    pub fn form(self) -> &'static str {
        match self {
            Self::Upstream => "layout upstream",
            Self::Flat => "layout flat",
        }
    }
}

/// Numbers of Service ports at which the mode changes the layout. Above `flat_above`, the mode
/// changes to the layout `flat`. Below `upstream_below`, it changes to upstream's layout. Between
/// these numbers, the mode keeps the current layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayoutSizes {
    /// Number of Service ports above which the layout is `flat`.
    pub flat_above: usize,
    /// Number of Service ports below which the layout is upstream's.
    pub upstream_below: usize,
}

impl LayoutSizes {
    /// Numbers for `--nftables-layout=auto`. With 1,000 Service ports, one changed endpoint costs
    /// the kernel 0.6 ms in upstream's layout and 0.04 ms in the layout `flat`
    /// (docs/design/nftables-cost.md).
    pub const AUTO: Self = Self {
        flat_above: 1_000,
        upstream_below: 500,
    };

    /// Returns the layout for `ports` Service ports, if the table now has the layout `present`.
    pub(crate) fn choose(self, present: Layout, ports: usize) -> Layout {
        if ports > self.flat_above {
            Layout::Flat
        } else if ports < self.upstream_below {
            Layout::Upstream
        } else {
            present
        }
    }
}
