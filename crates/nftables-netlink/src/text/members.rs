//! Renders elements of sets and maps as `nft` lists them.

use super::constant::Kind;
use crate::object::{AnonymousSet, Element, ElementData, SetKind};
use crate::value::{DataType, Verdict};

/// Renders an element of a set or map. In a set of ranges, `end` is the first key after the
/// element's range.
pub fn element(key: &[DataType], kind: &SetKind, element: &Element, end: Option<&[u8]>) -> String {
    let mut text = if element.key.is_empty() {
        "*".to_owned()
    } else {
        ranged(key, element, end)
    };
    if let Some(comment) = &element.comment {
        text = format!("{text} comment \"{comment}\"");
    }
    match &element.data {
        Some(ElementData::Verdict(to)) => format!("{text} : {}", verdict(to)),
        Some(ElementData::Value(bytes)) => {
            let types = match kind {
                SetKind::Map(types) => types.as_slice(),
                SetKind::Set | SetKind::Verdicts => &[],
            };
            format!("{text} : {}", concatenation(types, bytes))
        }
        None => text,
    }
}

/// Renders all elements of an anonymous set.
pub(super) fn all(set: &AnonymousSet) -> Vec<String> {
    let mut texts = Vec::with_capacity(set.elements.len());
    let mut elements = set.elements.iter().peekable();
    while let Some(one) = elements.next() {
        if one.ends_interval {
            continue;
        }
        let end = if set.intervals {
            elements.peek().map(|next| &*next.key)
        } else {
            None
        };
        texts.push(element(&set.key, &set.kind, one, end));
    }
    texts
}

/// Renders an element's key, or the range of keys that the element covers. `key` holds the types of
/// the key's parts.
fn ranged(key: &[DataType], element: &Element, end: Option<&[u8]>) -> String {
    let first = &*element.key;
    match (&element.key_end, end, key) {
        (Some(last), ..) => {
            let (first, last) = (parts(key, first), parts(key, last));
            let both = first
                .iter()
                .zip(&last)
                .map(|((kind, first), (_, last))| range(kind, first, last));
            both.collect::<Vec<_>>().join(" . ")
        }
        (None, Some(end), [only]) => {
            let mut last = end.to_vec();
            // Computes the last key in the range: the first key after the range, minus 1.
            for byte in last.iter_mut().rev() {
                let (less, borrows) = byte.overflowing_sub(1);
                *byte = less;
                if !borrows {
                    break;
                }
            }
            range(&Kind::of(*only), first, &last)
        }
        _ => concatenation(key, first),
    }
}

fn range(kind: &Kind, first: &[u8], last: &[u8]) -> String {
    if first == last {
        return kind.text(first);
    }
    // Computes a mask of the bits that are equal in the first and the last key. If the range covers
    // all values of the other bits, renders the range as a prefix, as `nft` does.
    let same: Vec<u8> = first
        .iter()
        .zip(last)
        .map(|(one, other)| !(one ^ other))
        .collect();
    let ends = first.iter().zip(last).zip(&same);
    let is_whole = ends
        .clone()
        .all(|((one, other), same)| one & !same == 0 && other | same == 0xff);
    match kind.prefix(&same).filter(|_| is_whole) {
        Some(prefix) => format!("{}/{prefix}", kind.text(first)),
        None => format!("{}-{}", kind.text(first), kind.text(last)),
    }
}

/// Renders a key or value of several parts.
fn concatenation(types: &[DataType], bytes: &[u8]) -> String {
    if types.is_empty() {
        return Kind::Bytes.text(bytes);
    }
    let parts = parts(types, bytes).into_iter();
    let texts: Vec<String> = parts.map(|(kind, part)| kind.text(part)).collect();
    texts.join(" . ")
}

/// Splits a value into its parts, and removes the padding.
fn parts<'a>(types: &[DataType], bytes: &'a [u8]) -> Vec<(Kind, &'a [u8])> {
    let mut rest = bytes;
    let part = |of: &DataType| {
        let part = rest.get(..of.len().min(rest.len())).unwrap_or_default();
        let filled = of.len().next_multiple_of(4).min(rest.len());
        rest = rest.get(filled..).unwrap_or_default();
        (Kind::of(*of), part)
    };
    types.iter().map(part).collect()
}

pub(super) fn verdict(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Accept => "accept".to_owned(),
        Verdict::Drop => "drop".to_owned(),
        Verdict::Continue => "continue".to_owned(),
        Verdict::Return => "return".to_owned(),
        Verdict::Jump(chain) => format!("jump {chain}"),
        Verdict::Goto(chain) => format!("goto {chain}"),
    }
}
