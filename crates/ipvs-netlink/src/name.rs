//! Names of schedulers and persistence engines: at most 15 bytes, without a heap allocation.

use std::fmt;
use std::str::{self, FromStr};

/// Size of a name with its NUL, in bytes (`IP_VS_SCHEDNAME_MAXLEN` and `IP_VS_PENAME_MAXLEN`).
const CAPACITY: usize = 16;

/// Name of a scheduler (`rr`, `wrr`, `lc`, `sh`, `mh` ...) or of a persistence engine (`sip`).
///
/// A name has 1 to 15 bytes and no NUL. The kernel's modules decide which names exist. For a
/// virtual server with an unknown scheduler, the kernel replies `ENOENT`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name([u8; CAPACITY]);

/// Error about a text that the kernel cannot store as a name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} cannot be the name of a scheduler or persistence engine: those have 1 to 15 bytes")]
pub struct BadName(String);

impl Name {
    /// Round robin, a scheduler that every kernel with IPVS should have.
    pub const RR: Self = Self(*b"rr\0\0\0\0\0\0\0\0\0\0\0\0\0\0");

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        let text = self.0.split(|byte| *byte == 0).next().unwrap_or_default();
        // The bytes come from a str and end at a NUL, so they are valid UTF-8.
        str::from_utf8(text).unwrap_or_default()
    }
}

impl FromStr for Name {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        if !(1..CAPACITY).contains(&text.len()) || text.contains('\0') {
            return Err(BadName(text.to_owned()));
        }
        let mut bytes = [0; CAPACITY];
        bytes
            .iter_mut()
            .zip(text.bytes())
            .for_each(|(to, from)| *to = from);
        Ok(Self(bytes))
    }
}

impl AsRef<str> for Name {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scheduler_names_have_at_most_fifteen_bytes() {
        for text in ["rr", "wlc", "fifteen-letters", "größe"] {
            assert_eq!(text.parse::<Name>().unwrap().as_str(), text);
        }
        assert_eq!("rr".parse(), Ok(Name::RR));
        for text in ["", "sixteen-letters!", "a\0b"] {
            assert_eq!(text.parse::<Name>(), Err(BadName(text.to_owned())));
        }
    }
}
