//! Error about an invalid value of a flag.

/// A flag whose value has the right type but is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid value '{value}' for '--{flag}': {advice}")]
pub struct UnusableFlag {
    /// Name of the flag, without dashes.
    pub flag: &'static str,
    /// Invalid value of the flag.
    pub value: String,
    /// Description of the error, and the allowed values.
    pub advice: String,
}

impl UnusableFlag {
    /// Creates an error from the flag's name, its value, and advice.
    pub fn new(flag: &'static str, value: &str, advice: impl Into<String>) -> Self {
        Self {
            flag,
            value: value.to_owned(),
            advice: advice.into(),
        }
    }
}
