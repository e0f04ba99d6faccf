use proxy::Protocol;

use super::*;

#[test]
fn names_of_chains_and_sets_in_the_base_parse_to_their_keys() {
    for layout in [Layout::Upstream, Layout::Flat] {
        for node_ports in [NodePortIps::All, NodePortIps::InSet] {
            let config = Config {
                layout,
                ..Config::default()
            };
            let base = Base::new(IpFamily::V4, &config, node_ports, None);
            assert!(base.sets.keys().all(|name| find_set(name) == Some(name)));
            let chains = base.chains.iter();
            let mut chains = chains.map(|(key, (chain, _))| (key, &chain.name));
            assert!(chains.all(|(key, name)| find_chain(name).as_ref() == Some(key)));
            if layout == Layout::Upstream {
                // This configuration has all fixed chains except the chain for NodePorts on
                // localhost.
                assert_eq!(base.chains.len(), CHAINS.len() - 1);
            }
        }
    }
    let chooser = Chooser {
        protocol: Protocol::Sctp,
        count: 70,
    };
    assert_eq!(
        find_chain("endpoints-of-sctp-70"),
        Some(BaseKey::Chooser(chooser))
    );
    assert_eq!(find_chain("endpoints-of-sctp-70/"), None);
}

/// Base chains of type `nat` see only the first packet of each connection.
#[test]
fn the_flat_layout_has_only_nat_base_chains() {
    let config = Config {
        layout: Layout::Flat,
        ..Config::default()
    };
    let base = Base::new(IpFamily::V6, &config, NodePortIps::InSet, None);
    let hooked = base.chains.values().filter_map(|(chain, _)| chain.base);
    let hooked: Vec<BaseChain> = hooked.collect();
    assert_eq!(hooked.len(), 3);
    assert!(hooked.iter().all(|of| of.kind == ChainKind::Nat));
}
