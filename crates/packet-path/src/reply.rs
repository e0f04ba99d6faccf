//! The reply of a tracked flow. The kernel reverts the flow's translations at the hooks, so that
//! the client recognises the reply.

use crate::branch::Branch;
use crate::kernel::{Kernel, Route, RouteQuestion};
use crate::packet::{Packet, Tracking};
use crate::ruleset::Hook;

/// Returns the route of a reply that crosses a bridge from port to port, or `None` for any other
/// reply. The node's rules see such a reply only if the bridge passes its frames to netfilter.
pub(crate) fn crosses(packet: &Packet, kernel: &dyn Kernel) -> Option<Route> {
    let reply = packet.reply.as_ref()?;
    let iif = packet.iif.as_ref()?;
    if packet.destination != reply.client || !kernel.is_bridge(iif).ok()? {
        return None;
    }
    let route = kernel.route(&question(packet)).ok()?;
    match &route {
        // A bridge forwards frames even if the node does not forward packets.
        Route::Out {
            interface,
            gateway: None,
            ..
        } if interface.name == iif.name => Some(route),
        _ => None,
    }
}

fn question(packet: &Packet) -> RouteQuestion {
    RouteQuestion {
        destination: packet.destination,
        source: None,
        iif: None,
        mark: packet.mark,
    }
}

/// Reverts NAT in a reply, like the kernel's `nf_nat_packet`.
pub(crate) fn translate_back(hook: Hook, mut branch: Branch) -> Branch {
    let packet = &mut branch.packet;
    if packet.tracking != Tracking::Established {
        return branch;
    }
    match hook {
        Hook::Prerouting | Hook::Output => packet.destination = packet.original_source,
        Hook::Input | Hook::Postrouting if packet.server.is_none() => speak_as_asked(packet),
        Hook::Input | Hook::Postrouting | Hook::Forward => {}
    }
    branch
}

/// Sets the source of a reply to the virtual server's address, like `ip_vs_out`.
pub(crate) fn pass_ipvs(mut branch: Branch) -> Branch {
    if branch.packet.server.is_some() {
        speak_as_asked(&mut branch.packet);
    }
    branch
}

/// Sets the packet's source to the address and port to which the client sent.
fn speak_as_asked(packet: &mut Packet) {
    packet.source = packet.original.ip();
    packet.source_port = Some(packet.original.port());
}
