//! What the fuzzer feeds: each parser of bytes that come from outside, as a function of bytes.
//! Nothing else may use it.

use footprint::Footprints;

use crate::config::Config;
use crate::saved::Reader;

/// What `iptables-save` prints: what is ours, and what these modes have left beside it.
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
