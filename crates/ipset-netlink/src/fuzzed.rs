//! Functions for the fuzzer only. Each passes bytes to a parser of external data.

use crate::entry::Entry;
use crate::set::{CommandAttributes, Set, SetType};

/// Parses replies to a list. `bytes` has the replies one after another, each after its length in
/// two bytes.
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

/// Parses the text of an entry in `ipset`'s notation.
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
