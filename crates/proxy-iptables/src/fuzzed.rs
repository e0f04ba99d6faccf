//! Entry points for the fuzzer: one function for each parser of other programs' output. Each
//! function takes bytes. No other code uses these functions.

use footprint::Footprints;

use crate::config::Config;
use crate::saved::Reader;

/// Parses bytes as the output of `iptables-save`. Looks for this mode's rules, and for leftovers of
/// `modes`.
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
