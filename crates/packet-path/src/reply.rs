//! The way of a tracked flow's answer, hook by hook, until it has the addresses that the client expects.

use crate::branch::Branch;
use crate::kernel::{Kernel, Route, RouteQuestion};
use crate::packet::{Packet, Tracking};
use crate::ruleset::Hook;

/// Whether it comes by this node where who answers and who asked are ports of one bridge: only if
/// netfilter sees what bridges carry.
pub(crate) fn crosses(packet: &Packet, kernel: &dyn Kernel) -> Option<Route> {
    let reply = packet.reply.as_ref()?;
    let iif = packet.iif.as_ref()?;
    if packet.destination != reply.client || !kernel.is_bridge(iif).ok()? {
        return None;
    }
    let route = kernel.route(&question(packet)).ok()?;
    match &route {
        // A bridge asks nobody whether the node forwards.
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

/// As `nf_nat_packet` does to a packet of the reply direction.
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

/// As `ip_vs_out` does.
pub(crate) fn pass_ipvs(mut branch: Branch) -> Branch {
    if branch.packet.server.is_some() {
        speak_as_asked(&mut branch.packet);
    }
    branch
}

/// It comes from where the question was sent to.
fn speak_as_asked(packet: &mut Packet) {
    packet.source = packet.original.ip();
    packet.source_port = Some(packet.original.port());
}
