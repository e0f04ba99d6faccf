//! Converts the kernel's replies about the link and its addresses to outcomes of writes.

use std::net::IpAddr;

use route_netlink::{Error, Refusal, Reply};

use crate::netlink::reason::{refused, refused_or_wrong, said, surprise, unsent, wrong};
use crate::plan::{Op, Outcome};

/// Converts the reply to a request about the link. `refusal` explains a refusal.
pub(super) fn judged(
    result: Result<(), Error>,
    refused: impl FnOnce(&Refusal) -> Outcome,
) -> Outcome {
    match result {
        Ok(()) => Outcome::Done,
        Err(Error::Refused(refusal)) => refused(&refusal),
        Err(Error::LostReply) => Outcome::Unknown,
        Err(error) => unsent(&error),
    }
}

/// Converts the reply to a request about an address or a range.
pub(super) fn outcome(op: &Op, reply: Reply) -> Outcome {
    let refusal = match reply {
        Reply::Done => return Outcome::Done,
        Reply::Unknown => return Outcome::Unknown,
        Reply::Refused(refusal) => refusal,
    };
    match (op, refusal.errno) {
        (Op::BindAddress(_) | Op::BindRange(_), libc::EEXIST)
        | (
            Op::UnbindAddress(_) | Op::UnbindOtherwise(_) | Op::UnbindRange(_),
            libc::EADDRNOTAVAIL | libc::ESRCH | libc::ENODEV,
        ) => Outcome::Done,
        (_, libc::ENETDOWN) => surprise(said(
            &refusal,
            "the link kube-ipvs0 is down; it is set up again",
        )),
        (_, libc::ENODEV) => surprise(said(
            &refusal,
            "the link kube-ipvs0 no longer exists; kube-proxy creates it again",
        )),
        (Op::BindAddress(IpAddr::V6(_)), libc::EACCES) => refused(said(
            &refusal,
            "run `sysctl -w net.ipv6.conf.kube-ipvs0.disable_ipv6=0`, and look where it is set to 1 (/etc/sysctl.d)",
        )),
        (Op::BindAddress(IpAddr::V6(_)), libc::EOPNOTSUPP) => refused(said(
            &refusal,
            "the kernel has no IPv6: run `modprobe ipv6`, and look for ipv6.disable=1 in /proc/cmdline",
        )),
        (Op::BindRange(_), libc::EINVAL) => refused(said(
            &refusal,
            "correct the ServiceCIDR, or --ipvs-service-cidrs",
        )),
        (Op::BindAddress(_), libc::EINVAL | libc::EADDRNOTAVAIL) => wrong(said(
            &refusal,
            "a node cannot have this address: correct the Service",
        )),
        _ => refused_or_wrong(&refusal, "try it with `ip address` on kube-ipvs0 by hand"),
    }
}
