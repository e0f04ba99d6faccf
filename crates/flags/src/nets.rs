//! Parses flags whose values are lists of networks, such as `--nodeport-addresses`.

use ipnet::IpNet;

use super::unusable_flag::UnusableFlag;
use source::address;

/// Parses the values of a repeatable flag into one list. Each value lists networks, with commas.
///
/// # Errors
///
/// Fails if an item is not a network.
pub fn nets<T: AsRef<str>>(flag: &'static str, given: &[T]) -> Result<Vec<IpNet>, UnusableFlag> {
    given
        .iter()
        .flat_map(|list| split(list.as_ref()))
        .map(|text| {
            address::net(text).ok_or_else(|| {
                UnusableFlag::new(flag, text, "give networks such as 10.0.0.0/16 or fd00::/64")
            })
        })
        .collect()
}

/// Splits all values of a repeatable flag into items. An empty value has no items.
pub fn items(given: &[String]) -> impl Iterator<Item = &str> {
    given
        .iter()
        .filter(|list| !list.is_empty())
        .flat_map(|list| split(list))
}

/// Splits a list at its commas. As in pflag, double quotes around an item are removed.
fn split(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim).map(|item| {
        let inner = item.strip_prefix('"');
        inner
            .and_then(|inner| inner.strip_suffix('"'))
            .unwrap_or(item)
    })
}
