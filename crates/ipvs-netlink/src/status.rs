//! The status of the IPVS tables of a network namespace, as Linux 7.1 and later report it in
//! `/proc/net/ip_vs_status`:
//!
//! ```text
//! Conns:  300
//! Conn buckets:   4096 (12 bits, lfactor -4)
//! Conn buckets empty:     3545 (86%)
//! Conn buckets len-1:     504 (91%)
//! ```
//!
//! Earlier kernels have no such file. These kernels have one connection table for all namespaces,
//! whose size is [`Info::table_size`](crate::Info::table_size).

use std::collections::BTreeMap;

/// Maximum number of unknown lines to store.
const OTHERS_MAX: usize = 64;

/// Numbers from `/proc/net/ip_vs_status` of a network namespace. A number that the kernel does not
/// report is `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// Number of connections, or `None` if the kernel does not report it. The sysctl
    /// `net.ipv4.vs.conn_max` limits this number.
    pub connections: Option<u64>,
    /// State of the hash table of connections.
    pub connection_table: GrowingTable,
    /// Number of virtual servers of both IP families, or `None` if the kernel does not report it.
    pub services: Option<u64>,
    /// State of the hash table of virtual servers.
    pub service_table: GrowingTable,
    /// Lines whose labels this crate does not know, as the kernel wrote them. A later kernel may
    /// add such lines.
    pub others: Vec<String>,
}

/// State of a hash table that grows with its number of entries.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GrowingTable {
    /// Number of buckets: 0 before the first entry, `None` if the kernel does not report it.
    pub buckets: Option<u64>,
    /// Number of buckets by the length of their chain. An empty bucket has length 0. The largest
    /// length stands for all longer chains, too. The kernel omits lengths that no bucket has.
    pub by_length: BTreeMap<u32, u64>,
}

impl GrowingTable {
    /// Returns the length of the longest chain, or `None` if the kernel reports no buckets. The
    /// kernel reports all chains above a certain length under that length.
    pub fn longest(&self) -> Option<u32> {
        let used = self.by_length.iter().filter(|(_, count)| **count > 0);
        used.map(|(length, _)| *length).next_back()
    }
}

/// Error about a line with a known label but without a number.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot read the line {line:?} of /proc/net/ip_vs_status")]
pub struct BadLine {
    /// Line whose number cannot be read.
    pub line: String,
}

impl Status {
    /// Parses the content of `/proc/net/ip_vs_status`.
    ///
    /// # Errors
    ///
    /// Fails if a line with a known label cannot be read.
    pub fn parse(text: &str) -> Result<Self, BadLine> {
        let mut status = Self::default();
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            let known = line
                .split_once(':')
                .and_then(|(label, value)| Some((status.place(label.trim())?, value)));
            let Some((place, value)) = known else {
                if status.others.len() < OTHERS_MAX {
                    status.others.push(line.to_owned());
                }
                continue;
            };
            let number = number(value).ok_or_else(|| BadLine {
                line: line.to_owned(),
            })?;
            match place {
                NumberField::Number(place) => *place = Some(number),
                NumberField::Length(table, length) => {
                    table.insert(length, number);
                }
            }
        }
        Ok(status)
    }

    /// Returns the field that stores the number of the line with this label, or `None` for an
    /// unknown label.
    fn place(&mut self, label: &str) -> Option<NumberField<'_>> {
        Some(match label {
            "Conns" => NumberField::Number(&mut self.connections),
            "Services" => NumberField::Number(&mut self.services),
            _ => {
                let (of, rest) = label.split_once(" buckets")?;
                let table = match of {
                    "Conn" => &mut self.connection_table,
                    "Service" => &mut self.service_table,
                    _ => return None,
                };
                match rest {
                    "" => NumberField::Number(&mut table.buckets),
                    " empty" => NumberField::Length(&mut table.by_length, 0),
                    _ => {
                        let length = rest.strip_prefix(" len-")?.parse().ok()?;
                        NumberField::Length(&mut table.by_length, length)
                    }
                }
            }
        })
    }
}

/// Field of [`Status`] that stores the number of a line.
enum NumberField<'a> {
    Number(&'a mut Option<u64>),
    Length(&'a mut BTreeMap<u32, u64>, u32),
}

/// Returns the number at the start of a value, such as 4096 in `4096 (12 bits, lfactor -4)`.
fn number(value: &str) -> Option<u64> {
    let mut words = value.split_whitespace();
    let number = words.next()?.parse().ok()?;
    let is_note = words.next().is_none_or(|word| word.starts_with('('));
    is_note.then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Output of Linux 7.2.7 with 300 connections to one virtual server (`cat
    /// /proc/net/ip_vs_status`).
    const SERVING: &str = "Conns:\t300\nConn buckets:\t4096 (12 bits, lfactor -4)\nConn buckets empty:\t3545 (86%)\n\
        Conn buckets len-1:\t504 (91%)\nConn buckets len-2:\t45 (8%)\nConn buckets len-3:\t2 (0%)\nServices:\t1\n\
        Service buckets:\t16 (4 bits, lfactor -3)\nService buckets empty:\t15 (93%)\nService buckets len-1:\t1 (100%)\n\
        Stats thread slots:\t1 (max 4)\nStats chain max len:\t3958\nStats thread ests:\t9499200\n";

    /// Output of Linux 7.2.7 before the first virtual server exists.
    const IDLE: &str = "Conns:\t0\nConn buckets:\t0 (0 bits, lfactor 0)\nServices:\t0\n\
        Service buckets:\t0 (0 bits, lfactor 0)\nStats thread slots:\t1 (max 0)\nStats chain max len:\t0\n\
        Stats thread ests:\t0\n";

    #[test]
    fn the_ipvs_status_file_is_parsed_and_unknown_lines_are_kept() {
        let status = Status::parse(SERVING).unwrap();
        assert_eq!((status.connections, status.services), (Some(300), Some(1)));
        let table = &status.connection_table;
        assert_eq!(table.buckets, Some(4096));
        let lengths = [(0, 3545), (1, 504), (2, 45), (3, 2)];
        assert_eq!(table.by_length, BTreeMap::from(lengths));
        assert_eq!(table.longest(), Some(3));
        assert_eq!(status.service_table.buckets, Some(16));
        assert_eq!(status.service_table.longest(), Some(1));
        assert_eq!(status.others.len(), 3);
        assert_eq!(
            status.others.first().unwrap(),
            "Stats thread slots:\t1 (max 4)"
        );
        let idle = Status::parse(IDLE).unwrap();
        assert_eq!(
            (idle.connections, idle.connection_table.buckets),
            (Some(0), Some(0))
        );
        assert_eq!(idle.connection_table.longest(), None);
    }

    #[test]
    fn only_known_status_lines_need_a_valid_number() {
        for wrong in [
            "Conns:",
            "Conns: -1",
            "Conns: 1 2",
            "Conn buckets: many",
            "Conn buckets len-1: (3%)",
        ] {
            let error = Status::parse(wrong).unwrap_err();
            assert_eq!(error.line, wrong);
        }
        let later =
            "Conns: 5\nConn buckets len-x: 3\nConn rate: fast\nno label\n\nIdle Conn buckets: 1\n";
        let status = Status::parse(later).unwrap();
        assert_eq!(status.connections, Some(5));
        assert_eq!(
            status.others,
            [
                "Conn buckets len-x: 3",
                "Conn rate: fast",
                "no label",
                "Idle Conn buckets: 1"
            ]
        );
        assert_eq!(Status::parse(""), Ok(Status::default()));
    }

    #[test]
    fn the_number_of_unknown_status_lines_is_limited() {
        let text = "Other: 1\n".repeat(1000);
        assert_eq!(Status::parse(&text).unwrap().others.len(), OTHERS_MAX);
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_status_text_never_panics_the_parser(text in "(Conns|Conn buckets|Service buckets len-[0-9]{1,12}|\\PC{0,9}):?\\PC*\n?") {
            let _ = Status::parse(&text);
        }
    }
}
