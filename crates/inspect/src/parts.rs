//! Reports the kernel features that a mode uses, and the usage of limited resources: ipsets, IPVS
//! connections, conntrack entries and open files. Runs only for a request, blocks, and loads no
//! kernel module.

use std::fs;
use std::path::Path;

use footprint::uses::{KernelFeature, Uses};
use footprint::{Footprint, Footprints};
use ipset_netlink::Ipset;
use iptables::Backend;
use ipvs_netlink::{Ipvs, Tables};
use nftables_netlink::Nftables;
use proxy::IpFamily;
use rustix::process::{Resource, getrlimit};
use view::{Feature, Limit, OFF};

/// Function that returns the reason why IPVS lacks the scheduler with the given name, or `None` if
/// IPVS may have it.
type MissingScheduler = fn(&str) -> Option<String>;

/// Root directory, below which the kernel's files are.
const ROOT: &str = "/";

/// Directory with the sysctls of connection tracking.
const CONNTRACK: &str = "/proc/sys/net/netfilter";

/// Returns the usage and the limit of ipsets, IPVS connections, conntrack entries and open files.
/// Omits resources that the mode does not use.
pub(super) fn limits(parts: &[KernelFeature], modes: Footprints) -> Vec<Limit> {
    let mut limits = Vec::new();
    if parts.contains(&KernelFeature::Ipset) {
        limits.extend(modes.iter().flat_map(|mode| sets(mode)));
    }
    if parts
        .iter()
        .any(|part| matches!(part, KernelFeature::Ipvs { .. }))
    {
        limits.extend(connections(Path::new(ROOT)));
    }
    limits.extend(conntrack(Path::new(CONNTRACK)));
    limits.extend(open_files());
    limits
}

/// Creates a limit of the resource `of`. It is nearly reached if at least 90 % is in use.
fn limit(of: String, used: u64, limit: u64) -> Limit {
    Limit {
        of,
        used,
        limit,
        near: used.saturating_mul(10) >= limit.saturating_mul(9),
    }
}

/// Returns the number of entries and the maximum size of each ipset of a mode.
fn sets(footprint: &Footprint) -> Vec<Limit> {
    let headers = Ipset::open().and_then(|mut ipset| ipset.headers());
    let headers = headers.unwrap_or_default();
    let of_family = |family: IpFamily| {
        let own = (footprint.sets)(family).into_iter();
        let found = own.filter_map(|set| {
            let header = headers.iter().find(|header| header.name == set.name)?;
            let most = header.definition?.maxelem()?;
            let of = format!("set {} ({family})", set.name);
            Some(limit(of, header.entries?.into(), most.into()))
        });
        found.collect::<Vec<_>>()
    };
    IpFamily::ALL.into_iter().flat_map(of_family).collect()
}

/// Returns the number of IPVS connections in this network namespace, and their limit. Returns
/// `None` if the kernel has no limit.
fn connections(root: &Path) -> Option<Limit> {
    let tables = Tables::read(root).ok()??;
    let used = tables.status.connections?;
    let most = tables.connections_max?;
    Some(limit(
        "IPVS connections (net.ipv4.vs.conn_max)".to_owned(),
        used,
        most,
    ))
}

/// Returns the number of conntrack entries in this network namespace, and their limit, which is the
/// same for all namespaces.
fn conntrack(folder: &Path) -> Option<Limit> {
    let used = number(&folder.join("nf_conntrack_count"))?;
    let most = number(&folder.join("nf_conntrack_max"))?;
    // A maximum of 0 means that the kernel has no limit.
    (most > 0).then(|| limit("connection tracking entries".to_owned(), used, most))
}

fn open_files() -> Option<Limit> {
    let used = fs::read_dir("/proc/self/fd").ok()?.count();
    let most = getrlimit(Resource::Nofile).current?;
    Some(limit(
        "open files".to_owned(),
        u64::try_from(used).ok()?,
        most,
    ))
}

fn number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// Lists the kernel features that the mode needs, each with whether the kernel has it.
pub(super) fn features(uses: &Uses, missing_scheduler: MissingScheduler) -> Vec<Feature> {
    let mut features: Vec<Feature> = {
        let parts = uses.parts.iter();
        parts
            .flat_map(|part| of_part(part, missing_scheduler))
            .collect()
    };
    features.push(tracking(Path::new(CONNTRACK)));
    features.extend(flow_counters(Path::new(CONNTRACK)));
    for family in IpFamily::ALL {
        let mut left_out = uses.left_out.iter().filter(|(of, _)| *of == family);
        let reason = left_out.next().map(|(_, reason)| reason.clone());
        features.push(feature(
            &family.to_string(),
            reason.map_or(Ok(String::new()), Err),
        ));
    }
    features
}

fn feature(name: &str, found: Result<String, String>) -> Feature {
    Feature {
        name: name.to_owned(),
        found: found.is_ok(),
        note: found.unwrap_or_else(|missing| missing),
    }
}

fn of_part(part: &KernelFeature, missing_scheduler: MissingScheduler) -> Vec<Feature> {
    match part {
        KernelFeature::Ipvs { scheduler } => vec![
            feature("IPVS", ipvs()),
            feature(
                &format!("scheduler {scheduler}"),
                missing_scheduler(scheduler).map_or(Ok(String::new()), Err),
            ),
        ],
        KernelFeature::Ipset => {
            let found = Ipset::open().map(|ipset| format!("protocol {}", ipset.protocol()));
            vec![feature("ipset", found.map_err(|error| error.to_string()))]
        }
        KernelFeature::NfTables => {
            let found = Nftables::open().and_then(|mut tables| tables.generation());
            let found = found.map(|_| String::new());
            vec![feature(
                "nf_tables",
                found.map_err(|error| error.to_string()),
            )]
        }
        // The mode ran the iptables programs when it started, so this feature always exists.
        KernelFeature::Iptables(backend) => {
            vec![feature("iptables", Ok(format!("backend {backend}")))]
        }
    }
}

/// Lists the mode's dormant iptables tables, which the kernel skips for all packets. If the tables
/// of an IP family cannot be read, lists the error.
pub(super) fn switched_off(parts: &[KernelFeature]) -> Vec<(IpFamily, String)> {
    let backends = parts.iter().filter_map(|part| match part {
        KernelFeature::Iptables(backend) => Some(backend),
        _ => None,
    });
    let is_used = |backend: &Backend| backends.clone().any(|used| *used == backend.to_string());
    let used = Backend::ALL.into_iter().filter(is_used);
    let all = used.flat_map(|backend| IpFamily::ALL.map(|family| (backend, family)));
    let found = all.flat_map(|(backend, family)| match backend.dormant_tables(family) {
        Ok(tables) => {
            let tables = tables.into_iter().filter(|table| table.serves());
            tables.map(|table| (family, table.to_string())).collect()
        }
        Err(error) => vec![(family, error.to_string())],
    });
    found.collect()
}

fn ipvs() -> Result<String, String> {
    let found = Ipvs::open().and_then(|mut ipvs| ipvs.info());
    let found = found.map_err(|error| error.to_string())?;
    let [_, major, minor, patch] = found.version.to_be_bytes();
    let table = connection_table(found.table_size);
    let grows = match Tables::read(Path::new(ROOT)) {
        Ok(None) => String::new(),
        Ok(Some(tables)) => growing(&tables),
        Err(error) => format!("; {error}"),
    };
    Ok(format!("version {major}.{minor}.{patch}, {table}{grows}"))
}

/// Describes an IPVS connection table that the kernel enlarges as needed.
fn growing(tables: &Tables) -> String {
    let connections = tables.status.connections.unwrap_or_default();
    let chain = tables.status.connection_table.longest().unwrap_or_default();
    format!(" that grows, with {connections} connections, {chain} in the longest chain")
}

/// Describes the size of the IPVS connection table. Since Linux 7.1, the kernel creates it with the
/// first virtual server of a network namespace, and enlarges it later.
fn connection_table(slots: u32) -> String {
    match slots {
        0 => "no connection table before the first virtual server".to_owned(),
        _ => format!("connection table of {slots} slots"),
    }
}

fn tracking(folder: &Path) -> Feature {
    let found = if folder.join("nf_conntrack_max").exists() {
        Ok(String::new())
    } else {
        Err("the module nf_conntrack is not loaded, or this container does not see it".to_owned())
    };
    feature("connection tracking", found)
}

/// Reports whether conntrack entries count packets and bytes, as a feature. Returns `None` if the
/// kernel has no connection tracking.
fn flow_counters(folder: &Path) -> Option<Feature> {
    let file = folder.join("nf_conntrack_acct");
    let found = if number(&file)? == 1 {
        Ok(String::new())
    } else {
        Err(format!(
            "{OFF}tracked flows do not count packets and bytes (sysctl net.netfilter.nf_conntrack_acct)"
        ))
    };
    Some(feature("flow counters", found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipvs_connection_table_of_size_0_is_reported_as_missing() {
        assert_eq!(connection_table(4096), "connection table of 4096 slots");
        assert!(connection_table(0).starts_with("no connection table before"));
    }

    #[test]
    fn a_resource_limit_counts_as_nearly_reached_at_90_percent() {
        let is_near = |used, most| limit(String::new(), used, most).near;
        assert!(!is_near(89, 100));
        assert!(is_near(90, 100));
        assert!(is_near(u64::MAX, u64::MAX));
        assert!(!is_near(0, 65_536));
    }

    #[test]
    fn conntrack_usage_is_reported_if_conntrack_is_loaded() {
        let folder = std::env::temp_dir().join(format!("parts-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        assert_eq!(conntrack(&folder), None);
        assert_eq!(flow_counters(&folder), None);
        assert!(!tracking(&folder).found);
        for (name, value) in [("count", "95"), ("max", "100"), ("acct", "0")] {
            fs::write(
                folder.join(format!("nf_conntrack_{name}")),
                format!("{value}\n"),
            )
            .unwrap();
        }
        let told = conntrack(&folder).unwrap();
        assert_eq!((told.used, told.limit, told.near), (95, 100, true));
        assert!(!flow_counters(&folder).unwrap().found);
        assert!(tracking(&folder).found);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn ipvs_connection_limits_are_reported_if_the_kernel_has_them() {
        let root = std::env::temp_dir().join(format!("parts-ipvs-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        assert_eq!(connections(&root), None);
        write("proc/thread-self/net/ip_vs_status", "Conns:\t280\n");
        assert_eq!(connections(&root), None);
        write("proc/sys/net/ipv4/vs/conn_max", "310\n");
        let found = connections(&root).unwrap();
        assert_eq!((found.used, found.limit, found.near), (280, 310, true));
        write("proc/sys/net/ipv4/vs/conn_max", "1073741824\n");
        assert!(!connections(&root).unwrap().near);
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn open_file_descriptors_are_counted() {
        let told = open_files().unwrap();
        assert!(told.used >= 3 && told.used <= told.limit, "{told:?}");
    }
}
