//! Questions about a start: `check`, `plan` and `diff`.

use std::time::Duration;

/// Longest wait for the first lists of objects, unless `--timeout` is given.
const TIMEOUT: Duration = Duration::from_mins(1);

/// A question about a start, with its options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartQuestion {
    /// The question.
    pub question: Question,
    /// Options of the answer.
    pub answer: AnswerOptions,
}

/// Options of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnswerOptions {
    /// Form (`-o`).
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

/// A question about a start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question {
    /// `kube-proxy check`: can this node be served, and what would a start change?
    Check,
    /// `kube-proxy plan` and `--dry-run`: which writes would a start make, in which order?
    Plan,
    /// `kube-proxy diff`: what differs between the kernel and the state that a start would write?
    Diff,
}

impl Question {
    /// All questions with their subcommands.
    pub(crate) const WORDS: [(&str, Self); 3] = [
        ("check", Self::Check),
        ("plan", Self::Plan),
        ("diff", Self::Diff),
    ];

    /// Returns the subcommand.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Check => "check",
            Self::Plan => "plan",
            Self::Diff => "diff",
        }
    }

    /// Returns the question of a subcommand.
    pub(crate) fn of(word: &str) -> Option<Self> {
        let mut words = Self::WORDS.iter();
        words
            .find(|(known, _)| *known == word)
            .map(|(_, question)| *question)
    }
}

/// The form of an answer (`-o`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Output {
    /// Lines for people, shortened.
    #[default]
    Text,
    /// All lines for people.
    Wide,
    /// A JSON object.
    Json,
    /// The JSON object as YAML.
    Yaml,
}

impl Output {
    /// All forms with their words in `-o`.
    pub(crate) const WORDS: [(&str, Self); 4] = [
        ("text", Self::Text),
        ("wide", Self::Wide),
        ("json", Self::Json),
        ("yaml", Self::Yaml),
    ];
}
