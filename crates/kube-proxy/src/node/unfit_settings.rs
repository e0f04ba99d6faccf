//! Finds settings that do not fit this node's current state.

use modes::detect_local::DetectLocal;
use proxy::Model;
use route_netlink::Rtnetlink;

use super::one_family::SettingWarning;
use crate::config::options::Options;
use crate::config::options::object_source::OwnNode;

/// Returns a warning if this node's name is no Node's name. Manifests need no Node, so with them,
/// the name is only wrong if objects name other nodes alone.
pub(crate) fn unknown_name(options: &Options, model: &Model) -> Option<SettingWarning> {
    let other = model.only_other_node();
    let is_unknown = match OwnNode::of(&options.source) {
        OwnNode::Needed => model.has_node() == Some(false),
        OwnNode::Optional => other.is_some(),
    };
    is_unknown.then(|| {
        let other = other.map(|other| format!(", although objects name the node {other}"));
        SettingWarning {
            flag: "--hostname-override",
            message: format!(
                "no Node named {} exists{}: endpoints on this node may count as on another node, \
                 and the node's zone and addresses may be unknown; check --hostname-override",
                options.process.node_name,
                other.unwrap_or_default()
            ),
        }
    })
}

/// Returns a warning if the bridge of `--pod-bridge-interface` does not exist. Returns `None` if
/// the kernel does not reply.
pub(crate) fn absent_bridge(detection: &DetectLocal) -> Option<SettingWarning> {
    let DetectLocal::BridgeInterface(name) = detection else {
        return None;
    };
    let is_absent = matches!(Rtnetlink::open().ok()?.link(name), Ok(None));
    is_absent.then(|| SettingWarning {
        flag: "--pod-bridge-interface",
        message: format!(
            "this node has no interface {name}: packets of this node's pods are taken for packets \
             from outside, so that externalTrafficPolicy: Local holds for them and masquerading \
             differs; correct the flag, unless a network plugin creates the bridge with the first \
             pod"
        ),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proxy::{Endpoint, EndpointSlice, Event, IpFamily, Kind, NamespacedName, Node, Placement};

    use super::*;
    use crate::tests::options;

    /// Returns the model of `node1` after a whole list of Nodes with these events.
    fn model(events: impl IntoIterator<Item = Event>) -> Model {
        let mut model = Model::of_node("node1");
        let whole = Event::ListComplete {
            kind: Kind::Node,
            is_whole: true,
        };
        let events = events.into_iter().chain([whole]);
        for event in [Event::ListStarted(Kind::Node)].into_iter().chain(events) {
            model.apply(event);
        }
        model
    }

    fn slice(nodes: &[&str]) -> Event {
        let name = NamespacedName::new("default", "a");
        let endpoint = |node: &&str| Endpoint {
            address: [10, 244, 0, 1].into(),
            ready: true,
            serving: true,
            terminating: false,
            placement: Arc::new(Placement {
                node: Some((*node).into()),
                ..Placement::default()
            }),
        };
        Event::SliceApplied(EndpointSlice {
            service: name.clone(),
            name,
            family: IpFamily::V4,
            ports: [].into_iter().collect(),
            endpoints: nodes.iter().map(endpoint).collect(),
            change_trigger: None,
        })
    }

    #[test]
    fn a_node_name_that_no_object_has_is_reported() {
        let node = |name: &str| {
            Event::NodeApplied(Node {
                name: name.into(),
                ..Node::default()
            })
        };
        let manifests = options(&[]);
        let warned = |events: Vec<Event>| unknown_name(&manifests, &model(events));
        assert_eq!(warned(vec![]), None, "manifests need no Node");
        assert_eq!(warned(vec![node("n2"), node("node1")]), None);
        assert_eq!(warned(vec![slice(&["n2", "node1"])]), None);
        for event in [node("n2"), slice(&["n2"])] {
            let warning = warned(vec![event]).unwrap();
            let text = "no Node named node1 exists, although objects name the node n2";
            assert!(warning.message.starts_with(text), "{warning:?}");
        }
        let server = Options {
            source: source::Settings::Api(source::Api::default()),
            ..manifests
        };
        assert!(unknown_name(&server, &model([])).is_some());
        assert_eq!(
            unknown_name(&server, &Model::of_node("node1")),
            None,
            "not listed yet"
        );
    }

    #[test]
    fn an_absent_bridge_is_reported() {
        let warning = |name: &str| absent_bridge(&DetectLocal::BridgeInterface(name.to_owned()));
        assert_eq!(warning("lo"), None);
        let absent = warning("absent0").unwrap();
        assert!(
            absent.message.contains("no interface absent0"),
            "{absent:?}"
        );
        assert_eq!(absent_bridge(&DetectLocal::NodeCidr), None);
    }
}
