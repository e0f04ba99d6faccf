//! Fuzz targets for every parser of external bytes: from the kernel, programs, the API server,
//! files, flags and clients.
//!
//! ```text
//!   fuzz/corpus/NAME/*  ─┬─▶ integration/fuzz: each once, mutated for seconds (make test)
//!                        └─▶ fuzz/: libFuzzer, by coverage (make fuzz) ─▶ TARGETS[NAME]
//! ```
//!
//! On any input, a target must not panic, must be fast, and must use little memory. Other tests
//! check the parsed values.

pub mod mutate;

/// A fuzz target: its name, and the function that parses an input.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Name of the target, and of the directory with its inputs.
    pub name: &'static str,
    /// Function that parses an input.
    pub run: fn(&[u8]),
}

/// Targets of all parsers.
pub const TARGETS: &[Target] = &[
    // Parsers of bytes from the kernel.
    target("netlink", netlink_batch::fuzzed::datagram),
    target("ipset", ipset_netlink::fuzzed::answers),
    target("ipvs", ipvs_netlink::fuzzed::answer),
    target("conntrack", conntrack_netlink::fuzzed::flow),
    target("route", route_netlink::fuzzed::message),
    target("nftables", nftables),
    target("xt_entries", iptables::fuzzed::entries),
    target("proc_files", kube_proxy::fuzzed::proc_files),
    // Parsers of the output of programs.
    target("iptables_save", saved),
    target("iptables_rules", packet_path::fuzzed::rules),
    target("ipset_entry", ipset_netlink::fuzzed::entry),
    // Parsers of responses from the API server.
    target("json_event", source::fuzzed::json_event),
    target("protobuf_event", source::fuzzed::protobuf_event),
    target("answer", source::fuzzed::answer),
    // Parsers of files and flags.
    target("manifests", source::fuzzed::manifests),
    target("addresses", source::fuzzed::addresses),
    target("kubeconfig", source::fuzzed::kubeconfig),
    target("configuration", kube_proxy::fuzzed::configuration),
    target("flags", kube_proxy::fuzzed::flags),
    target("networks", kube_proxy::fuzzed::networks),
    // Parsers of requests from clients of the daemon.
    target("questions", kube_proxy::fuzzed::questions),
];

const fn target(name: &'static str, run: fn(&[u8])) -> Target {
    Target { name, run }
}

/// Parses bytes as a message about an nftables table, then as the table's objects with each mode's
/// reader.
fn nftables(bytes: &[u8]) {
    nftables_netlink::fuzzed::message(bytes);
    kube_proxy::fuzzed::tables(bytes);
}

/// Parses bytes as the output of `iptables-save`, first alone and then with each mode's reader.
fn saved(bytes: &[u8]) {
    iptables::fuzzed::saved(bytes);
    kube_proxy::fuzzed::saved(bytes);
}

/// Returns the target with this name.
pub fn find(name: &str) -> Option<Target> {
    TARGETS.iter().copied().find(|target| target.name == name)
}

/// Runs the target with this name on an input. Ignores an unknown name.
pub fn feed(name: &str, input: &[u8]) {
    if let Some(target) = find(name) {
        (target.run)(input);
    }
}
