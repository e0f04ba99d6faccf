//! Network namespaces in which event sequences run on this machine's kernel. They have the same
//! links and addresses as the fake kernels.

use std::any::Any;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::thread;

use netlink_batch::{Batch, Reply};
use proxy::IpFamily;
use route_netlink::{Address, AddressGeneration, LinkState, Rtnetlink};

use crate::cluster::{NODE_ADDRESS, at};

/// Link whose addresses an event sequence changes.
const LINK: &str = "eth0";

/// Bridge of the pods on the node.
const BRIDGE: &str = "cni0";

/// Shell commands that add other programs' kernel entries at the start of an event sequence, each
/// with a command that prints them. The entries must be unchanged at the end.
const BYSTANDERS: [(&str, &str); 2] = [
    (
        "nft add table inet theirs && nft 'add chain inet theirs c { type filter hook forward priority 0; }' \
         && nft add rule inet theirs c ip saddr 172.31.0.1 accept",
        "nft list table inet theirs",
    ),
    (
        "ipset create THEIRS hash:ip && ipset add THEIRS 172.31.0.1",
        "ipset save THEIRS",
    ),
];

/// Runs `story` on a new thread in the network namespace of a new node.
///
/// # Errors
///
/// Returns an error if `story` panics, or if this process may not create network namespaces.
pub fn on_a_node<T: Send>(family: IpFamily, story: impl FnOnce() -> T + Send) -> Result<T, String> {
    thread::scope(|scope| {
        let inside = scope.spawn(|| {
            catch_unwind(AssertUnwindSafe(|| {
                furnish(family)?;
                Ok(story())
            }))
        });
        match inside.join() {
            Ok(Ok(done)) => done,
            Ok(Err(panic)) | Err(panic) => Err(words(&*panic)),
        }
    })
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("it panicked").to_owned()
}

fn furnish(family: IpFamily) -> Result<(), String> {
    let said = |error: &dyn std::error::Error| format!("a node cannot be made: {error}");
    namespace::enter().map_err(|error| said(&error))?;
    let mut rtnetlink = Rtnetlink::open().map_err(|error| said(&error))?;
    // Loads IPv6 now if it is a module, because the node needs it for its addresses.
    drop(shell("test -e /proc/net/if_inet6 || modprobe -q ipv6"));
    let cable = format!("ip link add {LINK} type veth peer name {BRIDGE}");
    shell(&cable).ok_or_else(|| format!("a node cannot be made: `{cable}` fails"))?;
    let mut links = || {
        rtnetlink.set_link_state("lo", LinkState::Up)?;
        for link in [LINK, BRIDGE] {
            // Ignores an error: without IPv6, the kernel creates no link-local addresses anyway.
            drop(rtnetlink.set_address_generation(link, AddressGeneration::None));
            rtnetlink.set_link_state(link, LinkState::Up)?;
        }
        Ok(())
    };
    links().map_err(|error: route_netlink::Error| said(&error))?;
    set_address(LINK, at(family, NODE_ADDRESS), true)?;
    set_address(BRIDGE, at(family, [10, 244, 1, 254]), true)
}

fn set_address(link: &str, address: IpAddr, is_there: bool) -> Result<(), String> {
    let said = |error: &dyn std::error::Error| format!("{address} on {link}: {error}");
    let mut rtnetlink = Rtnetlink::open().map_err(|error| said(&error))?;
    let found = rtnetlink.link(link).map_err(|error| said(&error))?;
    let link = found.ok_or_else(|| format!("there is no {link}"))?;
    let mut batch = Batch::new();
    let host = Address::host(link.index, address);
    if is_there {
        host.push_new(&mut batch);
    } else {
        host.push_del(&mut batch);
    }
    match rtnetlink.execute(&batch) {
        Ok(replies) => match replies.last() {
            Some(Reply::Done) => Ok(()),
            other => Err(format!("{address}: {other:?}")),
        },
        Err(error) => Err(said(&error)),
    }
}

/// Adds and removes addresses of the node, so that it has the addresses `after` instead of
/// `before`.
pub(crate) fn set_addresses(before: &BTreeSet<IpAddr>, after: &BTreeSet<IpAddr>) {
    for address in before.symmetric_difference(after) {
        let done = set_address(LINK, *address, after.contains(address));
        assert_eq!(done, Ok(()), "an address of the node");
    }
}

/// Deletes a link in the calling thread's network namespace.
pub(crate) fn delete_link(name: &str) {
    let deleted = Rtnetlink::open().and_then(|mut rtnetlink| rtnetlink.delete_link(name));
    assert!(deleted.is_ok(), "{name} is deleted: {deleted:?}");
}

/// Adds other programs' kernel entries. Ignores those that the kernel or a missing program does not
/// allow.
pub(crate) fn add_bystanders() {
    for (add, _) in BYSTANDERS {
        drop(shell(add));
    }
}

/// Returns other programs' kernel entries, as printed by their commands. `None` for entries that do
/// not exist.
pub(crate) fn bystanders() -> Vec<Option<String>> {
    BYSTANDERS.iter().map(|(_, show)| shell(show)).collect()
}

/// Runs a shell script in the network namespace of the calling thread. Returns its output, or
/// `None` if it fails.
pub(crate) fn shell(script: &str) -> Option<String> {
    let path = format!(
        "{}:/usr/sbin:/sbin",
        std::env::var("PATH").unwrap_or_default()
    );
    let ran = Command::new("sh")
        .args(["-c", script])
        .env("PATH", path)
        .output()
        .ok()?;
    let printed = String::from_utf8(ran.stdout).ok()?;
    ran.status.success().then_some(printed)
}
