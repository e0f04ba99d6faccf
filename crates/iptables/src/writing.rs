//! Writes rules with `iptables-restore`. One process can write any number of rules.

use std::time::Duration;

use inet::IpFamily;

use crate::deletions;
use crate::error::{IptablesError, Kind, LineFinder, failure};
use crate::iptables::Iptables;
use crate::program::Input;

/// Time limit for `iptables-restore`, including a wait of 5 s for the lock of legacy iptables.
const RESTORE_LIMIT: Duration = Duration::from_secs(10);
/// Additional time limit for each MiB of existing rules.
const MEBIBYTE_LIMIT: Duration = Duration::from_secs(10);

impl Iptables {
    /// Applies `text`, the input of `iptables-restore`. The kernel applies either all commands for
    /// a table, or none. Chains that are absent from `text` stay unchanged.
    ///
    /// # Errors
    ///
    /// Fails if the program refuses a table. The program has then already written the tables that
    /// precede the refused table in `text`.
    pub fn restore(&self, family: IpFamily, text: &str) -> Result<(), IptablesError> {
        self.restore_within(RESTORE_LIMIT, family, text)
    }

    /// Applies `text`, the input of `iptables-restore`. `saved` is the size of the existing rules
    /// in bytes. The time limit grows with this size, because legacy iptables reads and writes
    /// whole tables.
    ///
    /// # Errors
    ///
    /// See [`restore`](Self::restore).
    pub fn restore_among(
        &self,
        saved: usize,
        family: IpFamily,
        text: &str,
    ) -> Result<(), IptablesError> {
        let mebibytes = u32::try_from(saved >> 20).unwrap_or(u32::MAX);
        let limit = RESTORE_LIMIT.saturating_add(MEBIBYTE_LIMIT.saturating_mul(mebibytes));
        self.restore_within(limit, family, text)
    }

    fn restore_within(
        &self,
        limit: Duration,
        family: IpFamily,
        text: &str,
    ) -> Result<(), IptablesError> {
        self.restore_from(limit, family, &mut |sink| sink.write_all(text.as_bytes()))
    }

    /// Applies input of `iptables-restore`, which the function `text` writes to a sink.
    ///
    /// - After a failure, calls `text` again to find the faulty line.
    /// - If iptables cannot read the existing rules, executes the deletions in `text` directly in
    ///   the kernel. Then applies all other commands.
    ///
    /// # Errors
    ///
    /// See [`restore`](Self::restore).
    pub fn restore_from(
        &self,
        limit: Duration,
        family: IpFamily,
        text: Input<'_>,
    ) -> Result<(), IptablesError> {
        let _turn = self.readings.turn();
        let program = self.program(family, "restore")?;
        let run = |text: Input<'_>| {
            let arguments: &[&str] = if self.is_modern {
                &["-w", "5", "--noflush"]
            } else {
                &["--noflush"]
            };
            match program.stream(arguments, Some(&mut *text), &mut |_| {}, limit) {
                Ok(finished) if finished.status.success() => Ok(()),
                result => Err(failure(&program, result, limit, |number| {
                    let mut finder = LineFinder::new(number);
                    // Ignores the error, because the finder intentionally stops at the wanted line.
                    let _ = text(&mut finder);
                    finder.found()
                })),
            }
        };
        let mut restored = run(text);
        if let Err(error) = &restored
            && error.kind() == Kind::Unreadable
            && let Ok(gone) = deletions::delete(family, &deletions::deletions(text))
            && !gone.is_empty()
        {
            restored = run(&mut |sink| deletions::write_without(gone.clone(), text, sink));
        }
        restored.map_err(|mut error| {
            // Adds the chains that explain the failure. If the query for these chains fails,
            // returns the error of the restore unchanged.
            if let Ok(taken) = self.taken_chains(family) {
                error.blame(&taken);
            }
            error
        })
    }
}
