//! Registers of an nf_tables rule, byte by byte. A copy of an unknown byte is unknown, which
//! matters only if the rule's outcome depends on it.

use nftables_netlink::{Bytes, Comparison, Register};
use smallvec::SmallVec;

/// Bytes of a register, each known or unknown (`None`).
pub(super) type PartialBytes = SmallVec<[Option<u8>; 32]>;

/// The registers of a rule: 16 slots of 4 bytes.
#[derive(Debug, Clone)]
pub(super) struct Registers([Option<u8>; 64]);

impl Registers {
    /// Creates registers whose bytes are all unknown.
    pub(super) fn new() -> Self {
        Self([None; 64])
    }

    /// Returns `len` bytes from the register `from` on. Bytes beyond the last register are unknown.
    pub(super) fn read(&self, from: Register, len: usize) -> PartialBytes {
        let at = usize::from(from.place()) * 4;
        let byte = |index| self.0.get(index).copied().flatten();
        (at..at.saturating_add(len.min(64))).map(byte).collect()
    }

    /// Returns `len` bytes from the register `from` on, or `None` if one of them is unknown.
    pub(super) fn bytes(&self, from: Register, len: usize) -> Option<Bytes> {
        self.read(from, len).into_iter().collect()
    }

    /// Returns a 4-byte number in host byte order, or `None` if one of its bytes is unknown.
    pub(super) fn number(&self, from: Register) -> Option<u32> {
        let bytes = self.bytes(from, 4)?;
        <[u8; 4]>::try_from(&*bytes).ok().map(u32::from_ne_bytes)
    }

    /// Writes bytes from the register `to` on, and pads the last register with zeros.
    pub(super) fn write(&mut self, to: Register, bytes: &[Option<u8>]) {
        let at = usize::from(to.place()) * 4;
        let filled = bytes.len().next_multiple_of(4);
        let places = self.0.iter_mut().skip(at).take(filled);
        let bytes = bytes.iter().copied().chain(std::iter::repeat(Some(0)));
        for (place, byte) in places.zip(bytes) {
            *place = byte;
        }
    }

    /// Writes known bytes from the register `to` on.
    pub(super) fn put(&mut self, to: Register, bytes: &[u8]) {
        let known: PartialBytes = bytes.iter().copied().map(Some).collect();
        self.write(to, &known);
    }

    /// Marks `len` bytes from the register `to` on as unknown.
    pub(super) fn forget(&mut self, to: Register, len: usize) {
        self.write(to, &PartialBytes::from_elem(None, len.min(64)));
    }
}

/// Computes `(from & mask) ^ xor`. A byte that the mask clears is known, even if it was unknown.
pub(super) fn masked(from: &[Option<u8>], mask: &[u8], xor: &[u8]) -> PartialBytes {
    let bytes = from.iter().zip(mask).zip(xor);
    bytes
        .map(|((byte, mask), xor)| match (byte, mask) {
            (_, 0) => Some(*xor),
            (byte, mask) => byte.map(|byte| byte & mask ^ xor),
        })
        .collect()
}

/// Converts each `size`-byte number between host and network byte order: reverses its bytes on a
/// little-endian machine, and keeps them on a big-endian one.
pub(super) fn turned(from: &[Option<u8>], size: usize) -> PartialBytes {
    let size = if cfg!(target_endian = "little") {
        size.max(1)
    } else {
        1
    };
    let numbers = from.chunks(size);
    numbers.flat_map(|one| one.iter().rev().copied()).collect()
}

/// Compares bytes. Returns `None` if the result depends on an unknown byte.
pub(super) fn compare(found: &[Option<u8>], how: Comparison, with: &[u8]) -> Option<bool> {
    let differs = |(byte, with): (&Option<u8>, &u8)| byte.is_some_and(|byte| byte != *with);
    let is_other = found.iter().zip(with).any(differs);
    match how {
        Comparison::Equal if is_other => return Some(false),
        Comparison::NotEqual if is_other => return Some(true),
        _ => {}
    }
    let found: Option<Bytes> = found.iter().copied().collect();
    let order = found?.as_slice().cmp(with);
    Some(match how {
        Comparison::Equal => order.is_eq(),
        Comparison::NotEqual => order.is_ne(),
        Comparison::Less => order.is_lt(),
        Comparison::LessOrEqual => order.is_le(),
        Comparison::Greater => order.is_gt(),
        Comparison::GreaterOrEqual => order.is_ge(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(bytes: usize) -> Register {
        Register::at(bytes).unwrap()
    }

    #[test]
    fn unknown_register_bytes_stay_unknown() {
        let mut registers = Registers::new();
        registers.put(Register::FIRST, &[10, 0, 0, 1]);
        registers.forget(at(4), 2);
        assert_eq!(registers.bytes(Register::FIRST, 6), None);
        assert_eq!(
            registers.bytes(Register::FIRST, 4).unwrap()[..],
            [10, 0, 0, 1]
        );
        // The last register is padded with zeros.
        assert_eq!(registers.read(at(4), 4)[..], [None, None, Some(0), Some(0)]);
        // These bytes extend beyond the last register.
        registers.put(at(60), &[1; 16]);
        assert_eq!(registers.read(at(60), 8)[3..5], [Some(1), None]);
    }

    #[test]
    fn unknown_bytes_that_a_mask_clears_become_known() {
        let half = masked(&[None, Some(0xff)], &[0, 0x0f], &[0, 1]);
        assert_eq!(half[..], [Some(0), Some(0x0e)]);
        assert_eq!(masked(&[None], &[1], &[0])[..], [None]);
    }

    #[test]
    fn a_differing_known_byte_decides_a_comparison() {
        let found = [Some(1), None];
        assert_eq!(compare(&found, Comparison::Equal, &[2, 0]), Some(false));
        assert_eq!(compare(&found, Comparison::NotEqual, &[2, 0]), Some(true));
        assert_eq!(compare(&found, Comparison::Equal, &[1, 0]), None);
        assert_eq!(compare(&found, Comparison::Less, &[2, 0]), None);
        assert_eq!(compare(&[Some(1)], Comparison::Less, &[2]), Some(true));
    }
}
