//! Writes input for `iptables-restore --noflush`, which changes only the chains that its input
//! names.
//!
//! A rule is passed as a line that begins with `-A CHAIN`, as this crate renders and reads rules.

use std::fmt::Display;
use std::io::{self, Write};

use crate::table::Table;

/// A writer of commands, table by table. iptables applies either all commands of a table or none.
pub struct Restore<'a> {
    sink: &'a mut dyn Write,
}

impl<'a> Restore<'a> {
    /// Creates a writer of `iptables-restore` input to `sink`.
    pub fn new(sink: &'a mut dyn Write) -> Self {
        Self { sink }
    }

    /// Begins the commands for a table (`*TABLE`).
    ///
    /// # Errors
    ///
    /// Fails if the sink returns an error.
    pub fn begin(&mut self, table: Table) -> io::Result<()> {
        writeln!(self.sink, "*{table}")
    }

    /// Creates a chain, or empties it if it exists. Later commands for the same table may fill it.
    ///
    /// # Errors
    ///
    /// Fails if the sink returns an error.
    pub fn declare(&mut self, chain: impl Display) -> io::Result<()> {
        writeln!(self.sink, ":{chain} - [0:0]")
    }

    /// Appends a rule to its chain. The text `rule` begins with `-A CHAIN`.
    ///
    /// # Errors
    ///
    /// Fails if the sink returns an error.
    pub fn append(&mut self, rule: &str) -> io::Result<()> {
        writeln!(self.sink, "{rule}")
    }

    /// Appends several rules to their chains. Each line begins with `-A CHAIN`, and ends with a
    /// line feed.
    ///
    /// # Errors
    ///
    /// Fails if the sink returns an error.
    pub fn append_lines(&mut self, rules: &str) -> io::Result<()> {
        self.sink.write_all(rules.as_bytes())
    }

    /// Inserts a rule at the head of its chain. The text `rule` begins with `-A CHAIN`.
    ///
    /// # Errors
    ///
    /// Fails if the sink returns an error.
    pub fn insert(&mut self, rule: &str) -> io::Result<()> {
        writeln!(self.sink, "-I{}", behind_verb(rule))
    }

    /// Deletes the first rule that equals `rule`. The text `rule` begins with `-A CHAIN`.
    ///
    /// # Errors
    ///
    /// Fails if the sink returns an error.
    pub fn delete(&mut self, rule: &str) -> io::Result<()> {
        writeln!(self.sink, "-D{}", behind_verb(rule))
    }

    /// Empties a chain that earlier lines of the same input have filled (`-F`).
    ///
    /// # Errors
    ///
    /// Fails if the sink returns an error.
    pub fn flush(&mut self, chain: impl Display) -> io::Result<()> {
        writeln!(self.sink, "-F {chain}")
    }

    /// Removes a chain (`-X`). The chain must have no rules, and no rule may jump to it.
    ///
    /// # Errors
    ///
    /// Fails if the sink returns an error.
    pub fn remove(&mut self, chain: impl Display) -> io::Result<()> {
        writeln!(self.sink, "-X {chain}")
    }

    /// Ends the commands of a table (`COMMIT`), which makes iptables apply them.
    ///
    /// # Errors
    ///
    /// Fails if the sink returns an error.
    pub fn commit(&mut self) -> io::Result<()> {
        writeln!(self.sink, "COMMIT")
    }
}

fn behind_verb(rule: &str) -> &str {
    rule.strip_prefix("-A").unwrap_or(rule)
}

/// Returns the `iptables-restore` input that `write` produces.
pub fn restore_text(write: impl FnOnce(&mut Restore<'_>) -> io::Result<()>) -> String {
    let mut text = Vec::new();
    // Writing to a `Vec` cannot fail.
    let _ = write(&mut Restore::new(&mut text));
    String::from_utf8(text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restore_text_has_a_line_for_each_command() {
        let text = restore_text(|restore| {
            restore.begin(Table::Nat)?;
            restore.declare("A")?;
            restore.insert("-A OUTPUT -m comment --comment \"-A\" -j A")?;
            restore.append("-A A -j B")?;
            restore.append_lines("-A A -j C\n-A A -j D\n")?;
            restore.delete("-A A -j E")?;
            restore.remove("F")?;
            restore.commit()
        });
        assert_eq!(
            text,
            "*nat\n:A - [0:0]\n-I OUTPUT -m comment --comment \"-A\" -j A\n-A A -j B\n-A A -j C\n-A A -j D\n-D A -j E\n-X F\nCOMMIT\n"
        );
    }
}
