use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, fs};

use http_server::ConflictPolicy;
use modes::detect_local::DetectLocal;
use modes::settings::ProxyMode;
use proxy::{ExternalIps, NodePortAddresses};
use source::{Api, Settings};

use super::*;
use crate::config::command_line::{self, Command};
use crate::config::configz::Configz;
use crate::config::follow::problem::FileProblem;
use crate::config::follow::watch::changed;
use crate::config::options::Options;
use crate::logging::settings::LogFormat;

const KUBEADM: &str = include_str!("kubeadm.yaml");
const HEADER: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";

/// A configuration file in its own temporary directory. Dropping the value removes the file and the
/// directory.
struct File(PathBuf);

impl File {
    fn new(text: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = env::temp_dir().join(format!("configuration-{}-{number}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let file = Self(folder.join("config.conf"));
        file.write(text);
        file
    }

    fn write(&self, text: &str) {
        fs::write(&self.0, text).unwrap();
    }

    /// Returns the result of parsing a command line that names this file.
    fn with(&self, line: &str) -> Result<Command, String> {
        let config = format!("--config={}", self.0.display());
        let line = ["kube-proxy", &config]
            .into_iter()
            .chain(line.split_whitespace());
        command_line::parse(line).map_err(|error| error.to_string())
    }

    fn options(&self, line: &str) -> Options {
        match self.with(line) {
            Ok(Command::Run(options)) => *options,
            other => panic!("{line}: {other:?}"),
        }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(self.0.parent().unwrap());
    }
}

fn options(fields: &str) -> Options {
    File::new(&format!("{HEADER}{fields}")).options("")
}

fn error(text: &str) -> String {
    match File::new(text).with("") {
        Err(error) => error,
        Ok(command) => panic!("{text} was taken: {command:?}"),
    }
}

/// Removes the name of the configuration file, and the messages, so that tests can compare options.
fn bare(mut options: Options) -> Options {
    options.process.configuration_file = None;
    options.said.notes.clear();
    options.said.warnings.clear();
    options.said.no_mode = None;
    options.said.mode_from.clear();
    options
}

#[test]
fn the_kubeadm_configuration_means_defaults_with_a_warning() {
    let file = File::new(KUBEADM);
    let options = file.options("--hostname-override=Node1");
    assert_eq!(options.modes.chosen, ProxyMode::Iptables);
    // Fields that the file does not set cause no warning.
    assert_eq!(options.said.notes, Vec::<String>::new());
    let [warning] = options.said.warnings.as_slice() else {
        panic!("{:?}", options.said.warnings);
    };
    assert_eq!(options.said.no_mode.as_ref(), Some(warning));
    let place = file.0.display().to_string();
    for part in [
        &place,
        "mode is empty",
        "iptables mode is used",
        "1.40",
        "mode: ipvs",
    ] {
        assert!(warning.contains(part), "{warning:?} lacks {part:?}");
    }
    let Ok(Command::Run(by_flags)) = command_line::parse([
        "kube-proxy",
        "--kubeconfig=/var/lib/kube-proxy/kubeconfig.conf",
        "--hostname-override=node1",
        "--cluster-cidr=10.244.0.0/16",
        "--ipvs-min-sync-period=0",
        "--proxy-mode=",
    ]) else {
        panic!();
    };
    assert_eq!(bare(options), bare(*by_flags));
    let ipvs = KUBEADM.replace("mode: \"\"", "mode: ipvs");
    let options = File::new(&ipvs).options("");
    assert_eq!(options.modes.chosen, ProxyMode::Ipvs);
    assert_eq!(
        (&options.said.notes, options.said.warnings_beside_mode()),
        (&vec![], vec![])
    );
}

#[test]
fn an_empty_configuration_file_has_upstreams_defaults() {
    let Ok(Command::Run(by_flags)) =
        command_line::parse(["kube-proxy", "--ipvs-min-sync-period=0"])
    else {
        panic!();
    };
    let empty = options("");
    assert_eq!(empty.said.warnings_beside_mode(), Vec::<String>::new());
    assert_eq!(bare(empty), bare(*by_flags));
}

/// Parses the configuration file of this project's ConfigMap.
#[test]
fn the_configuration_in_our_manifests_causes_no_warning() {
    let map = include_str!("../../../../manifests/daemonset/configmap.yaml");
    let (_, file) = map.split_once("\n  config.conf: |-\n").unwrap();
    let lines = file.lines().map(|line| line.strip_prefix("    ").unwrap());
    let text = lines.collect::<Vec<_>>().join("\n");
    for mode in ["ipvs", "iptables"] {
        let text = text.replace("\nmode: ipvs\n", &format!("\nmode: {mode}\n"));
        let options = File::new(&text).options("");
        assert_eq!(options.modes.chosen.name(), mode, "{text}");
        assert_eq!(
            options.said.warnings_beside_mode(),
            Vec::<String>::new(),
            "{mode}"
        );
    }
}

#[test]
fn only_the_first_document_of_a_configuration_file_is_used() {
    let file = File::new(&format!(
        "# kubeadm\n\n---\n{HEADER}oomScoreAdj: 7\n---\noomScoreAdj: 8\n"
    ));
    let options = file.options("");
    assert_eq!(options.process.oom_score_adj, 7);
    let warning = format!(
        "{}: only the first YAML document counts: remove the others",
        file.0.display()
    );
    assert_eq!(options.said.warnings_beside_mode(), [warning]);
    let file = File::new(&format!("---\n{HEADER}oomScoreAdj: 7\n---\n# the end\n"));
    let options = file.options("");
    assert_eq!(options.said.warnings_beside_mode(), Vec::<String>::new());
}

/// Upstream decodes the file as JSON, so it rejects a text in place of a number, and a number in
/// place of a text.
#[test]
fn values_of_a_type_that_upstream_rejects_are_rejected() {
    for (fields, wanted) in [
        (
            "conntrack: {maxPerCore: \"32768\"}",
            "conntrack.maxPerCore: give a number, without quotes",
        ),
        (
            "bindAddressHardFail: 'true'",
            "bindAddressHardFail: give true or false, without quotes",
        ),
        (
            "featureGates: {A: 'true'}",
            "featureGates.A: give true or false, without quotes",
        ),
        (
            "detectLocal: {bridgeInterface: 5}",
            "line 3: give a text: put the value in quotes, in `detectLocal: {bridgeInterface: 5}`",
        ),
        (
            "nodePortAddresses: [true]",
            "line 3: give a text: put the value in quotes",
        ),
        (
            "conntrack: {maxPerCore: 1.5}",
            "line 3: give a whole number of at most 2147483647",
        ),
        (
            "conntrack: {maxPerCore: 2147483648}",
            "line 3: give a whole number of at most 2147483647",
        ),
    ] {
        let text = error(&format!("{HEADER}{fields}"));
        assert!(text.contains(wanted), "{fields}: {text}");
    }
    for (given, wanted) in [("1024", "1024"), ("'64Ki'", "64Ki")] {
        let fields = format!("logging: {{options: {{json: {{infoBufferSize: {given}}}}}}}");
        let (read, _) = parse(&format!("{HEADER}{fields}")).unwrap();
        let size = read.logging.options.json.info_buffer_size;
        assert_eq!(size.as_deref(), Some(wanted));
    }
    for (given, wanted) in [
        ("1.048576e+06", 1_048_576),
        ("1e+02", 100),
        ("0.0", 0),
        ("-7", -7),
    ] {
        let (read, _) = parse(&format!("{HEADER}conntrack: {{min: {given}}}")).unwrap();
        assert_eq!(read.conntrack.min, Some(wanted), "{given}");
    }
    let logging = "logging: {flushFrequency: 5e+09, vmodule: [{filePattern: a, verbosity: 2e+00}]}";
    let (read, _) = parse(&format!("{HEADER}{logging}")).unwrap();
    assert_eq!(
        read.logging.flush_frequency,
        Some(Period(Duration::from_secs(5)))
    );
    assert_eq!(read.logging.vmodule.unwrap()[0].verbosity, 2);
    // The program can read the file that it writes.
    let flags = Flags {
        hostname_override: "123".to_owned(),
        ..Flags::defaults()
    };
    let (read, _) = parse(&render(Configuration::default(), &flags)).unwrap();
    assert_eq!(read.hostname_override.as_deref(), Some("123"));
}

#[test]
fn a_configuration_file_that_is_binary_or_too_large_is_rejected() {
    let file = File::new("");
    let error_of = |bytes: &[u8]| {
        fs::write(&file.0, bytes).unwrap();
        file.with("").unwrap_err()
    };
    let advice = "give a KubeProxyConfiguration in YAML or JSON";
    let long = " ".repeat((1 << 20) + 1);
    for (bytes, wanted) in [
        (&b"\xff\xfe"[..], "the file is not UTF-8 text"),
        (long.as_bytes(), "the file is larger than 1 MiB"),
    ] {
        let text = error_of(bytes);
        assert!(text.ends_with(&format!(": {wanted}; {advice}")), "{text}");
    }
    let endless = command_line::parse(["kube-proxy", "--config=/dev/zero"]);
    let text = endless.unwrap_err().to_string();
    assert!(
        text.contains("/dev/zero: the file is larger than"),
        "{text}"
    );
    let list = vec!["a"; 260_000].join(",");
    let text = error_of(format!("{HEADER}nodePortAddresses: [{list}]").as_bytes());
    assert!(
        text.contains("the document is too large") && text.len() < 400,
        "{text}"
    );
}

/// Tests a table of fields that have a flag. Each row sets a value other than the default.
#[test]
fn each_configuration_field_sets_its_option() {
    type Check = fn(&Options) -> bool;
    let rows: &[(&str, Check)] = &[
        ("bindAddress: fd00::1", |o| {
            o.modes.shared.bind_address.is_ipv6()
                && o.serve.healthz_address == "[::]:10256".parse().ok()
                && o.serve.metrics_address == "[::1]:10249".parse().ok()
        }),
        ("bindAddressHardFail: true", |o| {
            o.serve.when_taken == ConflictPolicy::Fail
        }),
        (
            "clientConnection: {kubeconfig: /k}",
            |o| matches!(&o.source, Settings::Api(Api { kubeconfig: Some(k), .. }) if k.ends_with("k")),
        ),
        (
            "clusterCIDR: 10.0.0.0/8,fd00::/8",
            |o| matches!(&o.modes.shared.detect_local, DetectLocal::ClusterCidr(nets) if nets.len() == 2),
        ),
        ("conntrack: {maxPerCore: 0, min: 5}", |o| {
            (o.kernel.conntrack.max_per_core, o.kernel.conntrack.min) == (0, 5)
        }),
        (
            "conntrack: {tcpBeLiberal: yes, tcpCloseWaitTimeout: 1m, tcpEstablishedTimeout: 0s}",
            |o| {
                o.kernel.conntrack.tcp_be_liberal
                    && o.kernel.conntrack.tcp_close_wait == Duration::from_mins(1)
                    && o.kernel.conntrack.tcp_established.is_zero()
            },
        ),
        ("conntrack: {udpTimeout: 1s, udpStreamTimeout: 2s}", |o| {
            [o.kernel.conntrack.udp, o.kernel.conntrack.udp_stream].map(|d| d.as_secs()) == [1, 2]
        }),
        (
            "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cni0}",
            |o| o.modes.shared.detect_local == DetectLocal::BridgeInterface("cni0".into()),
        ),
        (
            "detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: cali}",
            |o| o.modes.shared.detect_local == DetectLocal::InterfaceNamePrefix("cali".into()),
        ),
        ("healthzBindAddress: 10.0.0.1", |o| {
            o.serve.healthz_address == "10.0.0.1:10256".parse().ok()
        }),
        ("metricsBindAddress: 0.0.0.0:9", |o| {
            o.serve.metrics_address == "0.0.0.0:9".parse().ok()
        }),
        ("hostnameOverride: Web", |o| o.process.node_name == "web"),
        ("iptables: {masqueradeAll: true, masqueradeBit: 0}", |o| {
            o.modes.shared.masquerade_all && o.modes.shared.masquerade_bit == 0
        }),
        ("ipvs: {excludeCIDRs: [10.1.0.0/16, fd00::/8]}", |o| {
            o.modes.shared.exclude_cidrs.len() == 2
        }),
        (
            "mode: ipvs\nipvs: {minSyncPeriod: 2s, syncPeriod: 1m30s}",
            |o| {
                [o.process.min_sync_period, o.modes.shared.sync_period].map(|d| d.as_secs())
                    == [2, 90]
            },
        ),
        ("iptables: {minSyncPeriod: 2s, syncPeriod: 1m30s}", |o| {
            [o.process.min_sync_period, o.modes.shared.sync_period].map(|d| d.as_secs()) == [2, 90]
        }),
        ("iptables: {localhostNodePorts: false}", |o| {
            !o.modes.iptables.localhost_node_ports
        }),
        ("mode: ipvs\nipvs: {scheduler: mh, strictARP: true}", |o| {
            o.modes.ipvs.scheduler == "mh" && o.kernel.strict_arp
        }),
        (
            "mode: ipvs\nipvs: {tcpTimeout: 1s, tcpFinTimeout: 2s, udpTimeout: 3s}",
            |o| {
                [
                    o.modes.ipvs.timeouts.tcp,
                    o.modes.ipvs.timeouts.tcp_fin,
                    o.modes.ipvs.timeouts.udp,
                ]
                .map(|d| d.as_secs())
                    == [1, 2, 3]
            },
        ),
        ("logging: {format: json, verbosity: 4}", |o| {
            o.log.format == LogFormat::Json && o.log.verbosity == 4
        }),
        (
            "logging: {vmodule: [{filePattern: proxier, verbosity: 4}]}",
            |o| o.log.vmodule == [("proxier".into(), 4)],
        ),
        ("mode: ipvs", |o| o.modes.chosen == ProxyMode::Ipvs),
        ("mode: iptables", |o| o.modes.chosen == ProxyMode::Iptables),
        ("nodePortAddresses: [primary]", |o| {
            o.modes.shared.node_port_addresses == NodePortAddresses::Primary
        }),
        ("nodePortAddresses: [primary, localhost]", |o| {
            let addresses = &o.modes.shared.node_port_addresses;
            matches!(addresses, NodePortAddresses::PrimaryOrWithin(nets) if nets.len() == 2)
        }),
        ("oomScoreAdj: 0", |o| o.process.oom_score_adj == 0),
        ("featureGates: {AllowServiceExternalIPs: false}", |o| {
            o.external_ips() == ExternalIps::Ignored
        }),
        (
            "featureGates: {LoggingAlphaOptions: true}\nlogging: {options: {text: {splitStream: true}}}",
            |o| o.log.is_split,
        ),
        (
            "logging: {options: {json: {infoBufferSize: 0}}}\nipvs: null\nfeatureGates: null",
            |o| o.modes.ipvs.scheduler == "rr",
        ),
    ];
    for (fields, check) in rows {
        let options = options(fields);
        assert!(check(&options), "{fields}: {options:?}");
        assert_eq!(
            options.said.warnings_beside_mode(),
            Vec::<String>::new(),
            "{fields}"
        );
    }
}

#[test]
fn ignored_configuration_fields_are_accepted_with_a_warning() {
    for (fields, parts) in [
        (
            "clientConnection: {qps: 50}",
            &["config.conf: clientConnection.qps has no effect"][..],
        ),
        (
            "featureGates: {ClientsAllowCBOR: true}",
            &["ClientsAllowCBOR=true has no effect", "JSON"],
        ),
        (
            "featureGates: {NoSuch: true, KubeProxyIPVS: true}",
            &["unrecognized", "no effect: NoSuch;", "1.34 to 1.38"],
        ),
        (
            "featureGates: {MultiCIDRServiceAllocator: false}",
            &["has no effect", "1.34 locks it to true"],
        ),
        (
            "nftables: {masqueradeBit: 3}",
            &["nftables.masqueradeBit has", "nftables mode"],
        ),
        (
            "nftables: {syncPeriod: 1m}",
            &["nftables.syncPeriod has", "nftables mode"],
        ),
        (
            "mode: nftables\niptables: {masqueradeAll: true}",
            &[
                "iptables.masqueradeAll has",
                "iptables mode, and of ipvs mode",
            ],
        ),
        (
            "winkernel: {enableDSR: true, sourceVip: ''}",
            &["config.conf: winkernel.enableDSR has", "Windows"],
        ),
        ("portRange: 1-2", &["portRange", "no effect"]),
        (
            "logging: {flushFrequency: 1000000000}",
            &["logging.flushFrequency"],
        ),
        (
            "ipvs: {scheduler: wrr}",
            &["config.conf: ipvs.scheduler has no effect", "ipvs mode"],
        ),
        // One second is the default of the flag. The file's field has no such default.
        (
            "mode: iptables\nipvs: {minSyncPeriod: 1s, syncPeriod: 30s, scheduler: ''}",
            &["config.conf: ipvs.minSyncPeriod has no effect", "ipvs mode"],
        ),
        (
            "mode: ipvs\niptables: {minSyncPeriod: 2s, syncPeriod: 30s}",
            &["config.conf: iptables.minSyncPeriod has", "iptables mode"],
        ),
        (
            "ipvs: {syncPeriodd: 1s}",
            &["unknown field ipvs.syncPeriodd", "config.conf"],
        ),
        ("nosuch: {a: 1}", &["unknown field nosuch"]),
        (
            "oomScoreAdj: 1\noomScoreAdj: -999",
            &["twice", "oomScoreAdj"],
        ),
    ] {
        let options = options(fields);
        let [warning] = &options.said.warnings_beside_mode()[..] else {
            panic!("{fields}: {:?}", options.said.warnings_beside_mode());
        };
        for part in parts {
            assert!(
                warning.contains(part),
                "{fields}: {warning:?} lacks {part:?}"
            );
        }
        assert!(
            !warning.contains("--"),
            "{fields}: {warning:?} names a flag"
        );
        assert_eq!(options.process.oom_score_adj, -999);
    }
}

/// Checks that a warning names a setting by its flag if the flag is in effect, and otherwise by its
/// field.
#[test]
fn a_warning_names_the_flag_that_overrides_the_file() {
    let file = File::new(&format!("{HEADER}logging: {{flushFrequency: 1s}}\n"));
    let warnings = file
        .options("--log-flush-frequency=2s")
        .said
        .warnings_beside_mode();
    assert_eq!(
        warnings,
        ["--log-flush-frequency has no effect: every line is written at once"]
    );
    // The file overrides this flag, so only the warning about overridden flags names it.
    let warnings = file
        .options("--kube-api-qps=50")
        .said
        .warnings_beside_mode();
    assert!(
        warnings
            .iter()
            .all(|line| !line.contains("--kube-api-qps has")),
        "{warnings:?}"
    );
}

#[test]
fn errors_name_the_field_the_value_and_the_allowed_values() {
    for (fields, parts) in [
        (
            "mode: kernelspace",
            &["config.conf", "'kernelspace' for mode", "ipvs"][..],
        ),
        (
            "bindAddress: node1",
            &["'node1' for bindAddress", "IPv4 or IPv6"],
        ),
        (
            "healthzBindAddress: a:b",
            &["healthzBindAddress", "IP:port"],
        ),
        ("metricsBindAddress: a", &["metricsBindAddress", "IP:port"]),
        ("clusterCIDR: 10.0.0.0", &["clusterCIDR", "10.0.0.0/16"]),
        (
            "mode: ipvs\nipvs: {minSyncPeriod: 1m}",
            &["ipvs.minSyncPeriod", "longer than ipvs.syncPeriod"],
        ),
        (
            "iptables: {minSyncPeriod: 1m}",
            &["iptables.minSyncPeriod", "longer than iptables.syncPeriod"],
        ),
        (
            "ipvs:\n  syncPeriod: -1s",
            &["line 4", "syncPeriod: -1s", "negative"],
        ),
        (
            "ipvs:\n  syncPeriod: 30",
            &["line 4", "syncPeriod: 30", "30s"],
        ),
        ("logging: {flushFrequency: soon}", &["line 3", "such as 5s"]),
        (
            "iptables: {masqueradeBit: 32}",
            &["iptables.masqueradeBit", "0 to 31"],
        ),
        (
            "oomScoreAdj: 1001",
            &["oomScoreAdj", "'1001'", "-1000 to 1000"],
        ),
        (
            "oomScoreAdj: high",
            &["line 3", "whole number", "oomScoreAdj: high"],
        ),
        (
            "nodePortAddresses: primary",
            &["line 3", "a list", "nodePortAddresses"],
        ),
        ("clusterCIDR: [a]", &["line 3", "a text", "clusterCIDR"]),
        ("conntrack: 5", &["line 3", "fields", "conntrack"]),
        ("featureGates: {A: 1}", &["line 3", "true or false"]),
        (
            "featureGates: {NoSuch: maybe}",
            &["line 3", "true or false", "NoSuch"],
        ),
        (
            "mode: ipvs\nfeatureGates: {KubeProxyIPVS: false}",
            &[
                "config.conf: invalid value 'ipvs' for mode",
                "KubeProxyIPVS=false",
                "iptables, nftables, userspace",
            ],
        ),
        (
            "logging: {options: {text: {splitStream: true}}}",
            &[
                "'true' for logging.options.text.splitStream",
                "LoggingAlphaOptions is off",
            ],
        ),
        (
            "clientConnection: {qps: fast}",
            &["line 3", "give a number"],
        ),
        (
            "logging: {vmodule: [{filePattern: a, verbosity: -1}]}",
            &["line 3", "0 or more"],
        ),
        ("conntrack: {min: -1}", &["conntrack.min", "'-1'"]),
        (
            "detectLocalMode: Magic",
            &["detectLocalMode", "'Magic'", "NodeCIDR"],
        ),
        (
            "detectLocalMode: BridgeInterface",
            &["detectLocal.bridgeInterface", "needs it"],
        ),
        (
            "nodePortAddresses: [10.0.0.1]",
            &["nodePortAddresses", "10.0.0.1"],
        ),
        (
            "logging: {format: xml}",
            &["logging.format", "text, plain or json"],
        ),
        (
            "nodePortAddresses: ['']",
            &["nodePortAddresses", "cannot be empty"],
        ),
        (
            "mode: ipvs\nipvs: {excludeCIDRs: ['']}",
            &["ipvs.excludeCIDRs", "cannot be empty"],
        ),
        (
            "metricsBindAddress: 127.0.0.1:0",
            &["metricsBindAddress", "give IP:port"],
        ),
        (
            "showHiddenMetricsForVersion: '1.0'",
            &["showHiddenMetricsForVersion", "previous minor version"],
        ),
        ("ipvs: [", &["line 3"]),
    ] {
        let text = error(&format!("{HEADER}{fields}"));
        for part in parts {
            assert!(text.contains(part), "{fields}: {text:?} lacks {part:?}");
        }
    }
    for text in [
        "",
        "kind: KubeProxyConfiguration",
        "apiVersion: v1\nkind: Service",
    ] {
        let error = error(text);
        assert!(
            error.contains("apiVersion: kubeproxy.config.k8s.io/v1alpha1"),
            "{error}"
        );
        assert!(!error.contains("''"), "{error}");
    }
}

#[test]
fn a_configuration_file_replaces_all_flags_except_log_and_hostname() {
    let file = File::new(&format!(
        "{HEADER}mode: ipvs\nhostnameOverride: of-file\nipvs: {{scheduler: sh}}\nlogging: {{verbosity: 2}}\n"
    ));
    let of_file = file.options(
        "--ipvs-scheduler=mh --masquerade-all --nodeport-addresses=10.0.0.0/8 --cluster-cidr=10.0.0.0/8 \
         --ipvs-exclude-cidrs=10.0.0.0/8 --proxy-mode=iptables --healthz-port=0",
    );
    assert_eq!(bare(of_file.clone()), bare(file.options("")));
    let [warning, deprecated] = &of_file.said.warnings_beside_mode()[..] else {
        panic!("{:?}", of_file.said.warnings_beside_mode());
    };
    assert!(deprecated.contains("--healthz-port"), "{deprecated}");
    for part in [
        "config.conf",
        "--ipvs-scheduler (ipvs.scheduler)",
        "--cluster-cidr",
    ] {
        assert!(warning.contains(part), "{warning}");
    }
    assert_eq!(
        (&*of_file.modes.ipvs.scheduler, &*of_file.process.node_name),
        ("sh", "of-file")
    );
    assert_eq!(of_file.log.verbosity, 2);
    let won = file.options("--hostname-override=given -v=5 --logging-format=json");
    assert_eq!((&*won.process.node_name, won.log.verbosity), ("given", 5));
    assert_eq!(won.log.format, LogFormat::Json);
    // Flags that have no field in the file still apply.
    let others = file.options("--master=https://a --iptables-backend=nft --ipvs-drain-timeout=1m");
    assert_eq!(
        others.modes.ipvs.drain_timeout,
        Some(Duration::from_mins(1))
    );
    assert!(matches!(
        others.source,
        Settings::Api(Api {
            master: Some(_),
            ..
        })
    ));
    let error = file.with("--logging-format=xml").unwrap_err();
    assert!(error.contains("--logging-format"), "{error}");
}

fn written(line: &str) -> (PathBuf, String) {
    let line = format!("kube-proxy --write-config-to=/w {line}");
    match command_line::parse(line.split_whitespace()) {
        Ok(Command::Write(file, text)) => (file, text),
        other => panic!("{line}: {other:?}"),
    }
}

#[test]
fn the_written_default_configuration_equals_that_of_upstream() {
    let (file, text) = written("");
    assert_eq!(file, PathBuf::from("/w"));
    // The text equals upstream's file, except for `ipvs.minSyncPeriod`.
    assert_eq!(
        text.replace('"', ""),
        include_str!("upstream-1.30.5.yaml")
            .replace('"', "")
            .replacen("minSyncPeriod: 0s", "minSyncPeriod: 1s", 1),
    );
    for line in [
        "bindAddress: \"0.0.0.0\"\n",
        "  contentType: application/vnd.kubernetes.protobuf\n",
        "configSyncPeriod: 15m0s\n",
        "  tcpEstablishedTimeout: 24h0m0s\n",
        "healthzBindAddress: 0.0.0.0:10256\n",
        "  excludeCIDRs: null\n",
        "ipvs:\n",
        "  minSyncPeriod: 1s\n",
        "  syncPeriod: 30s\n",
        "nodePortAddresses: null\n",
        "oomScoreAdj: -999\n",
    ] {
        assert!(text.contains(line), "{text}\nlacks {line:?}");
    }
    assert!(
        written("--ipvs-sync-period=7s")
            .1
            .contains("  syncPeriod: 7s\n")
    );
}

#[test]
fn a_written_configuration_parses_to_the_same_options() {
    for line in [
        "--hostname-override=n",
        "--hostname-override=n --ipvs-scheduler=mh --nodeport-addresses=10.0.0.0/8,fd00::/8 --feature-gates=AllBeta=true \
         --bind-address=:: --ipvs-min-sync-period=0 --oom-score-adj=5 --conntrack-udp-timeout=1m30s --vmodule=a=1,b=2 --kube-api-qps=2.5",
    ] {
        let file = File::new(&written(line).1);
        let typed = format!("kube-proxy {line}");
        let Ok(Command::Run(typed)) = command_line::parse(typed.split_whitespace()) else {
            panic!("{typed}");
        };
        let read = file.options("");
        let mut unspelled = read.said.warnings_beside_mode();
        unspelled.retain(|warning| !warning.contains("no effect"));
        assert!(unspelled.is_empty(), "{unspelled:?}");
        assert_eq!(bare(read), bare(*typed), "{line}");
    }
}

/// kubeadm's file has all fields except one for Windows. Each path in `ROWS` belongs to a field.
#[test]
fn each_configuration_field_has_its_documented_path() {
    let mut tree = Configuration::of(&Flags::defaults()).tree();
    tree.as_object_mut()
        .unwrap()
        .retain(|name, _| name != "featureGates");
    let kubeadm: Value = serde_saphyr::from_str(KUBEADM).unwrap();
    let names =
        |tree: &Value| -> BTreeSet<String> { tree.as_object().unwrap().keys().cloned().collect() };
    let ours = names(&tree);
    let missing: Vec<_> = ours.difference(&names(&kubeadm)).cloned().collect();
    assert_eq!(missing, ["windowsRunAsService"]);
    for settings::SettingRow { path, flag, .. } in settings::ROWS {
        let field = path.split('.').try_fold(&tree, |tree, name| tree.get(name));
        assert!(
            field.is_some() || *path == "featureGates",
            "{path}, --{flag}"
        );
    }
}

#[test]
fn periods_are_formatted_as_by_go() {
    for (milliseconds, text) in [
        (0, "0s"),
        (500, "500ms"),
        (1_500, "1.5s"),
        (30_000, "30s"),
        (60_000, "1m0s"),
        (90_050, "1m30.05s"),
        (3_600_000, "1h0m0s"),
        (86_400_000, "24h0m0s"),
    ] {
        assert_eq!(
            Period(Duration::from_millis(milliseconds)).to_string(),
            text
        );
    }
}

/// Follows a file while `change` runs. Returns the changed fields. The list is empty if no field
/// changes soon afterwards.
async fn changed_by(file: &File, change: impl FnOnce()) -> Vec<String> {
    changed_with(file, &FileProblem::default(), change).await
}

async fn changed_with(file: &File, problem: &FileProblem, change: impl FnOnce()) -> Vec<String> {
    let used = file.options("").said.configuration;
    let reread = || match file.with("") {
        Ok(Command::Run(options)) => Ok(*options),
        Ok(other) => panic!("{other:?}"),
        Err(error) => Err(error),
    };
    let followed = changed(&file.0, &used, problem, reread);
    let changing = async {
        tokio::time::sleep(Duration::from_millis(400)).await;
        change();
        tokio::time::sleep(Duration::from_millis(800)).await;
    };
    tokio::select! {
        options = followed => used.differences(&options.said.configuration),
        () = changing => Vec::new(),
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}

#[test]
fn only_a_file_with_different_settings_counts_as_changed() {
    runtime().block_on(async {
        let file = File::new(KUBEADM);
        assert!(
            changed_by(&file, || {}).await.is_empty(),
            "nothing happened"
        );
        let same = format!("# a comment\n{KUBEADM}").replace("qps: 0", "qps: 5");
        assert!(
            changed_by(&file, || file.write(&same)).await.is_empty(),
            "the same, in other words"
        );
        let problem = FileProblem::default();
        assert!(
            changed_with(&file, &problem, || file.write("kind: ["))
                .await
                .is_empty(),
            "a broken file"
        );
        let reason = problem.reasons().remove(0);
        assert!(
            reason.contains("line 1") && reason.contains("configuration in use"),
            "{reason}"
        );
        file.write(KUBEADM);
        assert!(changed_with(&file, &problem, || {}).await.is_empty());
        assert!(problem.reasons().is_empty());
        let other = KUBEADM.replace("scheduler: \"\"", "scheduler: sh");
        let fields = changed_by(&file, || file.write(&other)).await;
        assert_eq!(fields, ["ipvs.scheduler"]);
    });
}

#[test]
fn a_change_of_a_mounted_config_map_is_noticed() {
    use std::os::unix::fs::symlink;
    runtime().block_on(async {
        let file = File::new("");
        let folder = file.0.parent().unwrap();
        let publish = |version: &str, text: &str| {
            fs::create_dir(folder.join(version)).unwrap();
            fs::write(folder.join(version).join("config.conf"), text).unwrap();
            symlink(version, folder.join("..new")).unwrap();
            fs::rename(folder.join("..new"), folder.join("..data")).unwrap();
        };
        fs::remove_file(&file.0).unwrap();
        symlink("..data/config.conf", &file.0).unwrap();
        publish("..1", KUBEADM);
        assert!(
            changed_by(&file, || publish("..2", KUBEADM))
                .await
                .is_empty()
        );
        let other = KUBEADM.replace("10.244.0.0/16", "10.245.0.0/16");
        let fields = changed_by(&file, || publish("..3", &other)).await;
        assert_eq!(fields, ["clusterCIDR"]);
    });
}

#[test]
fn each_changed_field_is_reported_as_live_or_as_needing_a_restart() {
    let default = options("").said.configuration;
    for (fields, paths, change) in [
        (
            "ipvs: {scheduler: sh}",
            &["ipvs.scheduler"][..],
            Change::Live,
        ),
        (
            "ipvs: {syncPeriod: 1m, minSyncPeriod: 2s}",
            &["ipvs.minSyncPeriod", "ipvs.syncPeriod"],
            Change::Live,
        ),
        (
            "featureGates: {AllAlpha: false}",
            &["featureGates"],
            Change::Restart,
        ),
        (
            "nodePortAddresses: [primary]",
            &["nodePortAddresses"],
            Change::Live,
        ),
        (
            "logging: {vmodule: [{filePattern: a, verbosity: 1}]}",
            &["logging.vmodule"],
            Change::Live,
        ),
        (
            "winkernel: {sourceVip: a}",
            &["winkernel.sourceVip"],
            Change::Live,
        ),
        (
            "metricsBindAddress: 0.0.0.0:1",
            &["metricsBindAddress"],
            Change::Restart,
        ),
        (
            "hostnameOverride: b",
            &["hostnameOverride"],
            Change::Restart,
        ),
        // These fields have their default values, in another spelling.
        (
            "mode: iptables\ndetectLocalMode: ''\nnodePortAddresses: []",
            &[],
            Change::Live,
        ),
        ("metricsBindAddress: 127.0.0.1", &[], Change::Live),
    ] {
        let found = default.differences(&options(fields).said.configuration);
        assert_eq!(found, paths, "{fields}");
        assert!(
            found.iter().all(|path| change_of(path) == change),
            "{fields}"
        );
    }
}

/// Returns the options from `file`, and the fields that wait for a restart. The settings of these
/// fields keep their values from `used`.
fn taken(used: &Options, file: &File) -> (Options, Vec<String>) {
    let new = file.options("");
    let waiting = used.said.configuration.waits(&new.said.configuration);
    let line = [
        "kube-proxy".to_owned(),
        format!("--config={}", file.0.display()),
    ];
    let options = match command_line::parse_keeping(line, &waiting) {
        Ok(Command::Run(options)) => *options,
        other => panic!("{other:?}"),
    };
    let told = waiting.iter().map(ToString::to_string).collect();
    (options, told)
}

#[test]
fn a_changed_field_that_needs_a_restart_keeps_its_current_value() {
    let of = |fields: &str| File::new(&format!("{HEADER}{fields}"));
    let used = of("mode: ipvs\nipvs: {scheduler: sh, strictARP: true}").options("");
    // A changed setting of a mode waits for the restart that also changes the mode.
    let (options, waiting) = taken(
        &used,
        &of(
            "mode: iptables\niptables: {syncPeriod: 20s}\nclusterCIDR: 10.1.0.0/16\nmetricsBindAddress: 0.0.0.0\n\
             featureGates: {AllAlpha: false}\nlogging: {format: json, verbosity: 3}",
        ),
    );
    assert_eq!(
        waiting,
        [
            "featureGates: {\"AllAlpha\":false} (in use: {})",
            "iptables.syncPeriod: 20s (in use: 30s)",
            "ipvs.scheduler: \"\" (in use: sh)",
            "ipvs.strictARP: false (in use: true)",
            "logging.format: json (in use: text)",
            "metricsBindAddress: 0.0.0.0:10249 (in use: 127.0.0.1:10249)",
            "mode: iptables (in use: ipvs)",
        ]
    );
    assert_eq!(
        used.said
            .configuration
            .differences(&options.said.configuration),
        ["clusterCIDR", "logging.verbosity"]
    );
    assert_eq!(
        (options.modes.chosen, options.log.verbosity),
        (ProxyMode::Ipvs, 3)
    );
    assert_eq!(options.modes.ipvs.scheduler, "sh");
    assert_eq!(options.said.warnings_beside_mode(), Vec::<String>::new());

    let (options, waiting) = taken(&used, &of("mode: ipvs\nipvs: {scheduler: wrr}"));
    assert_eq!(waiting, Vec::<String>::new());
    assert_eq!(
        (&*options.modes.ipvs.scheduler, options.kernel.strict_arp),
        ("wrr", false),
        "in the same mode they are live"
    );
}

#[test]
fn a_start_uses_the_configuration_that_was_prepared_for_the_pod() {
    let file = File::new(&format!("{HEADER}mode: ipvs\nipvs: {{scheduler: sh}}"));
    let prepared = file.0.with_file_name("prepared");
    let start = |more: &str| {
        let line = [
            "kube-proxy".to_owned(),
            format!("--config={}", file.0.display()),
            format!("--prepared-config={}", prepared.display()),
        ];
        let more = more.split_whitespace().map(str::to_owned);
        let line: Vec<_> = line.into_iter().chain(more).map(Into::into).collect();
        match command_line::parse_prepared(&line) {
            Ok(Command::Run(options)) => Ok(*options),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error.to_string()),
        }
    };
    let first = start("").unwrap();
    assert_eq!(
        first.process.prepared_configuration.as_ref(),
        Some(&prepared)
    );
    record(&prepared, &first.said.configuration).unwrap();
    assert_eq!(start(""), Ok(first.clone()), "nothing has changed");

    file.write(&format!("{HEADER}mode: iptables\nclusterCIDR: 10.1.0.0/16"));
    let again = start("").unwrap();
    assert_eq!(
        (
            again.modes.chosen,
            &*again.modes.ipvs.scheduler,
            again.said.warnings_beside_mode().len()
        ),
        (ProxyMode::Ipvs, "sh", 0)
    );
    assert_eq!(
        first
            .said
            .configuration
            .differences(&again.said.configuration),
        ["clusterCIDR"]
    );
    // An init container that prepares a pod uses the settings of the file.
    assert_eq!(
        start("--init-only").unwrap().modes.chosen,
        ProxyMode::Iptables
    );

    file.write("kind: [");
    let again = start("").unwrap();
    assert_eq!(again.said.configuration, first.said.configuration);
    let [warning] = &*again.said.warnings_beside_mode() else {
        panic!("{:?}", again.said.warnings_beside_mode())
    };
    assert!(
        warning.contains("config.conf, line 1") && warning.contains("that this pod had"),
        "{warning}"
    );
    file.write(&format!("{HEADER}mode: nonesuch"));
    assert_eq!(start("").unwrap().modes.chosen, ProxyMode::Ipvs);

    // The stored configuration is damaged or unusable.
    fs::write(&prepared, "{").unwrap();
    assert!(start("").unwrap_err().contains("nonesuch"));
    file.write(&format!("{HEADER}mode: iptables"));
    let without = start("").unwrap();
    assert_eq!(without.modes.chosen, ProxyMode::Iptables);
    assert!(
        without.said.warnings_beside_mode()[0].ends_with("going on without it"),
        "{:?}",
        without.said.warnings_beside_mode()
    );
    let line = ["kube-proxy", "--prepared-config=/nowhere"];
    let line: Vec<_> = line.into_iter().map(Into::into).collect();
    match command_line::parse_prepared(&line).unwrap() {
        Command::Run(options) => {
            assert!(options.said.warnings_beside_mode()[0].contains("no --config"));
        }
        other => panic!("{other:?}"),
    }
}

/// Checks the tables in docs/flags.md. They contain each flag and each field once. A flag and a
/// field of the same setting are in the same row, at the same position of the row's two lists. The
/// columns about effect and change match the program.
#[test]
fn the_documentation_lists_each_flag_and_field() {
    use clap::CommandFactory as _;
    let text = include_str!("../../../../docs/flags.md");
    let (_, tables) = text.split_once("\n## Tables\n").unwrap();
    let (text, _) = tables.split_once("\n## ").unwrap();
    let rows: Vec<[&str; 4]> = text
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| flag"))
        .flat_map(|line| {
            let cells: Vec<_> = line.trim_matches('|').split(" | ").map(str::trim).collect();
            let [flags, fields, effect, change]: [&str; 4] =
                cells.try_into().unwrap_or_else(|_| panic!("{line}"));
            let flags: Vec<&str> = flags.split(", ").collect();
            let fields: Vec<&str> = fields.split(", ").collect();
            let settings = 0..flags.len().max(fields.len());
            let setting = |index| {
                let [flag, field] = [&flags, &fields].map(|names| names.get(index).unwrap_or(&"–"));
                [*flag, *field, effect, change]
            };
            settings.map(setting).collect::<Vec<_>>()
        })
        .collect();
    let name = |cell: &'static str| {
        let name = cell.trim_matches('`');
        (name != "–").then_some(name)
    };
    let sorted = |mut names: Vec<String>| {
        names.sort();
        names
    };
    let mut command = Flags::command();
    command.build();
    let flags = command.get_arguments().filter_map(clap::Arg::get_long);
    let told = rows.iter().filter_map(|[flag, ..]| name(flag));
    assert_eq!(
        sorted(told.map(str::to_owned).collect()),
        sorted(flags.map(|flag| format!("--{flag}")).collect()),
    );
    let told = rows.iter().filter_map(|[_, field, ..]| name(field));
    assert_eq!(sorted(told.map(str::to_owned).collect()), fields());
    for [flag, field, effect, change] in rows {
        let (flag, path) = (name(flag), name(field));
        let field = flag.and_then(|flag| field_of(flag.trim_start_matches('-')));
        assert!(flag.is_none() || field == path, "{flag:?}, {path:?}");
        let has_effect = path.is_none_or(|path| without_effect::without_effect(path).is_none())
            && !matches!(flag, Some("--boot-id-file" | "--machine-id-file"));
        let works = effect.starts_with("works") || effect.starts_with("not in upstream: ");
        assert_eq!(works, has_effect, "{flag:?}, {path:?}");
        assert_eq!(
            effect.starts_with("no effect: "),
            !has_effect,
            "{flag:?}, {path:?}"
        );
        let wanted = match path {
            None | Some("apiVersion" | "kind") => "–",
            Some(path) if change_of(path) == Change::Restart => "restart",
            Some(_) => "live",
        };
        assert_eq!(change, wanted, "{flag:?}, {path:?}");
    }
}

/// Returns the page `/configz` of a daemon whose configuration file has these fields.
fn configz(fields: &str) -> Value {
    let body = Configz::new(&options(fields).said.configuration).body();
    serde_json::from_str(&body).unwrap()
}

/// The page equals the page of upstream 1.36 since kubernetes/kubernetes#136044: the configuration
/// file with its version and kind. Empty fields follow Go's rules.
#[test]
fn configz_contains_the_complete_configuration() {
    let fields = "mode: ipvs\nhostnameOverride: node1\nclusterCIDR: 10.10.0.0/16,fd00::/64\niptables: {masqueradeAll: true}\n\
                  ipvs: {scheduler: wrr, strictARP: true, tcpTimeout: 900s}\nlogging: {verbosity: 2}";
    let wanted = serde_json::json!({"kubeproxy.config.k8s.io": {
        "kind": "KubeProxyConfiguration",
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "clientConnection": {
            "kubeconfig": "", "acceptContentTypes": "", "contentType": "application/vnd.kubernetes.protobuf",
            "qps": 5, "burst": 10
        },
        "logging": {
            "format": "text", "flushFrequency": "5s", "verbosity": 2,
            "options": {"text": {"infoBufferSize": "0"}, "json": {"infoBufferSize": "0"}}
        },
        "hostnameOverride": "node1",
        "bindAddress": "0.0.0.0",
        "healthzBindAddress": "0.0.0.0:10256",
        "metricsBindAddress": "127.0.0.1:10249",
        "bindAddressHardFail": false,
        "enableProfiling": false,
        "showHiddenMetricsForVersion": "",
        "mode": "ipvs",
        "iptables": {
            "masqueradeBit": 14, "masqueradeAll": true, "localhostNodePorts": true,
            "syncPeriod": "0s", "minSyncPeriod": "0s"
        },
        "ipvs": {
            "syncPeriod": "30s", "minSyncPeriod": "0s", "scheduler": "wrr", "excludeCIDRs": null, "strictARP": true,
            "tcpTimeout": "15m0s", "tcpFinTimeout": "0s", "udpTimeout": "0s"
        },
        "nftables": {"masqueradeBit": 14, "masqueradeAll": false, "syncPeriod": "0s", "minSyncPeriod": "0s"},
        "winkernel": {
            "networkName": "", "sourceVip": "", "enableDSR": false, "rootHnsEndpointName": "",
            "forwardHealthCheckVip": false
        },
        "detectLocalMode": "ClusterCIDR",
        "detectLocal": {"bridgeInterface": "", "interfaceNamePrefix": ""},
        "clusterCIDR": "10.10.0.0/16,fd00::/64",
        "nodePortAddresses": null,
        "oomScoreAdj": -999,
        "conntrack": {
            "maxPerCore": 32768, "min": 131_072, "tcpEstablishedTimeout": "24h0m0s", "tcpCloseWaitTimeout": "1h0m0s",
            "tcpBeLiberal": false, "udpTimeout": "0s", "udpStreamTimeout": "0s"
        },
        "configSyncPeriod": "15m0s",
        "portRange": ""
    }});
    assert_eq!(configz(fields), wanted);
    let other = configz(
        "clientConnection: {qps: 2.5}\nnodePortAddresses: [10.0.0.0/8]\nlogging: {vmodule: [{filePattern: a, verbosity: 1}]}",
    );
    let of = |path: &str| other.pointer(&format!("/kubeproxy.config.k8s.io{path}"));
    assert_eq!(of("/clientConnection/qps"), Some(&2.5.into()));
    assert_eq!(of("/nodePortAddresses/0"), Some(&"10.0.0.0/8".into()));
    assert_eq!(of("/logging/vmodule/0/verbosity"), Some(&1.into()));
}

#[test]
fn configz_has_the_sync_periods_of_the_current_mode() {
    let periods = |mode: &str| {
        let configz = configz(&format!(
            "mode: '{mode}'\niptables: {{syncPeriod: 20s, minSyncPeriod: 2s}}\nipvs: {{syncPeriod: 40s, minSyncPeriod: 4s}}"
        ));
        ["iptables", "ipvs", "nftables"].map(|section| {
            let of = |field| {
                let path = format!("/kubeproxy.config.k8s.io/{section}/{field}");
                configz.pointer(&path).unwrap().as_str().unwrap().to_owned()
            };
            [of("syncPeriod"), of("minSyncPeriod")].join(" ")
        })
    };
    assert_eq!(periods("ipvs"), ["0s 0s", "40s 4s", "0s 0s"]);
    for mode in ["iptables", ""] {
        assert_eq!(periods(mode), ["20s 2s", "0s 0s", "0s 0s"], "{mode}");
    }
}

proptest::proptest! {
    #[test]
    fn arbitrary_configuration_files_never_panic_the_parser(text in "(\\PC|\n|: |- ){0,60}") {
        let _ = parse(&text);
        let _ = parse(&format!("{HEADER}{text}"));
    }

    #[test]
    fn a_formatted_period_parses_to_the_same_period(nanoseconds in 0_u64..9_000_000_000_000_000_000) {
        let period = Duration::from_nanos(nanoseconds);
        proptest::prop_assert_eq!(go::duration(&Period(period).to_string()), Ok(period));
    }
}
