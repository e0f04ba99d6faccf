//! Groups of flags in `--help`, and the flags in the short help (`-h`).

use clap::{Command, CommandFactory as _};

use super::Flags;

/// Headings of `--help`, each with the names of its flags. Below a heading, `--help` lists the
/// flags in the order of the fields of [`Flags`].
const HEADINGS: &[(&str, &[&str])] = &[
    (
        "Actions",
        &[
            "write-config-to",
            "cleanup",
            "dry-run",
            "init-only",
            "version",
        ],
    ),
    (
        "Configuration and source",
        &[
            "config",
            "prepared-config",
            "manifests",
            "kubeconfig",
            "master",
            "hostname-override",
            "kube-api-content-type",
            "feature-gates",
        ],
    ),
    (
        "Services",
        &[
            "proxy-mode",
            "bind-address",
            "cluster-cidr",
            "detect-local-mode",
            "pod-bridge-interface",
            "pod-interface-name-prefix",
            "nodeport-addresses",
            "allowed-external-cidrs",
            "masquerade-all",
        ],
    ),
    (
        "IPVS mode",
        &[
            "ipvs-scheduler",
            "ipvs-exclude-cidrs",
            "ipvs-strict-arp",
            "ipvs-tcp-timeout",
            "ipvs-tcpfin-timeout",
            "ipvs-udp-timeout",
            "ipvs-sync-period",
            "ipvs-min-sync-period",
            "ipvs-shim",
            "ipvs-drain-timeout",
            "ipvs-vip-mode",
            "ipvs-service-cidrs",
            "ipvs-semantics",
            "ipvs-mark-bits",
            "ipvs-answer-ping",
        ],
    ),
    (
        "Other modes",
        &[
            "iptables-masquerade-bit",
            "iptables-sync-period",
            "iptables-min-sync-period",
            "iptables-localhost-nodeports",
            "iptables-backend",
            "nftables-layout",
            "udp-timeout",
        ],
    ),
    (
        "Connection tracking",
        &[
            "conntrack-max-per-core",
            "conntrack-min",
            "conntrack-tcp-timeout-established",
            "conntrack-tcp-timeout-close-wait",
            "conntrack-tcp-be-liberal",
            "conntrack-udp-timeout",
            "conntrack-udp-timeout-stream",
        ],
    ),
    (
        "Health, metrics and process",
        &[
            "healthz-bind-address",
            "healthz-port",
            "metrics-bind-address",
            "metrics-port",
            "metrics-per-service",
            "metrics-service-series-max",
            "bind-address-hard-fail",
            "oom-score-adj",
        ],
    ),
    (
        "Log",
        &[
            "v",
            "vmodule",
            "logging-format",
            "log-json-split-stream",
            "log-text-split-stream",
        ],
    ),
    (
        "Accepted without effect",
        &[
            "kube-api-qps",
            "kube-api-burst",
            "config-sync-period",
            "profiling",
            "show-hidden-metrics-for-version",
            "log-flush-frequency",
            "log-json-info-buffer-size",
            "log-text-info-buffer-size",
            "boot-id-file",
            "machine-id-file",
        ],
    ),
];

/// Names of the flags in the short help (`-h`).
const SHORT: &[&str] = &[
    "config",
    "manifests",
    "kubeconfig",
    "hostname-override",
    "proxy-mode",
    "cluster-cidr",
    "nodeport-addresses",
    "cleanup",
    "dry-run",
    "init-only",
    "v",
    "version",
];

/// Maximum width of the help text in columns, even in a wider terminal.
pub const HELP_COLUMNS: usize = 100;

/// Returns clap's definition of the daemon's command line, with the flags below the headings of
/// `--help`.
pub fn command() -> Command {
    let command = Flags::command().max_term_width(HELP_COLUMNS);
    command.mut_args(|flag| {
        let name = flag.get_long().unwrap_or_default();
        let mut groups = HEADINGS.iter();
        let group = groups.find(|(_, names)| names.contains(&name));
        let is_short = SHORT.contains(&name);
        let has_default = flag
            .get_default_values()
            .iter()
            .any(|value| !value.is_empty());
        flag.help_heading(group.map(|(heading, _)| *heading))
            .hide_short_help(!is_short)
            .hide_default_value(!has_default)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_flag_is_in_exactly_one_group_of_the_help() {
        let mut grouped: Vec<&str> = HEADINGS
            .iter()
            .flat_map(|(_, names)| *names)
            .copied()
            .collect();
        let command = Flags::command();
        let mut flags: Vec<&str> = command
            .get_arguments()
            .filter_map(|flag| flag.get_long())
            .collect();
        grouped.sort_unstable();
        flags.sort_unstable();
        assert_eq!(grouped, flags);
        assert!(SHORT.iter().all(|name| flags.contains(name)));
    }

    #[test]
    fn the_help_of_ignored_flags_says_that_they_have_no_effect() {
        let command = Flags::command();
        for flag in command.get_arguments() {
            let name = flag.get_long().unwrap();
            let help = flag.get_help().unwrap().to_string().to_lowercase();
            let ends = help
                .split("; ")
                .any(|part| part.starts_with("no effect") && !part.starts_with("no effect in"));
            let (_, last) = HEADINGS.last().unwrap();
            assert_eq!(last.contains(&name), ends, "--{name}: {help}");
        }
    }
}
