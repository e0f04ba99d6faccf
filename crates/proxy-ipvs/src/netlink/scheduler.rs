//! Asks whether the kernel has a scheduler: the node's at the start, as without it every virtual server
//! would be refused; one that a Service names, when it is first named.
//!
//! The kernel has no list of its schedulers, and loads a module when a virtual server wants it. So
//! it is asked by making one at 198.51.100.0:20000, an address for documentation (RFC 5737) that
//! nobody has, and taking it away again, as upstream asks. Nothing is made where a virtual server
//! with that scheduler is there already, as on a node that has been programmed.

use std::fs;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use ipvs_netlink::{Error, Ipvs, Name, Service, ServiceEntry, ServiceKey};
use netlink_batch::{Batch, Reply};

use super::error::OpenError;
use crate::footprint::PROBE;
use crate::server::VirtualServerKey;

/// Asks the kernel, in the network namespace of the calling thread, for the scheduler of this name
/// (`rr`, `mh`, ...); it loads the module if it can. [`OpenError::Scheduler`] if it has none. What
/// an earlier question has left, which a crash cut short, is taken away.
///
/// # Errors
///
/// [`OpenError::Scheduler`]: the kernel has none of this name.
pub fn probe_scheduler(name: &str) -> Result<(), OpenError> {
    /// Held while one asks: two families may, and there is one address to ask at.
    static ASKING: Mutex<()> = Mutex::new(());
    let lacking = |reason: &dyn std::fmt::Display| OpenError::Scheduler {
        name: name.to_owned(),
        reason: reason.to_string(),
    };
    let scheduler: Name = name.parse().map_err(|bad| lacking(&bad))?;
    let _asking = ASKING.lock().unwrap_or_else(PoisonError::into_inner);
    let found = Ipvs::open().and_then(|mut ipvs| ask(&mut ipvs, scheduler));
    match found.map_err(OpenError::Ipvs)? {
        Reply::Refused(refusal) if refusal.errno == libc::ENOENT => Err(lacking(&refusal)),
        Reply::Refused(refusal) if refusal.errno != libc::EEXIST => {
            Err(OpenError::Ipvs(refusal.into()))
        }
        // Where somebody else serves at that address, it cannot be asked.
        _ => Ok(()),
    }
}

/// What became of the virtual server that asks; `Done` also if none had to.
fn ask(ipvs: &mut Ipvs, scheduler: Name) -> Result<Reply, Error> {
    let key = ServiceKey::from(VirtualServerKey::from(PROBE));
    let there = ipvs.services()?;
    let is_left = there.iter().any(|entry| entry.service.key == key);
    if is_left && ipvs.destinations(&key)?.is_empty() {
        execute(ipvs, |family, batch| family.del_service(batch, &key))?;
    }
    if is_used(scheduler, &there) {
        return Ok(Reply::Done);
    }
    let service = Service::new(key, scheduler);
    let reply = execute(ipvs, |family, batch| family.new_service(batch, &service))?;
    if !matches!(reply, Reply::Refused(_)) {
        execute(ipvs, |family, batch| family.del_service(batch, &key))?;
    }
    Ok(reply)
}

fn execute(
    ipvs: &mut Ipvs,
    push: impl FnOnce(ipvs_netlink::Family, &mut Batch) -> usize,
) -> Result<Reply, Error> {
    let mut batch = Batch::new();
    push(ipvs.family(), &mut batch);
    let reply = ipvs.execute(&batch)?.pop();
    Ok(reply.unwrap_or(Reply::Unknown))
}

/// Whether a virtual server has a scheduler, other than one that was left by a question for it.
fn is_used(scheduler: Name, there: &[ServiceEntry]) -> bool {
    let key = ServiceKey::from(VirtualServerKey::from(PROBE));
    there
        .iter()
        .any(|entry| entry.service.scheduler == scheduler && entry.service.key != key)
}

/// Looks for a scheduler without a write; returns a clause if the kernel will not have it. None also
/// where that cannot be seen, as from a container without `/lib/modules`.
pub fn foresee_scheduler(name: &str) -> Option<String> {
    let there = Ipvs::open().and_then(|mut ipvs| ipvs.services()).ok()?;
    let is_used = name.parse().is_ok_and(|name| is_used(name, &there));
    let module = format!("ip_vs_{name}");
    if is_used || Path::new("/sys/module").join(&module).exists() {
        return None;
    }
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").ok()?;
    let folder = Path::new("/lib/modules").join(release.trim());
    let loadable = fs::read_to_string(folder.join("modules.dep")).ok()?;
    let built_in = fs::read_to_string(folder.join("modules.builtin")).ok()?;
    let file = format!("/{module}.ko");
    if [loadable, built_in].iter().any(|list| list.contains(&file)) {
        return None;
    }
    Some(format!(
        "the kernel has no scheduler `{name}`, and there is no module {module}"
    ))
}

#[cfg(test)]
mod tests {
    use ipvs_netlink::Statistics;
    use proxy::ServiceAddress;

    use super::*;

    #[test]
    fn a_scheduler_that_is_in_use_need_not_be_asked_for() {
        let entry = |at: ServiceAddress, scheduler: &str| ServiceEntry {
            service: Service::new(
                VirtualServerKey::from(at).into(),
                scheduler.parse().unwrap(),
            ),
            statistics: Statistics::default(),
        };
        let web = ServiceAddress::new([10, 96, 0, 10].into(), 80, PROBE.protocol);
        let used = |entries: &[ServiceEntry]| is_used("mh".parse().unwrap(), entries);
        assert!(!used(&[]));
        assert!(!used(&[entry(web, "rr")]));
        assert!(used(&[entry(web, "rr"), entry(web, "mh")]));
        assert!(!used(&[entry(PROBE, "mh")]));
    }
}
