//! Parses IP addresses and networks as upstream's components do.
//!
//! Kubernetes parses addresses by Go's old rules: octets may have leading zeros, and an IPv4-mapped
//! IPv6 address counts as IPv4. Stored objects may still contain such old spellings.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;

/// Number of bits before the IPv4 address in an IPv4-mapped IPv6 address.
const MAPPED: u8 = 96;

/// Parses an IP address, and converts an IPv4-mapped IPv6 address to IPv4. Returns `None` for other
/// text.
pub fn ip(text: &str) -> Option<IpAddr> {
    match text.parse::<IpAddr>() {
        Ok(address) => Some(address.to_canonical()),
        Err(_) => sloppy(text),
    }
}

/// Parses addresses that Rust's parser rejects: an IPv4 address with leading zeros, and an IPv6
/// address that ends with such an IPv4 address.
fn sloppy(text: &str) -> Option<IpAddr> {
    let Some((start, end)) = text.rsplit_once(':') else {
        return with_leading_zeros(text).map(IpAddr::V4);
    };
    let end = with_leading_zeros(end)?;
    let address: IpAddr = format!("{start}:{end}").parse().ok()?;
    Some(address.to_canonical())
}

/// Parses a network, and clears the bits after its prefix. Returns `None` if the text is not a
/// network.
pub fn net(text: &str) -> Option<IpNet> {
    let (address, prefix) = text.split_once('/')?;
    if prefix.is_empty() || !prefix.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let written: IpAddr = match address.parse() {
        Ok(address) => address,
        Err(_) => sloppy(address)?,
    };
    let prefix: u8 = prefix.parse().ok()?;
    let (address, prefix) = match (written.to_canonical(), prefix.checked_sub(MAPPED)) {
        // A network of IPv4-mapped addresses is an IPv4 network.
        (IpAddr::V4(mapped), Some(prefix)) if address.contains(':') => (mapped.into(), prefix),
        (_, _) => (written, prefix),
    };
    Some(IpNet::new(address, prefix).ok()?.trunc())
}

/// Returns the reason why no remote host can have this address, or `None` if a remote host can have
/// it.
pub(crate) fn not_of_a_host(ip: IpAddr) -> Option<&'static str> {
    if ip.is_unspecified() {
        Some("an unspecified address")
    } else if ip.is_loopback() {
        Some("a loopback address")
    } else if ip.is_multicast() || ip == IpAddr::V4(Ipv4Addr::BROADCAST) {
        Some("not an address of one host")
    } else {
        None
    }
}

/// Returns the reason why the API allows no pod to have this address, or `None` if pods may have
/// it.
pub(crate) fn not_of_an_endpoint(ip: IpAddr) -> Option<&'static str> {
    let is_link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    not_of_a_host(ip).or(is_link_local.then_some("a link-local address"))
}

fn with_leading_zeros(text: &str) -> Option<Ipv4Addr> {
    let mut octets = [0; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        let part = parts.next()?;
        if part.is_empty() || !part.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        *octet = part.parse().ok()?;
    }
    parts.next().is_none().then(|| octets.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed_as_in_go_programs() {
        let read = |text| ip(text).map(|ip| ip.to_string());
        assert_eq!(read("10.96.0.1").as_deref(), Some("10.96.0.1"));
        assert_eq!(read("010.096.000.001").as_deref(), Some("10.96.0.1"));
        assert_eq!(read("::ffff:10.0.0.1").as_deref(), Some("10.0.0.1"));
        assert_eq!(read("::ffff:010.000.0.1").as_deref(), Some("10.0.0.1"));
        assert_eq!(read("fd00::1").as_deref(), Some("fd00::1"));
        assert_eq!(read("FD00:0:0::0001").as_deref(), Some("fd00::1"));
        for wrong in [
            "",
            "10.0.0",
            "10.0.0.1.2",
            "10.0.0.256",
            "10.0.0.+1",
            "::ffff:10.0.0",
            "::ffff:0:010.0.0",
            "web",
            "10.0.0.1 ",
            "fe80::1%eth0",
        ] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn loopback_and_link_local_endpoint_addresses_are_rejected() {
        for (text, why) in [
            ("10.244.1.10", None),
            ("fd44::1", None),
            ("127.0.0.1", Some("a loopback address")),
            ("::1", Some("a loopback address")),
            ("0.0.0.0", Some("an unspecified address")),
            ("169.254.20.10", Some("a link-local address")),
            ("fe80::1", Some("a link-local address")),
            ("224.0.0.1", Some("not an address of one host")),
        ] {
            assert_eq!(not_of_an_endpoint(text.parse().unwrap()), why, "{text}");
        }
    }

    #[test]
    fn parsed_cidrs_lose_their_host_bits() {
        let read = |text| net(text).map(|net| net.to_string());
        assert_eq!(read("10.1.2.3/8").as_deref(), Some("10.0.0.0/8"));
        assert_eq!(read("010.0.0.0/8").as_deref(), Some("10.0.0.0/8"));
        assert_eq!(read("fd00::1/64").as_deref(), Some("fd00::/64"));
        assert_eq!(read("FD00:0::1/64").as_deref(), Some("fd00::/64"));
        assert_eq!(read("::ffff:10.1.2.3/104").as_deref(), Some("10.0.0.0/8"));
        assert_eq!(read("::ffff:010.0.0.0/104").as_deref(), Some("10.0.0.0/8"));
        assert_eq!(read("::ffff:10.1.2.3/80").as_deref(), Some("::/80"));
        for wrong in [
            "10.0.0.1",
            "10.0.0.0/33",
            "10.0.0.0/",
            "10.0.0.0/+8",
            "x/8",
            "/8",
            "fd00::/129",
        ] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
