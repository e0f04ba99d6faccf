//! Removes the virtual servers of modes, and lists the virtual servers of other programs.

use std::fs::File;
use std::io::Read as _;
use std::net::SocketAddr;
use std::path::Path;

use footprint::Footprint;
use inet::{IpFamily, Protocol};
use ipnet::IpNet;
use ipvs_netlink::{DestinationEntry, Error, Ipvs, Service};
use netlink_batch::{Batch, Reply};

use crate::evidence::{Evidence, Server};
use crate::report::{Cleanup, DrainingServer, LOST, Manner, Need, many};

/// File with the kernel's list of virtual servers. It exists only while IPVS is loaded. Reading it
/// does not load IPVS, unlike a netlink request.
pub(crate) const LIST: &str = "/proc/thread-self/net/ip_vs";
/// Number of bytes to read from [`LIST`]. They include the header and the first virtual server.
const HEAD: u64 = 1024;
/// Number of header lines at the beginning of the list.
const HEAD_LINES: usize = 3;

/// A virtual server that none of the modes created, so it belongs to another program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignServer {
    /// Address, port and protocol. `None` for a firewall mark, and for a protocol that Services do
    /// not support.
    pub at: Option<(SocketAddr, Protocol)>,
    /// Name of the virtual server in messages, such as `192.0.2.1:80/TCP` or `FWM 1`.
    pub name: String,
}

/// Returns true if one of these modes uses virtual servers, and the kernel has at least one virtual
/// server of any program.
pub(crate) fn are_there(modes: &[&'static Footprint]) -> bool {
    let may_be = modes.iter().any(|mode| mode.virtual_servers.is_some());
    let mut head = Vec::new();
    may_be
        && File::open(LIST)
            .and_then(|list| list.take(HEAD).read_to_end(&mut head))
            .is_ok_and(|_| head.split(|byte| *byte == b'\n').count() > HEAD_LINES + 1)
}

/// Removes the virtual servers of these modes. Returns the reason why the cleanup still needs the
/// evidence for virtual servers, or [`Need::Over`].
pub(crate) fn remove(
    modes: &[&'static Footprint],
    family: IpFamily,
    evidence: &Evidence,
    excluded: &[IpNet],
    manner: Manner,
    cleanup: &mut Cleanup,
) -> Need {
    if modes.iter().all(|mode| mode.virtual_servers.is_none()) {
        return Need::Over;
    }
    if !Path::new(LIST).exists() {
        cleanup.miss("IPVS: this kernel has not loaded it");
        return Need::Over;
    }
    let removed = Ipvs::open().and_then(|mut ipvs| {
        let mut doomed = doomed(&mut ipvs, modes, family, evidence, excluded)?;
        if manner == Manner::Drain {
            let drained = begin_drain(&mut ipvs, &mut doomed, evidence)?;
            cleanup.draining.extend(drained);
        }
        let replies = match manner {
            Manner::Remove | Manner::Drain => delete(&mut ipvs, &doomed)?,
            Manner::Count => doomed.iter().map(|_| Reply::Done).collect(),
        };
        Ok((doomed, replies))
    });
    let (doomed, replies) = match removed {
        Ok(removed) => removed,
        Err(error) => {
            cleanup.leave(family, &"the virtual servers cannot be read", &error);
            return Need::Unknown;
        }
    };
    let mut done = 0;
    for (server, reply) in doomed.iter().zip(&replies) {
        let what = format!("cannot remove virtual server {server}");
        match reply {
            Reply::Done => done += 1,
            // Counts the virtual server as removed, because it no longer exists.
            Reply::Refused(refusal) if refusal.errno == libc::ESRCH => done += 1,
            Reply::Refused(refusal) => {
                let next = format_args!("{refusal}; try it with `ipvsadm` by hand");
                cleanup.leave(family, &what, &next);
            }
            Reply::Unknown => cleanup.leave(family, &what, &LOST),
        }
    }
    if done > 0 {
        cleanup.remove(family, many(done, "virtual server"));
    }
    let is_draining = |server: &DrainingServer| server.key.family() == family;
    if done < doomed.len() {
        Need::Unknown
    } else if cleanup.draining.iter().any(is_draining) {
        Need::Draining
    } else {
        Need::Over
    }
}

/// Returns the virtual servers without evidence that one of these modes created them.
pub(crate) fn foreign(
    modes: &[&'static Footprint],
    family: IpFamily,
    evidence: &Evidence,
) -> Result<Vec<ForeignServer>, Error> {
    if !Path::new(LIST).exists() {
        return Ok(Vec::new());
    }
    let mut all = read(&mut Ipvs::open()?, family)?;
    all.retain(|server| !evidence.says_ours(modes, server));
    let foreign = all.iter().map(|server| ForeignServer {
        at: server.at(),
        name: server.to_string(),
    });
    Ok(foreign.collect())
}

/// Reads all virtual servers of an IP family from the kernel.
fn read(ipvs: &mut Ipvs, family: IpFamily) -> Result<Vec<Server>, Error> {
    let all = ipvs.services()?.into_iter().map(|entry| entry.service);
    let all = all.filter(|service| service.key.family() == family);
    let server = |service: Service| Server {
        key: service.key,
        flags: service.flags.bits(),
    };
    Ok(all.map(server).collect())
}

/// Returns the virtual servers to delete, in the order of deletion.
fn doomed(
    ipvs: &mut Ipvs,
    modes: &[&'static Footprint],
    family: IpFamily,
    evidence: &Evidence,
    excluded: &[IpNet],
) -> Result<Vec<Server>, Error> {
    let mut doomed = Vec::new();
    for server in read(ipvs, family)? {
        let at = server.at();
        let is_in = |(at, _): (SocketAddr, _)| excluded.iter().any(|net| net.contains(&at.ip()));
        if at.is_some_and(is_in) {
            continue;
        }
        let mut kinds = modes.iter().filter_map(|mode| mode.virtual_servers);
        let is_probe = kinds.any(|kind| kind.probe.is_some() && kind.probe == at);
        if evidence.says_ours(modes, &server)
            || (is_probe && ipvs.destinations(&server.key)?.is_empty())
        {
            doomed.push(server);
        }
    }
    // Deletes virtual servers in reverse order of their creation. The kernel keeps the removed
    // destinations in a list. If a mode later adds the same destinations again, this order makes
    // the kernel find them sooner (ipvs-netlink/examples/trash_cost.rs).
    doomed.sort_unstable_by_key(|server| std::cmp::Reverse((server.at(), server.key)));
    doomed.dedup();
    Ok(doomed)
}

/// Removes the virtual servers with open connections from the list `doomed`, and returns them. Sets
/// the weights of their destinations to 0: IPVS then schedules no new connections to these
/// destinations, but keeps the open ones.
fn begin_drain(
    ipvs: &mut Ipvs,
    doomed: &mut Vec<Server>,
    evidence: &Evidence,
) -> Result<Vec<DrainingServer>, Error> {
    let (mut draining, mut ended) = (Vec::new(), Vec::new());
    let mut batch = Batch::new();
    let family = ipvs.family();
    for server in doomed.iter() {
        let destinations = ipvs.destinations(&server.key)?;
        let connections = connections(&destinations);
        if connections == 0 {
            ended.push(*server);
            continue;
        }
        let key = server.key;
        draining.push(DrainingServer {
            key,
            addresses: evidence.addresses(&key),
            connections,
        });
        for entry in destinations {
            let mut destination = entry.destination;
            if destination.weight > 0 {
                destination.weight = 0;
                family.set_destination(&mut batch, &key, &destination);
            }
        }
    }
    // Ignores refusals: a virtual server also drains if the kernel refuses weight 0. The current
    // mode already serves, so packets of new connections do not reach IPVS.
    ipvs.execute(&batch)?;
    *doomed = ended;
    Ok(draining)
}

/// Returns the number of active and inactive connections to these destinations in the IPVS
/// connection table. UDP flows and connections that have just ended count as inactive.
pub(crate) fn connections(destinations: &[DestinationEntry]) -> u64 {
    let of = |entry: &DestinationEntry| u64::from(entry.active) + u64::from(entry.inactive);
    destinations.iter().map(of).sum()
}

pub(crate) fn delete(ipvs: &mut Ipvs, doomed: &[Server]) -> Result<Vec<Reply>, Error> {
    let family = ipvs.family();
    let mut batch = Batch::new();
    for server in doomed {
        family.del_service(&mut batch, &server.key);
    }
    ipvs.execute(&batch)
}
