//! What is asked of what a start would do, and in which form it is answered.

/// A question, and the form of its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    /// What is asked.
    pub question: Question,
    /// The form of the answer.
    pub output: Output,
}

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question {
    /// `kube-proxy check`: whether this node can be served, and what a start would change.
    Check,
    /// `kube-proxy plan`, and `--dry-run`: the writes of a start, in their order.
    Plan,
    /// `kube-proxy diff`: what the kernel holds, against what it should.
    Diff,
}

impl Question {
    /// All of them, by the word that stands in front of the flags.
    pub(crate) const WORDS: [(&str, Self); 3] = [
        ("check", Self::Check),
        ("plan", Self::Plan),
        ("diff", Self::Diff),
    ];

    /// The word.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Check => "check",
            Self::Plan => "plan",
            Self::Diff => "diff",
        }
    }

    /// The one that a word asks.
    pub(crate) fn of(word: &str) -> Option<Self> {
        let mut words = Self::WORDS.iter();
        words
            .find(|(known, _)| *known == word)
            .map(|(_, question)| *question)
    }
}

/// The form of the answer (`-o`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Output {
    /// Lines for people.
    #[default]
    Text,
    /// The same, and all of them.
    Wide,
    /// A JSON object.
    Json,
    /// The same as YAML.
    Yaml,
}

impl Output {
    /// By the words of `-o`.
    pub(crate) const WORDS: [(&str, Self); 4] = [
        ("text", Self::Text),
        ("wide", Self::Wide),
        ("json", Self::Json),
        ("yaml", Self::Yaml),
    ];
}
