//! Samples of figures of the daemon's process and of node1's kernel state.

use std::fs;

use anyhow::{Context as _, Result};
use lab::process;
use scenarios::Cluster;

use crate::judge::Figure;

/// Sampled figures with their allowed growth.
///
/// - Service entries: except during a change, the kernel has a constant number of entries. A leak
///   of only one entry in a few rounds exceeds the tolerance.
/// - Connections: the number follows the traffic. Clients open tens of connections per second, and
///   the kernel keeps each connection for ten seconds. In a short run, the number still rises
///   during the judged part.
pub(crate) const FIGURES: [Figure; 12] = [
    figure("resident_kib", "Resident memory", "KiB", 1_536.0, 0.06),
    figure("descriptors", "Open descriptors", "number", 3.0, 0.0),
    figure("sockets", "Open sockets", "number", 3.0, 0.0),
    figure("threads", "Threads", "number", 3.0, 0.0),
    figure("virtual_servers", "Virtual servers", "number", 3.0, 0.0),
    figure("destinations", "Destinations", "number", 10.0, 0.2),
    figure("set_members", "Members of sets", "number", 5.0, 0.0),
    figure("addresses", "Addresses", "number", 3.0, 0.0),
    figure("rules", "Rules of iptables", "number", 3.0, 0.0),
    figure(
        "table_lines",
        "Lines of the nf_tables tables",
        "number",
        3.0,
        0.03,
    ),
    figure(
        "ipvs_connections",
        "Connections of IPVS",
        "number",
        200.0,
        0.3,
    ),
    figure("conntrack_entries", "Tracked flows", "number", 200.0, 0.3),
];

const fn figure(
    name: &'static str,
    title: &'static str,
    unit: &'static str,
    tolerance: f64,
    share: f64,
) -> Figure {
    Figure {
        name,
        title,
        unit,
        tolerance,
        share,
    }
}

/// A sample: the values of all figures, in the order of [`FIGURES`].
pub(crate) type Values = [u32; FIGURES.len()];

/// Measures all figures of the daemon's process and of node1's kernel.
///
/// # Errors
/// Fails if the daemon has ended, or if an operator's tool fails.
pub(crate) fn take(cluster: &Cluster) -> Result<Values> {
    let pid = cluster.daemon_id()?;
    let of = |name| -> Result<u32> { Ok(process::status(pid, name)?.try_into()?) };
    let (mut descriptors, mut sockets) = (0, 0);
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))?.flatten() {
        descriptors += 1;
        // The process may have closed the descriptor after the directory was listed.
        let target = fs::read_link(entry.path()).unwrap_or_default();
        sockets += u32::from(target.to_string_lossy().starts_with("socket:"));
    }
    let own = [of("VmRSS")?, descriptors, sockets, of("Threads")?];
    let kernel = counted(&cluster.sh(KERNEL)?)?;
    let mut values = Values::default();
    for (place, value) in values.iter_mut().zip(own.into_iter().chain(kernel)) {
        *place = value;
    }
    Ok(values)
}

/// Returns the numbers of Services' kernel entries in a sample, by kind. The numbers after the last
/// Service is deleted must equal the numbers before the first Service is created.
pub(crate) fn left(values: &Values) -> [u32; 6] {
    let [_, _, _, _, left @ .., _, _] = *values;
    left
}

/// Script that prints node1's kernel figures, one number per line, in the order of [`FIGURES`].
/// Skips the link-local addresses of the pods' links. Prints 0 for a feature that the kernel lacks.
const KERNEL: &str = r#"
servers=$(ipvsadm -Sn)
count() { grep -c -e "$1" || true; }
printf '%s\n' "$servers" | count '^-A'
printf '%s\n' "$servers" | count '^-a'
ipset save | count '^add'
ip -oneline address show | grep -v fe80: | count .
{ iptables-$backend-save; ip6tables-$backend-save; } 2>/dev/null | count '^-A'
{ nft list table ip kube-proxy; nft list table ip6 kube-proxy; nft list table ip kube-proxy-ipvs; nft list table ip6 kube-proxy-ipvs; } 2>/dev/null | count .
cat /proc/net/ip_vs_conn | count '^[TU]'
cat /proc/sys/net/netfilter/nf_conntrack_count
"#;

fn counted(said: &str) -> Result<[u32; 8]> {
    let numbers: Vec<u32> = said
        .lines()
        .map(|line| line.trim().parse().with_context(|| line.to_owned()))
        .collect::<Result<_>>()?;
    numbers
        .try_into()
        .map_err(|numbers| anyhow::anyhow!("not eight numbers: {numbers:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_script_must_print_exactly_eight_numbers() {
        assert_eq!(counted("1\n2\n3\n4\n5\n6\n7\n8\n").unwrap()[7], 8);
        assert!(counted("1\n2\n").is_err());
        assert!(counted("1\n2\n3\n4\n5\n6\n7\nx\n").is_err());
    }

    #[test]
    fn connections_do_not_count_as_service_entries() {
        let values = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
        assert_eq!(left(&values), [5, 6, 7, 8, 9, 10]);
    }
}
