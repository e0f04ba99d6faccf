//! Deletes iptables rules that follow an nft rule which iptables cannot express.
//!
//! To execute a `-D` line, `iptables-nft-restore` searches the chain from its head. The program
//! fails at the first nft rule that iptables cannot express. So this module deletes the rules
//! directly in the kernel, by their handles.
//!
//! Source: iptables 1.8.9, `iptables/nft.c` (`nft_rule_find`).

use std::collections::BTreeMap;
use std::io::{self, Write};

use inet::IpFamily;
use netlink_batch::Error;

use crate::nft::kernel_rules::KernelReader;
use crate::program::Input;
use crate::saved::Line;

/// Lines of `iptables-restore` input that delete a rule (`-D`). The key is the table and the line.
/// The value is the number of times that the line occurs.
pub(crate) type Deletions = BTreeMap<(String, String), usize>;

/// Returns the lines in `iptables-restore` input that delete a rule, each with its table and the
/// number of times that it occurs.
pub(crate) fn deletions(text: Input<'_>) -> Deletions {
    let mut found = Deletions::new();
    let mut sink = Lines::new(|table: &str, line: &str| {
        if line.starts_with("-D ") {
            *found
                .entry((table.to_owned(), line.to_owned()))
                .or_default() += 1;
        }
        Ok(())
    });
    // This sink never returns an error.
    let _ = text(&mut sink);
    found
}

/// Deletes the rules that the lines in `all` describe, in one transaction of the kernel. Returns
/// the lines that the caller must not restore again:
///
/// * the lines whose rules were deleted;
/// * the lines of a table without any match, because the failed restore may have applied this
///   table.
///
/// If no table has a match, returns no lines.
///
/// # Errors
///
/// Fails if the query fails, or the kernel refuses the deletion.
pub(crate) fn delete(family: IpFamily, all: &Deletions) -> Result<Deletions, Error> {
    let Some(mut reader) = KernelReader::open(family)? else {
        return Ok(Deletions::new());
    };
    let mut doomed = Vec::new();
    let mut deleted = Deletions::new();
    for ((table, line), count) in all {
        let text = line.replacen("-D ", "-A ", 1);
        let Some(chain) = Line::chain_of_rule(&text) else {
            continue;
        };
        let rules = reader.rules(table, chain)?.into_iter();
        let same = rules.filter(|rule| rule.text == text).take(*count);
        for rule in same {
            doomed.push((table.as_str(), chain.to_owned(), rule.handle));
            *deleted.entry((table.clone(), line.clone())).or_default() += 1;
        }
    }
    if doomed.is_empty() {
        return Ok(deleted);
    }
    reader.delete_rules(&doomed)?;
    let is_done = |table: &String| !deleted.keys().any(|(of, _)| of == table);
    let before = all.iter().filter(|((table, _), _)| is_done(table));
    let before: Deletions = before.map(|(line, count)| (line.clone(), *count)).collect();
    Ok(deleted.into_iter().chain(before).collect())
}

/// Writes `iptables-restore` input, except the deletion lines in `gone`.
pub(crate) fn write_without(
    mut gone: Deletions,
    text: Input<'_>,
    sink: &mut dyn Write,
) -> io::Result<()> {
    let mut lines = Lines::new(|table: &str, line: &str| {
        let of = gone.get_mut(&(table.to_owned(), line.to_owned()));
        match of.filter(|count| **count > 0) {
            Some(count) => *count -= 1,
            None => writeln!(sink, "{line}")?,
        }
        Ok(())
    });
    text(&mut lines)
}

/// A sink that passes each complete line to a function, with its table.
struct Lines<F> {
    line: Vec<u8>,
    table: String,
    take: F,
}

impl<F: FnMut(&str, &str) -> io::Result<()>> Lines<F> {
    fn new(take: F) -> Self {
        Self {
            line: Vec::new(),
            table: String::new(),
            take,
        }
    }
}

impl<F: FnMut(&str, &str) -> io::Result<()>> Write for Lines<F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(piece);
            if self.line.pop_if(|last| *last == b'\n').is_some() {
                let line = String::from_utf8_lossy(&self.line);
                if let Some(Line::Table(name)) = Line::parse(&line) {
                    name.clone_into(&mut self.table);
                }
                (self.take)(&self.table, &line)?;
                self.line.clear();
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restore_omits_one_deletion_line_for_each_rule_already_deleted() {
        let text = "*nat\n:A - [0:0]\n-D POSTROUTING -j A\n-D POSTROUTING -j A\n-X A\nCOMMIT\n\
                    *filter\n-D POSTROUTING -j A\nCOMMIT\n";
        let mut write = |sink: &mut dyn Write| {
            // The text arrives in chunks that may end in the middle of a line.
            text.as_bytes()
                .chunks(7)
                .try_for_each(|piece| sink.write_all(piece))
        };
        let mut found = deletions(&mut write);
        let key = ("nat".to_owned(), "-D POSTROUTING -j A".to_owned());
        assert_eq!((found.len(), found[&key]), (2, 2));
        found.retain(|of, _| *of == key);
        found.insert(key, 1);
        let mut rest = Vec::new();
        write_without(found, &mut write, &mut rest).unwrap();
        let wanted = text.replacen("-D POSTROUTING -j A\n", "", 1);
        assert_eq!(String::from_utf8(rest).unwrap(), wanted);
    }
}
