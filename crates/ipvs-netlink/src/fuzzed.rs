//! Entry points for the fuzzer. Each function passes arbitrary bytes to the parsers of one source.
//! No other code may use these functions.

use crate::{DestinationEntry, Info, IpFamily, ServiceEntry, Status, Timeouts};

/// Parses bytes as the response to each command.
pub fn answer(bytes: &[u8]) {
    let _ = Info::decode(bytes);
    let _ = Timeouts::decode(bytes);
    let _ = ServiceEntry::decode(bytes);
    for family in IpFamily::ALL {
        let _ = DestinationEntry::decode(bytes, family);
    }
}

/// Parses a text as `/proc/net/ip_vs_status`.
pub fn status(text: &str) {
    let _ = Status::parse(text);
}
