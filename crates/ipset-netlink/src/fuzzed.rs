//! Entry points for the fuzzer. Each function passes arbitrary bytes to one parser.

use crate::entry::Entry;
use crate::set::{CommandAttributes, Set, SetType};

/// Parses bytes as replies to a `LIST` request. `bytes` contains the replies one after another,
/// each after its length in two bytes (little-endian).
pub fn answers(bytes: &[u8]) {
    let mut rest = bytes;
    let answers = std::iter::from_fn(|| {
        let (length, behind) = rest.split_first_chunk::<2>()?;
        let length = usize::from(u16::from_le_bytes(*length)).min(behind.len());
        let (answer, behind) = behind.split_at_checked(length)?;
        rest = behind;
        Some(answer)
    });
    let _ = Set::decode_list(answers);
    let _ = CommandAttributes::decode(bytes);
}

/// Parses bytes as an entry in `ipset`'s notation, for each set type.
pub fn entry(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        for name in [
            "hash:ip",
            "hash:ip,port",
            "hash:ip,port,ip",
            "hash:ip,port,net",
            "bitmap:port",
        ] {
            if let Some(set_type) = SetType::from_name(name) {
                let _ = Entry::parse(text, set_type);
            }
        }
    }
}
