//! Tests of the nftables shim (the rules beside IPVS) on the real kernel, without IPVS. They check
//! the results with `nft`.
#![allow(clippy::restriction, reason = "a test stops at the first surprise")]

use std::fs;
use std::process::Command;
use std::sync::Arc;

use namespace::in_namespace;
use nftables_netlink::Nftables;
use proxy::{IpFamily, LocalDetector, Protocol, ServiceAddress};
use proxy_ipvs::{
    Backend, Carrier, Config, Fault, Kernel as _, LeftoverPlace, Member, NetlinkKernel, Op,
    Outcome, Plan, Ranges, Rules, Set, Shim, ShimStyle, probe_nftables,
};

fn nft(arguments: &[&str]) -> String {
    let output = Command::new("nft").args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "nft {arguments:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the lines of the shim's IPv4 table as `nft` lists them. They are sorted, because `nft`
/// lists sets and chains in the order of their creation.
fn listed() -> Vec<String> {
    let listed = nft(&["list", "table", "ip", "kube-proxy-ipvs"]);
    let mut lines: Vec<String> = listed.lines().map(str::to_owned).collect();
    lines.sort_unstable();
    lines
}

fn kernel(family: IpFamily) -> NetlinkKernel {
    NetlinkKernel::lazy(family, Carrier::Nftables)
}

fn config(family: IpFamily) -> Config {
    let pods = match family {
        IpFamily::V4 => "10.244.0.0/16",
        IpFamily::V6 => "fd00:244::/56",
    };
    Config {
        detector: LocalDetector::SourceNet(pods.parse().unwrap()),
        shim: ShimStyle::Nftables,
        answers_ping: true,
        ..Config::default()
    }
}

fn write(kernel: &mut NetlinkKernel, ops: Vec<Op>) {
    let plan = Plan { ops };
    let outcomes = kernel.apply(&plan);
    for (op, outcome) in plan.ops.iter().zip(&outcomes) {
        assert_eq!(*outcome, Outcome::Done, "{op}");
    }
    assert_eq!(outcomes.len(), plan.ops.len());
}

/// Returns members of every kind, each with its set.
fn members(family: IpFamily) -> Vec<(Set, Member)> {
    let (vip, pod, nets) = match family {
        IpFamily::V4 => (
            "10.96.0.10",
            "10.244.1.9",
            [
                "10.0.0.0/8",
                "10.1.0.0/16",
                "192.0.2.128/25",
                "0.0.0.0/1",
                "10.1.2.3/32",
            ],
        ),
        IpFamily::V6 => (
            "fd00:96::a",
            "fd00:244::9",
            [
                "fd00::/8",
                "fd00:1::/64",
                "fd00:2::/66",
                "::/1",
                "fd00:1::2/128",
            ],
        ),
    };
    let (vip, pod) = (vip.parse().unwrap(), pod.parse().unwrap());
    let (tcp, udp, sctp) = (Protocol::Tcp, Protocol::Udp, Protocol::Sctp);
    let mut all = vec![
        (Set::IpvsIps, Member::Address(vip)),
        (
            Set::LoopBack,
            Member::AddressPortAddress(pod, tcp, 8080, pod),
        ),
        (
            Set::LoadBalancerSourceIp,
            Member::AddressPortAddress(vip, tcp, 80, vip),
        ),
        (Set::NodePortSctp, Member::AddressPort(pod, sctp, 30_001)),
        (
            Set::NodePortLocalSctp,
            Member::AddressPort(pod, sctp, 30_001),
        ),
    ];
    let by_address = [
        Set::ClusterIp,
        Set::ExternalIp,
        Set::ExternalIpLocal,
        Set::LoadBalancer,
        Set::LoadBalancerLocal,
        Set::LoadBalancerFirewall,
    ];
    for set in by_address {
        all.extend([tcp, udp, sctp].map(|protocol| (set, Member::AddressPort(vip, protocol, 80))));
    }
    let by_port = [
        Set::NodePortTcp,
        Set::NodePortUdp,
        Set::NodePortLocalTcp,
        Set::NodePortLocalUdp,
        Set::HealthCheckNodePort,
    ];
    all.extend(by_port.map(|set| (set, Member::Port(30_000))));
    all.extend(nets.map(|net| {
        let member = Member::AddressPortNet(vip, tcp, 80, net.parse().unwrap());
        (Set::LoadBalancerSourceCidr, member)
    }));
    all
}

fn shim(family: IpFamily) -> Shim {
    let address = match family {
        IpFamily::V4 => "10.96.0.10",
        IpFamily::V6 => "fd00:96::a",
    };
    Shim {
        family,
        filled: Set::all().collect(),
        forbidden_to_node: [ServiceAddress::new(
            address.parse().unwrap(),
            80,
            Protocol::Tcp,
        )]
        .into(),
        ranges: Ranges {
            nets: [match family {
                IpFamily::V4 => "10.96.0.0/12",
                IpFamily::V6 => "fd00:96::/112",
            }]
            .map(|net| net.parse().unwrap())
            .into(),
            except: [address.parse().unwrap()]
                .map(|ip: std::net::IpAddr| ip.into())
                .into(),
        },
    }
}

/// The test runs in a user namespace, in which a socket's send buffer cannot exceed
/// net.core.wmem_max.
#[test]
#[ignore = "needs nf_tables"]
fn members_beyond_the_send_buffer_are_written_in_several_messages() {
    const INSIDE: &str = "LARGEST_BUFFER_OUTSIDE";
    let Ok(most) = std::env::var(INSIDE) else {
        let most = fs::read_to_string("/proc/sys/net/core/wmem_max").unwrap();
        let inside = |program: &std::path::Path, arguments: &[&str]| {
            let mut command = Command::new("unshare");
            command.args(["--user", "--map-root-user", "--net"]);
            command.arg(program).args(arguments);
            command.env(INSIDE, most.trim());
            command.status().is_ok_and(|status| status.success())
        };
        if !inside("true".as_ref(), &[]) {
            eprintln!("there are no user namespaces here");
            return;
        }
        let own = std::env::current_exe().unwrap();
        let this = "members_beyond_the_send_buffer_are_written_in_several_messages";
        assert!(inside(&own, &["--exact", this, "--ignored", "--nocapture"]));
        return;
    };
    let most: u32 = most.parse().unwrap();
    let mut kernel = kernel(IpFamily::V4);
    write(&mut kernel, vec![Op::CreateSet(Set::ClusterIp, 0)]);
    // More members than fit into the send buffer: each takes 24 bytes, and the kernel doubles the
    // requested size of the buffer.
    let members = (0..2 * most / 22).map(|number| {
        let [_, high, low, last] = number.to_be_bytes();
        let address = [10, high, low, last].into();
        Op::AddMember(
            Set::ClusterIp,
            Member::AddressPort(address, Protocol::Tcp, 80),
        )
    });
    let ops: Vec<Op> = members.collect();
    let count = ops.len();
    write(&mut kernel, ops);
    let held = kernel.read_sets().unwrap();
    assert_eq!(held.members[&Set::ClusterIp].len(), count);
}

fn prefixes(members: &[(Set, Member)]) -> std::collections::BTreeSet<u8> {
    let nets = members.iter().filter_map(|(_, member)| match member {
        Member::AddressPortNet(.., net) => Some(net.prefix_len()),
        _ => None,
    });
    nets.collect()
}

fn rules(family: IpFamily) -> Rules {
    shim(family).rules_with(&prefixes(&members(family)), &config(family))
}

fn fill(kernel: &mut NetlinkKernel, family: IpFamily) {
    let sets = Set::all().map(|set| Op::CreateSet(set, 65_536));
    write(kernel, sets.collect());
    let members = members(family).into_iter();
    write(
        kernel,
        members
            .map(|(set, member)| Op::AddMember(set, member))
            .collect(),
    );
    write(
        kernel,
        vec![Op::WriteRules {
            wanted: Arc::new(rules(family)),
            installed: Arc::default(),
        }],
    );
}

/// Compares the listing of `nft` with a file, and the content that the proxier reads with the
/// content that it wrote.
#[test]
fn nft_lists_the_shim_and_a_read_returns_the_written_content() {
    in_namespace(|| {
        for family in IpFamily::ALL {
            let generation = || Nftables::open().unwrap().generation().unwrap();
            let before = generation();
            probe_nftables(family).unwrap();
            assert_eq!(generation(), before);
            let mut kernel = kernel(family);
            assert_eq!(kernel.read_sets().unwrap().members.len(), 0);
            fill(&mut kernel, family);
            assert_eq!(kernel.read_rules().unwrap().rules, rules(family));
            let found = kernel.read_sets().unwrap();
            let found: Vec<_> = found
                .members
                .into_iter()
                .flat_map(|(set, of)| of.into_iter().map(move |member| (set, member)))
                .collect();
            let mut wanted = members(family);
            wanted.sort_unstable();
            assert_eq!(found, wanted);
        }
        // Numeric output, because newer versions of `nft` print names for more priorities.
        let listed = nft(&["-y", "list", "ruleset"]);
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/nftables/ruleset");
        if std::env::var_os("WRITE").is_some() {
            fs::create_dir_all(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/nftables")).unwrap();
            fs::write(path, &listed).unwrap();
        }
        assert_eq!(listed, fs::read_to_string(path).unwrap());
        // `nft` can load its own listing of the table.
        nft(&["flush", "ruleset"]);
        nft(&["-f", path]);
        for family in IpFamily::ALL {
            assert_eq!(kernel(family).read_rules().unwrap().rules, rules(family));
        }
    });
}

/// Any number of added, changed and deleted chains costs one transaction. So does a changed set
/// member.
#[test]
fn each_change_of_the_shim_is_one_transaction() {
    in_namespace(|| {
        let family = IpFamily::V4;
        let mut kernel = kernel(family);
        fill(&mut kernel, family);
        let full = Arc::new(rules(family));
        let few = Shim {
            filled: [Set::ClusterIp, Set::IpvsIps].into(),
            forbidden_to_node: [].into(),
            ..shim(family)
        };
        let few = Arc::new(few.rules(&config(family)));
        let mut installed = Arc::clone(&full);
        for wanted in [&few, &full, &few] {
            let before = kernel.sent();
            let (wanted, installed_before) = (Arc::clone(wanted), installed);
            installed = Arc::clone(&wanted);
            write(
                &mut kernel,
                vec![Op::WriteRules {
                    wanted,
                    installed: installed_before,
                }],
            );
            assert_eq!(kernel.sent() - before, 1);
            assert_eq!(kernel.read_rules().unwrap().rules, *installed);
        }
        let before = kernel.sent();
        let member = Member::AddressPort("10.96.0.99".parse().unwrap(), Protocol::Tcp, 80);
        write(&mut kernel, vec![Op::AddMember(Set::ClusterIp, member)]);
        write(&mut kernel, vec![Op::RemoveMember(Set::ClusterIp, member)]);
        assert_eq!(kernel.sent() - before, 2);
    });
}

/// The kernel refuses only additions to the missing set. A removal from it counts as done.
#[test]
fn a_refused_write_to_a_missing_set_does_not_affect_other_sets() {
    in_namespace(|| {
        let family = IpFamily::V4;
        let mut kernel = kernel(family);
        let sets = [Set::ClusterIp, Set::ExternalIp, Set::NodePortTcp];
        write(
            &mut kernel,
            sets.map(|set| Op::CreateSet(set, 65_536)).into(),
        );
        nft(&["delete", "set", "ip", "kube-proxy-ipvs", "KUBE-EXTERNAL-IP"]);
        let member = |last: u8| Member::AddressPort([10, 96, 0, last].into(), Protocol::Tcp, 80);
        let plan = Plan {
            ops: vec![
                Op::AddMember(Set::ClusterIp, member(1)),
                Op::AddMember(Set::ClusterIp, member(2)),
                Op::AddMember(Set::ExternalIp, member(3)),
                Op::RemoveMember(Set::ExternalIp, member(4)),
                Op::RemoveMember(Set::NodePortTcp, Member::Port(30_000)),
                Op::AddMember(Set::NodePortTcp, Member::Port(30_001)),
            ],
        };
        let outcomes = kernel.apply(&plan);
        let is_done: Vec<bool> = outcomes.iter().map(|one| *one == Outcome::Done).collect();
        assert_eq!(
            is_done,
            [true, true, false, true, true, true],
            "{outcomes:?}"
        );
        let Some(Outcome::Refused { reason, fault }) = outcomes.get(2) else {
            panic!("{outcomes:?}")
        };
        assert_eq!(*fault, Fault::Belief);
        assert_eq!(
            reason,
            "set KUBE-EXTERNAL-IP no longer exists; kube-proxy creates it again"
        );
        let found = kernel.read_sets().unwrap().members;
        let sizes = sets.map(|set| found.get(&set).map(std::collections::BTreeSet::len));
        assert_eq!(sizes, [Some(2), None, Some(1)]);
        // The write removes rules that the kernel lacks, so the kernel refuses the whole
        // transaction.
        let outcome = kernel.apply(&Plan {
            ops: vec![Op::WriteRules {
                wanted: Arc::default(),
                installed: Arc::new(rules(family)),
            }],
        });
        assert!(
            matches!(outcome[..], [Outcome::Refused { .. }]),
            "{outcome:?}"
        );
    });
}

/// The largest plan fills four transactions of at most 8,192 members each.
#[test]
fn the_largest_plan_of_members_needs_four_transactions() {
    in_namespace(|| {
        let family = IpFamily::V6;
        let mut kernel = kernel(family);
        write(&mut kernel, vec![Op::CreateSet(Set::LoopBack, 65_536)]);
        let member = |number: u32| {
            let address = std::net::Ipv6Addr::from(0xfd00_u128 << 112 | u128::from(number));
            Member::AddressPortAddress(address.into(), Protocol::Tcp, 80, address.into())
        };
        let add = |number| Op::AddMember(Set::LoopBack, member(number));
        let remove = |number| Op::RemoveMember(Set::LoopBack, member(number));
        let before = kernel.sent();
        write(&mut kernel, (0..32_768).map(add).collect());
        assert_eq!(kernel.sent() - before, 4);
        assert_eq!(
            kernel.read_sets().unwrap().members[&Set::LoopBack].len(),
            32_768
        );
        write(&mut kernel, (1..32_768).map(remove).collect());
        assert_eq!(kernel.read_sets().unwrap().members[&Set::LoopBack].len(), 1);
    });
}

fn iptables_restore(rules: &str) {
    let script = format!("iptables-nft-restore --noflush <<'END'\n{rules}END\n");
    let output = Command::new("sh").args(["-ec", &script]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

/// In iptables-nft, a kube-proxy's chains are leftovers; chains of the kubelet and of other
/// programs are not.
#[test]
fn the_proxier_reads_chains_of_iptables_nft_over_netlink() {
    in_namespace(|| {
        if Command::new("iptables-nft-restore")
            .arg("-V")
            .output()
            .is_err()
        {
            return;
        }
        let others =
            "*mangle\n:KUBE-KUBELET-CANARY - [0:0]\nCOMMIT\n*nat\n:CNI-X - [0:0]\nCOMMIT\n";
        iptables_restore(others);
        let chains = || Backend::Nft.chains(IpFamily::V4).unwrap();
        let left = || {
            let mut kernel = kernel(IpFamily::V4).among(&[&proxy_iptables::FOOTPRINT]);
            kernel.read_rules().unwrap().leftovers
        };
        assert!(chains().contains(&(iptables::Table::Nat, "CNI-X".to_owned())));
        assert!(left().is_empty());
        iptables_restore("*nat\n:KUBE-SVC-AAAAAAAAAAAAAAAA - [0:0]\nCOMMIT\n");
        assert_eq!(
            left().keys().collect::<Vec<_>>(),
            [&LeftoverPlace::Other(Backend::Nft)]
        );
    });
}

/// The kernel refuses a second mark of an address, so the transaction first removes the first mark.
/// It succeeds even if another program has already removed that mark.
#[test]
fn one_nftables_transaction_replaces_the_mark_of_an_address() {
    in_namespace(|| {
        let mut kernel = kernel(IpFamily::V4);
        let set = Set::LocalMark;
        let mark = |port, mark| {
            let address = "192.0.2.10".parse().unwrap();
            Member::AddressPortMark(address, Protocol::Tcp, port, mark)
        };
        write(&mut kernel, vec![Op::CreateSet(set, 65_536)]);
        let both = [mark(80, 1), mark(443, 3)].map(|member| Op::AddMember(set, member));
        write(&mut kernel, both.to_vec());
        let marks = |kernel: &mut NetlinkKernel| kernel.read_sets().unwrap().members[&set].clone();
        let replace =
            |port, former, new| Op::ReplaceMember(set, mark(port, former), mark(port, new));
        write(&mut kernel, vec![replace(80, 1, 2)]);
        assert_eq!(marks(&mut kernel), [mark(80, 2), mark(443, 3)].into());

        let key = "{ 192.0.2.10 . tcp . 443 }";
        nft(&[
            "delete",
            "element",
            "ip",
            "kube-proxy-ipvs",
            "KUBE-LOCAL-MARK",
            key,
        ]);
        let writes = vec![
            Op::AddMember(set, mark(90, 7)),
            replace(80, 2, 4),
            replace(443, 3, 5),
            Op::RemoveMember(set, mark(90, 7)),
        ];
        write(&mut kernel, writes);
        assert_eq!(marks(&mut kernel), [mark(80, 4), mark(443, 5)].into());
    });
}

/// Another program has created a set with our name but another type. The proxier replaces only this
/// set.
#[test]
fn a_foreign_nftables_set_with_our_name_but_a_wrong_type_is_replaced() {
    in_namespace(|| {
        nft(&["add", "table", "ip", "kube-proxy-ipvs"]);
        for (set, of) in [
            ("KUBE-EXTERNAL-IP", "ipv4_addr"),
            ("KUBE-IPVS-OUT-FILTER", "inet_service"),
        ] {
            let set = format!("add set ip kube-proxy-ipvs {set} {{ type {of}; }}");
            nft(&[&set]);
        }
        let mut kernel = kernel(IpFamily::V4);
        let sets = Set::all().map(|set| Op::CreateSet(set, 65_536));
        write(&mut kernel, sets.collect());
        let member = Member::AddressPort("192.0.2.10".parse().unwrap(), Protocol::Tcp, 80);
        write(&mut kernel, vec![Op::AddMember(Set::ExternalIp, member)]);
        let found = kernel.read_sets().unwrap();
        assert_eq!(found.members[&Set::ExternalIp], [member].into());
        let listed = nft(&["list", "set", "ip", "kube-proxy-ipvs", "KUBE-EXTERNAL-IP"]);
        assert!(listed.contains("192.0.2.10 . tcp . 80"), "{listed}");
    });
}

/// Only rules in our table can match the set. When the proxier replaces it, it writes our rules
/// again and removes the other program's rule.
#[test]
fn a_foreign_nftables_set_is_replaced_even_if_rules_match_it() {
    in_namespace(|| {
        let family = IpFamily::V4;
        let mut kernel = kernel(family);
        fill(&mut kernel, family);
        let before = listed();
        for (strange, look) in [
            (
                "set KUBE-EXTERNAL-IP { type ipv4_addr; }",
                "ip daddr @KUBE-EXTERNAL-IP accept",
            ),
            (
                "set KUBE-EXTERNAL-IP { type ipv4_addr . inet_proto . inet_service; size 2; }",
                "ip daddr . meta l4proto . th dport @KUBE-EXTERNAL-IP accept",
            ),
            (
                "map KUBE-EXTERNAL-IP { type ipv4_addr : mark; }",
                "meta mark set ip daddr map @KUBE-EXTERNAL-IP",
            ),
        ] {
            let table = "table ip kube-proxy-ipvs";
            nft(&[&format!(
                "delete {table}; {table} {{ comment \"rules for kube-proxy\"; {strange}; chain others {{ {look}; }}; }}"
            )]);
            let installed = Arc::new(kernel.read_rules().unwrap().rules);
            let sets = Set::all().map(|set| Op::CreateSet(set, 65_536));
            write(&mut kernel, sets.collect());
            let all = members(family).into_iter();
            let all = all.map(|(set, member)| Op::AddMember(set, member));
            write(&mut kernel, all.collect());
            let wanted = Arc::new(rules(family));
            write(&mut kernel, vec![Op::WriteRules { wanted, installed }]);
            assert_eq!(listed(), before, "{strange}");
        }
        // The proxier replaces the set even if our own rule matches it.
        let of_ours = "\
            flush chain ip kube-proxy-ipvs KUBE-IPVS-FILTER
            flush chain ip kube-proxy-ipvs nat-output
            flush chain ip kube-proxy-ipvs nat-prerouting
            delete set ip kube-proxy-ipvs KUBE-CLUSTER-IP
            add set ip kube-proxy-ipvs KUBE-CLUSTER-IP { type ipv4_addr; }
            add rule ip kube-proxy-ipvs KUBE-IPVS-FILTER ip daddr @KUBE-CLUSTER-IP return";
        nft(&[of_ours]);
        assert!(
            !kernel
                .read_sets()
                .unwrap()
                .sizes
                .contains_key(&Set::ClusterIp)
        );
        write(&mut kernel, vec![Op::CreateSet(Set::ClusterIp, 65_536)]);
        assert!(
            kernel
                .read_sets()
                .unwrap()
                .sizes
                .contains_key(&Set::ClusterIp)
        );
        let installed = Arc::new(kernel.read_rules().unwrap().rules);
        let wanted = Arc::new(rules(family));
        let rules = vec![Op::WriteRules { wanted, installed }];
        write(&mut kernel, rules);
        let member = Member::AddressPort("10.96.0.10".parse().unwrap(), Protocol::Tcp, 80);
        write(&mut kernel, vec![Op::AddMember(Set::ClusterIp, member)]);
        assert_eq!(listed().len(), before.len() - 2, "but for two members");
    });
}

/// Another program has made our table dormant. The kernel refuses new base chains in the
/// transaction that activates a table, so the proxier needs two transactions.
#[test]
fn a_dormant_table_is_activated() {
    in_namespace(|| {
        let family = IpFamily::V4;
        let mut kernel = kernel(family);
        fill(&mut kernel, family);
        let wanted = Arc::new(rules(family));
        let before = listed();
        for harm in [
            "",
            "flush chain ip kube-proxy-ipvs nat-output; delete chain ip kube-proxy-ipvs nat-output",
        ] {
            nft(&[&format!(
                "add table ip kube-proxy-ipvs {{ flags dormant; }}; {harm}"
            )]);
            let installed = kernel.read_rules().unwrap().rules;
            let told = wanted.differences(&installed);
            let line = "remove in nftables kube-proxy-ipvs: flags dormant";
            assert!(told.iter().any(|told| told == line), "{told:?}");
            let (wanted, installed) = (Arc::clone(&wanted), Arc::new(installed));
            write(&mut kernel, vec![Op::WriteRules { wanted, installed }]);
            assert_eq!(listed(), before, "{harm}");
        }
    });
}
