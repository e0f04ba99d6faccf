//! User data that `nft` stores with an object: a list of values, each after its type (1 byte) and
//! its length (1 byte).

use std::sync::Arc;

use smallvec::SmallVec;

/// Largest size of user data in bytes (`NFT_USERDATA_MAXLEN`).
const MAX: usize = 256;

/// Largest length in bytes of a comment that `nft` can read back (`NFTNL_UDATA_COMMENT_MAXLEN`).
/// `nft` also lists longer comments.
const MAX_COMMENT: usize = 128;

/// Builder of user data.
#[derive(Default)]
pub(crate) struct UserData(SmallVec<[u8; 128]>);

impl UserData {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Adds a number of 4 bytes in host byte order.
    pub(crate) fn number(mut self, kind: u8, number: u32) -> Self {
        self.value(kind, &number.to_ne_bytes());
        self
    }

    /// Adds a value that contains other values.
    pub(crate) fn nested(mut self, kind: u8, inner: &Self) -> Self {
        self.value(kind, &inner.0);
        self
    }

    /// Adds a comment with its final NUL. Truncates it to the limits of `nft` and of the kernel.
    pub(crate) fn comment(mut self, kind: u8, comment: Option<&str>) -> Self {
        let Some(comment) = comment else {
            return self;
        };
        let room = MAX.saturating_sub(self.0.len() + 3).min(MAX_COMMENT);
        let cut = comment.floor_char_boundary(room);
        let mut text: SmallVec<[u8; 128]> = comment.bytes().take(cut).collect();
        text.push(0);
        self.value(kind, &text);
        self
    }

    pub(crate) fn value(&mut self, kind: u8, value: &[u8]) {
        let len = u8::try_from(value.len()).unwrap_or(u8::MAX);
        self.0.extend_from_slice(&[kind, len]);
        self.0.extend(value.iter().copied().take(len.into()));
    }
}

/// Returns user data that contains only a comment, or `None` without a comment. For tables, chains,
/// rules and elements.
pub(crate) fn comment(kind: u8, comment: Option<&Arc<str>>) -> Option<UserData> {
    comment.map(|comment| UserData::default().comment(kind, Some(comment)))
}

/// Returns the comment in user data. Returns `None` if the user data has no comment or is
/// malformed: another program may have written the user data.
pub(crate) fn find_comment(kind: u8, data: &[u8]) -> Option<Arc<str>> {
    let text = find(kind, data)?.split(|byte| *byte == 0).next()?;
    std::str::from_utf8(text).ok().map(Arc::from)
}

/// Returns the first value of the type `kind` in user data.
pub(crate) fn find(kind: u8, mut data: &[u8]) -> Option<&[u8]> {
    while let [found, len, rest @ ..] = data {
        let value = rest.get(..usize::from(*len))?;
        if *found == kind {
            return Some(value);
        }
        data = rest.get(value.len()..)?;
    }
    None
}
