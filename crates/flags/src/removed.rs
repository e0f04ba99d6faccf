//! Flags that earlier releases of kube-proxy had. Upstream reports such a flag only as unknown;
//! this program's error also names the replacement.

/// Removed flags, in groups with the same advice for the user. Names have no dashes.
const REMOVED: &[(&[&str], &str)] = &[
    (&["cleanup-ipvs", "cleanup-iptables"], "use --cleanup"),
    (
        &["conntrack-max"],
        "use --conntrack-max-per-core and --conntrack-min",
    ),
    (
        &["proxy-port-range"],
        "userspace mode takes ports of net.ipv4.ip_local_port_range; remove it",
    ),
    (
        &["resource-container"],
        "it was removed in Kubernetes 1.16; remove it, and limit the container's resources",
    ),
    (
        &[
            "add-dir-header",
            "alsologtostderr",
            "log-backtrace-at",
            "log-dir",
            "log-file",
            "log-file-max-size",
            "logtostderr",
            "one-output",
            "skip-headers",
            "skip-log-headers",
            "stderrthreshold",
        ],
        "it was removed in Kubernetes 1.26; remove it: the log goes to standard error",
    ),
    (
        &[
            "azure-container-registry-config",
            "cloud-provider-gce-lb-src-cidrs",
        ],
        "it was left over from another program; remove it",
    ),
    (
        &[
            "enable-dsr",
            "forward-healthcheck-vip",
            "network-name",
            "root-hnsendpoint-name",
            "source-vip",
            "windows-service",
        ],
        "it is for Windows; remove it",
    ),
];

/// Returns the advice for a removed flag, or `None` for any other flag. `flag` is a name without
/// dashes.
pub(super) fn advice(flag: &str) -> Option<&'static str> {
    REMOVED
        .iter()
        .find(|(flags, _)| flags.contains(&flag))
        .map(|(_, advice)| *advice)
}
