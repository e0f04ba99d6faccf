//! Tests the cleanup while a mode serves, on a kernel with nf_tables. The cleanup removes entries
//! of all other modes from every iptables backend, and keeps the entries of the serving mode. The
//! tests compare the output of `nft` and `iptables-save`.
#![allow(clippy::restriction, reason = "a test stops at the first surprise")]

mod shell;

use std::io::Write as _;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use cleanup::{Cleanup, ServingMode, clean_up_beside, disarm_ended, foresee_beside};
use footprint::{Footprint, Footprints, NFTABLES};
use iptables::{Backend, Iptables};
use namespace::in_namespace;
use shell::feed_sh as sh;

const MODES: Footprints = &[
    &proxy_ipvs::FOOTPRINT,
    &proxy_iptables::FOOTPRINT,
    &proxy_userspace::FOOTPRINT,
    &NFTABLES,
];

/// Leftover rules of iptables mode, and rules of other programs.
const RULES: &str = "*nat
:KUBE-SERVICES - [0:0]
:KUBE-SVC-AAAAAAAAAAAAAAAA - [0:0]
:OTHER - [0:0]
-A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-A PREROUTING -j OTHER
-A KUBE-SERVICES -d 10.96.0.10/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-AAAAAAAAAAAAAAAA
COMMIT
*filter
:KUBE-FIREWALL - [0:0]
-A INPUT -j KUBE-FIREWALL
COMMIT
";

/// Runs a test in its own network namespace, which has entries of two modes and of other programs.
/// Returns `None` if the kernel lacks nf_tables for the family `ip`.
fn on_a_node<T: Send>(story: impl FnOnce() -> T + Send) -> Option<T> {
    in_namespace(|| {
        let made = sh(
            "nft add table ip kube-proxy 2>/dev/null && echo yes || true",
            "",
        );
        if made != "yes\n" {
            return None;
        }
        sh(
            "nft add chain ip kube-proxy services; nft add table ip other; iptables-nft-restore",
            RULES,
        );
        Some(story())
    })
}

fn kept() -> [bool; 4] {
    let tables = sh("nft list tables ip", "");
    let rules = sh("iptables-nft-save", "");
    assert!(tables.contains("table ip other\n"), "{tables}");
    [
        tables.contains("table ip kube-proxy\n"),
        rules.contains("KUBE-SERVICES"),
        rules.contains(":OTHER ") && rules.contains("-A PREROUTING -j OTHER\n"),
        rules.contains("-A INPUT -j KUBE-FIREWALL\n"),
    ]
}

fn serving(mode: &'static Footprint, iptables: Option<Iptables>) -> ServingMode {
    ServingMode { mode, iptables }
}

fn said(cleanup: &Cleanup) -> String {
    assert_eq!(cleanup.left, [""; 0]);
    cleanup.removed.join("; ")
}

#[test]
#[ignore = "needs a network namespace: run by make test in the lab"]
fn cleanup_in_nftables_mode_removes_iptables_rules_and_keeps_the_table() {
    on_a_node(|| {
        let nftables = serving(&NFTABLES, None);
        let foreseen = said(&foresee_beside(MODES, &nftables, &[]));
        assert_eq!(kept(), [true, true, true, true], "nothing was written");
        let removed = said(&clean_up_beside(MODES, &nftables, &[]));
        assert_eq!(removed, "IPv4: 2 chains and 1 jump of iptables (nft)");
        assert_eq!(removed, foreseen);
        assert_eq!(kept(), [true, false, true, true]);
    });
}

#[test]
#[ignore = "needs a network namespace: run by make test in the lab"]
fn cleanup_in_iptables_mode_removes_the_nftables_table_and_keeps_rules() {
    on_a_node(|| {
        let used = Iptables::choose(Some(Backend::Nft)).unwrap();
        let iptables = serving(&proxy_iptables::FOOTPRINT, Some(used));
        let removed = said(&clean_up_beside(MODES, &iptables, &[]));
        assert_eq!(removed, "IPv4: the nftables mode's table kube-proxy");
        assert_eq!(kept(), [false, true, true, true]);
    });
}

/// Leftover iptables rules of userspace mode.
const REDIRECTS: &str = "*nat
:KUBE-PORTALS-CONTAINER - [0:0]
-A PREROUTING -m comment --comment \"handle ClusterIPs; NOTE: this must be before the NodePort rules\" -j KUBE-PORTALS-CONTAINER
-A KUBE-PORTALS-CONTAINER -d 10.96.0.10/32 -p tcp -m tcp --dport 80 -j DNAT --to-destination 192.0.2.1:40000
COMMIT
";

/// Reports whether userspace mode's nftables table exists, whether its iptables chain exists, and
/// whether this chain has a rule.
fn redirects() -> [bool; 3] {
    let tables = sh("nft list tables ip", "");
    let rules = sh("iptables-nft-save", "");
    [
        tables.contains("table ip kube-proxy-userspace\n"),
        rules.contains(":KUBE-PORTALS-CONTAINER "),
        rules.contains("-A KUBE-PORTALS-CONTAINER "),
    ]
}

fn redirect() {
    let script = "nft add table ip kube-proxy-userspace; iptables-nft-restore --noflush";
    sh(script, REDIRECTS);
    assert_eq!(redirects(), [true; 3]);
}

#[test]
#[ignore = "needs a network namespace: run by make test in the lab"]
fn only_rules_that_redirect_to_an_ended_process_are_disabled() {
    on_a_node(|| {
        redirect();
        assert_eq!(said(&disarm_ended(MODES, "userspace")), "");
        assert_eq!(redirects(), [true; 3], "it serves");
        assert_eq!(
            said(&disarm_ended(MODES, "iptables")),
            "IPv4: the userspace mode's table kube-proxy-userspace; \
             IPv4: the rules in 1 chain of iptables (nft)"
        );
        assert_eq!(redirects(), [false, true, false]);
        assert_eq!(kept(), [true, true, true, true], "those of others serve");
        assert_eq!(said(&disarm_ended(MODES, "iptables")), "");
    });
}

/// Prints the kernel entries that are left of IPVS mode with rules in nftables.
fn left_by_ipvs() -> String {
    let script = "nft list tables ip; iptables-nft-save -t nat
                  ip -oneline address show dev kube-ipvs0 2>/dev/null || true
                  ipvsadm -Sn 2>/dev/null || true";
    let left = sh(script, "");
    // `iptables-save` prints the current time in comments, which would differ between two calls.
    let lines = left.lines().filter(|line| !line.starts_with('#'));
    lines.collect::<Vec<_>>().join("\n")
}

/// Starts an `nft` process that owns an nftables table. While the process runs, the kernel lets no
/// other process change the table.
fn owner() -> Child {
    let mut owner = Command::new("nft")
        .arg("-i")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let table = "add table ip kube-proxy-ipvs { flags owner; chain nat-prerouting { }; }\n";
    let stdin = owner.stdin.as_mut().unwrap();
    stdin.write_all(table.as_bytes()).unwrap();
    let start = Instant::now();
    while !sh("nft list tables ip", "").contains("kube-proxy-ipvs") {
        assert!(start.elapsed() < Duration::from_secs(20), "no table");
        thread::sleep(Duration::from_millis(10));
    }
    owner
}

/// Checks that the cleanup stops. If it continued, it would delete virtual servers to which the
/// table still sends packets.
#[test]
#[ignore = "needs a network namespace: run by make test in the lab"]
fn cleanup_keeps_all_entries_of_a_mode_whose_table_cannot_be_emptied() {
    on_a_node(|| {
        sh(
            // Ignores failed commands, because some kernels lack dummy links or IPVS.
            "ip link add kube-ipvs0 type dummy 2>/dev/null || true
            ip addr add 10.96.0.10/32 dev kube-ipvs0 2>/dev/null || true
            ipvsadm -A -t 10.96.0.10:80 -s rr 2>/dev/null || true",
            "",
        );
        let mut owner = owner();
        let before = left_by_ipvs();
        let nftables = serving(&NFTABLES, None);
        let cleanup = clean_up_beside(MODES, &nftables, &[]);
        let [why] = cleanup.left.as_slice() else {
            panic!("{:?}", cleanup.left);
        };
        assert!(
            why.contains("the table of a mode that goes cannot be emptied"),
            "{why}"
        );
        assert_eq!(cleanup.removed, [""; 0]);
        assert_eq!(left_by_ipvs(), before);
        // When the owner ends, the kernel deletes the table. The next cleanup then succeeds.
        owner.kill().unwrap();
        owner.wait().unwrap();
        said(&clean_up_beside(MODES, &nftables, &[]));
        assert!(!sh("ip -oneline link", "").contains("kube-ipvs0"));
        assert_eq!(kept(), [true, false, true, true]);
    });
}

#[test]
#[ignore = "needs a network namespace: run by make test in the lab"]
fn cleanup_in_userspace_mode_on_iptables_removes_the_old_nftables_table() {
    on_a_node(|| {
        redirect();
        let used = Iptables::choose(Some(Backend::Nft)).unwrap();
        let userspace = serving(&proxy_userspace::FOOTPRINT, Some(used));
        let foreseen = said(&foresee_beside(MODES, &userspace, &[]));
        let removed = said(&clean_up_beside(MODES, &userspace, &[]));
        assert_eq!(removed, foreseen);
        assert_eq!(redirects(), [false, true, true]);
    });
}
