//! What `nft` keeps in user data: values by type and length, one byte each.

use std::sync::Arc;

use smallvec::SmallVec;

/// `NFT_USERDATA_MAXLEN`: the kernel takes no more.
const MAX: usize = 256;

/// `NFTNL_UDATA_COMMENT_MAXLEN`: of a longer comment, `nft` does not take back what it lists.
const MAX_COMMENT: usize = 128;

/// User data that is written.
#[derive(Default)]
pub(crate) struct UserData(SmallVec<[u8; 128]>);

impl UserData {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// A number of 4 bytes, in the kernel's order.
    pub(crate) fn number(mut self, kind: u8, number: u32) -> Self {
        self.value(kind, &number.to_ne_bytes());
        self
    }

    /// Values inside of a value.
    pub(crate) fn nested(mut self, kind: u8, inner: &Self) -> Self {
        self.value(kind, &inner.0);
        self
    }

    /// A comment, with the NUL behind it; what `nft` or the kernel has no room for is cut off.
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

/// User data that holds a comment alone, in the form in which tables, chains, rules and elements
/// have one.
pub(crate) fn comment(kind: u8, comment: Option<&Arc<str>>) -> Option<UserData> {
    comment.map(|comment| UserData::default().comment(kind, Some(comment)))
}

/// The comment in user data. What cannot be read, as that of another program, has none.
pub(crate) fn find_comment(kind: u8, data: &[u8]) -> Option<Arc<str>> {
    let text = find(kind, data)?.split(|byte| *byte == 0).next()?;
    std::str::from_utf8(text).ok().map(Arc::from)
}

/// A value in user data.
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
