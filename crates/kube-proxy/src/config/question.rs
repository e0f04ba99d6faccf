//! Commands that preview a start of the daemon: `check`, `plan` and `diff`.

use std::time::Duration;

/// Longest wait for the first lists of objects, if `--timeout` is missing.
const TIMEOUT: Duration = Duration::from_mins(1);

/// A command that previews a start, with its options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartQuestion {
    /// Command that previews the start.
    pub question: Question,
    /// Output format and time limit of the command.
    pub answer: AnswerOptions,
}

/// Output format and time limit of `check`, `plan` or `diff`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnswerOptions {
    /// Output format (`-o`).
    pub output: Output,
    /// Longest wait for the first lists of objects (`--timeout`).
    pub timeout: Duration,
}

impl Default for AnswerOptions {
    fn default() -> Self {
        Self {
            output: Output::default(),
            timeout: TIMEOUT,
        }
    }
}

/// A command that previews a start of the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question {
    /// `kube-proxy check`: reports whether the daemon can serve on this node, and what a start
    /// would change.
    Check,
    /// `kube-proxy plan` and `--dry-run`: list the writes of a start in their order.
    Plan,
    /// `kube-proxy diff`: lists the differences between the kernel and the state after a start.
    Diff,
}

impl Question {
    /// Commands that preview a start, each with the name of its subcommand.
    pub(crate) const WORDS: [(&str, Self); 3] = [
        ("check", Self::Check),
        ("plan", Self::Plan),
        ("diff", Self::Diff),
    ];

    /// Returns the name of the subcommand, such as `check`.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Check => "check",
            Self::Plan => "plan",
            Self::Diff => "diff",
        }
    }

    /// Returns the command with the subcommand name `word`, or `None` if no command has it.
    pub(crate) fn of(word: &str) -> Option<Self> {
        let mut words = Self::WORDS.iter();
        words
            .find(|(known, _)| *known == word)
            .map(|(_, question)| *question)
    }
}

/// Output format of `check`, `plan` and `diff` (`-o`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Output {
    /// Short output for people, which lists a limited number of changes of each kind.
    #[default]
    Text,
    /// Full output for people, which lists every change.
    Wide,
    /// One JSON object, for programs.
    Json,
    /// The object of `Json`, encoded as YAML.
    Yaml,
}

impl Output {
    /// Output formats, each with its name in `-o`.
    pub(crate) const WORDS: [(&str, Self); 4] = [
        ("text", Self::Text),
        ("wide", Self::Wide),
        ("json", Self::Json),
        ("yaml", Self::Yaml),
    ];
}
