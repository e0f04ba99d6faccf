//! Tests whether the kernel has an IPVS scheduler.
//!
//! - At the start, the proxy tests the node's scheduler (`--ipvs-scheduler`), because most virtual
//!   servers need it.
//! - When a Service first requests another scheduler, the read-only worker thread tests it.
//! - A scheduler that an existing virtual server uses needs no test.
//!
//! The kernel has no list of schedulers; it loads a scheduler's module when a new virtual server
//! names it. So, like upstream, the test creates and removes a virtual server. Its address is
//! reserved for documentation (RFC 5737): 198.51.100.0:20000.

use std::fs;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use ipvs_netlink::{Error, Ipvs, Name, Service, ServiceEntry, ServiceKey};
use netlink_batch::{Batch, Reply};

use super::error::OpenError;
use crate::footprint::PROBE;
use crate::server::VirtualServerKey;

/// Tests whether the kernel has an IPVS scheduler (`rr`, `mh`, ...), in the network namespace of
/// the calling thread. The kernel loads the scheduler's module if it can. Also removes a virtual
/// server that an interrupted test left.
///
/// # Errors
///
/// Returns [`OpenError::Scheduler`] if the kernel lacks the scheduler.
pub fn probe_scheduler(name: &str) -> Result<(), OpenError> {
    /// Serializes the tests, because both IP families use the same test address.
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
        // Skips the test and reports success: another program has a virtual server at the test
        // address.
        _ => Ok(()),
    }
}

/// Creates and removes the test's virtual server. Returns the reply to the creation, or `Done` if
/// no test is needed.
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

/// Returns true if an existing virtual server, other than that of an interrupted test, uses this
/// scheduler.
fn is_used(scheduler: Name, there: &[ServiceEntry]) -> bool {
    let key = ServiceKey::from(VirtualServerKey::from(PROBE));
    there
        .iter()
        .any(|entry| entry.service.scheduler == scheduler && entry.service.key != key)
}

/// Checks without a write whether the kernel has a scheduler. Returns the reason, as a clause, if
/// the kernel lacks it. Returns `None` if the kernel has it, or if this is unclear, for example in
/// a container without `/lib/modules`.
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
    fn a_scheduler_in_use_needs_no_probe() {
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
