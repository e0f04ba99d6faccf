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

impl Layout {
    /// Returns the layout as a form of the mode, with its name in `--nftables-layout`.
    pub fn form(self) -> &'static str {
        match self {
            Self::Upstream => "layout upstream",
            Self::Flat => "layout flat",
        }
    }
}

/// Numbers of Service ports at which the layout changes. Between the two numbers, the current
/// layout stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayoutSizes {
    /// Above this number of Service ports, the layout is flat.
    pub flat_above: usize,
    /// Below this number of Service ports, the layout is upstream's.
    pub upstream_below: usize,
}

impl LayoutSizes {
    /// Sizes of `--nftables-layout=auto`. At 1,000 ports, a change costs the kernel 0.6 ms in
    /// upstream's layout, and 0.04 ms in the flat one (docs/design/nftables-cost.md).
    pub const AUTO: Self = Self {
        flat_above: 1_000,
        upstream_below: 500,
    };

    /// Returns the layout for a number of Service ports.
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
