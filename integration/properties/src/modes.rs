//! The modes, each on its strict fake kernel or on this machine's.

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
    /// On the kernel of this machine; `None`: it is a form of the fake alone.
    on_the_kernel: Option<OnTheKernel>,
}

type OnTheKernel = fn(IpFamily, &'static str) -> Result<Box<dyn Subject>, String>;

/// All of them.
pub const FORMS: &[Form] = &[
    Form {
        name: "ipvs",
        make: ipvs::subject,
        on_the_kernel: Some(ipvs::on_the_kernel),
    },
    Form {
        name: "ipvs-lean",
        make: ipvs::subject,
        on_the_kernel: Some(ipvs::on_the_kernel),
    },
    Form {
        name: "ipvs-nftables",
        make: ipvs::subject,
        on_the_kernel: Some(ipvs::on_the_kernel),
    },
    Form {
        name: "ipvs-route",
        make: ipvs::subject,
        on_the_kernel: Some(ipvs::on_the_kernel),
    },
    Form {
        name: "ipvs-lean-route",
        make: ipvs::subject,
        on_the_kernel: Some(ipvs::on_the_kernel),
    },
    Form {
        name: "ipvs-nftables-route",
        make: ipvs::subject,
        on_the_kernel: Some(ipvs::on_the_kernel),
    },
    Form {
        name: "iptables",
        make: iptables::subject,
        on_the_kernel: Some(iptables::on_the_kernel),
    },
    Form {
        name: "nftables",
        make: nftables::subject,
        on_the_kernel: Some(nftables::on_the_kernel),
    },
    Form {
        name: "nftables-flat",
        make: nftables::subject,
        on_the_kernel: Some(nftables::on_the_kernel),
    },
    Form {
        name: "nftables-old",
        make: nftables::subject,
        on_the_kernel: None,
    },
    Form {
        name: "nftables-flat-old",
        make: nftables::subject,
        on_the_kernel: None,
    },
    Form {
        name: "nftables-localhost",
        make: nftables::subject,
        on_the_kernel: None,
    },
    Form {
        name: "nftables-flat-localhost",
        make: nftables::subject,
        on_the_kernel: None,
    },
    Form {
        name: "userspace",
        make: userspace::subject,
        on_the_kernel: None,
    },
];

impl Form {
    /// The mode on an empty kernel.
    pub fn subject(&self, family: IpFamily) -> Box<dyn Subject> {
        (self.make)(family, self.name)
    }

    /// Whether it can be run on a kernel of a machine.
    pub fn has_kernel(&self) -> bool {
        self.on_the_kernel.is_some()
    }

    /// The mode in the calling thread's network namespace, which is empty.
    ///
    /// # Errors
    ///
    /// What the kernel lacks for it.
    pub fn on_the_kernel(&self, family: IpFamily) -> Result<Box<dyn Subject>, String> {
        let make = self.on_the_kernel.ok_or("it is a form of the fake alone")?;
        make(family, self.name)
    }
}
