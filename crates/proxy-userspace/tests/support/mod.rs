//! Endpoints for the tests of this mode on a real kernel.
#![allow(dead_code, reason = "each test binary uses its own part")]

pub(crate) mod world;

use std::net::{IpAddr, SocketAddr};

pub(crate) use fixtures::endpoint::{LONG, until};

/// Opens an endpoint for TCP and UDP at an address. Both protocols get the same port number.
pub(crate) fn both(at: IpAddr, name: &'static str) -> SocketAddr {
    both_at(SocketAddr::new(at, 0), name)
}

/// Opens an endpoint for TCP and UDP at this address and port.
pub(crate) fn both_at(at: SocketAddr, name: &'static str) -> SocketAddr {
    fixtures::endpoint::open(at, name).unwrap()
}
