//! Lists of networks, as flags have them.

use ipnet::IpNet;

use super::unusable::UnusableFlag;
use source::address;

/// Networks of a flag that may be given several times, each time with several.
///
/// # Errors
///
/// One is none.
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

/// What the lists of a flag name; one that is empty names nothing.
pub fn items(given: &[String]) -> impl Iterator<Item = &str> {
    given
        .iter()
        .filter(|list| !list.is_empty())
        .flat_map(|list| split(list))
}

fn split(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim)
}
