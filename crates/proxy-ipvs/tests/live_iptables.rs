//! Tests of iptables on the running kernel, each in its own network namespace: the choice of the
//! backend, and whether written rules read back unchanged. Which backends work depends on the
//! kernel: in Debian's User Mode Linux, backend nft does not.
//!
//! The tests need root, `iptables` and `ipset`, but not IPVS. Only `live.rs` tests the rule that
//! matches IPVS connections.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use iptables::SourcePort;
use namespace::in_namespace;
use proxy::{IpFamily, LocalDetector};
use proxy_ipvs::{
    Backend, Config, Iptables, MarkBits, Rules, Semantics, Set, SetKind, Shim, check_marks,
};
/// Runs a command with `input` on its standard input. Returns its output, or an error if it failed.
fn run(command: &str, input: &str) -> Result<String, String> {
    let words: Vec<&str> = command.split(' ').collect();
    let (program, arguments) = words.split_first().unwrap();
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect(program);
    child
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    if output.status.success() {
        Ok(String::from_utf8(output.stdout).unwrap())
    } else {
        Err(String::from_utf8(output.stderr).unwrap())
    }
}

fn works(backend: Backend) -> bool {
    run(
        &format!("iptables-{backend}-restore --noflush"),
        "*nat\n:WORKS - [0:0]\n-X WORKS\nCOMMIT\n",
    )
    .is_ok()
}

#[test]
fn the_iptables_backend_is_chosen_by_kubelet_hints_then_chains_then_rules() {
    in_namespace(|| {
        // The preview must report the backend that the daemon chooses.
        let chosen = || {
            let looked_at = Iptables::look(None).unwrap().backend();
            let chosen = Iptables::choose(None).unwrap().backend();
            assert_eq!(looked_at, chosen);
            chosen
        };
        let has_nft = works(Backend::Nft);
        if !works(Backend::Legacy) {
            println!("this kernel has no legacy iptables: there is nothing to choose");
            assert_eq!(chosen(), Backend::Nft);
            return;
        }
        let or_legacy = |backend| if has_nft { backend } else { Backend::Legacy };
        assert_eq!(
            chosen(),
            or_legacy(Backend::Nft),
            "nothing speaks for either"
        );

        run("iptables-legacy -A FORWARD -j ACCEPT", "").unwrap();
        assert_eq!(chosen(), Backend::Legacy, "by its rules");
        if has_nft {
            run("ip6tables-nft -t nat -N KUBE-SERVICES", "").unwrap();
            assert_eq!(chosen(), Backend::Nft, "by a KUBE chain");
        }
        run("iptables-legacy -t mangle -N KUBE-KUBELET-CANARY", "").unwrap();
        assert_eq!(chosen(), Backend::Legacy, "by the kubelet's hint");

        let asked = Iptables::choose(Some(Backend::Nft)).map(|iptables| iptables.backend());
        assert_eq!(
            asked.ok(),
            has_nft.then_some(Backend::Nft),
            "the operator's word counts, if it can"
        );
    });
}

#[test]
fn probing_iptables_leaves_no_chains() {
    in_namespace(|| {
        let iptables = Iptables::choose(None).unwrap();
        for (family, program) in [(IpFamily::V4, "iptables"), (IpFamily::V6, "ip6tables")] {
            let checked = iptables.check(family);
            if family == IpFamily::V6 && !Path::new("/proc/thread-self/net/if_inet6").exists() {
                let error = checked.unwrap_err().to_string();
                assert!(error.contains("modprobe ipv6"), "{error}");
                continue;
            }
            checked.unwrap();
            let saved = run(&format!("{program}-{}-save", iptables.backend()), "").unwrap();
            assert!(!saved.contains("KUBE"), "{saved}");
        }
        assert_eq!(iptables.source_port(), SourcePort::Random);
    });
}

#[test]
fn each_iptables_backend_reads_back_the_written_rules_unchanged() {
    in_namespace(|| {
        let backends: Vec<_> = [Backend::Nft, Backend::Legacy]
            .into_iter()
            .filter(|backend| works(*backend))
            .collect();
        assert!(!backends.is_empty());
        for (family, program) in [(IpFamily::V4, "iptables"), (IpFamily::V6, "ip6tables")] {
            let (inet, net) = match family {
                IpFamily::V4 => ("inet", "10.244.0.0/16"),
                IpFamily::V6 => ("inet6", "fd00:244::/56"),
            };
            for set in Set::every() {
                let kind = match set.kind() {
                    SetKind::Address => "hash:ip",
                    SetKind::AddressPort => "hash:ip,port",
                    SetKind::AddressPortAddress => "hash:ip,port,ip",
                    SetKind::AddressPortNet => "hash:ip,port,net",
                    SetKind::Port => "bitmap:port range 0-65535",
                    SetKind::AddressPortMark => "hash:ip,port skbinfo",
                };
                let options = if kind.starts_with("hash") {
                    format!(" family {inet}")
                } else {
                    String::new()
                };
                run(
                    &format!("ipset create {} {kind}{options}", set.name(family)),
                    "",
                )
                .unwrap();
            }
            for backend in &backends {
                let mut installed = Rules::default();
                let detectors = [
                    LocalDetector::None,
                    LocalDetector::SourceNet(net.parse().unwrap()),
                    LocalDetector::Bridge("cni0".into()),
                    LocalDetector::InterfacePrefix("veth".into()),
                ];
                let exact = Semantics::Exact(MarkBits::DEFAULT);
                let all = detectors.iter().flat_map(|detector| {
                    // A change of `--ipvs-semantics` from `exact` to `upstream` removes the chains
                    // that only `exact` needs.
                    [exact, Semantics::Upstream].map(|semantics| (detector, semantics))
                });
                for (detector, semantics) in all {
                    let shim = Shim {
                        family,
                        filled: Set::every().collect(),
                        forbidden_to_node: BTreeSet::new(),
                        ranges: proxy_ipvs::Ranges::default(),
                    };
                    let wanted = shim.rules(&Config {
                        detector: detector.clone(),
                        semantics,
                        answers_ping: semantics.is_exact(),
                        ..Config::default()
                    });
                    let restore = format!("{program}-{backend}-restore -w 5 --noflush");
                    run(&restore, &wanted.restore_text(&installed)).unwrap();
                    let saved = run(&format!("{program}-{backend}-save"), "").unwrap();
                    installed = Rules::parse(&saved);
                    assert_eq!(installed, wanted, "{program}-{backend}");
                    let has_chain = saved.contains(":KUBE-IPVS-BEFORE");
                    assert_eq!(has_chain, semantics.is_exact(), "{saved}");
                }
            }
        }
    });
}

#[test]
fn the_check_for_support_of_packet_marks_writes_nothing() {
    in_namespace(|| {
        for family in IpFamily::ALL {
            let iptables = Iptables::choose(None).unwrap();
            let checked = check_marks(&iptables, family);
            assert!(checked.is_ok(), "{checked:?}");
            let program = match family {
                IpFamily::V4 => "iptables",
                IpFamily::V6 => "ip6tables",
            };
            let saved = run(&format!("{program}-{}-save", iptables.backend()), "").unwrap();
            assert!(!saved.contains("KUBE"), "{saved}");
        }
    });
}
