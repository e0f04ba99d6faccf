//! Looks up keys in anonymous sets, and in other sets in memory.

use nftables_netlink::{AnonymousSet, DataType, Element};

/// Returns the element of a set that contains `key`, if any.
pub(super) fn find<'a>(set: &'a AnonymousSet, key: &[u8]) -> Option<&'a Element> {
    let mut elements = set.elements.iter();
    if !set.intervals {
        return elements.find(|element| element.key[..] == *key);
    }
    if set.elements.iter().any(|element| element.key_end.is_some()) {
        let parts = parts(&set.key);
        return elements.find(|element| is_within(element, key, &parts));
    }
    let before = elements.filter(|element| element.key[..] <= *key);
    // If one range ends at the key at which another begins, the beginning takes precedence.
    let last = before.max_by_key(|element| (&element.key, !element.ends_interval));
    last.filter(|element| !element.ends_interval)
}

/// Returns the byte range of each field of a key.
fn parts(types: &[DataType]) -> Vec<std::ops::Range<usize>> {
    let mut at = 0;
    let range = |part: &DataType| {
        let start = at;
        at += part.len().next_multiple_of(4);
        start..start + part.len()
    };
    types.iter().map(range).collect()
}

/// Reports whether each field of a key is in the element's range for this field.
fn is_within(element: &Element, key: &[u8], parts: &[std::ops::Range<usize>]) -> bool {
    let last = element.key_end.as_ref().unwrap_or(&element.key);
    parts.iter().all(|part| {
        let of = |bytes: &'_ [u8]| bytes.get(part.clone()).map(<[u8]>::to_vec);
        match (of(&element.key), of(key), of(last)) {
            (Some(first), Some(key), Some(last)) => first <= key && key <= last,
            _ => false,
        }
    })
}

#[cfg(test)]
mod tests {
    use nftables_netlink::{Bytes, SetKind};

    use super::*;

    fn element(key: &[u8]) -> Element {
        Element::of_set(Bytes::from_slice(key))
    }

    fn end(key: &[u8]) -> Element {
        Element {
            ends_interval: true,
            ..element(key)
        }
    }

    fn set(key: Vec<DataType>, elements: Vec<Element>) -> AnonymousSet {
        AnonymousSet {
            key,
            kind: SetKind::Set,
            intervals: true,
            elements,
        }
    }

    #[test]
    fn a_key_matches_the_interval_that_contains_the_key() {
        let ranges = [
            end(&[0, 0]),
            element(&[1, 0]),
            end(&[2, 0]),
            element(&[9, 0]),
        ];
        let ports = set(vec![DataType::InetService], ranges.to_vec());
        let is_in = |key: [u8; 2]| find(&ports, &key).is_some();
        assert!(is_in([1, 0]) && is_in([1, 255]) && is_in([255, 255]));
        assert!(!is_in([0, 0]) && !is_in([0, 255]) && !is_in([2, 0]) && !is_in([8, 255]));
        // The second range begins where the first one ends.
        let joined = [
            element(&[1, 0]),
            end(&[2, 0]),
            element(&[2, 0]),
            end(&[3, 0]),
        ];
        let ports = set(vec![DataType::InetService], joined.to_vec());
        assert!(find(&ports, &[2, 0]).is_some() && find(&ports, &[3, 0]).is_none());
    }

    #[test]
    fn each_field_of_a_key_is_compared_with_its_interval() {
        let types = vec![DataType::InetProto, DataType::InetService];
        let mut range = element(&[6, 0, 0, 0, 0, 80, 0, 0]);
        range.key_end = Some(Bytes::from_slice(&[17, 0, 0, 0, 0, 90, 0, 0]));
        let ranges = set(types, vec![range]);
        let is_in = |proto, port| find(&ranges, &[proto, 0, 0, 0, 0, port, 0, 0]).is_some();
        assert!(is_in(6, 80) && is_in(17, 90) && is_in(10, 85));
        assert!(!is_in(6, 91) && !is_in(18, 85));
        // This key is too short to have both fields.
        assert!(find(&ranges, &[6]).is_none());
    }
}
