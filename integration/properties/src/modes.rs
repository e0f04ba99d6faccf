//! The modes, each on its strict fake kernel or on this machine's kernel.

mod iptables;
mod ipvs;
mod nftables;
mod userspace;

use proxy::IpFamily;

use crate::subject::Subject;

/// A form: a proxy mode with flags, such as its shim or its layout.
#[derive(Debug, Clone, Copy)]
pub struct Form {
    /// Name of the variant: `ipvs`, `ipvs-lean`, `iptables`, `nftables-flat`, ...
    pub name: &'static str,
    make: Make,
    /// Function that creates the test subject on this machine's kernel. `None` if only the fake
    /// kernel supports the variant.
    on_the_kernel: Option<OnTheKernel>,
}

const fn on_the_fake(name: &'static str, make: Make) -> Form {
    Form {
        name,
        make,
        on_the_kernel: None,
    }
}

const fn on_the_kernel(name: &'static str, make: Make, real: OnTheKernel) -> Form {
    Form {
        on_the_kernel: Some(real),
        ..on_the_fake(name, make)
    }
}

type Make = fn(IpFamily, &'static str) -> Box<dyn Subject>;
type OnTheKernel = fn(IpFamily, &'static str) -> Result<Box<dyn Subject>, String>;

/// All mode variants that event sequences test.
pub const FORMS: &[Form] = &[
    on_the_kernel("ipvs", ipvs::subject, ipvs::on_the_kernel),
    on_the_kernel("ipvs-lean", ipvs::subject, ipvs::on_the_kernel),
    on_the_kernel("ipvs-nftables", ipvs::subject, ipvs::on_the_kernel),
    on_the_kernel("ipvs-route", ipvs::subject, ipvs::on_the_kernel),
    on_the_kernel("ipvs-lean-route", ipvs::subject, ipvs::on_the_kernel),
    on_the_kernel("ipvs-nftables-route", ipvs::subject, ipvs::on_the_kernel),
    on_the_kernel("ipvs-range", ipvs::subject, ipvs::on_the_kernel),
    on_the_kernel("ipvs-lean-range", ipvs::subject, ipvs::on_the_kernel),
    on_the_kernel("ipvs-nftables-range", ipvs::subject, ipvs::on_the_kernel),
    on_the_kernel("ipvs-exact", ipvs::subject, ipvs::on_the_kernel),
    on_the_kernel("ipvs-exact-nftables", ipvs::subject, ipvs::on_the_kernel),
    on_the_kernel("ipvs-exact-range", ipvs::subject, ipvs::on_the_kernel),
    on_the_kernel(
        "ipvs-exact-nftables-range",
        ipvs::subject,
        ipvs::on_the_kernel,
    ),
    on_the_kernel("iptables", iptables::subject, iptables::on_the_kernel),
    on_the_kernel("nftables", nftables::subject, nftables::on_the_kernel),
    on_the_kernel("nftables-flat", nftables::subject, nftables::on_the_kernel),
    on_the_kernel("nftables-auto", nftables::subject, nftables::on_the_kernel),
    on_the_fake("nftables-old", nftables::subject),
    on_the_fake("nftables-flat-old", nftables::subject),
    on_the_fake("nftables-auto-old", nftables::subject),
    on_the_fake("nftables-localhost", nftables::subject),
    on_the_fake("nftables-flat-localhost", nftables::subject),
    on_the_fake("userspace", userspace::subject),
];

impl Form {
    /// Creates the mode on an empty fake kernel.
    pub fn subject(&self, family: IpFamily) -> Box<dyn Subject> {
        (self.make)(family, self.name)
    }

    /// Returns true if this variant can run on a real kernel.
    pub fn has_kernel(&self) -> bool {
        self.on_the_kernel.is_some()
    }

    /// Creates the mode in the calling thread's empty network namespace.
    ///
    /// # Errors
    ///
    /// Returns the reason why this kernel cannot run the variant.
    pub fn on_the_kernel(&self, family: IpFamily) -> Result<Box<dyn Subject>, String> {
        let make = self.on_the_kernel.ok_or("it is a form of the fake alone")?;
        make(family, self.name)
    }
}
