//! Random mutations of fuzz inputs. Equal seeds give equal mutations.

use chance::Chance;

/// Returns `input` after one to six random changes: cuts, new bytes, and copied parts of both
/// inputs.
pub fn mutate(input: &[u8], other: &[u8], chance: &mut Chance) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..=chance.index(6) {
        let at = chance.index(bytes.len() + 1);
        let length = chance.index(bytes.len() - at.min(bytes.len()) + 1).min(64);
        match chance.index(7) {
            0 => bytes.truncate(at),
            1 => drop(bytes.drain(at..at + length)),
            2 => bytes.insert(at, byte(chance)),
            3 => {
                let from = chance.index(other.len() + 1);
                let to = (from + chance.index(64)).min(other.len());
                let part = other.get(from..to).unwrap_or_default();
                bytes.splice(at..at, part.iter().copied());
            }
            4 => {
                let part: Vec<u8> = bytes.get(at..at + length).unwrap_or_default().to_vec();
                bytes.splice(at..at, part);
            }
            _ => {
                let byte = byte(chance);
                if let Some(place) = bytes.get_mut(at) {
                    *place = byte;
                }
            }
        }
    }
    bytes
}

fn byte(chance: &mut Chance) -> u8 {
    /// Bytes that often matter to parsers: limits of ranges, lengths, and separators in texts.
    const TELLING: [u8; 24] = *b"\0\x01\x02\x04\x08\x10\x7f\x80\xff\n\r\t \"'\\/:,-[{}]";
    if chance.index(2) == 0 {
        let [byte, ..] = chance.number().to_le_bytes();
        byte
    } else {
        chance.one_of(&TELLING).copied().unwrap_or(0)
    }
}
