//! One process to write any number of rules.

use std::time::Duration;

use inet::IpFamily;

use crate::behind;
use crate::error::{IptablesError, Kind, LineFinder, failure};
use crate::iptables::Iptables;
use crate::program::Input;

/// Longest time that a restore may take: 5 s of it is its own wait for the lock of legacy iptables.
const RESTORE_LIMIT: Duration = Duration::from_secs(10);
/// Further time for each MiB of rules that are there already.
const MEBIBYTE_LIMIT: Duration = Duration::from_secs(10);

impl Iptables {
    /// Applies `text` without touching chains that it does not name: each of its tables whole, or
    /// not at all.
    ///
    /// # Errors
    ///
    /// Why it was not taken. Tables before the one that was refused are written.
    pub fn restore(&self, family: IpFamily, text: &str) -> Result<(), IptablesError> {
        self.restore_within(RESTORE_LIMIT, family, text)
    }

    /// The same among rules of which so many characters are there: legacy iptables takes in a table
    /// whole and writes it whole.
    ///
    /// # Errors
    ///
    /// As [`restore`](Self::restore).
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

    /// The same with a text that is written piece by piece; once more if it is refused, to find the
    /// line that is blamed.
    ///
    /// # Errors
    ///
    /// As [`restore`](Self::restore).
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
                    // That it stops at the line is no failure.
                    let _ = text(&mut finder);
                    finder.found()
                })),
            }
        };
        let mut restored = run(text);
        if let Err(error) = &restored
            && error.kind() == Kind::Unreadable
            && let Ok(gone) = behind::delete(family, &behind::deletions(text))
            && !gone.is_empty()
        {
            restored = run(&mut |sink| behind::write_without(gone.clone(), text, sink));
        }
        restored.map_err(|mut error| {
            // Where the kernel does not say which, nothing more is known.
            if let Ok(taken) = self.taken_chains(family) {
                error.blame(&taken);
            }
            error
        })
    }
}
