//! Limits the writes of one Service, and of one namespace, in a plan (one batch of kernel writes).
//!
//! A tenant may have very many pending writes in its namespace, for one very large Service or for
//! thousands of smaller Services. A change in another namespace waits for at most one share of
//! these writes.

use hashbrown::HashMap;

use crate::names::NamespacedName;

/// Priority of a write in a plan. Writes with the smallest value come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Share {
    /// The Service and its namespace have not used up their shares.
    Within,
    /// The Service's namespace has used up its share.
    AboveNamespace,
    /// The Service has used up its share.
    AboveService,
}

/// Numbers of writes in one plan, per Service and per namespace.
#[derive(Debug)]
pub struct Shares<'a> {
    most: usize,
    services: HashMap<&'a NamespacedName, usize>,
    namespaces: HashMap<&'a str, usize>,
}

impl<'a> Shares<'a> {
    /// Creates counters at zero. Each Service and each namespace has a share of `most` writes.
    pub fn new(most: usize) -> Self {
        Self {
            most,
            services: HashMap::new(),
            namespaces: HashMap::new(),
        }
    }

    /// Counts `writes` more writes for a Service, and returns their priority.
    pub fn of(&mut self, service: &'a NamespacedName, writes: usize) -> Share {
        let own = self.services.entry(service).or_default();
        let is_within = *own < self.most;
        *own += writes;
        if !is_within {
            return Share::AboveService;
        }
        let all = self.namespaces.entry(service.namespace()).or_default();
        let is_within = *all < self.most;
        *all += writes;
        if is_within {
            Share::Within
        } else {
            Share::AboveNamespace
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Share::{AboveNamespace, AboveService, Within};
    use super::*;

    #[test]
    fn writes_above_the_share_of_a_service_or_namespace_have_a_lower_priority() {
        let [large, small, other] = [("a", "large"), ("a", "small"), ("b", "other")]
            .map(|(namespace, name)| NamespacedName::new(namespace, name));
        let mut shares = Shares::new(2);
        let all = [&large, &large, &large, &small, &other, &other, &other];
        let places = all.map(|service| shares.of(service, 1));
        assert_eq!(
            places,
            [
                Within,
                Within,
                AboveService,
                AboveNamespace,
                Within,
                Within,
                AboveService
            ]
        );
        let mut shares = Shares::new(2);
        let places = [&large, &small, &small].map(|service| shares.of(service, 5));
        assert_eq!(places, [Within, AboveNamespace, AboveService]);
    }
}
