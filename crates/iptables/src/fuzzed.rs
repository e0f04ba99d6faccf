//! Entry points for the fuzzer. Each function passes arbitrary bytes to the parsers of one source:
//! `iptables-save`, or the kernel. No other code may use these functions.

use inet::IpFamily;

use crate::legacy;
use crate::saved::{Line, Reader, RuleLine};

/// Parses bytes as the output of `iptables-save`.
pub fn saved(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let mut reader = Reader::default();
    for line in text.lines() {
        let _ = Line::parse(line);
        let words = RuleLine::parse(line);
        let _ = words.map(|rule| rule.words().count());
        let _ = reader.read(line);
    }
}

/// Parses bytes as the entries of a legacy iptables table.
pub fn entries(bytes: &[u8]) {
    for family in IpFamily::ALL {
        legacy::look(bytes, family);
    }
}
