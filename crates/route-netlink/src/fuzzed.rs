//! Entry points for the fuzzer: one function for each parser of bytes from outside. No other code
//! may use these functions.

use crate::{Address, Family, Link, LocalRoute, PacketRoute};

/// Parses bytes as a message of each kind, and as a datagram of notifications.
pub fn message(bytes: &[u8]) {
    let _ = Address::parse(bytes);
    let _ = Link::parse(bytes);
    let _ = PacketRoute::parse(bytes);
    for family in [Family::Inet, Family::Inet6] {
        let _ = LocalRoute::parse(bytes, family, 107);
    }
    let _ = crate::subscription::events(bytes);
}
