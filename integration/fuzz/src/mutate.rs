//! Inputs made of others by chance, the same for the same seed.

/// Numbers by chance (splitmix64).
#[derive(Debug, Clone)]
pub struct Chance(u64);

impl Chance {
    /// The same numbers for the same seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// One of `0..count`; 0 if there is none.
    pub fn below(&mut self, count: usize) -> usize {
        let count = u64::try_from(count).unwrap_or(u64::MAX).max(1);
        usize::try_from(self.next() % count).unwrap_or_default()
    }

    fn byte(&mut self) -> u8 {
        /// Ends of ranges, lengths, and what separates in texts.
        const TELLING: [u8; 24] = *b"\0\x01\x02\x04\x08\x10\x7f\x80\xff\n\r\t \"'\\/:,-[{}]";
        if self.below(2) == 0 {
            let [byte, ..] = self.next().to_le_bytes();
            byte
        } else {
            TELLING.get(self.below(TELLING.len())).copied().unwrap_or(0)
        }
    }
}

/// A change or a few of one input, with parts of another.
pub fn mutate(input: &[u8], other: &[u8], chance: &mut Chance) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..=chance.below(6) {
        let at = chance.below(bytes.len() + 1);
        let length = chance.below(bytes.len() - at.min(bytes.len()) + 1).min(64);
        match chance.below(7) {
            0 => bytes.truncate(at),
            1 => drop(bytes.drain(at..at + length)),
            2 => bytes.insert(at, chance.byte()),
            3 => {
                let from = chance.below(other.len() + 1);
                let to = (from + chance.below(64)).min(other.len());
                let part = other.get(from..to).unwrap_or_default();
                bytes.splice(at..at, part.iter().copied());
            }
            4 => {
                let part: Vec<u8> = bytes.get(at..at + length).unwrap_or_default().to_vec();
                bytes.splice(at..at, part);
            }
            _ => {
                let byte = chance.byte();
                if let Some(place) = bytes.get_mut(at) {
                    *place = byte;
                }
            }
        }
    }
    bytes
}
