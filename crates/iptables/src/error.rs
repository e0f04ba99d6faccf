//! Errors of iptables: the kind, the message, and the next step for the operator.
//!
//! The iptables programs explain failures in sentences, and use the same exit status for many
//! failures. Only this file interprets these sentences.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::time::Duration;

use crate::obstacles::TakenChain;
use crate::program::{Program, ProgramExit};

/// Reason why iptables cannot be used or has failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IptablesError {
    /// The iptables program with this name is not installed.
    #[error("`{0}` is not here: install the package iptables (in a container: in its image)")]
    Missing(String),
    /// No installed backend can write to this kernel. If the user requests a backend, only this
    /// backend is tried.
    #[error(
        "no backend of iptables works here ({0}): load its kernel modules (`modprobe -a \
         iptable_nat iptable_filter`, or `modprobe -a nft_compat nft_chain_nat`) or choose \
         another with --iptables-backend"
    )]
    Unusable(String),
    /// No backend works, because the kernel lacks both backends. A retry has the same result.
    #[error(
        "no backend of iptables works here ({0}): load its kernel modules (`modprobe -a \
         iptable_nat iptable_filter`, or `modprobe -a nft_compat nft_chain_nat`) or choose \
         another with --iptables-backend"
    )]
    Absent(String),
    /// The kernel has no IPv6.
    #[error(
        "there is no IPv6 here (no /proc/net/if_inet6): run `modprobe ipv6`, and look for \
         ipv6.disable=1 in /proc/cmdline"
    )]
    NoIpv6,
    /// An iptables program could not be started, or its output could not be read.
    #[error("cannot run {program}: {source}")]
    Run {
        /// Name of the program that could not be run.
        program: String,
        /// Error of the failed system call.
        source: io::Error,
    },
    /// An iptables program exceeded its time limit, and was killed.
    #[error("{program} did not end within {} s and was killed: find the program that keeps the \
             machine or the lock /run/xtables.lock busy (`fuser -v /run/xtables.lock`)", limit.as_secs())]
    TimedOut {
        /// Name of the program that was killed.
        program: String,
        /// Time limit that the program exceeded.
        limit: Duration,
    },
    /// A table of nf_tables has rules that iptables cannot express, and the direct read from the
    /// kernel has also failed.
    #[error(
        "table {family} {table} cannot be read, since it holds rules of nft that iptables has no \
         words for ({why}): put these into a table of their own (`nft list table {family} \
         {table}` shows them)"
    )]
    Native {
        /// Name of the unreadable table.
        table: &'static str,
        /// Family of the unreadable table, as nft names it.
        family: &'static str,
        /// Reason why the table cannot be read.
        why: String,
    },
    /// A chain that nft has created blocks a built-in or `KUBE-*` chain of the same name.
    #[error("{0}")]
    Taken(TakenChain),
    /// The query for the existing tables of the nft backend failed.
    #[error("cannot ask nf_tables for the tables of iptables: {why}")]
    Unlisted {
        /// Error of the query, as text.
        why: String,
    },
    /// An iptables program succeeded, but its output is incomplete.
    #[error("{program} ended with success too early: {said}; run it by hand")]
    CutShort {
        /// Name of the program whose output is incomplete.
        program: String,
        /// Description of the place at which the output ends.
        said: String,
    },
    /// An iptables program exited with an error.
    #[error("{program} failed: {said}")]
    Failed {
        /// Name of the program that failed.
        program: String,
        /// Kind of failure, derived from the message.
        kind: Kind,
        /// Number of the input line that the program's message names, counted from 1. `None` if the
        /// message names no line.
        line: Option<usize>,
        /// The program's message, the line that it names, and the next step.
        said: String,
    },
}

/// Kind of iptables failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// An iptables program is not installed.
    NoProgram,
    /// An iptables program could not be run, or no backend or IP family is usable.
    NotUsable,
    /// An iptables program exceeded its time limit.
    TimedOut,
    /// Another program holds the lock of legacy iptables.
    LockHeld,
    /// The process lacks a privilege, or cannot open the lock file.
    NotPermitted,
    /// The kernel lacks support for the program's backend.
    Unsupported,
    /// The kernel lacks an iptables table.
    NoTable,
    /// A rule names an ipset that does not exist.
    NoSet,
    /// The kernel or the installation lacks a match, a target or a kind of chain.
    NoModule,
    /// nft has created a chain of another kind with the name of a built-in or `KUBE-*` chain.
    ChainTaken,
    /// Another program has written a rule that iptables cannot read.
    Unreadable,
    /// An iptables program refused a line of its input for a reason that this crate does not
    /// recognize.
    Refused,
}

impl Kind {
    /// Returns true if the failed program certainly wrote no table. `tables` is the number of
    /// tables in its input.
    pub fn leaves_all(self, tables: usize) -> bool {
        match self {
            Self::NoProgram | Self::NotUsable | Self::NotPermitted => true,
            // Legacy iptables takes the lock for each table and releases it before the next table.
            // So the program may have written an earlier table.
            Self::LockHeld => tables <= 1,
            Self::TimedOut
            | Self::Unsupported
            | Self::NoTable
            | Self::NoSet
            | Self::NoModule
            | Self::ChainTaken
            | Self::Unreadable
            | Self::Refused => false,
        }
    }

    /// Returns true if the cause affects all rules, so that the program would also refuse any other
    /// rule.
    pub fn is_general(self) -> bool {
        !matches!(
            self,
            Self::NoSet | Self::NoModule | Self::Unreadable | Self::Refused
        )
    }

    /// Returns true if the kernel or the installation lacks a part of iptables, so that only an
    /// operator can help.
    pub fn is_absence(self) -> bool {
        matches!(
            self,
            Self::NoProgram | Self::Unsupported | Self::NoTable | Self::NoModule
        )
    }

    /// Reports whether a retry may succeed without an operator's action.
    pub fn may_pass(self) -> bool {
        matches!(
            self,
            Self::NotUsable
                | Self::TimedOut
                | Self::LockHeld
                | Self::ChainTaken
                | Self::Unreadable
                | Self::Refused
        )
    }

    fn next_step(self) -> Option<&'static str> {
        Some(match self {
            Self::LockHeld => {
                "find who holds the lock (`fuser -v /run/xtables.lock`); it will be retried"
            }
            Self::NotPermitted => {
                "run as root, or with CAP_NET_ADMIN and CAP_NET_RAW and a writable \
                 /run/xtables.lock; legacy iptables is \
                 root's alone, with these capabilities: nobody else may read \
                 /proc/net/ip_tables_names"
            }
            Self::Unreadable => {
                "nft has put a rule into a built-in chain, before a rule of kube-proxy, that \
                 iptables cannot read: move it to \
                 a table of its own, or behind the rules of kube-proxy (`nft list ruleset`)"
            }
            Self::NoSet => "see why the set could not be made; the rules will be tried again",
            Self::NoTable | Self::NoModule => {
                "a kernel module that the rules need may be missing: see `dmesg`, and run \
                 `modprobe -a xt_set xt_comment \
                 xt_mark xt_addrtype xt_conntrack xt_physdev xt_ipvs xt_MASQUERADE` and the \
                 modules of the backend; legacy \
                 iptables needs CAP_NET_RAW, too"
            }
            _ => return None,
        })
    }
}

/// Phrases in the programs' messages. A row matches if the message contains all phrases of the row.
/// The first matching row determines the kind of the error.
///
/// Source: iptables 1.8.9, by file.
const SIGNS: [(Kind, &[&str]); 18] = [
    // iptables/xshared.c: "Another app is currently holding the xtables lock."
    (Kind::LockHeld, &["xtables lock"]),
    // iptables/xshared.c: "Can't lock /run/xtables.lock: Resource temporarily unavailable".
    (Kind::LockHeld, &["xtables.lock", "unavailable"]),
    // iptables/xshared.c: "Fatal: can't open lock file /run/xtables.lock: ...".
    (Kind::NotPermitted, &["xtables.lock"]),
    // strerror(EACCES); libiptc/libiptc.c: "Permission denied (you must be root)".
    (Kind::NotPermitted, &["ermission denied"]),
    (Kind::NotPermitted, &["must be root"]),
    // extensions/libxt_set.h: "Can't open socket to ipset."
    (Kind::NotPermitted, &["open socket to ipset"]),
    // extensions/libxt_set.h: "Set X doesn't exist."
    (Kind::NoSet, &["Set ", "exist"]),
    // iptables/iptables-restore.c: "unable to initialize table 'nat'".
    (Kind::NoTable, &["initialize table"]),
    // libxtables/xtables.c: "Extension X revision 0 not supported, missing kernel module?"
    (Kind::NoModule, &["missing kernel module"]),
    // iptables/nft.c: "TABLE_ADD failed (Operation not supported)", "RULE_APPEND failed (...)".
    (Kind::NoModule, &["TABLE_ADD"]),
    (Kind::NoModule, &["RULE_APPEND"]),
    // iptables/nft.c: "CHAIN_ADD failed (Operation not supported): chain FORWARD" for another hook
    // or priority; "(File exists)" for another type. Linux 5.4 says "(Device or resource busy)".
    (
        Kind::ChainTaken,
        &["CHAIN_ADD failed (Operation not supported)"],
    ),
    (Kind::ChainTaken, &["CHAIN_ADD failed (File exists)"]),
    (
        Kind::ChainTaken,
        &["CHAIN_ADD failed (Device or resource busy)"],
    ),
    // libxtables/xtables.c: "Couldn't load match `x':No such file or directory".
    (Kind::NoModule, &["Couldn't load"]),
    // iptables/xshared.c: `unknown option "--map-mark"`, if the program or the kernel lacks the
    // revision.
    (Kind::NoModule, &["unknown option"]),
    // iptables/nft-shared.c: "Parsing nftables rule failed".
    (Kind::Unreadable, &["Parsing nftables rule failed"]),
    // iptables/xtables-save.c, xtables-restore.c: "Failed to initialize nft: Protocol not
    // supported".
    (Kind::Unsupported, &["Protocol not supported"]),
];

impl IptablesError {
    /// Returns the kind of failure.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Missing(_) => Kind::NoProgram,
            Self::Absent(_) => Kind::Unsupported,
            Self::Unusable(_)
            | Self::NoIpv6
            | Self::Run { .. }
            | Self::Native { .. }
            | Self::Unlisted { .. }
            | Self::CutShort { .. } => Kind::NotUsable,
            Self::TimedOut { .. } => Kind::TimedOut,
            Self::Taken(_) => Kind::ChainTaken,
            Self::Failed { kind, .. } => *kind,
        }
    }

    /// Names the nft chains that caused the failure in the error message. If iptables could not
    /// create a built-in chain and no nft chain blocks this chain, reports a missing kernel module.
    pub(crate) fn blame(&mut self, taken: &[TakenChain]) {
        let Self::Failed { kind, said, .. } = self else {
            return;
        };
        let is_of_built_in = *kind == Kind::ChainTaken;
        let is_named = |of: &TakenChain| said.split([' ', ';']).any(|word| word == of.chain);
        let in_the_way = taken.iter().filter(|of| {
            if of.is_built_in {
                is_of_built_in
            } else {
                is_named(of)
            }
        });
        let in_the_way: Vec<String> = in_the_way.map(ToString::to_string).collect();
        if is_of_built_in && in_the_way.is_empty() {
            *kind = Kind::NoModule;
            if let Some(next) = kind.next_step() {
                let _ = write!(said, "; {next}");
            }
        }
        for chain in in_the_way {
            let _ = write!(said, "; {chain}");
        }
    }

    /// Reports whether the kernel lacks this backend. The kernel then has no rules of this backend.
    pub fn is_unsupported(&self) -> bool {
        self.kind() == Kind::Unsupported
    }
}

/// Returns the error for a failed run of a program. `line` returns an input line by its number,
/// counted from 1.
pub(crate) fn failure(
    program: &Program,
    result: io::Result<ProgramExit>,
    limit: Duration,
    line: impl FnOnce(usize) -> Option<String>,
) -> IptablesError {
    let program = program.name();
    match result {
        Ok(finished) => {
            let Explanation { kind, line, said } = explain(&finished.stderr, line);
            let said = if said.is_empty() {
                finished.status.to_string()
            } else {
                said
            };
            IptablesError::Failed {
                program,
                kind,
                line,
                said,
            }
        }
        Err(error) if error.kind() == io::ErrorKind::TimedOut => {
            IptablesError::TimedOut { program, limit }
        }
        Err(source) => IptablesError::Run { program, source },
    }
}

/// A writer that keeps one line of its input, and refuses all bytes after that line.
pub(crate) struct LineFinder {
    /// Number of lines before the wanted line, or `None` once the wanted line is complete.
    before: Option<usize>,
    line: Vec<u8>,
}

impl LineFinder {
    pub(crate) fn new(number: usize) -> Self {
        Self {
            before: number.checked_sub(1),
            line: Vec::new(),
        }
    }

    pub(crate) fn found(self) -> Option<String> {
        let is_found = self.before.is_none() && !self.line.is_empty();
        is_found.then(|| String::from_utf8_lossy(&self.line).into_owned())
    }
}

impl Write for LineFinder {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for byte in bytes {
            match (self.before, byte) {
                (None, _) => return Err(io::ErrorKind::WriteZero.into()),
                (Some(0), b'\n') => self.before = None,
                (Some(0), byte) => self.line.push(*byte),
                (Some(before), b'\n') => self.before = Some(before - 1),
                _ => {}
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Explanation of a failure, derived from the program's messages.
struct Explanation {
    kind: Kind,
    /// Number of the faulty input line, counted from 1, or `None` if the message names no line.
    line: Option<usize>,
    /// First lines of the program's message, the faulty line, and the next step.
    said: String,
}

fn explain(stderr: &str, line: impl FnOnce(usize) -> Option<String>) -> Explanation {
    let lines = stderr.lines().map(str::trim).filter(|line| {
        !(line.is_empty()
            || line.starts_with("Try `")
            || line.starts_with("Error occurred at line"))
    });
    let mut said = lines.take(4).collect::<Vec<_>>().join("; ");
    let number = stderr
        .match_indices("line")
        .filter_map(|(at, word)| stderr.get(at + word.len()..))
        .find_map(|rest| {
            let rest = rest.trim_start_matches([':', ' ']);
            let digits = rest
                .find(|c: char| !c.is_ascii_digit())
                .unwrap_or(rest.len());
            rest.get(..digits)?.parse::<usize>().ok()
        });
    // Searches the messages before the faulty line is added to them, because a Service's name in
    // that line may contain a phrase.
    let mut signs = SIGNS.iter();
    let sign = signs.find(|(_, parts)| parts.iter().all(|part| said.contains(part)));
    let blamed = number.and_then(|number| Some((number, line(number)?)));
    if let Some((number, line)) = &blamed {
        let _ = write!(said, "; line {number} is `{line}`");
    }
    // The program delays some commands until the end of the table, and then names `COMMIT` as the
    // faulty line.
    let is_end = blamed.as_ref().is_some_and(|(_, line)| line == "COMMIT");
    let kind = match sign {
        Some((Kind::Unsupported, _)) | None if is_end => Kind::NoModule,
        Some((kind, _)) => *kind,
        None => Kind::Refused,
    };
    if let Some(next) = kind.next_step() {
        let _ = write!(said, "; {next}");
    }
    Explanation {
        kind,
        line: blamed.map(|(number, _)| number),
        said,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // The tests use messages of iptables 1.8.9 on Linux 6.1.

    fn said_of(stderr: &str, input: &str) -> String {
        explained(stderr, input).said
    }

    fn explained(stderr: &str, input: &str) -> Explanation {
        explain(stderr, |number| {
            let mut finder = LineFinder::new(number);
            let _ = finder.write(input.as_bytes());
            finder.found()
        })
    }

    const INPUT: &str =
        "*nat\n:KUBE-X - [0:0]\n-A KUBE-X -m set --match-set NOPE dst -j RETURN\nCOMMIT\n";

    #[test]
    fn an_iptables_error_quotes_the_refused_line() {
        let said = said_of(
            "iptables-restore v1.8.9 (legacy): Set NOPE doesn't exist.\n\nError occurred at line: \
             3\n\
             Try `iptables-restore -h' or 'iptables-restore --help' for more information.\n",
            INPUT,
        );
        assert_eq!(
            said,
            "iptables-restore v1.8.9 (legacy): Set NOPE doesn't exist.; line 3 is `-A KUBE-X -m \
             set --match-set NOPE dst \
             -j RETURN`; see why the set could not be made; the rules will be tried again"
        );
    }

    #[test]
    fn a_refused_table_is_reported_with_modules_to_load() {
        for stderr in [
            "Warning: Extension physdev revision 0 not supported, missing kernel \
             module?\niptables-restore: line 4 failed\n",
            "iptables-restore v1.8.9 (legacy): iptables-restore: unable to initialize table \
             'nat'\nError occurred at line: 1\n",
            "iptables-nft-restore v1.8.9 (nf_tables): \nline 2: TABLE_ADD failed (Operation not \
             supported): table nat\n\
             line 2: CHAIN_USER_ADD failed (No such file or directory): chain KUBE-X\n",
        ] {
            let said = said_of(stderr, INPUT);
            assert!(said.contains("modprobe -a xt_set"), "{said}");
            assert!(said.contains("; line "), "{said}");
        }
    }

    #[test]
    fn lock_and_permission_failures_have_specific_advice() {
        let lock = "Can't lock /run/xtables.lock: Resource temporarily unavailable\n\
             Another app is currently holding the xtables lock. Stopped waiting after 5s.\n";
        assert!(said_of(lock, INPUT).contains("fuser"));
        let rights = "Fatal: can't open lock file /run/xtables.lock: Permission denied\n";
        assert!(said_of(rights, INPUT).contains("CAP_NET_RAW"));
        // The match `set` queries ipset by a raw socket, with either backend.
        let raw = "iptables-nft-restore v1.8.9 (nf_tables): Can't open socket to ipset.\n";
        assert!(said_of(raw, INPUT).contains("CAP_NET_RAW"));
        assert_eq!(said_of("no reason\n", INPUT), "no reason");
        assert_eq!(
            said_of("line 99999999999999999999 line 0 line", INPUT)
                .matches(" is `")
                .count(),
            0
        );
        assert_eq!(said_of("", ""), "");
    }

    #[test]
    fn an_iptables_failure_has_a_kind_and_an_input_line_number() {
        let of = |stderr: &str| {
            let Explanation { kind, line, .. } = explained(stderr, INPUT);
            (kind, line)
        };
        let general = [
            (
                "Another app is currently holding the xtables lock",
                Kind::LockHeld,
            ),
            (
                "Fatal: can't open lock file /run/xtables.lock: Read-only file system",
                Kind::NotPermitted,
            ),
            ("unable to initialize table 'nat'", Kind::NoTable),
            (
                "Failed to initialize nft: Protocol not supported",
                Kind::Unsupported,
            ),
        ];
        for (said, kind) in general {
            assert_eq!(of(said), (kind, None));
            assert!(kind.is_general(), "{said}");
        }
        let single = [
            (
                "Set NOPE doesn't exist.\nError occurred at line: 3",
                Kind::NoSet,
                3,
            ),
            (
                "line 3: RULE_APPEND failed (No such file or directory)",
                Kind::NoModule,
                3,
            ),
            ("iptables-restore: line 4 failed", Kind::NoModule, 4),
            (
                "iptables-restore v1.8.9 (legacy): unknown option \"--map-set\"\n\
                 Error occurred at line: 3",
                Kind::NoModule,
                3,
            ),
            (
                "Error: meta sreg key not supported\niptables-nft-restore v1.8.9 (nf_tables): \
                 Parsing nftables rule failed\n\
                 Error occurred at line: 3",
                Kind::Unreadable,
                3,
            ),
            ("iptables-restore: line 3 failed", Kind::Refused, 3),
        ];
        for (said, kind, line) in single {
            assert_eq!(of(said), (kind, Some(line)), "{said}");
            assert!(!kind.is_general(), "{said}");
        }
    }
}
