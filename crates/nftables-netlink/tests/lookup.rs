//! Tests lookups of single objects by name and by key, in rulesets that `nft` has loaded. Each test
//! has its own network namespace. The tests need root.

#![allow(clippy::restriction, reason = "a test stops at the first surprise")]

mod common;

use common::{in_namespace, load};
use nftables_netlink::{
    Concatenation, Direction, ElementData, Expression, Family, Hook, TupleKey, Verdict,
};

const RULES: &str = r#"
table ip t {
    set exact { type ipv4_addr; elements = { 10.0.0.1 } }
    set ranges { type ipv4_addr; flags interval; elements = { 10.1.0.0/16, 192.0.2.5-192.0.2.9, 255.255.255.0/24 } }
    map verdicts { type ipv4_addr . inet_proto . inet_service : verdict
        elements = { 10.96.0.1 . tcp . 80 comment "ns/web" : goto c } }
    map ranged { type ipv4_addr . inet_service : verdict; flags interval
        elements = { 10.0.0.0/8 . 80-90 : drop, 10.0.0.0/8 . 443 : accept } }
    map others { type ipv4_addr : verdict; elements = { 10.0.0.1 : accept, * : drop } }
    set clients { type ipv4_addr; flags dynamic,timeout; timeout 1h; elements = { 10.244.1.5 } }
    counter seen {
    }
    chain c {
        counter name "seen" limit rate over 10/second log prefix "hey" ct original daddr 10.0.0.1 ct mark set 5 meta mark 1-5 meta pkttype host notrack
    }
    chain in {
        type filter hook prerouting priority -300; policy drop;
    }
}
table inet f {
    chain through {
        type filter hook forward priority filter;
    }
}
table netdev n {
    chain early {
        type filter hook ingress device lo priority 0;
    }
}
"#;

#[test]
fn an_element_is_found_by_a_key_within_its_range() {
    in_namespace(|mut nftables| {
        load(RULES);
        let mut find = |set: &str, key: &[u8]| {
            let found = nftables.element(Family::Ip, "t", set, key).unwrap();
            let end = match set {
                "ranges" => nftables.interval_end(Family::Ip, "t", set, key).unwrap(),
                _ => None,
            };
            let bytes = |key: nftables_netlink::Bytes| key.to_vec();
            found.map(|found| (bytes(found.key), end.map(|end| bytes(end.key))))
        };
        assert_eq!(find("exact", &[10, 0, 0, 2]), None);
        assert_eq!(find("exact", &[10, 0, 0, 1]).unwrap().0, [10, 0, 0, 1]);
        let net = (vec![10, 1, 0, 0], Some(vec![10, 2, 0, 0]));
        for inside in [[10, 1, 0, 0], [10, 1, 2, 3], [10, 1, 255, 255]] {
            assert_eq!(find("ranges", &inside), Some(net.clone()));
        }
        for outside in [[10, 0, 255, 255], [10, 2, 0, 0], [192, 0, 2, 10]] {
            assert_eq!(find("ranges", &outside), None);
        }
        assert_eq!(
            find("ranges", &[192, 0, 2, 9]),
            Some((vec![192, 0, 2, 5], Some(vec![192, 0, 2, 10])))
        );
        // The key after 192.0.2.8 is the last key of the range.
        let last = find("ranges", &[192, 0, 2, 8]).unwrap();
        assert_eq!(last.1.unwrap(), [192, 0, 2, 10]);
        assert_eq!(
            find("ranges", &[255, 255, 255, 255]),
            Some((vec![255, 255, 255, 0], None))
        );
        // The set `clients` is dynamic: a rule may add elements to it.
        assert!(find("clients", &[10, 244, 1, 5]).is_some());
        assert!(find("clients", &[10, 244, 1, 6]).is_none());
        assert!(find("no such set", &[10, 244, 1, 6]).is_none());
    });
}

#[test]
fn a_lookup_returns_the_verdict_that_the_kernel_uses() {
    in_namespace(|mut nftables| {
        load(RULES);
        let key = |last| {
            let key = Concatenation::new().address([10, 96, 0, last].into());
            key.protocol(6).port(80).into_key()
        };
        let found = nftables.element(Family::Ip, "t", "verdicts", &key(1));
        let found = found.unwrap().unwrap();
        let to_c = Some(ElementData::Verdict(Verdict::Goto("c".into())));
        assert_eq!(
            (&found.data, &found.comment),
            (&to_c, &Some("ns/web".into()))
        );
        let absent = nftables.element(Family::Ip, "t", "verdicts", &key(2));
        assert_eq!(absent.unwrap(), None);

        let mut ranged = |port| {
            let key = Concatenation::new()
                .address([10, 9, 9, 9].into())
                .port(port);
            let found = nftables.element(Family::Ip, "t", "ranged", &key.into_key());
            found.unwrap().map(|found| {
                let last = found.key_end.map(|last| last.to_vec());
                (found.data, last)
            })
        };
        let drop = Some(ElementData::Verdict(Verdict::Drop));
        let last = Some(vec![10, 255, 255, 255, 0, 90, 0, 0]);
        assert_eq!(ranged(85), Some((drop.clone(), last)));
        assert_eq!(ranged(91), None);

        let all = nftables.catch_all(Family::Ip, "t", "others").unwrap();
        assert_eq!(all.unwrap().data, drop);
        assert_eq!(
            nftables.catch_all(Family::Ip, "t", "verdicts").unwrap(),
            None
        );
        assert_eq!(nftables.catch_all(Family::Ip, "t", "ranges").unwrap(), None);
    });
}

#[test]
fn sets_and_base_chains_are_found_by_name() {
    in_namespace(|mut nftables| {
        load(RULES);
        let found = nftables.set(Family::Ip, "t", "ranges").unwrap().unwrap();
        assert!(found.set.intervals);
        assert_eq!(nftables.set(Family::Ip, "t", "none").unwrap(), None);
        assert_eq!(nftables.set(Family::Ip, "none", "ranges").unwrap(), None);

        let mut hooked = nftables.base_chains().unwrap();
        hooked.sort_by_key(|of| of.chain.clone());
        let chains: Vec<_> = hooked
            .iter()
            .map(|of| (of.family, &*of.table, &*of.chain))
            .collect();
        let there = [
            (Family::Netdev, "n", "early"),
            (Family::Ip, "t", "in"),
            (Family::Inet, "f", "through"),
        ];
        assert_eq!(chains, there);
        let base = hooked[1].base.unwrap();
        assert_eq!((base.hook, base.priority), (Hook::Prerouting, -300));
        assert_eq!(hooked[0].base, None, "netdev's ingress is no hook of ours");
    });
}

#[test]
fn expressions_in_rules_of_other_programs_are_decoded() {
    in_namespace(|mut nftables| {
        load(RULES);
        let rules = nftables.rules_of_chain(Family::Ip, "t", "c").unwrap();
        let all = &rules[0].rule.expressions;
        let unknown = |of: &&Expression| matches!(of, Expression::Unknown(_));
        assert_eq!(all.iter().find(unknown), None);
        let limit = Expression::Limit {
            rate: 10,
            seconds: 1,
            bytes: false,
            over: true,
        };
        let log = Expression::Log {
            prefix: Some("hey".into()),
        };
        let seen = Expression::Object {
            kind: 1,
            name: "seen".into(),
        };
        for wanted in [limit, log, seen, Expression::NoTrack] {
            assert!(all.contains(&wanted), "{wanted:?} in {all:?}");
        }
        let is_tuple = |of: &Expression| {
            let (key, direction) = (TupleKey::DestinationIp, Direction::Original);
            matches!(of, Expression::CtTuple { key: k, direction: d, .. }
                if (*k == key || *k == TupleKey::Destination) && *d == direction)
        };
        assert!(all.iter().any(is_tuple), "{all:?}");
    });
}
