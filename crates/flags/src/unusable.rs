//! What is wrong with a flag's value.

/// A flag whose value can be read but not be meant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid value '{value}' for '--{flag}': {advice}")]
pub struct UnusableFlag {
    /// The flag, without its dashes.
    pub flag: &'static str,
    /// The value it has.
    pub value: String,
    /// What is wrong with it, and what is allowed.
    pub advice: String,
}

impl UnusableFlag {
    /// Names the flag, its value, and what to give instead.
    pub fn new(flag: &'static str, value: &str, advice: impl Into<String>) -> Self {
        Self {
            flag,
            value: value.to_owned(),
            advice: advice.into(),
        }
    }
}
