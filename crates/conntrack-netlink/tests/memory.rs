//! Measures the memory that a search through a large table of the running kernel needs. The search
//! runs in its own process.
//!
//! Needs root, `conntrack`, and a kernel with `nf_conntrack_netlink`.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::fmt::Write as _;
use std::fs;
use std::process::Command;

use conntrack_netlink::{Conntrack, IpFamily, Protocol};
use namespace::in_namespace;

const FLOWS: usize = 100_000;
/// Maximum growth of the process's peak memory during the search, in KiB. The kernel's messages
/// about all flows have 25 MB in total.
const ROOM_KIB: u64 = 4_096;

/// Returns the peak memory of this process, in KiB.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.unwrap().split_whitespace().next().unwrap();
    number.parse().unwrap()
}

/// Guard that raises the kernel's limit on conntrack entries for the test's flows, and restores it
/// when dropped. The limit of the initial network namespace applies to all namespaces.
struct Room(u64);

const LIMIT: &str = "/proc/sys/net/netfilter/nf_conntrack_max";

impl Room {
    fn make() -> Self {
        drop(
            Command::new("modprobe")
                .arg("nf_conntrack_netlink")
                .status(),
        );
        let before: u64 = fs::read_to_string(LIMIT).unwrap().trim().parse().unwrap();
        fs::write(LIMIT, before.max(300_000).to_string()).unwrap();
        Self(before)
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let _ = fs::write(LIMIT, self.0.to_string());
    }
}

#[test]
#[ignore = "needs a kernel with nf_conntrack_netlink: run by make test in the lab"]
fn a_search_through_a_large_table_needs_little_memory() {
    let _room = Room::make();
    in_namespace(look);
}

fn look() {
    let mut conntrack = Conntrack::open().unwrap();
    let file = std::env::temp_dir().join(format!("conntrack-memory-{}", std::process::id()));
    for part in 0..10 {
        let mut lines = String::new();
        for port in 1..=FLOWS / 10 {
            let to = "-d 10.96.0.10 --dport 53 -t 600";
            writeln!(lines, "-A -p udp -s 10.244.{part}.1 --sport {port} {to}").unwrap();
        }
        fs::write(&file, lines).unwrap();
        let mut made = Command::new("conntrack");
        assert!(made.arg("-R").arg(&file).status().unwrap().success());
    }
    fs::remove_file(&file).unwrap();

    let before = peak();
    let one = |flow: &conntrack_netlink::Flow| flow.original.source.port() == 1;
    let found = conntrack.find(IpFamily::V4, Protocol::Udp, one).unwrap();
    assert_eq!((found.flows.len(), found.seen), (10, FLOWS));
    let more = peak() - before;
    assert!(
        more < ROOM_KIB,
        "{more} KiB more than the {before} KiB before"
    );
}
