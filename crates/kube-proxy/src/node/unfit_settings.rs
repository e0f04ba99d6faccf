//! Finds settings that do not fit this node's current state.

use modes::detect_local::DetectLocal;
use route_netlink::Rtnetlink;

use super::one_family::SettingWarning;

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
    use super::*;

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
