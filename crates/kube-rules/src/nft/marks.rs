//! Clauses of nf_tables rules that change packet marks.

use nftables_netlink::{Comparison, Expression, LookupFor, MetaKey, Name, Register, SetRef};

use super::{Field, LOCAL, Line, Side, after, bitwise, compare, fib_type, meta, number, set_meta};

impl Line {
    fn change_mark(self, mask: u32, xor: u32) -> Self {
        self.push([
            meta(MetaKey::Mark, Register::FIRST),
            bitwise(number(mask), number(xor)),
            set_meta(MetaKey::Mark, Register::FIRST),
        ])
    }

    /// Sets these bits of the packet mark: `mark set mark or MARK`.
    pub fn set_mark(self, mark: u32) -> Self {
        self.change_mark(!mark, mark)
    }

    /// Replaces the packet mark by the value that a map has for the key: `mark set ip daddr . meta
    /// l4proto . th dport map @map`. First copies the old mark to the packet's priority, for
    /// [`Self::restore_mark`]. If the map lacks the key, the packet does not match.
    pub fn mark_by(self, key: &[Field], map: impl Into<Name>) -> Self {
        let map = SetRef::Named(map.into());
        let (value, replaced) = (Register::FIRST, after(4));
        self.load(key, 0)
            .look_up(map, LookupFor::Value(value))
            .push([
                meta(MetaKey::Mark, replaced),
                set_meta(MetaKey::Priority, replaced),
                set_meta(MetaKey::Mark, value),
            ])
    }

    /// Restores the mark that [`Self::mark_by`] has replaced. A packet matches only if its source
    /// is not an address of this node, its old mark is not 0, and its current mark has at least one
    /// bit, and only bits, of `bits`.
    pub fn restore_mark(self, bits: u32) -> Self {
        let mark = || meta(MetaKey::Mark, Register::FIRST);
        let priority = || meta(MetaKey::Priority, Register::FIRST);
        self.has_bits(mark(), bits).push([
            mark(),
            bitwise(number(!bits), number(0)),
            compare(Comparison::Equal, number(0)),
            priority(),
            compare(Comparison::NotEqual, number(0)),
            fib_type(Side::Source),
            compare(Comparison::NotEqual, number(LOCAL)),
            priority(),
            set_meta(MetaKey::Mark, Register::FIRST),
            Expression::Immediate {
                to: Register::FIRST,
                data: number(0),
            },
            set_meta(MetaKey::Priority, Register::FIRST),
        ])
    }

    /// Flips these bits of the packet mark: `mark set mark xor MARK`.
    pub fn flip_mark(self, mark: u32) -> Self {
        self.change_mark(u32::MAX, mark)
    }
}
