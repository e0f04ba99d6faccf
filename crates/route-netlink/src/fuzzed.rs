//! Entry points for the fuzzer. The function passes arbitrary bytes to each parser of kernel
//! messages. No other code may use it.

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
