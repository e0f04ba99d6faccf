//! Error for a flag value that parses but is not allowed.

/// Error for a flag whose value has the right type but is not allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid value '{value}' for '--{flag}': {advice}")]
pub struct UnusableFlag {
    /// Name of the flag, without dashes.
    pub flag: &'static str,
    /// Invalid value of the flag.
    pub value: String,
    /// Reason why the value is invalid, and the allowed values.
    pub advice: String,
}

impl UnusableFlag {
    /// Creates an error from the flag's name (without dashes), its value, and advice for the user.
    pub fn new(flag: &'static str, value: &str, advice: impl Into<String>) -> Self {
        Self {
            flag,
            value: value.to_owned(),
            advice: advice.into(),
        }
    }
}
