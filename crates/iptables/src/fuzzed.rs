//! Entry points for the fuzzer: each parser of outside input, as a function of bytes. Only the
//! fuzzer may use them.

use inet::IpFamily;

use crate::legacy;
use crate::saved::{Line, Reader, RuleLine};

/// Parses the output of `iptables-save`.
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

/// Parses entries of a table of legacy iptables.
pub fn entries(bytes: &[u8]) {
    for family in IpFamily::ALL {
        legacy::look(bytes, family);
    }
}
