//! Errors about invalid values of flags.

/// A flag with an invalid value of the right type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid value '{value}' for '--{flag}': {advice}")]
pub struct UnusableFlag {
    /// Name of the flag, without its dashes.
    pub flag: &'static str,
    /// Invalid value of the flag.
    pub value: String,
    /// Description of the error, and the allowed values.
    pub advice: String,
}

impl UnusableFlag {
    /// Returns an error with the flag, its value, and advice.
    pub fn new(flag: &'static str, value: &str, advice: impl Into<String>) -> Self {
        Self {
            flag,
            value: value.to_owned(),
            advice: advice.into(),
        }
    }
}
