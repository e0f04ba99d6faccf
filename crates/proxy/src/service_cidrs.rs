//! ClusterIP ranges (KEP-1880): the networks of all ServiceCIDR objects.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;

use crate::names::{IpFamily, NamespacedName};

/// All ServiceCIDR objects of the cluster.
#[derive(Debug, Default)]
pub(crate) struct ServiceCidrs {
    objects: BTreeMap<NamespacedName, Vec<IpNet>>,
    /// Union of the networks of all ServiceCIDR objects.
    nets: BTreeSet<IpNet>,
    /// True once a list has contained every ServiceCIDR object.
    is_known: bool,
}

impl ServiceCidrs {
    pub(crate) fn names(&self) -> impl Iterator<Item = &NamespacedName> {
        self.objects.keys()
    }

    pub(crate) fn len(&self) -> usize {
        self.objects.len()
    }

    pub(crate) fn contains(&self, name: &NamespacedName) -> bool {
        self.objects.contains_key(name)
    }

    /// Adds or replaces a ServiceCIDR object. Returns true if the combined networks have changed.
    pub(crate) fn apply(&mut self, name: NamespacedName, nets: Vec<IpNet>) -> bool {
        self.objects.insert(name, nets);
        self.gather()
    }

    /// Removes a ServiceCIDR object. Returns true if the combined networks have changed.
    pub(crate) fn delete(&mut self, name: &NamespacedName) -> bool {
        self.objects.remove(name);
        self.gather()
    }

    /// Records that every ServiceCIDR object is known. Returns true on the first call.
    pub(crate) fn know(&mut self) -> bool {
        !std::mem::replace(&mut self.is_known, true)
    }

    /// Returns the networks of a family, sorted and unique. Returns `None` until every ServiceCIDR
    /// object is known.
    pub(crate) fn of(&self, family: IpFamily) -> Option<Vec<IpNet>> {
        let nets = self.nets.iter().copied();
        let own = nets.filter(|net| IpFamily::of(net.addr()) == family);
        self.is_known.then(|| own.collect())
    }

    /// Combines the networks of all ServiceCIDR objects, which are few. Returns true if the
    /// combined networks have changed.
    fn gather(&mut self) -> bool {
        let nets = self.objects.values().flatten().copied().collect();
        std::mem::replace(&mut self.nets, nets) != self.nets
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nets(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn the_cidrs_of_all_service_cidr_objects_are_reported_in_order() {
        let name = |name| NamespacedName::new("", name);
        let mut cidrs = ServiceCidrs::default();
        let first = nets(&["10.96.0.0/12", "fd00:96::/112"]);
        assert!(cidrs.apply(name("kubernetes"), first));
        assert_eq!(cidrs.of(IpFamily::V4), None, "others may come");
        assert!(cidrs.know());
        assert!(!cidrs.know());
        let more = nets(&["10.128.0.0/16", "10.7.0.0/16", "10.96.0.0/12"]);
        assert!(cidrs.apply(name("more"), more.clone()));
        assert!(!cidrs.apply(name("more"), more));
        let all = nets(&["10.7.0.0/16", "10.96.0.0/12", "10.128.0.0/16"]);
        assert_eq!(cidrs.of(IpFamily::V4), Some(all));
        assert_eq!(cidrs.of(IpFamily::V6), Some(nets(&["fd00:96::/112"])));
        assert!(cidrs.delete(&name("kubernetes")));
        assert!(!cidrs.delete(&name("kubernetes")));
        assert_eq!(cidrs.of(IpFamily::V4).unwrap().len(), 3, "two had one");
        assert_eq!(cidrs.of(IpFamily::V6), Some(Vec::new()));
    }
}
