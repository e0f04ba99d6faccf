//! Entry points for the fuzzer: one function that takes bytes, for each parser of bytes from other
//! programs. No other code may use these functions.

use footprint::Footprints;

use crate::config::Config;
use crate::saved::Reader;

/// Parses bytes as the output of `iptables-save`: this mode's rules, and leftovers of these modes.
pub fn saved(bytes: &[u8], modes: Footprints) {
    let text = String::from_utf8_lossy(bytes);
    let config = Config {
        modes,
        ..Config::default()
    };
    let mut reader = Reader::new(&config);
    for line in text.lines() {
        reader.line(line);
    }
    let _ = reader.finish();
}
