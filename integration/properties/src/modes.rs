//! The modes, each on its strict fake kernel.

mod iptables;
mod ipvs;
mod nftables;
mod userspace;

use proxy::IpFamily;

use crate::subject::Subject;

/// A mode in one of its forms.
#[derive(Debug, Clone, Copy)]
pub struct Form {
    /// `ipvs`, `ipvs-lean`, `iptables`, `nftables-flat`, ...
    pub name: &'static str,
    make: fn(IpFamily, &'static str) -> Box<dyn Subject>,
}

/// All of them.
pub const FORMS: &[Form] = &[
    Form {
        name: "ipvs",
        make: ipvs::subject,
    },
    Form {
        name: "ipvs-lean",
        make: ipvs::subject,
    },
    Form {
        name: "ipvs-nftables",
        make: ipvs::subject,
    },
    Form {
        name: "ipvs-route",
        make: ipvs::subject,
    },
    Form {
        name: "ipvs-lean-route",
        make: ipvs::subject,
    },
    Form {
        name: "ipvs-nftables-route",
        make: ipvs::subject,
    },
    Form {
        name: "iptables",
        make: iptables::subject,
    },
    Form {
        name: "nftables",
        make: nftables::subject,
    },
    Form {
        name: "nftables-flat",
        make: nftables::subject,
    },
    Form {
        name: "nftables-old",
        make: nftables::subject,
    },
    Form {
        name: "nftables-flat-old",
        make: nftables::subject,
    },
    Form {
        name: "userspace",
        make: userspace::subject,
    },
];

impl Form {
    /// The mode on an empty kernel.
    pub fn subject(&self, family: IpFamily) -> Box<dyn Subject> {
        (self.make)(family, self.name)
    }
}
