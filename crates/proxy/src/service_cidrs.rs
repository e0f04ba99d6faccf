//! The networks that ClusterIPs come from (KEP-1880), out of all ServiceCIDR objects.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;

use crate::names::{IpFamily, NamespacedName};

/// What is known of them.
#[derive(Debug, Default)]
pub(crate) struct ServiceCidrs {
    objects: BTreeMap<NamespacedName, Vec<IpNet>>,
    /// Those of all objects.
    nets: BTreeSet<IpNet>,
    /// Whether every object has been told once.
    is_known: bool,
}

/// Whether anything is other than before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Changed {
    Yes,
    No,
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

    pub(crate) fn apply(&mut self, name: NamespacedName, nets: Vec<IpNet>) -> Changed {
        self.objects.insert(name, nets);
        self.gather()
    }

    pub(crate) fn delete(&mut self, name: &NamespacedName) -> Changed {
        self.objects.remove(name);
        self.gather()
    }

    /// Every object has been told.
    pub(crate) fn know(&mut self) -> Changed {
        if std::mem::replace(&mut self.is_known, true) {
            Changed::No
        } else {
            Changed::Yes
        }
    }

    /// Those of a family, sorted, each once; `None` before every object has been told.
    pub(crate) fn of(&self, family: IpFamily) -> Option<Vec<IpNet>> {
        let nets = self.nets.iter().copied();
        let own = nets.filter(|net| IpFamily::of(net.addr()) == family);
        self.is_known.then(|| own.collect())
    }

    /// There are a handful.
    fn gather(&mut self) -> Changed {
        let nets = self.objects.values().flatten().copied().collect();
        if std::mem::replace(&mut self.nets, nets) == self.nets {
            Changed::No
        } else {
            Changed::Yes
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nets(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn the_networks_of_all_objects_are_told_once_and_in_order() {
        let name = |name| NamespacedName::new("", name);
        let mut cidrs = ServiceCidrs::default();
        let first = nets(&["10.96.0.0/12", "fd00:96::/112"]);
        assert_eq!(cidrs.apply(name("kubernetes"), first), Changed::Yes);
        assert_eq!(cidrs.of(IpFamily::V4), None, "others may come");
        assert_eq!(cidrs.know(), Changed::Yes);
        assert_eq!(cidrs.know(), Changed::No);
        let more = nets(&["10.128.0.0/16", "10.7.0.0/16", "10.96.0.0/12"]);
        assert_eq!(cidrs.apply(name("more"), more.clone()), Changed::Yes);
        assert_eq!(cidrs.apply(name("more"), more), Changed::No);
        let all = nets(&["10.7.0.0/16", "10.96.0.0/12", "10.128.0.0/16"]);
        assert_eq!(cidrs.of(IpFamily::V4), Some(all));
        assert_eq!(cidrs.of(IpFamily::V6), Some(nets(&["fd00:96::/112"])));
        assert_eq!(cidrs.delete(&name("kubernetes")), Changed::Yes);
        assert_eq!(cidrs.delete(&name("kubernetes")), Changed::No);
        assert_eq!(cidrs.of(IpFamily::V4).unwrap().len(), 3, "two had one");
        assert_eq!(cidrs.of(IpFamily::V6), Some(Vec::new()));
    }
}
