//! Footprints of the modes: the names of the chains, sets, tables and links that each mode uses.

use footprint::Footprints;

/// Footprints of all modes in this build.
pub const ALL: Footprints = &[
    &proxy_ipvs::FOOTPRINT,
    &proxy_iptables::FOOTPRINT,
    &proxy_userspace::FOOTPRINT,
    &proxy_nftables::FOOTPRINT,
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use footprint::Footprint;
    use footprint::origin::{FILTER, NAT, Space, origin_of};
    use proxy::IpFamily;

    use super::*;

    /// Returns the names in a mode's footprint, each with its iptables table, `ipset` or `link`.
    /// Omits nftables tables.
    fn named(mode: &Footprint) -> BTreeSet<(String, String)> {
        let chains = mode.chains.iter().chain(mode.prefixes);
        let chains = chains.map(|(table, chain)| (table.to_string(), (*chain).to_owned()));
        let jumps = mode.jumps.iter();
        let jumps = jumps.map(|jump| (jump.table.to_string(), jump.to.to_owned()));
        let sets = IpFamily::ALL.into_iter().flat_map(mode.sets);
        let sets = sets.map(|set| ("ipset".to_owned(), set.name));
        let link = mode.link.into_iter();
        let link = link.map(|link| ("link".to_owned(), link.name.to_owned()));
        chains.chain(jumps).chain(sets).chain(link).collect()
    }

    fn space(name: &str) -> Space<'_> {
        match name {
            "ipset" => Space::Ipset,
            "link" => Space::Link,
            table => Space::Iptables(table),
        }
    }

    #[test]
    fn each_object_that_a_mode_writes_has_an_origin() {
        let mut count = 0;
        for alone in ALL.chunks(1) {
            for (place, name) in alone.iter().flat_map(|mode| named(mode)) {
                assert!(
                    origin_of(alone, space(&place), &name).is_some(),
                    "{alone:?}: {place} {name}"
                );
                count += 1;
            }
        }
        assert!(count > 60, "{count}");
    }

    #[test]
    fn each_object_in_our_nftables_tables_has_an_origin() {
        let mut tables = BTreeSet::new();
        for family in IpFamily::ALL {
            for (table, names) in [
                (proxy_nftables::TABLE, proxy_nftables::names(family)),
                ("kube-proxy-ipvs", proxy_ipvs::native_names(family)),
                (
                    "kube-proxy-userspace",
                    proxy_userspace::native_names(family),
                ),
            ] {
                assert!(names.len() >= 8, "{table}: {names:?}");
                tables.insert(table);
                for name in names {
                    assert!(
                        origin_of(ALL, Space::Nftables(table), &name).is_some(),
                        "{table} {name}"
                    );
                }
            }
        }
        let left = ALL.iter().flat_map(|mode| mode.nft_tables);
        assert_eq!(tables, left.copied().collect());
    }

    #[test]
    fn each_object_in_upstreams_nftables_tables_has_an_origin() {
        // Dumps of nftables tables that kube-proxy 1.36.2 of upstream has written.
        const DUMPS: [&str; 4] = [
            include_str!("../../../integration/golden/cases/nftables/affinity-clientip/nft-ip"),
            include_str!(
                "../../../integration/golden/cases/nftables/lb-sourceranges-with-node/nft-ip"
            ),
            include_str!("../../../integration/golden/cases/nftables/dualstack/nft-ip6"),
            include_str!("../../../integration/golden/cases/nftables/itp-local/nft-ip"),
        ];
        let table = Space::Nftables(proxy_nftables::TABLE);
        for dump in DUMPS {
            let lines = dump.lines().map(str::trim);
            let names = lines.filter_map(|line| {
                let words = line.strip_suffix(" {")?;
                let (kind, name) = words.split_once(' ')?;
                matches!(kind, "chain" | "set" | "map").then_some(name)
            });
            let names: BTreeSet<&str> = names.collect();
            assert!(names.len() > 20, "{names:?}");
            for name in names {
                assert!(origin_of(ALL, table, name).is_some(), "{name}");
            }
        }
    }

    #[test]
    fn objects_of_other_programs_have_no_origin() {
        let shim = Space::Nftables("kube-proxy-ipvs");
        for (space, name) in [
            (NAT, "DOCKER"),
            (FILTER, "DOCKER-USER"),
            (FILTER, "KUBE-SVC-LOLE4ISW44XBNF3G"),
            (NAT, "cali-PREROUTING"),
            (Space::Ipset, "cali40all-ipam-pools"),
            (Space::Ipset, "KUBE-6-LOAD"),
            (Space::Nftables("firewalld"), "services"),
            (shim, "KUBE-SERVICES-8"),
        ] {
            assert_eq!(origin_of(ALL, space, name), None, "{name}");
        }
        let ranges = "KUBE-6-LOAD-BALANCER-SOURCE-CID";
        let sized = format!("{ranges}-64");
        let of = |name| origin_of(ALL, shim, name);
        assert_eq!(of(&sized), Some(footprint::origin::RANGES));
        assert_eq!(of(ranges), of(&sized));
    }

    #[test]
    fn each_kernel_object_name_has_one_origin() {
        for row in ALL.iter().flat_map(|mode| mode.origins) {
            let said = origin_of(ALL, row.space, row.name);
            assert_eq!(said, Some(row.says), "{}", row.name);
        }
        for mode in ALL {
            for (at, row) in mode.origins.iter().enumerate() {
                let mut others = mode.origins.iter().skip(at + 1);
                assert!(
                    !others.any(|other| other.space == row.space && other.name == row.name),
                    "{} is there twice",
                    row.name
                );
            }
        }
    }
}
