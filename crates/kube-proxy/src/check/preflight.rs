//! Checks that this node can serve in the chosen mode, and finds state that may interfere. Changes
//! nothing in the kernel.
//!
//! ```text
//!   /proc, /lib/modules, netlink ─ read ─▶ facts ─ judge (pure) ─▶ Findings
//! ```

mod addresses;
mod capabilities;
mod listening;
mod modules;
mod other_proxies;
mod packet_filters;
mod ports;
mod redirects;
mod routes;
mod settings;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use footprint::{Footprints, nft};
use iptables::{Backend, Iptables, Table};
use modes::families::Access;
use modes::footprints;
use modes::ipvs::foresee_scheduler;
use modes::ipvs::shim::mark_conflict;
use modes::programs::Programs;
use modes::settings::Settings;
use proxy::{IpFamily, Model};
use proxy_nftables::ProbeError;
use route_netlink::Rtnetlink;
use rustix::fs::Access as Right;

use super::finding::{Finding, Status};
use super::foresee::StartForecast;
use super::names::Names;
use crate::config::options::Options;
use crate::node::external_addresses::{NearbyNetworks, nearby};
use crate::node::{kernel_settings, one_family, unfit_settings};
use crate::process::daemons;

/// Root directory of `/proc`, `/sys` and `/lib/modules`.
const ROOT: &str = "/";

/// Traces of proxies in the kernel, which show the modes that have programmed this node.
#[derive(Debug, Default)]
pub(super) struct Traces {
    /// Names of all links in this network namespace.
    pub(super) links: BTreeSet<String>,
    /// User-defined iptables chains, in both backends.
    pub(super) chains: Vec<(Backend, Table, String)>,
    /// Names of the modes' nftables tables that exist.
    pub(super) tables: BTreeSet<&'static str>,
    /// Reasons why some state could not be read. Unread state may contain further traces.
    pub(super) unread: Vec<String>,
}

impl Traces {
    /// Reads the traces of proxies in the network namespace of the calling thread.
    pub(super) fn read() -> Self {
        let mut traces = Self::default();
        match fs::read_to_string(Path::new(ROOT).join("proc/thread-self/net/dev")) {
            Ok(links) => {
                let links = links.lines().filter_map(|line| line.split_once(':'));
                let links = links.map(|(name, _)| name.trim().to_owned());
                traces.links = links.collect();
            }
            Err(error) => traces.unread.push(format!("links: {error}")),
        }
        for family in IpFamily::ALL {
            for backend in Backend::ALL {
                match backend.chains(family) {
                    Some(chains) => {
                        let chains = chains.into_iter();
                        let chains = chains.map(|(table, name)| (backend, table, name));
                        traces.chains.extend(chains);
                    }
                    None => traces.unread.push(format!(
                        "chains of iptables ({backend}, {family}): the kernel does not say; CAP_NET_ADMIN and CAP_NET_RAW \
                         are needed"
                    )),
                }
            }
            for table in footprints::ALL.iter().flat_map(|mode| mode.nft_tables) {
                match nft::has_table(family, table) {
                    Ok(true) => drop(traces.tables.insert(table)),
                    Ok(false) => {}
                    Err(error) => {
                        let line = format!("table {table} of nftables ({family}): {error}");
                        traces.unread.push(line);
                    }
                }
            }
        }
        traces
    }

    /// Returns the modes that have programmed this node. Ignores traces that more than one mode
    /// creates.
    pub(super) fn modes(&self, modes: Footprints) -> Vec<&'static str> {
        let has_left = |mode: &&&footprint::Footprint| {
            let others = || modes.iter().filter(|other| **other != **mode);
            let is_its_alone = |(_, table, name): &&(Backend, Table, String)| {
                mode.has_chain(*table, name) && !others().any(|other| other.has_chain(*table, name))
            };
            mode.link.is_some_and(|link| self.links.contains(link.name))
                || mode
                    .nft_tables
                    .iter()
                    .any(|table| self.tables.contains(table))
                || self.chains.iter().any(|chain| is_its_alone(&chain))
        };
        let left = modes.iter().filter(has_left);
        left.map(|mode| mode.mode).collect()
    }
}

/// Tests whether the kernel accepts the rules of nftables mode. Returns `None` if it does, or if
/// this process may not ask.
fn nftables(settings: &Settings) -> Option<Finding> {
    let families = IpFamily::ALL.into_iter();
    let families: Vec<IpFamily> = families
        .filter(|family| iptables::exists(*family).is_ok())
        .collect();
    let probe = |family: &IpFamily| settings.nftables.probe(&settings.shared, *family);
    let refused = families.iter().filter_map(|family| {
        let error = probe(family).err()?;
        matches!(error, ProbeError::Refused(_)).then(|| format!("{family}: {error}"))
    });
    let refused: Vec<String> = refused.collect();
    let is_all = refused.len() == families.len();
    let finding = if is_all { Finding::fail } else { Finding::warn };
    (!refused.is_empty()).then(|| finding("nftables", refused.join("; ")))
}

/// Runs all preflight checks on the calling thread. `seen` is the forecast of a start with its
/// model, or `None` if the forecast failed.
pub(super) fn look(
    options: &Options,
    traces: &Traces,
    seen: Option<(&StartForecast, &Model)>,
) -> Vec<Finding> {
    let root = Path::new(ROOT);
    let chosen = &options.modes.chosen;
    let mode = chosen.definition();
    let wanted = mode.modules(&options.modes);
    let mut found = modules::Modules::read(root, &wanted);
    found.ask(&wanted, modules::ask_kernel);
    let mut findings = modules::judge(&wanted, &found, seen.is_some());
    if mode.name() == "ipvs" {
        findings.push(scheduler(&options.modes));
        let conflict = mark_conflict(&options.modes);
        findings.extend(conflict.map(|message| Finding::warn("marks", message)));
    }
    if mode.name() == "nftables" {
        findings.extend(nftables(&options.modes));
    }
    let chosen = mode
        .uses_iptables(&options.modes)
        .then(|| Programs::new(&options.modes, Access::Read).choose(&[]));
    let iptables = chosen.as_ref().map(|chosen| {
        let backend = chosen.as_ref().map(Iptables::backend);
        backend.map_err(ToString::to_string)
    });
    let backend = iptables.as_ref().and_then(|chosen| chosen.as_ref().ok());
    match rustix::thread::capabilities(None) {
        Ok(sets) => findings.extend(capabilities::judge(sets.effective, backend.copied())),
        Err(error) => findings.push(Finding::warn(
            "capabilities",
            format!("they cannot be read: {error}"),
        )),
    }
    findings.extend(settings::judge(
        &pending(options, root),
        mode.has_served(root),
    ));
    findings.extend(packet_filters::judge(iptables.as_ref(), traces));
    if let Some(Ok(iptables)) = &chosen {
        findings.extend(packet_filters::beside_nft(iptables));
    }
    let none = &[][..];
    let changes = seen.map_or(none, |(foreseen, _)| &foreseen.changes);
    let mut unread = traces.unread.clone();
    let foreign = foreign(seen.map(|(_, model)| model)).unwrap_or_else(|error| {
        unread.extend(error);
        Vec::new()
    });
    findings.extend(other_proxies::judge(
        &daemons::others(),
        &traces.links,
        &foreign,
        changes,
        mode.name(),
        &unread,
    ));
    if let Some((foreseen, model)) = seen {
        let obstacles = foreseen.obstacles.iter();
        findings.extend(obstacles.map(|of| Finding::fail(of.kind, &*of.message)));
        findings.extend(addresses::api_server(&foreseen.guarded));
        let mut unread = Vec::new();
        let own = own_addresses(traces, &mut unread);
        let routes = all_routes(root, &mut unread);
        let addresses: Vec<IpAddr> = own.keys().copied().collect();
        if let Some(Ok(iptables)) = &chosen {
            findings.extend(redirects::judge(iptables, model, &addresses));
        }
        let near = nearby(model, &NearbyNetworks::read(), &addresses);
        let mut judged = addresses::judge(model, &own, &routes, &near, mode.name());
        if !unread.is_empty() {
            judged.retain(|finding| finding.status != Status::Ok);
            judged.push(unknown("addresses", &unread));
        }
        findings.extend(judged);
        let unknown = unfit_settings::unknown_name(options, model);
        findings.extend(unknown.map(|one| Finding::warn("node", one.message)));
        let used = one_family::families_of(model);
        let found = one_family::judge(&options.modes, model.node(), &used);
        findings.extend(
            found
                .into_iter()
                .map(|one| Finding::warn("families", one.message)),
        );
    }
    let absent = unfit_settings::absent_bridge(&options.modes.shared.detect_local);
    findings.extend(absent.map(|one| Finding::warn("bridge", one.message)));
    if let Some(hint) = one_family::hint(&options.modes) {
        findings.push(Finding::ok("node ports", hint));
    }
    findings.extend(all_ports(options, root, seen.map(|(_, model)| model)));
    findings
}

fn scheduler(settings: &Settings) -> Finding {
    if let Some(refusal) = foresee_scheduler(settings) {
        Finding::fail("scheduler", refusal)
    } else {
        let name = &settings.ipvs.scheduler;
        Finding::ok("scheduler", format!("found no problem with {name}"))
    }
}

fn pending(options: &Options, root: &Path) -> Vec<settings::PendingSetting> {
    let pending = kernel_settings::pending(options).into_iter();
    let with_right = pending.map(|difference| {
        let row = difference.row();
        let file = root.join(row.path);
        settings::PendingSetting {
            need: row.need,
            is_writable: rustix::fs::access(&file, Right::WRITE_OK).is_ok(),
            setting: difference.into(),
        }
    });
    with_right.collect()
}

/// Returns a warning about kernel state that could not be read, for the reasons in `unread`.
fn unknown(name: &'static str, unread: &[String]) -> Finding {
    Finding::warn(
        name,
        format!(
            "unknown, as it cannot be read: {}; run check as root, in the network namespace of the host",
            unread.join("; ")
        ),
    )
}

/// Returns the virtual servers that no kube-proxy created. If a Service port needs the address of
/// such a virtual server, the result names this Service port.
///
/// # Errors
///
/// Returns the reasons why some state could not be read.
fn foreign(model: Option<&Model>) -> Result<Vec<other_proxies::UnownedServer>, Vec<String>> {
    let names = model.map(Names::of).unwrap_or_default();
    let found = cleanup::foreign_servers(footprints::ALL)?;
    let wanted_by = |server: &cleanup::ForeignServer| {
        let (at, protocol) = server.at?;
        names.served_at(at, protocol).map(ToOwned::to_owned)
    };
    let found = found.into_iter();
    Ok(found
        .map(|server| other_proxies::UnownedServer {
            wanted_by: wanted_by(&server),
            name: server.name,
        })
        .collect())
}

/// Returns the node's addresses, each with its link. Skips the links that modes create.
fn own_addresses(traces: &Traces, unread: &mut Vec<String>) -> BTreeMap<IpAddr, String> {
    let mut found = BTreeMap::new();
    let made = footprint::links(footprints::ALL);
    let mut rtnetlink = match Rtnetlink::open() {
        Ok(rtnetlink) => rtnetlink,
        Err(error) => {
            unread.push(format!("addresses: {error}"));
            return found;
        }
    };
    let names = traces
        .links
        .iter()
        .filter(|name| !made.contains(&name.as_str()));
    for name in names {
        let link = match rtnetlink.link(name) {
            Ok(Some(link)) => link,
            // Skips a link that was removed after the list of links was read.
            Ok(None) => continue,
            Err(error) => {
                unread.push(format!("link {name}: {error}"));
                continue;
            }
        };
        for family in IpFamily::ALL {
            match rtnetlink.addresses_of(link.index, family.into()) {
                Ok(addresses) => {
                    let addresses = addresses.into_iter();
                    found.extend(addresses.map(|held| (held.address, name.clone())));
                }
                Err(error) => unread.push(format!("{family} addresses of {name}: {error}")),
            }
        }
    }
    found
}

fn all_routes(root: &Path, unread: &mut Vec<String>) -> Vec<routes::Route> {
    let folder = root.join("proc/thread-self/net");
    let mut text = |file| listening::read_net_file(&folder, file, unread);
    let mut all = routes::v4(&text("route"));
    all.extend(routes::v6(&text("ipv6_route")));
    let made = footprints::ALL.iter().filter_map(|mode| mode.link);
    let made: Vec<&str> = made.map(|link| link.name).collect();
    all.retain(|route| !made.contains(&route.link.as_str()));
    all
}

fn all_ports(options: &Options, root: &Path, model: Option<&Model>) -> Vec<Finding> {
    let serve = &options.serve;
    let server = |of, at: Option<SocketAddr>| {
        at.map(|at| ports::Server {
            of,
            at,
            unbindable: ports::unbindable(at.ip()),
        })
    };
    let servers = [
        server("health", serve.healthz_address),
        server("metrics", serve.metrics_address),
    ];
    let servers: Vec<ports::Server> = servers.into_iter().flatten().collect();
    let node_ports = model.map(ports::NodePorts::of).unwrap_or_default();
    let mut unread = Vec::new();
    let listeners = listening::read(root, &mut unread);
    let concerned = ports::concerned(&listeners, &servers, &node_ports);
    let inodes: Vec<u64> = concerned.iter().map(|listener| listener.inode).collect();
    let owners = if inodes.is_empty() {
        BTreeMap::new()
    } else {
        listening::owners(root, &inodes)
    };
    let mut findings = ports::judge(&concerned, &owners, &servers, &node_ports, serve.when_taken);
    if !unread.is_empty() {
        findings.retain(|finding| finding.status != Status::Ok);
        findings.push(unknown("ports", &unread));
    }
    findings
}

/// Parses text in the format of `/proc/net/tcp`. Entry point for fuzzing.
pub(crate) fn read_sockets(text: &str) {
    listening::read_text(text);
}

#[cfg(test)]
mod tests {
    use std::thread;

    use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

    use super::*;

    /// Drops all capabilities. Without `CAP_NET_ADMIN`, a process cannot read nf_tables.
    #[test]
    fn unreadable_kernel_state_is_reported_as_unknown() {
        let look = || {
            let none = CapabilitySet::empty();
            let sets = CapabilitySets {
                effective: none,
                permitted: none,
                inheritable: none,
            };
            set_capabilities(None, sets).unwrap();
            let opened = nftables_netlink::Nftables::open();
            let is_here = !matches!(opened, Err(nftables_netlink::Error::NoNftables));
            (is_here, Traces::read())
        };
        // Uses a separate thread, because capabilities belong to a thread.
        let (is_here, traces) = thread::spawn(look).join().unwrap();
        if is_here {
            let told = |part: &str| traces.unread.iter().any(|line| line.contains(part));
            assert!(
                told("chains of iptables (nft, IPv4)"),
                "{:?}",
                traces.unread
            );
            assert!(
                told("table kube-proxy of nftables (IPv6)"),
                "{:?}",
                traces.unread
            );
        }
        let findings =
            other_proxies::judge(&[], &traces.links, &[], &[], "nftables", &traces.unread);
        let is_ok = findings.iter().any(|finding| finding.status == Status::Ok);
        assert_eq!(is_ok, traces.unread.is_empty(), "{findings:?}");
    }

    #[test]
    fn the_serving_mode_is_identified_by_its_unique_objects() {
        let told = |links: &[&str], chains: &[&str], tables: &[&'static str]| {
            let chains = chains.iter();
            let traces = Traces {
                links: links.iter().map(|link| (*link).to_owned()).collect(),
                chains: chains
                    .map(|name| (Backend::Nft, Table::Nat, (*name).to_owned()))
                    .collect(),
                tables: tables.iter().copied().collect(),
                unread: Vec::new(),
            };
            traces.modes(footprints::ALL)
        };
        assert!(told(&["lo", "eth0"], &["DOCKER", "KUBE-SERVICES"], &[]).is_empty());
        assert_eq!(told(&["kube-ipvs0"], &["KUBE-SERVICES"], &[]), ["ipvs"]);
        assert_eq!(told(&[], &["KUBE-SVC-ERIFXISQEP7F7OF4"], &[]), ["iptables"]);
        assert_eq!(told(&[], &[], &["kube-proxy"]), ["nftables"]);
        let both = told(&["kube-ipvs0"], &["KUBE-SEP-ERIFXISQEP7F7OF4"], &[]);
        assert_eq!(both, ["ipvs", "iptables"]);
    }
}
