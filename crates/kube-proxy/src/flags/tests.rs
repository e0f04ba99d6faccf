use super::*;
use proxy::{IpFamily, LocalDetector, Node, NodePortAddresses};

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
fn the_defaults_are_upstreams() {
    let mut defaults = options("");
    assert!(!defaults.node_name.is_empty());
    defaults.node_name.clear();
    assert_eq!(
        defaults,
        Options {
            source: ObjectSource::Api {
                kubeconfig: None,
                master: None
            },
            node_name: String::new(),
            bind_address: "0.0.0.0".parse().unwrap(),
            detect_local: DetectLocal::ClusterCidr(vec![]),
            node_port_addresses: NodePortAddresses::All,
            masquerade_all: false,
            masquerade_bit: 14,
            iptables_backend: IptablesBackend::Auto,
            scheduler: "rr".into(),
            exclude_cidrs: vec![],
            strict_arp: false,
            timeouts: IpvsTimeouts::default(),
            drain_timeout: None,
            conntrack: Conntrack {
                max_per_core: 32_768,
                min: 131_072,
                tcp_established: Duration::from_hours(24),
                tcp_close_wait: Duration::from_hours(1),
                ..Conntrack::default()
            },
            sync_period: Duration::from_secs(30),
            min_sync_period: Duration::from_secs(1),
            verbosity: 0,
        }
    );
}

/// One row per flag: how it is typed, in several ways, and what must come of it.
#[test]
fn every_flag_reaches_its_option() {
    type Check = fn(&Options) -> bool;
    let rows: &[(&[&str], Check)] = &[
        (&["--manifests=/m", "--manifests /m"], |o| {
            o.source == ObjectSource::Manifests("/m".into())
        }),
        (
            &[
                "--kubeconfig=/k --master=https://a:6443",
                "--kubeconfig /k --master https://a:6443",
            ],
            |o| {
                o.source
                    == ObjectSource::Api {
                        kubeconfig: Some("/k".into()),
                        master: Some("https://a:6443".into()),
                    }
            },
        ),
        (
            &["--hostname-override=Node1", "--hostname_override Node1"],
            |o| o.node_name == "node1",
        ),
        (
            &["--proxy-mode=ipvs", "--proxy-mode=∅", "--proxy_mode ipvs"],
            |o| o.scheduler == "rr",
        ),
        (
            &[
                "--bind-address=::",
                "--bind-address fd00::1 --bind-address ::",
            ],
            |o| o.bind_address.is_ipv6(),
        ),
        (
            &["--cluster-cidr=10.244.0.0/16,fd00:244::/56"],
            |o| matches!(&o.detect_local, DetectLocal::ClusterCidr(nets) if nets.len() == 2),
        ),
        (&["--detect-local-mode=NodeCIDR"], |o| {
            o.detect_local == DetectLocal::NodeCidr
        }),
        (
            &["--detect-local-mode=BridgeInterface --pod-bridge-interface=cni0"],
            |o| o.detect_local == DetectLocal::BridgeInterface("cni0".into()),
        ),
        (
            &["--detect-local-mode=InterfaceNamePrefix --pod-interface-name-prefix=cali"],
            |o| o.detect_local == DetectLocal::InterfaceNamePrefix("cali".into()),
        ),
        (&["--nodeport-addresses=primary"], |o| {
            o.node_port_addresses == NodePortAddresses::Primary
        }),
        (&["--nodeport-addresses=∅"], |o| {
            o.node_port_addresses == NodePortAddresses::All
        }),
        (
            &[
                "--nodeport-addresses=10.0.0.0/8,fd00::/8",
                "--nodeport-addresses=10.0.0.0/8 --nodeport-addresses fd00::/8",
            ],
            |o| matches!(&o.node_port_addresses, NodePortAddresses::Within(nets) if nets.len() == 2),
        ),
        (
            &[
                "--masquerade-all",
                "--masquerade-all=true",
                "--masquerade_all=T",
                "--masquerade-all=0 --masquerade-all=1",
            ],
            |o| o.masquerade_all,
        ),
        (
            &[
                "--masquerade-all=false",
                "--masquerade-all --masquerade-all=F",
            ],
            |o| !o.masquerade_all,
        ),
        (
            &[
                "--iptables-masquerade-bit=0x1f",
                "--iptables-masquerade-bit 31",
            ],
            |o| o.masquerade_bit == 31,
        ),
        (&["--iptables-backend=nft"], |o| {
            o.iptables_backend == IptablesBackend::Nft
        }),
        (&["--iptables-backend legacy"], |o| {
            o.iptables_backend == IptablesBackend::Legacy
        }),
        (
            &[
                "--ipvs-scheduler=mh",
                "--ipvs-scheduler=sh --ipvs-scheduler=mh",
            ],
            |o| o.scheduler == "mh",
        ),
        (
            &["--ipvs-exclude-cidrs=10.1.0.0/16 --ipvs-exclude-cidrs=10.2.0.0/16,fd00::/8"],
            |o| o.exclude_cidrs.len() == 3,
        ),
        (&["--ipvs-strict-arp", "--ipvs-strict-arp=TRUE"], |o| {
            o.strict_arp
        }),
        (
            &["--ipvs-tcp-timeout=15m --ipvs-tcpfin-timeout=30s --ipvs-udp-timeout=2m"],
            |o| {
                [o.timeouts.tcp, o.timeouts.tcp_fin, o.timeouts.udp].map(|d| d.as_secs())
                    == [900, 30, 120]
            },
        ),
        (&["--ipvs-drain-timeout=5m"], |o| {
            o.drain_timeout == Some(Duration::from_mins(5))
        }),
        (
            &[
                "--conntrack-max-per-core=0 --conntrack-min=0",
                "--conntrack_max_per_core 0 --conntrack-min 0",
            ],
            |o| (o.conntrack.max_per_core, o.conntrack.min) == (0, 0),
        ),
        (
            &["--conntrack-tcp-timeout-established=2h --conntrack-tcp-timeout-close-wait=0"],
            |o| {
                (o.conntrack.tcp_established, o.conntrack.tcp_close_wait)
                    == (Duration::from_hours(2), Duration::ZERO)
            },
        ),
        (
            &[
                "--conntrack-tcp-be-liberal",
                "--conntrack-tcp-be-liberal=true",
            ],
            |o| o.conntrack.tcp_be_liberal,
        ),
        (
            &["--conntrack-udp-timeout=30s --conntrack-udp-timeout-stream=2m"],
            |o| [o.conntrack.udp, o.conntrack.udp_stream].map(|d| d.as_secs()) == [30, 120],
        ),
        (&["--ipvs-sync-period=1h2m3.5s"], |o| {
            o.sync_period == Duration::from_millis(3_723_500)
        }),
        (
            &["--ipvs-min-sync-period=0", "--ipvs-min-sync-period 0s"],
            |o| o.min_sync_period.is_zero(),
        ),
        (
            &["-v=4", "-v 4", "-v4", "--v=4", "--v 4", "-v=1 --v=4"],
            |o| o.verbosity == 4,
        ),
        (&["-v=-3"], |o| o.verbosity == 0),
        (&["-v=99"], |o| o.verbosity == 10),
        (&["--version=false"], |o| o.verbosity == 0),
    ];
    for (lines, check) in rows {
        for line in *lines {
            let options = options(line);
            assert!(check(&options), "{line}: {options:?}");
        }
    }
}

/// What cannot be used is named, with what is allowed.
#[test]
fn errors_name_the_flag_the_value_and_what_is_allowed() {
    for (line, parts) in [
        (
            "--ipvs-strict-arpp",
            &["--ipvs-strict-arpp", "--ipvs-strict-arp"][..],
        ),
        (
            "--proxy-mode=iptables",
            &["--proxy-mode", "iptables", "ipvs"],
        ),
        (
            "--masquerade-all=yes",
            &["--masquerade-all", "yes", "true or false"],
        ),
        ("--masquerade-all true", &["true"]),
        ("extra", &["extra"]),
        (
            "--ipvs-sync-period=30",
            &["--ipvs-sync-period", "'30'", "30s"],
        ),
        (
            "--ipvs-sync-period=0",
            &["--ipvs-sync-period", "longer than 0"],
        ),
        (
            "--ipvs-sync-period=-1s",
            &["--ipvs-sync-period", "negative"],
        ),
        (
            "--ipvs-sync-period=1s --ipvs-min-sync-period=2s",
            &["--ipvs-min-sync-period", "2s", "1s"],
        ),
        (
            "--ipvs-tcp-timeout=9999h",
            &["--ipvs-tcp-timeout", "at most"],
        ),
        (
            "--ipvs-drain-timeout=-1s",
            &["--ipvs-drain-timeout", "negative"],
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
            "--nodeport-addresses=primary,10.0.0.0/8",
            &["--nodeport-addresses", "stands alone"],
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
        ("--manifests=∅", &["--manifests", "folder"]),
        (
            "--hostname-override=\u{3000}",
            &["--hostname-override", "name"],
        ),
        ("--version=maybe", &["--version", "maybe"]),
        ("-v=high", &["-v", "high", "number"]),
        ("--kubeconfig", &["--kubeconfig"]),
    ] {
        let text = error(line);
        for part in parts {
            assert!(text.contains(part), "{line}: {text:?} lacks {part:?}");
        }
    }
}

#[test]
fn help_and_version_are_printed() {
    let printed = |line| match read(line) {
        Ok(Command::Print(text)) => text,
        other => panic!("{other:?}"),
    };
    let help = printed("--help");
    for flag in ["--manifests", "--ipvs-scheduler", "-v, --v"] {
        assert!(help.contains(flag), "{help}");
    }
    assert_eq!(help, printed("-h"));
    assert!(printed("--version").starts_with("kube-proxy-ipvs v"));
    assert_eq!(printed("--version=raw"), printed("--version"));
}

#[test]
fn every_flag_has_a_test_row_and_help() {
    use clap::CommandFactory;
    let tests = include_str!("tests.rs");
    for flag in Flags::command().get_arguments() {
        let name = flag.get_long().unwrap();
        assert!(tests.contains(&format!("--{name}=")), "no row for --{name}");
        assert!(flag.get_help().is_some(), "--{name} has no help");
    }
}

#[test]
fn a_detector_is_of_one_family() {
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
    fn any_command_line_is_read_or_refused(words in proptest::collection::vec("(--?[a-z-]{1,12}=?)?\\PC{0,8}", 0..5)) {
        let _ = parse(["kube-proxy".to_owned()].into_iter().chain(words));
    }
}
