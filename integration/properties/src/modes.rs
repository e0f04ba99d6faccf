//! Forms (proxy modes with flags) as test subjects, on fake kernels or on this machine's kernel.

mod iptables;
mod ipvs;
mod nftables;
mod userspace;

use proxy::IpFamily;

use crate::subject::Subject;

/// Form: a proxy mode with certain flags, such as its shim or its layout.
#[derive(Debug, Clone, Copy)]
pub struct Form {
    /// Name of the form, such as `ipvs`, `ipvs-lean`, `iptables` or `nftables-flat`.
    pub name: &'static str,
    make: Make,
    /// Function that creates the test subject on this machine's kernel. `None` if the form runs
    /// only on the fake kernel.
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

/// All forms (modes with flags) that random event sequences test.
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
    /// Returns this form's test subject on an empty fake kernel.
    pub fn subject(&self, family: IpFamily) -> Box<dyn Subject> {
        (self.make)(family, self.name)
    }

    /// Returns true if this form can run on a real kernel.
    pub fn has_kernel(&self) -> bool {
        self.on_the_kernel.is_some()
    }

    /// Returns this form's test subject in the calling thread's network namespace, which must be
    /// empty.
    ///
    /// # Errors
    ///
    /// Returns the reason if this machine's kernel cannot run the form.
    pub fn on_the_kernel(&self, family: IpFamily) -> Result<Box<dyn Subject>, String> {
        let make = self.on_the_kernel.ok_or("it is a form of the fake alone")?;
        make(family, self.name)
    }
}
