//! What the fuzzer feeds: each parser of bytes that come from outside, as a function of bytes.
//! Nothing else may use it.

use crate::{Address, Family, Link, LocalRoute, Way};

/// A message of each kind, and what a datagram tells.
pub fn message(bytes: &[u8]) {
    let _ = Address::parse(bytes);
    let _ = Link::parse(bytes);
    let _ = Way::parse(bytes);
    for family in [Family::Inet, Family::Inet6] {
        let _ = LocalRoute::parse(bytes, family, 107);
    }
    let _ = crate::subscription::events(bytes);
}
