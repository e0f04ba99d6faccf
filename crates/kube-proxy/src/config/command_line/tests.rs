use std::time::Duration;

use clap::CommandFactory as _;

use flags::gates::Gates;
use http_server::ConflictPolicy;
use modes::detect_local::DetectLocal;
use modes::ipvs::settings::Timeouts;
use modes::ipvs::shim::ShimChoice;
use modes::nftables::settings::LayoutChoice;
use modes::settings::ProxyMode;
use modes::shared::{IptablesBackend, Shared};
use modes::sysctl;
use modes::sysctl::settings::Conntrack;
use proxy::{ExternalIps, IpFamily, LocalDetector, Node, NodePortAddresses, Selection};
use proxy_ipvs::{MarkBits, Semantics, ShimStyle, VipMode};
use proxy_nftables::Layout;
use source::{Api, ContentType, Lists, Settings};

use super::*;
use crate::config::options::ParsedOptions;
use crate::config::options::process::Process;
use crate::config::options::servers;
use crate::config::question::{AnswerOptions, Output};
use crate::logging::settings::LogFormat;
use crate::metrics::services::settings::Detail;
use crate::{logging, metrics};

fn options(line: &str) -> Options {
    match read(line) {
        Ok(Command::Run(options)) => *options,
        other => panic!("{line}: {other:?}"),
    }
}

fn read(line: &str) -> Result<Command, CommandLineError> {
    parse(
        ["kube-proxy"]
            .into_iter()
            .chain(line.split(' ').filter(|word| !word.is_empty()))
            .map(|word| word.replace('∅', "")),
    )
}

fn error(line: &str) -> String {
    match read(line) {
        Err(error) => error.to_string(),
        Ok(command) => panic!("{line} was taken: {command:?}"),
    }
}

#[test]
fn defaults_without_flags_equal_those_of_upstream() {
    let mut defaults = options("");
    assert!(!defaults.process.node_name.is_empty());
    defaults.process.node_name.clear();
    assert_eq!(
        defaults,
        Options {
            process: Process {
                node_name: String::new(),
                init_only: false,
                oom_score_adj: -999,
                min_sync_period: Duration::from_secs(1),
                gates: Gates::default(),
                allowed_external: None,
                configuration_file: None,
                prepared_configuration: None,
            },
            log: logging::settings::Settings {
                verbosity: 0,
                vmodule: vec![],
                format: LogFormat::Text,
                is_split: false,
            },
            source: Settings::Api(Api::default()),
            serve: servers::Settings {
                healthz_address: Some("0.0.0.0:10256".parse().unwrap()),
                metrics_address: Some("127.0.0.1:10249".parse().unwrap()),
                when_taken: ConflictPolicy::Retry,
                services: metrics::services::settings::Settings {
                    detail: Detail::None,
                    most: 1_000,
                },
            },
            modes: modes::settings::Settings {
                chosen: ProxyMode::Iptables,
                shared: Shared {
                    bind_address: "0.0.0.0".parse().unwrap(),
                    detect_local: DetectLocal::ClusterCidr(vec![]),
                    node_port_addresses: NodePortAddresses::All,
                    masquerade_all: false,
                    masquerade_bit: 14,
                    iptables_backend: IptablesBackend::Auto,
                    exclude_cidrs: vec![],
                    sync_period: Duration::from_secs(30),
                },
                iptables: modes::iptables::settings::Settings {
                    localhost_node_ports: true,
                    tcp_be_liberal: false,
                },
                ipvs: modes::ipvs::settings::Settings {
                    service_cidrs: Vec::new(),
                    scheduler: "rr".into(),
                    timeouts: Timeouts::default(),
                    shim: ShimChoice::Auto,
                    drain_timeout: None,
                    vip_mode: VipMode::Address,
                    semantics: Semantics::Upstream,
                    answers_ping: false,
                },
                nftables: modes::nftables::settings::Settings {
                    masquerade_all: false,
                    masquerade_bit: 14,
                    layout: LayoutChoice::Auto,
                    localhost_node_ports: false,
                },
                userspace: modes::userspace::settings::Settings {
                    localhost_node_ports: true,
                    udp_timeout: Duration::from_millis(250),
                },
            },
            kernel: sysctl::settings::Settings {
                conntrack: Conntrack {
                    max_per_core: 32_768,
                    min: 131_072,
                    tcp_established: Duration::from_hours(24),
                    tcp_close_wait: Duration::from_hours(1),
                    ..Conntrack::default()
                },
                strict_arp: false,
            },
            said: ParsedOptions {
                configuration: Configuration::of(&Flags::defaults()),
                mode_from: "the default".to_owned(),
                notes: vec![],
                warnings: defaults.said.warnings.clone(),
                no_mode: defaults.said.no_mode.clone(),
            },
        }
    );
}

/// Flags of kube-proxy 1.36 with their defaults, as its `--help` spells them.
const UPSTREAM: [(&str, &str); 61] = [
    ("bind-address", "0.0.0.0"),
    ("bind-address-hard-fail", "false"),
    ("boot-id-file", "/proc/sys/kernel/random/boot_id"),
    ("cleanup", "false"),
    ("cluster-cidr", ""),
    ("config", ""),
    ("config-sync-period", "15m"),
    ("conntrack-max-per-core", "32768"),
    ("conntrack-min", "131072"),
    ("conntrack-tcp-be-liberal", "false"),
    ("conntrack-tcp-timeout-close-wait", "1h"),
    ("conntrack-tcp-timeout-established", "24h"),
    ("conntrack-udp-timeout", "0s"),
    ("conntrack-udp-timeout-stream", "0s"),
    ("detect-local-mode", "ClusterCIDR"),
    ("feature-gates", ""),
    ("healthz-bind-address", "0.0.0.0:10256"),
    ("healthz-port", "10256"),
    ("help", ""),
    ("hostname-override", ""),
    ("init-only", "false"),
    ("iptables-localhost-nodeports", "true"),
    ("iptables-masquerade-bit", "14"),
    ("iptables-min-sync-period", "1s"),
    ("iptables-sync-period", "30s"),
    ("ipvs-exclude-cidrs", ""),
    ("ipvs-min-sync-period", "1s"),
    ("ipvs-scheduler", ""),
    ("ipvs-strict-arp", "false"),
    ("ipvs-sync-period", "30s"),
    ("ipvs-tcp-timeout", "0s"),
    ("ipvs-tcpfin-timeout", "0s"),
    ("ipvs-udp-timeout", "0s"),
    ("kube-api-burst", "10"),
    (
        "kube-api-content-type",
        "application/vnd.kubernetes.protobuf",
    ),
    ("kube-api-qps", "5"),
    ("kubeconfig", ""),
    ("log-flush-frequency", "5s"),
    ("log-json-info-buffer-size", "0"),
    ("log-json-split-stream", "false"),
    ("log-text-info-buffer-size", "0"),
    ("log-text-split-stream", "false"),
    ("logging-format", "text"),
    (
        "machine-id-file",
        "/etc/machine-id,/var/lib/dbus/machine-id",
    ),
    ("masquerade-all", "false"),
    ("master", ""),
    ("metrics-bind-address", "127.0.0.1:10249"),
    ("metrics-port", "10249"),
    ("nodeport-addresses", ""),
    ("oom-score-adj", "-999"),
    ("pod-bridge-interface", ""),
    ("pod-interface-name-prefix", ""),
    ("profiling", "false"),
    ("proxy-mode", ""),
    ("show-hidden-metrics-for-version", ""),
    ("v", "0"),
    ("version", ""),
    ("vmodule", ""),
    ("write-config-to", ""),
    // Only this program has the following flags.
    ("manifests", ""),
    ("iptables-backend", "auto"),
];

#[test]
fn each_flag_of_upstream_is_accepted_with_its_default() {
    let mut command = Flags::command();
    command.build();
    for (name, default) in UPSTREAM {
        let flag = command
            .get_arguments()
            .find(|flag| flag.get_long() == Some(name))
            .unwrap_or_else(|| panic!("no --{name}"));
        let ours: Vec<_> = flag
            .get_default_values()
            .iter()
            .map(|d| d.to_str().unwrap())
            .collect();
        assert_eq!(ours.join(","), default, "--{name}");
        assert_eq!(
            flag.is_hide_set(),
            name.ends_with("z-port") || name == "metrics-port"
        );
    }
    let flags = command.get_arguments().map(|flag| flag.get_long().unwrap());
    let ours_alone: Vec<_> = flags
        .filter(|name| !UPSTREAM.iter().any(|(known, _)| known == name))
        .collect();
    assert_eq!(
        ours_alone,
        [
            "dry-run",
            "prepared-config",
            "metrics-per-service",
            "metrics-service-series-max",
            "allowed-external-cidrs",
            "udp-timeout",
            "ipvs-shim",
            "nftables-layout",
            "ipvs-drain-timeout",
            "ipvs-vip-mode",
            "ipvs-service-cidrs",
            "ipvs-semantics",
            "ipvs-mark-bits",
            "ipvs-answer-ping"
        ]
    );
}

#[test]
fn deprecated_or_ignored_flags_are_accepted_with_a_warning() {
    for (line, parts) in [
        (
            "--healthz-port=10257",
            &["--healthz-port", "deprecated", "--healthz-bind-address"][..],
        ),
        (
            "--metrics-port=0",
            &["--metrics-port", "deprecated", "--metrics-bind-address"],
        ),
        // The warning appears even if the flag has its default value.
        ("--healthz-port=10256", &["--healthz-port", "deprecated"]),
        ("--boot-id-file=/x", &["--boot-id-file", "no effect"]),
        ("--machine-id-file=/x", &["--machine-id-file", "no effect"]),
        (
            "--kube-api-qps=50",
            &["--kube-api-qps has no effect", "few"],
        ),
        ("--kube-api-burst=100", &["--kube-api-burst", "few"]),
        (
            "--config-sync-period=1h",
            &["--config-sync-period", "no effect"],
        ),
        ("--profiling=true", &["--profiling", "no effect"]),
        (
            "--show-hidden-metrics-for-version=1.35",
            &["--show-hidden-metrics-for-version"],
        ),
        (
            "--feature-gates=ClientsAllowCARotation=false",
            &["ClientsAllowCARotation=false has no effect", "again"],
        ),
        (
            "--feature-gates=NoSuch=true,EvenLess=false",
            &["unrecognized", "no effect: EvenLess, NoSuch", "spelling"],
        ),
        (
            "--feature-gates=PodsAPI=true,SidecarContainers=false",
            &["other components", "kube-proxy: PodsAPI, SidecarContainers"],
        ),
        (
            "--feature-gates=PreferSameTrafficDistribution=false",
            &["has no effect", "1.35 locks it to true"],
        ),
        (
            "--proxy-mode=ipvs --iptables-sync-period=1m",
            &["--iptables-sync-period has", "iptables mode"],
        ),
        (
            "--proxy-mode=ipvs --iptables-min-sync-period=0",
            &["--iptables-min-sync-period has", "iptables mode"],
        ),
        (
            "--proxy-mode=ipvs --iptables-localhost-nodeports=false",
            &["--iptables-localhost-nodeports has", "iptables mode"],
        ),
        (
            "--ipvs-min-sync-period=0",
            &["--ipvs-min-sync-period has no effect", "ipvs mode"],
        ),
        (
            "--proxy-mode=iptables --ipvs-scheduler=wrr --ipvs-tcp-timeout=0s",
            &["--ipvs-scheduler has", "ipvs mode"],
        ),
        (
            "--prepared-config=/p",
            &["--prepared-config has", "no --config"],
        ),
        ("--ipvs-shim=lean", &["--ipvs-shim has", "ipvs mode"]),
        ("--udp-timeout=1s", &["--udp-timeout has", "userspace mode"]),
        (
            "--nftables-layout=flat",
            &["--nftables-layout has", "nftables mode"],
        ),
        (
            "--ipvs-vip-mode=route",
            &["--ipvs-vip-mode has", "ipvs mode"],
        ),
        (
            "--ipvs-answer-ping",
            &["--ipvs-answer-ping has", "ipvs mode"],
        ),
        (
            "--log-flush-frequency=1s",
            &["--log-flush-frequency", "at once"],
        ),
        (
            "--feature-gates=LoggingAlphaOptions=true --log-json-split-stream=1 --log-json-info-buffer-size=64Ki",
            &["--log-json-info-buffer-size has", "at once"],
        ),
        (
            "--feature-gates=LoggingAlphaOptions=true --log-text-info-buffer-size=1M",
            &["--log-text-info-buffer-size has", "at once"],
        ),
    ] {
        let warnings = options(line).said.warnings_beside_mode();
        let [warning] = warnings.as_slice() else {
            panic!("{line}: {warnings:?}");
        };
        for part in parts {
            assert!(warning.contains(part), "{line}: {warning:?} lacks {part:?}");
        }
    }
}

#[test]
fn an_empty_proxy_mode_means_iptables_mode_with_a_warning() {
    for line in ["", "--proxy-mode=∅"] {
        let options = options(line);
        assert_eq!(options.modes.chosen, ProxyMode::Iptables);
        let [warning] = options.said.warnings.as_slice() else {
            panic!("{line}: {:?}", options.said.warnings);
        };
        for part in [
            "--proxy-mode is empty",
            "iptables mode is used",
            "nftables in Kubernetes 1.40",
            "--proxy-mode=ipvs",
        ] {
            assert!(warning.contains(part), "{warning:?} lacks {part:?}");
        }
        assert_eq!(options.said.no_mode.as_ref(), Some(warning));
        assert_eq!(options.said.notes, Vec::<String>::new());
    }
    for mode in ["ipvs", "iptables", "nftables"] {
        let options = options(&format!("--proxy-mode={mode}"));
        assert_eq!(options.modes.chosen.name(), mode);
        assert_eq!(options.said.warnings, Vec::<String>::new());
        assert_eq!(options.said.no_mode, None);
    }
}

/// Checks `--cleanup`, which covers all modes, and so needs no `--proxy-mode`.
#[test]
fn a_cleanup_does_not_warn_about_a_missing_proxy_mode() {
    let Ok(Command::Cleanup(options)) = parse(["kube-proxy", "--cleanup"]) else {
        panic!("it is a cleanup");
    };
    let warnings = &options.said.warnings;
    assert!(
        !warnings.iter().any(|line| line.contains("--proxy-mode")),
        "{warnings:?}"
    );
}

#[test]
fn a_deprecated_feature_gate_causes_upstreams_warning() {
    let options = options("--proxy-mode=ipvs --feature-gates=AllowServiceExternalIPs=false");
    assert_eq!(options.said.warnings_beside_mode(), Vec::<String>::new());
    assert_eq!(
        options.said.notes,
        [
            "setting GA feature gate AllowServiceExternalIPs=false; it will be removed in a future release"
        ]
    );
}

/// Tests gates of later releases. From 1.40 on, upstream runs IPVS mode only with the gate
/// `KubeProxyIPVS`. This program accepts the gate, and `AllAlpha` and `AllBeta`.
#[test]
fn feature_gates_of_later_releases_do_not_stop_the_start() {
    let with = |gates: &str| options(&format!("--proxy-mode=ipvs --feature-gates={gates}"));
    let ipvs = with("KubeProxyIPVS=true");
    assert_eq!(ipvs.modes.chosen, ProxyMode::Ipvs);
    assert_eq!(
        (
            ipvs.said.warnings_beside_mode().len(),
            ipvs.said.notes.len()
        ),
        (0, 1)
    );
    for gates in [
        "AllAlpha=true",
        "AllBeta=true",
        "AllAlpha=true,AllBeta=false",
    ] {
        let options = with(gates);
        assert_eq!(options.modes.chosen, ProxyMode::Ipvs, "{gates}");
        assert_eq!(
            options.said.warnings_beside_mode(),
            Vec::<String>::new(),
            "{gates}"
        );
    }
    // Only IPVS mode needs the gate, so other modes start without it.
    let other = options("--proxy-mode=nftables --feature-gates=KubeProxyIPVS=false");
    assert_eq!(other.said.warnings_beside_mode(), Vec::<String>::new());
}

/// Tests a table of flags. Each row has one flag in several spellings, and the expected option.
#[test]
fn each_flag_sets_its_option() {
    type Check = fn(&Options) -> bool;
    let rows: &[(&[&str], Check)] = &[
        (&["--manifests=/m", "--manifests /m"], |o| {
            o.source == Settings::Manifests("/m".into())
        }),
        (
            &[
                "--kubeconfig=/k --master=https://a:6443",
                "--kubeconfig /k --master https://a:6443",
            ],
            |o| {
                o.source
                    == Settings::Api(Api {
                        kubeconfig: Some("/k".into()),
                        master: Some("https://a:6443".into()),
                        ..Api::default()
                    })
            },
        ),
        (
            &["--hostname-override=Node1", "--hostname_override Node1"],
            |o| o.process.node_name == "node1",
        ),
        (&["--proxy-mode=ipvs", "--proxy_mode ipvs"], |o| {
            o.modes.chosen == ProxyMode::Ipvs
        }),
        (
            &[
                "--bind-address=::",
                "--bind-address=∅ --bind-address=::",
                "--bind-address fd00::1 --bind-address ::",
            ],
            |o| o.modes.shared.bind_address.is_ipv6(),
        ),
        (
            &["--cluster-cidr=10.244.0.0/16,fd00:244::/56"],
            |o| matches!(&o.modes.shared.detect_local, DetectLocal::ClusterCidr(nets) if nets.len() == 2),
        ),
        (
            &[
                "--healthz-bind-address=∅ --metrics-bind-address=",
                "--healthz-port=0 --metrics-port=0",
            ],
            |o| (o.serve.healthz_address, o.serve.metrics_address) == (None, None),
        ),
        (
            &[
                "--healthz-bind-address=[::]:10256",
                "--healthz-bind-address=::",
                "--healthz-bind-address=:: --healthz-port=10256",
            ],
            |o| o.serve.healthz_address == "[::]:10256".parse().ok(),
        ),
        (&["--bind-address=∅ --healthz-port=99999"], |o| {
            o.modes.shared.bind_address.is_unspecified()
                && o.serve.healthz_address == "0.0.0.0:10256".parse().ok()
        }),
        (
            &[
                "--metrics-bind-address=0.0.0.0 --metrics-port=9",
                "--metrics-bind-address=0.0.0.0:9 --metrics-port=10",
            ],
            |o| o.serve.metrics_address == "0.0.0.0:9".parse().ok(),
        ),
        (
            &["--bind-address-hard-fail=1", "--bind-address-hard-fail"],
            |o| o.serve.when_taken == ConflictPolicy::Fail,
        ),
        (&["--oom-score-adj=-1000", "--oom-score-adj -1000"], |o| {
            o.process.oom_score_adj == -1000
        }),
        (&["--init-only=true", "--init-only"], |o| {
            o.process.init_only
        }),
        (&["--cleanup=false --write-config-to= --config="], |o| {
            !o.process.init_only && o.process.configuration_file.is_none()
        }),
        (&["--prepared-config=/run/kube-proxy/config.conf"], |o| {
            o.process.prepared_configuration == Some("/run/kube-proxy/config.conf".into())
        }),
        (&["--logging-format=json", "--logging_format json"], |o| {
            o.log.format == LogFormat::Json
        }),
        (&["--logging-format=plain"], |o| {
            o.log.format == LogFormat::Plain
        }),
        (
            &[
                "--feature-gates=LoggingAlphaOptions=true --log-text-split-stream",
                "--feature-gates LoggingAlphaOptions=T --logging-format=json --log-json-split-stream=true",
                "--feature-gates=AllAlpha=1,NativeHistograms=0 --log-text-split-stream",
            ],
            |o| o.log.is_split,
        ),
        (
            &[
                "--feature-gates=LoggingAlphaOptions=true --log-json-split-stream --log-text-info-buffer-size=0Ki",
            ],
            |o| !o.log.is_split,
        ),
        (
            &[
                "--feature-gates=AllowServiceExternalIPs=false",
                "--feature-gates=AllowServiceExternalIPs=true --feature_gates=AllowServiceExternalIPs=F",
            ],
            |o| o.external_ips() == ExternalIps::Ignored,
        ),
        (&["--feature-gates=AllowServiceExternalIPs=true", ""], |o| {
            o.external_ips() == ExternalIps::Served
        }),
        (
            &[
                "--feature-gates=WatchListClient=false",
                "",
                "--feature-gates=AllBeta=true",
            ],
            |o| matches!(&o.source, Settings::Api(api) if api.lists == Lists::Cached),
        ),
        (
            &["--feature-gates=WatchListClient=true"],
            |o| matches!(&o.source, Settings::Api(api) if api.lists == Lists::Streamed),
        ),
        (
            &[
                "--kube-api-content-type=application/vnd.kubernetes.protobuf",
                "",
            ],
            |o| matches!(&o.source, Settings::Api(api) if api.content_type == ContentType::Protobuf),
        ),
        (
            &["--kube-api-content-type=application/json"],
            |o| matches!(&o.source, Settings::Api(api) if api.content_type == ContentType::Json),
        ),
        (&["--detect-local-mode=NodeCIDR"], |o| {
            o.modes.shared.detect_local == DetectLocal::NodeCidr
        }),
        (
            &["--detect-local-mode=BridgeInterface --pod-bridge-interface=cni0"],
            |o| o.modes.shared.detect_local == DetectLocal::BridgeInterface("cni0".into()),
        ),
        (
            &["--detect-local-mode=InterfaceNamePrefix --pod-interface-name-prefix=cali"],
            |o| o.modes.shared.detect_local == DetectLocal::InterfaceNamePrefix("cali".into()),
        ),
        (&["--allowed-external-cidrs=192.0.2.0/24,fd00::/8"], |o| {
            o.process.allowed_external.as_ref().unwrap().len() == 2
        }),
        (&["--v=0"], |o| o.process.allowed_external.is_none()),
        (&["--nodeport-addresses=primary"], |o| {
            o.modes.shared.node_port_addresses == NodePortAddresses::Primary
        }),
        (&["--nodeport-addresses=∅"], |o| {
            o.modes.shared.node_port_addresses == NodePortAddresses::All
        }),
        (
            &[
                "--nodeport-addresses=localhost",
                "--nodeport-addresses=127.0.0.0/8,::1/128",
                "--nodeport-addresses=\"127.0.0.0/8\",\"::1/128\"",
            ],
            |o| {
                let addresses = &o.modes.shared.node_port_addresses;
                IpFamily::ALL
                    .iter()
                    .all(|family| addresses.names_localhost(*family))
                    && matches!(addresses, NodePortAddresses::Within(nets) if nets.len() == 2)
            },
        ),
        (
            &[
                "--nodeport-addresses=primary,localhost,10.0.0.0/8",
                "--nodeport-addresses=10.0.0.0/8 --nodeport-addresses=localhost,primary",
                "--proxy-mode=nftables --nodeport-addresses=localhost,10.0.0.0/8,primary,primary",
                "--proxy-mode=ipvs --nodeport-addresses=localhost,10.0.0.0/8,primary",
                "--proxy-mode=userspace --nodeport-addresses=localhost,10.0.0.0/8,primary",
            ],
            |o| matches!(&o.modes.shared.node_port_addresses, NodePortAddresses::PrimaryOrWithin(nets) if nets.len() == 3),
        ),
        (
            &[
                "--nodeport-addresses=all",
                "--nodeport-addresses=primary,all,localhost",
            ],
            |o| {
                let addresses = &o.modes.shared.node_port_addresses;
                IpFamily::ALL
                    .iter()
                    .all(|family| addresses.of(*family) == Selection::All)
            },
        ),
        (
            &[
                "--nodeport-addresses=10.0.0.0/8,fd00::/8",
                "--nodeport-addresses=10.0.0.0/8 --nodeport-addresses fd00::/8",
            ],
            |o| matches!(&o.modes.shared.node_port_addresses, NodePortAddresses::Within(nets) if nets.len() == 2),
        ),
        (
            &[
                "--masquerade-all",
                "--masquerade-all=true",
                "--masquerade_all=T",
                "--masquerade-all=0 --masquerade-all=1",
            ],
            |o| o.modes.shared.masquerade_all,
        ),
        (
            &[
                "--masquerade-all=false",
                "--masquerade-all --masquerade-all=F",
            ],
            |o| !o.modes.shared.masquerade_all,
        ),
        (
            &[
                "--iptables-masquerade-bit=0x1f",
                "--iptables-masquerade-bit 31",
            ],
            |o| o.modes.shared.masquerade_bit == 31,
        ),
        (&["--iptables-backend=nft"], |o| {
            o.modes.shared.iptables_backend == IptablesBackend::Nft
        }),
        (&["--iptables-backend legacy"], |o| {
            o.modes.shared.iptables_backend == IptablesBackend::Legacy
        }),
        (
            &[
                "--ipvs-scheduler=mh",
                "--ipvs-scheduler=sh --ipvs-scheduler=mh",
            ],
            |o| o.modes.ipvs.scheduler == "mh",
        ),
        (
            &["--ipvs-exclude-cidrs=10.1.0.0/16 --ipvs-exclude-cidrs=10.2.0.0/16,fd00::/8"],
            |o| o.modes.shared.exclude_cidrs.len() == 3,
        ),
        (&["--ipvs-exclude-cidrs="], |o| {
            o.modes.shared.exclude_cidrs.is_empty()
        }),
        (&["--ipvs-strict-arp", "--ipvs-strict-arp=TRUE"], |o| {
            o.kernel.strict_arp
        }),
        (
            &["--ipvs-tcp-timeout=15m --ipvs-tcpfin-timeout=30s --ipvs-udp-timeout=2m"],
            |o| {
                [
                    o.modes.ipvs.timeouts.tcp,
                    o.modes.ipvs.timeouts.tcp_fin,
                    o.modes.ipvs.timeouts.udp,
                ]
                .map(|d| d.as_secs())
                    == [900, 30, 120]
            },
        ),
        (&["--proxy-mode=userspace --udp-timeout=2s"], |o| {
            o.modes.userspace.udp_timeout == Duration::from_secs(2)
        }),
        (&["--ipvs-shim=lean"], |o| {
            o.modes.ipvs.shim == ShimChoice::Fixed(ShimStyle::Lean)
        }),
        (&["--ipvs-shim=nftables"], |o| {
            o.modes.ipvs.shim == ShimChoice::Fixed(ShimStyle::Nftables)
        }),
        (&["--nftables-layout=flat"], |o| {
            o.modes.nftables.layout == LayoutChoice::Always(Layout::Flat)
        }),
        (
            &["--metrics-per-service=endpoints --metrics-service-series-max=7"],
            |o| (o.serve.services.detail, o.serve.services.most) == (Detail::Endpoints, 7),
        ),
        (&["--ipvs-drain-timeout=5m"], |o| {
            o.modes.ipvs.drain_timeout == Some(Duration::from_mins(5))
        }),
        // Without `--ipvs-semantics=exact`, the value of this flag has no effect.
        (&["--ipvs-mark-bits=7"], |o| {
            o.modes.ipvs.semantics == Semantics::Upstream
        }),
        (&["--ipvs-semantics=exact"], |o| {
            let of = &o.modes.ipvs;
            of.semantics == Semantics::Exact(MarkBits::DEFAULT)
                && of.vip_mode == VipMode::Route
                && of.shim == ShimChoice::Auto
        }),
        (&["--ipvs-answer-ping", "--ipvs-answer-ping=true"], |o| {
            o.modes.ipvs.answers_ping
        }),
        (&["--ipvs-vip-mode=route"], |o| {
            o.modes.ipvs.vip_mode == VipMode::Route
        }),
        (
            &["--ipvs-vip-mode=range --ipvs-service-cidrs=10.96.0.0/12,fd00:96::/112"],
            |o| o.modes.ipvs.vip_mode == VipMode::Range && o.modes.ipvs.service_cidrs.len() == 2,
        ),
        (
            &[
                "--conntrack-max-per-core=0 --conntrack-min=0",
                "--conntrack_max_per_core 0 --conntrack-min 0",
            ],
            |o| (o.kernel.conntrack.max_per_core, o.kernel.conntrack.min) == (0, 0),
        ),
        (
            &["--conntrack-tcp-timeout-established=2h --conntrack-tcp-timeout-close-wait=0"],
            |o| {
                (
                    o.kernel.conntrack.tcp_established,
                    o.kernel.conntrack.tcp_close_wait,
                ) == (Duration::from_hours(2), Duration::ZERO)
            },
        ),
        (
            &[
                "--conntrack-tcp-be-liberal",
                "--conntrack-tcp-be-liberal=true",
            ],
            |o| o.kernel.conntrack.tcp_be_liberal,
        ),
        (
            &["--conntrack-udp-timeout=30s --conntrack-udp-timeout-stream=2m"],
            |o| {
                [o.kernel.conntrack.udp, o.kernel.conntrack.udp_stream].map(|d| d.as_secs())
                    == [30, 120]
            },
        ),
        (
            &[
                "--proxy-mode=ipvs --ipvs-sync-period=1h2m3.5s",
                "--iptables-sync-period=1h2m3.5s",
            ],
            |o| o.modes.shared.sync_period == Duration::from_millis(3_723_500),
        ),
        (
            &[
                "--proxy-mode=ipvs --ipvs-min-sync-period=0",
                "--proxy-mode=ipvs --ipvs-min-sync-period 0s",
                "--iptables-min-sync-period=0",
            ],
            |o| o.process.min_sync_period.is_zero(),
        ),
        (
            &["-v=4", "-v 4", "-v4", "--v=4", "--v 4", "-v=1 --v=4"],
            |o| o.log.verbosity == 4,
        ),
        (
            &[
                "--vmodule=proxier=4,sets*=6",
                "--vmodule proxier=4,,sets*=6",
            ],
            |o| o.log.vmodule == [("proxier".into(), 4), ("sets*".into(), 6)],
        ),
        (&["--version=v1.36.2"], |o| o.log.verbosity == 0),
        (&["-v=-3"], |o| o.log.verbosity == 0),
        (&["-v=99"], |o| o.log.verbosity == 10),
        (&["--version=false"], |o| o.log.verbosity == 0),
    ];
    for (lines, check) in rows {
        for line in *lines {
            let options = options(line);
            assert!(check(&options), "{line}: {options:?}");
        }
    }
}

/// Checks that each error names the invalid value and the allowed values.
#[test]
fn errors_name_the_flag_the_value_and_the_allowed_values() {
    for (line, parts) in [
        (
            "--ipvs-strict-arpp",
            &[
                "unknown flag: --ipvs-strict-arpp",
                "is --ipvs-strict-arp meant?",
            ][..],
        ),
        (
            "--proxy-mode=kernelspace",
            &[
                "--proxy-mode",
                "kernelspace",
                "modes",
                "iptables, ipvs, nftables, userspace",
            ],
        ),
        (
            "--healthz-bind-address=node1",
            &["--healthz-bind-address", "node1", "IP:port"],
        ),
        (
            "--metrics-bind-address=0.0.0.0 --metrics-port=65536",
            &["--metrics-bind-address", "65535"],
        ),
        (
            "--oom-score-adj=1001",
            &["--oom-score-adj", "1001", "-1000 to 1000"],
        ),
        (
            "--feature-gates=A",
            &["--feature-gates", "'A'", "Name=true"],
        ),
        (
            "--feature-gates=NoSuch=maybe",
            &["--feature-gates", "'NoSuch=maybe'", "Name=true"],
        ),
        (
            "--proxy-mode=ipvs --feature-gates=KubeProxyIPVS=false",
            &[
                "'ipvs' for '--proxy-mode'",
                "KubeProxyIPVS=false",
                "modes iptables, nftables, userspace",
                "remove KubeProxyIPVS",
            ],
        ),
        (
            "--log-text-split-stream=true",
            &["--log-text-split-stream", "LoggingAlphaOptions is off"],
        ),
        (
            "--log-json-info-buffer-size=1Ki",
            &["--log-json-info-buffer-size", "LoggingAlphaOptions is off"],
        ),
        (
            "--logging-format=json --feature-gates=LoggingBetaOptions=false",
            &["--logging-format", "json", "LoggingBetaOptions is off"],
        ),
        (
            "--kube-api-qps=many",
            &["--kube-api-qps", "'many'", "such as 5"],
        ),
        (
            "--kube-api-burst=-1",
            &["--kube-api-burst", "'-1'", "0 or more"],
        ),
        (
            "--config-sync-period=0",
            &["--config-sync-period", "longer than 0"],
        ),
        (
            "--write-config-to=/w --oom-score-adj=1001",
            &["--oom-score-adj", "-1000 to 1000"],
        ),
        ("--vmodule=proxier", &["--vmodule", "'proxier'", "=4"]),
        ("--vmodule=proxier=high", &["--vmodule", "=high'", "=4"]),
        (
            "--logging-format=xml",
            &["--logging-format", "xml", "text, plain or json"],
        ),
        (
            "--log-text-info-buffer-size=big",
            &["--log-text-info-buffer-size", "big", "64Ki"],
        ),
        (
            "--config=/no/such/file",
            &["cannot read", "/no/such/file", "No such file"],
        ),
        (
            "--masquerade-all=yes",
            &["'yes' for '--masquerade-all': give true or false"],
        ),
        ("--masquerade-all true", &["'true'", "--switch=true"]),
        ("extra", &["unknown command: 'extra'", "--help"]),
        ("statu", &["unknown command: 'statu'", "is status meant?"]),
        (
            "help statu",
            &["unknown command: 'statu'", "is status meant?"],
        ),
        (
            "explian",
            &["unknown command: 'explian'", "is explain meant?"],
        ),
        ("--v=2 status", &["unexpected argument: 'status'", "--help"]),
        ("diff plan", &["unexpected argument: 'plan'"]),
        (
            "--proxy-mode=ipvs statu",
            &["unexpected argument: 'statu'; a command comes first"],
        ),
        (
            "check extra",
            &["unexpected argument: 'extra'; see kube-proxy check --help"],
        ),
        (
            "version -o json",
            &["unknown flag: -o; see kube-proxy version --help"],
        ),
        ("help --help", &["unexpected argument: '--help'"]),
        (
            "cleanup",
            &["unknown command: 'cleanup'; is --cleanup meant?"],
        ),
        (
            "--cloud-provider=aws",
            &["unknown flag: --cloud-provider", "see kube-proxy --help"],
        ),
        (
            "--ipvs-mark-bits=0",
            &["'0' for '--ipvs-mark-bits'", "at least one bit"],
        ),
        (
            "--ipvs-mark-bits=zz",
            &["'zz' for '--ipvs-mark-bits'", "like 0x307f"],
        ),
        ("completion tcsh", &["'tcsh'", "bash or zsh or fish"]),
        ("check --timeout=soon", &["'soon' for '--timeout'", "30s"]),
        ("-x", &["unknown flag: -x", "--help"]),
        ("--nosuch=1", &["unknown flag: --nosuch", "--help"]),
        (
            "--cleanup_ipvs",
            &["unknown flag: --cleanup-ipvs", "use --cleanup"],
        ),
        ("--udp-timeout=0", &["--udp-timeout", "'0s'", "250ms"]),
        (
            "--proxy-port-range=0-0",
            &["unknown flag: --proxy-port-range", "userspace"],
        ),
        (
            "--conntrack-max=1",
            &["unknown flag: --conntrack-max", "--conntrack-max-per-core"],
        ),
        (
            "--resource-container=/x",
            &["unknown flag: --resource-container", "remove it"],
        ),
        (
            "--logtostderr=true",
            &["unknown flag: --logtostderr", "1.26", "standard error"],
        ),
        (
            "--ipvs-sync-period=30",
            &["--ipvs-sync-period", "'30'", "30s"],
        ),
        (
            "--proxy-mode=ipvs --ipvs-sync-period=0",
            &["--ipvs-sync-period", "longer than 0"],
        ),
        (
            "--iptables-sync-period=0",
            &["--iptables-sync-period", "longer than 0"],
        ),
        (
            "--ipvs-sync-period=-1s",
            &["--ipvs-sync-period", "negative"],
        ),
        (
            "--proxy-mode=ipvs --ipvs-sync-period=1s --ipvs-min-sync-period=2s",
            &["--ipvs-min-sync-period", "2s", "1s"],
        ),
        (
            "--ipvs-tcp-timeout=9999h",
            &["--ipvs-tcp-timeout", "at most"],
        ),
        (
            "--ipvs-shim=fat",
            &["--ipvs-shim", "'fat'", "auto, upstream, lean or nftables"],
        ),
        (
            "--nftables-layout=lean",
            &["--nftables-layout", "'lean'", "auto, upstream or flat"],
        ),
        (
            "--metrics-per-service=all",
            &["--metrics-per-service", "none, ports or endpoints"],
        ),
        (
            "--metrics-service-series-max=0",
            &["--metrics-service-series-max", "1 or more"],
        ),
        (
            "--ipvs-drain-timeout=-1s",
            &["--ipvs-drain-timeout", "negative"],
        ),
        (
            "--ipvs-vip-mode=routes",
            &["--ipvs-vip-mode", "'routes'", "address, route or range"],
        ),
        (
            "--conntrack-max-per-core=-1",
            &["--conntrack-max-per-core", "'-1'", "or 0"],
        ),
        ("--conntrack-min=-1", &["--conntrack-min", "'-1'", "or 0"]),
        (
            "--conntrack-min=many",
            &["--conntrack-min", "'many'", "number"],
        ),
        (
            "--conntrack-tcp-timeout-established=1ms",
            &["--conntrack-tcp-timeout-established", "1ms", "1s or more"],
        ),
        (
            "--conntrack-tcp-timeout-close-wait=1d",
            &["--conntrack-tcp-timeout-close-wait", "1d", "30s"],
        ),
        (
            "--conntrack-tcp-be-liberal=maybe",
            &["--conntrack-tcp-be-liberal", "maybe", "true or false"],
        ),
        (
            "--conntrack-udp-timeout=999ms",
            &["--conntrack-udp-timeout", "999ms", "1s or more"],
        ),
        (
            "--conntrack-udp-timeout-stream=-1s",
            &["--conntrack-udp-timeout-stream", "negative"],
        ),
        (
            "--iptables-masquerade-bit=32",
            &["--iptables-masquerade-bit", "32", "0 to 31"],
        ),
        (
            "--iptables-masquerade-bit -1",
            &["--iptables-masquerade-bit", "-1", "0 to 31"],
        ),
        (
            "--iptables-masquerade-bit=x",
            &["--iptables-masquerade-bit", "'x'", "number"],
        ),
        (
            "--iptables-backend=xtables",
            &["--iptables-backend", "xtables", "auto, legacy or nft"],
        ),
        (
            "--bind-address=node1",
            &["--bind-address", "node1", "IPv4 or IPv6"],
        ),
        ("--cluster-cidr=∅", &["--cluster-cidr", "''"]),
        (
            "--cluster-cidr=10.0.0.0",
            &["--cluster-cidr", "10.0.0.0", "10.0.0.0/16"],
        ),
        (
            "--cluster-cidr=10.0.0.0/8,11.0.0.0/8",
            &["--cluster-cidr", "at most one of each family"],
        ),
        (
            "--detect-local-mode=Magic",
            &["--detect-local-mode", "Magic", "NodeCIDR"],
        ),
        (
            "--detect-local-mode=BridgeInterface",
            &["--pod-bridge-interface", "needs it"],
        ),
        (
            "--detect-local-mode=InterfaceNamePrefix",
            &["--pod-interface-name-prefix", "needs it"],
        ),
        (
            "--detect-local-mode=BridgeInterface --pod-bridge-interface=sixteencharacter",
            &["--pod-bridge-interface", "15"],
        ),
        (
            "--nodeport-addresses=primary,localhorst",
            &[
                "'localhorst' for '--nodeport-addresses'",
                "10.0.0.0/16",
                "primary, localhost and all",
            ],
        ),
        (
            "--allowed-external-cidrs=192.0.2.1",
            &["--allowed-external-cidrs", "192.0.2.1"],
        ),
        (
            "--nodeport-addresses=10.0.0.1",
            &["--nodeport-addresses", "10.0.0.1"],
        ),
        ("--ipvs-exclude-cidrs=web", &["--ipvs-exclude-cidrs", "web"]),
        (
            "--manifests=/m --kubeconfig=/k",
            &["--manifests", "/m", "--kubeconfig"],
        ),
        ("--manifests=∅", &["--manifests", "directory"]),
        (
            "--hostname-override=\u{3000}",
            &["--hostname-override", "name"],
        ),
        ("--version=maybe", &["--version", "maybe"]),
        ("-v=high", &["-v", "high", "number"]),
        ("--kubeconfig", &["flag needs a value: --kubeconfig"]),
        ("-v", &["flag needs a value: --v"]),
    ] {
        let text = error(line);
        assert!(!text.contains('\n'), "{line}: {text:?}");
        for part in parts {
            assert!(text.contains(part), "{line}: {text:?} lacks {part:?}");
        }
    }
}

#[test]
fn empty_arguments_are_ignored_except_as_values() {
    for line in ["--oom-score-adj=7 ∅", "∅ --oom_score_adj 7 ∅ ∅"] {
        assert_eq!(options(line).process.oom_score_adj, 7, "{line}");
    }
    let kept = "--nodeport-addresses ∅ --oom-score-adj=7";
    assert_eq!(options(kept).process.oom_score_adj, 7);
    assert!(error("--nodeport-addresses ∅ x").contains("'x'"));
    assert!(matches!(
        read("plan --oom-score-adj=7 ∅"),
        Ok(Command::Check(..))
    ));
}

/// Compares the logged flags with upstream's log of `kube-proxy -v=4` (1.30.5), for flags in
/// several spellings.
#[test]
fn flags_are_logged_as_by_upstream() {
    let line = "kube-proxy --config_sync_period=900s -v 4 --nodeport-addresses=\"10.0.0.0/8\" --nodeport-addresses=fd00::/8 \
                --profiling=F --conntrack-min=0x20000 --feature-gates=B=true,A=0 --kube-api-qps=5.0 --hostname-override=no\"de";
    let told = as_typed(line.split_whitespace());
    assert_eq!(told.len(), UPSTREAM.len() + 14);
    let names = told.iter().map(|line| line.split('=').next());
    assert!(names.is_sorted(), "{told:?}");
    for line in [
        "--bind-address=\"0.0.0.0\"",
        "--cluster-cidr=\"\"",
        "--config-sync-period=\"15m0s\"",
        "--conntrack-min=\"131072\"",
        "--feature-gates=\"A=false,B=true\"",
        "--help=\"false\"",
        "--hostname-override=\"no\\\"de\"",
        "--ipvs-exclude-cidrs=\"[]\"",
        "--kube-api-qps=\"5\"",
        "--log-json-info-buffer-size=\"0\"",
        "--nodeport-addresses=\"[10.0.0.0/8,fd00::/8]\"",
        "--profiling=\"false\"",
        "--v=\"4\"",
        "--version=\"false\"",
        "--vmodule=\"\"",
    ] {
        assert!(
            told.iter().any(|told| told == line),
            "{told:#?} lacks {line}"
        );
    }
    assert_eq!(
        as_typed(["kube-proxy", "check", "-o", "json"]).len(),
        told.len()
    );
}

#[test]
fn help_has_a_short_and_a_long_form() {
    let printed = |line| match read(line) {
        Ok(Command::Print(text)) => text,
        other => panic!("{other:?}"),
    };
    let (long, short) = (printed("--help"), printed("-h"));
    for part in ["Commands:", "--manifests", "-v, --v", "Exit status: 0"] {
        assert!(long.contains(part) && short.contains(part), "{short}");
    }
    for part in ["IPVS mode:", "--ipvs-scheduler", "Accepted without effect:"] {
        assert!(
            long.contains(part) && !short.contains(part),
            "{part}: {short}"
        );
    }
    assert!(short.lines().count() <= 75, "{short}");
    assert!(long.find("Commands:") < long.find("--config"), "{long}");
    let widest = long.lines().map(|line| line.chars().count()).max();
    assert!(widest <= Some(100), "{long}");
    assert_eq!(printed("--version=raw"), printed("--version"));
    assert_eq!(printed("version"), printed("--version"));
    assert_eq!(printed("help"), long);
    assert!(printed("help services").contains("--all-namespaces"));
    assert!(printed("check --help").contains("Check this node"));
}

#[test]
fn completion_scripts_contain_commands_and_flags() {
    for shell in ["bash", "zsh", "fish"] {
        let Ok(Command::Print(script)) = read(&format!("completion {shell}")) else {
            panic!("{shell}");
        };
        for word in [
            "services",
            "explain",
            "check",
            "proxy-mode",
            "all-namespaces",
        ] {
            assert!(script.contains(word), "{shell} lacks {word}");
        }
    }
}

#[test]
fn the_script_for_bash_has_a_case_for_each_command() {
    let Ok(Command::Print(script)) = read("completion bash") else {
        panic!("no script");
    };
    let set = script
        .lines()
        .filter_map(|line| line.trim().strip_prefix("cmd=\"kube"));
    let set: Vec<&str> = set.map(|name| name.trim_end_matches('"')).collect();
    assert!(set.contains(&"__proxy__subcmd__status"), "{set:?}");
    for name in set {
        let case = format!("kube{name})");
        assert!(script.lines().any(|line| line.trim() == case), "{case}");
    }
}

#[test]
fn the_man_page_contains_commands_and_flags() {
    let mut page = Vec::new();
    clap_mangen::Man::new(tree()).render(&mut page).unwrap();
    let page = String::from_utf8(page).unwrap();
    for word in [
        "ipvs\\-scheduler",
        "IPVS mode",
        "kube\\-proxy\\-explain",
        "Exit status: 0",
    ] {
        assert!(
            page.to_lowercase().contains(&word.to_lowercase()),
            "{word}: {page}"
        );
    }
}

/// Checks that the help of a flag names its mode if the flag has an effect in only one mode.
#[test]
fn help_names_the_mode_of_mode_specific_flags() {
    let command = Flags::command();
    let about = command.get_about().unwrap().to_string();
    for mode in ProxyMode::ALL {
        assert!(about.contains(&format!("{} mode", mode.name())), "{about}");
    }
    for flag in command.get_arguments() {
        let (name, help) = (flag.get_long().unwrap(), flag.get_help().unwrap());
        let help = help.to_string();
        let is_of_one = name.starts_with("nftables-")
            || name.starts_with("ipvs-")
                && !["ipvs-exclude-cidrs", "ipvs-drain-timeout"].contains(&name);
        let is_of_iptables = name.ends_with("localhost-nodeports")
            || name.starts_with("iptables-") && name.ends_with("-period");
        let is_said = |of: &str| help.contains(&format!("no effect in {of}"));
        assert_eq!(is_said("other modes"), is_of_one, "--{name}: {help}");
        assert_eq!(is_said("ipvs mode"), is_of_iptables, "--{name}: {help}");
    }
}

/// Checks that the version is one line, such as `Kubernetes v1.37.0`. Scripts parse the second word
/// of the line, or all text after the first word.
#[test]
fn the_version_has_upstreams_format() {
    let Ok(Command::Print(told)) = read("--version") else {
        panic!();
    };
    let words: Vec<&str> = told.split_whitespace().collect();
    assert_eq!(words[..2], ["Kubernetes", "v1.37.0"]);
    let own = concat!("(kube-proxy-ipvs v", env!("CARGO_PKG_VERSION"), ", commit ");
    let (_, commit) = told.split_once(own).unwrap();
    assert_eq!(commit, format!("{})\n", version::short_commit()));
}

#[test]
fn each_flag_has_a_test_row_and_help() {
    let tests = include_str!("tests.rs");
    for flag in Flags::command().get_arguments() {
        let name = flag.get_long().unwrap();
        assert!(tests.contains(&format!("--{name}=")), "no row for --{name}");
        assert!(flag.get_help().is_some(), "--{name} has no help");
    }
}

#[test]
fn a_local_traffic_detector_uses_only_pod_cidrs_of_its_ip_family() {
    let net = |text: &str| text.parse().unwrap();
    let by_cluster = DetectLocal::ClusterCidr(vec![net("10.244.0.0/16")]);
    assert_eq!(
        by_cluster.detector(IpFamily::V4, None),
        LocalDetector::SourceNet(net("10.244.0.0/16"))
    );
    assert_eq!(by_cluster.detector(IpFamily::V6, None), LocalDetector::None);
    let node = Node {
        pod_cidrs: vec![net("10.244.1.0/24"), net("fd00:244:1::/64")],
        ..Node::default()
    };
    assert_eq!(
        DetectLocal::NodeCidr.detector(IpFamily::V6, Some(&node)),
        LocalDetector::SourceNet(net("fd00:244:1::/64"))
    );
    assert_eq!(
        DetectLocal::NodeCidr.detector(IpFamily::V6, None),
        LocalDetector::None
    );
    assert_eq!(
        DetectLocal::InterfaceNamePrefix("cali".into()).detector(IpFamily::V4, None),
        LocalDetector::InterfacePrefix("cali".into())
    );
}

proptest::proptest! {
    #[test]
    fn arbitrary_command_lines_never_panic_the_parser(words in proptest::collection::vec("(--?[a-z-]{1,12}=?)?\\PC{0,8}", 0..5)) {
        let _ = parse(["kube-proxy".to_owned()].into_iter().chain(words));
    }
}

#[test]
fn a_subcommand_and_its_daemon_flags_are_both_parsed() {
    let read = |line: &str| parse(line.split(' '));
    for (line, wanted, form) in [
        ("check --manifests=/m", Question::Check, Output::Text),
        (
            "check -o json --manifests=/m",
            Question::Check,
            Output::Json,
        ),
        (
            "check --manifests /m --output=yaml",
            Question::Check,
            Output::Yaml,
        ),
        (
            "check --manifests=/m -o=text",
            Question::Check,
            Output::Text,
        ),
        (
            "check --dry-run --manifests=/m",
            Question::Check,
            Output::Text,
        ),
        ("plan --manifests=/m -o wide", Question::Plan, Output::Wide),
        ("diff -o=yaml --manifests=/m", Question::Diff, Output::Yaml),
        ("--dry-run --manifests=/m", Question::Plan, Output::Text),
        (
            "--manifests=/m -o json --dry_run=true",
            Question::Plan,
            Output::Json,
        ),
    ] {
        let Ok(Command::Check(options, asked)) = read(&format!("kube-proxy {line}")) else {
            panic!("{line}");
        };
        let answer = AnswerOptions {
            output: form,
            ..AnswerOptions::default()
        };
        let question = wanted;
        assert_eq!(asked, StartQuestion { question, answer }, "{line}");
        assert_eq!(options.source, Settings::Manifests("/m".into()));
    }
    let Ok(Command::Check(_, asked)) = read("kube-proxy check --timeout 10s --manifests=/m") else {
        panic!("it is a question");
    };
    assert_eq!(asked.answer.timeout, Duration::from_secs(10));
    for line in [
        "check -o xml",
        "check -o",
        "check --nosuch",
        "-o json",
        "-o json -- --dry-run",
        "-o json --dry-run=false --manifests=/m",
        "plans",
        "diff plan",
    ] {
        let line = format!("kube-proxy {line}");
        assert!(read(&line).is_err(), "{line}");
    }
    let serves = read("kube-proxy --dry-run=false --manifests=/m").unwrap();
    assert!(matches!(serves, Command::Run(_)), "{serves:?}");
    for (line, wanted) in [
        ("diff --nosuch", true),
        ("--dry-run --x", true),
        ("--dry-run=maybe", true),
        ("--dry_run=F --x", false),
        ("--dry-run=false --dry-run", true),
        ("--dry-run --dry-run=false --x", false),
        ("--dry-runs", false),
        ("--x", false),
    ] {
        let line: Vec<_> = ["kube-proxy"]
            .into_iter()
            .chain(line.split(' '))
            .map(Into::into)
            .collect();
        assert_eq!(asks(&line), wanted, "{line:?}");
    }
    let cleanup = read("kube-proxy --cleanup --ipvs-exclude-cidrs=10.0.0.0/8").unwrap();
    assert!(
        matches!(cleanup, Command::Cleanup(options) if options.modes.shared.exclude_cidrs.len() == 1)
    );
}
