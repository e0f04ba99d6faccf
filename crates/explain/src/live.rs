//! Reads the running kernel for one response. Reads each table at most once in each attempt.

use std::cell::OnceCell;
use std::net::{IpAddr, SocketAddr};

use footprint::Footprints;
use nftables_netlink::{Error, Generation, Nftables};
use packet_path::nft::Nft;
use packet_path::{
    AddressType, Interface, Kernel as _, Question, Route, RouteQuestion, Ruleset, Sender, Walk,
    read,
};
use proxy::{IpFamily, Protocol};
use view::Explanation;

use super::answer::EndpointReplies;
use super::journeys::{self, Hop, PacketOrigin, Routing, TracedPacket};
use super::listeners;
use super::{Listening, Objects, PacketTracer, Quotes, TraceRequest, explain};

/// Maximum number of attempts to trace a request. An attempt fails if the nf_tables ruleset changes
/// meanwhile.
const TRIES: u32 = 3;

/// Traces the packets of a request in the running kernel. Blocks.
///
/// Opens its own sockets in the network namespace of the calling thread. `modes` are the modes that
/// may have entries on this node.
///
/// # Errors
///
/// Fails if the kernel cannot be read at all.
pub fn answer(
    asked: &TraceRequest,
    objects: &Objects,
    listening: Listening<'_>,
    quotes: Quotes,
    modes: Footprints,
) -> Result<Explanation, String> {
    let mut tries = 1;
    loop {
        let kernel = LiveState::open(modes)?;
        let mut explanation = explain(asked, objects, &kernel, listening, quotes, modes);
        let has_changed = kernel.has_changed();
        if has_changed && tries == TRIES {
            let note = "the rules of nf_tables changed during the read: paths may mix old and new \
                        rules";
            explanation.notes.push(note.to_owned());
        }
        if !has_changed || tries == TRIES {
            return Ok(explanation);
        }
        tries += 1;
    }
}

/// The running kernel, with the rules that one attempt has read so far.
struct LiveState {
    kernel: read::LiveKernel,
    modes: Footprints,
    /// Generation of the nf\_tables ruleset when the attempt begins, or `None` if the kernel has no
    /// nf\_tables.
    generation: Option<Generation>,
    v4: OnceCell<Rules>,
    v6: OnceCell<Rules>,
}

/// iptables and nftables rules for packets of one IP family.
struct Rules {
    iptables: read::Rules,
    nft: Option<Nft<Nftables>>,
    unread: Vec<String>,
}

impl LiveState {
    fn open(modes: Footprints) -> Result<Self, String> {
        let kernel = read::LiveKernel::open().map_err(|unread| unread.to_string())?;
        Ok(Self {
            kernel,
            modes,
            generation: generation(),
            v4: OnceCell::new(),
            v6: OnceCell::new(),
        })
    }

    fn has_changed(&self) -> bool {
        self.generation != generation()
    }

    fn rules(&self, family: IpFamily) -> &Rules {
        let held = match family {
            IpFamily::V4 => &self.v4,
            IpFamily::V6 => &self.v6,
        };
        held.get_or_init(|| Rules::read(family))
    }
}

fn generation() -> Option<Generation> {
    Nftables::open().ok()?.generation().ok()
}

impl Rules {
    fn read(family: IpFamily) -> Self {
        let iptables = read::rules(family);
        let mut unread: Vec<String> = iptables.unread.iter().map(ToString::to_string).collect();
        unread.extend(iptables.dormant.iter().map(ToString::to_string));
        let nft = Nftables::open().and_then(|nftables| Nft::read(nftables, family));
        let nft = match nft {
            Ok(nft) => {
                unread.extend(nft.notes().iter().cloned());
                Some(nft)
            }
            Err(Error::NoNftables) => None,
            Err(error) => {
                unread.push(format!("cannot read the rules of nf_tables: {error}"));
                None
            }
        };
        Self {
            iptables,
            nft,
            unread,
        }
    }

    fn all(&self) -> Vec<&dyn Ruleset> {
        let mut all: Vec<&dyn Ruleset> = Vec::new();
        for (_, tables) in &self.iptables.backends {
            all.push(tables);
        }
        if let Some(nft) = &self.nft {
            all.push(nft);
        }
        all
    }
}

impl Routing for LiveState {
    fn hop(&self, to: IpAddr) -> Option<Hop> {
        let question = RouteQuestion {
            destination: to,
            source: None,
            iif: None,
            mark: 0,
        };
        match self.kernel.route(&question).ok()? {
            Route::Local { .. } => Some(Hop {
                interface: Interface::LOOPBACK.to_owned(),
                is_service: self.is_on_service_link(to),
                is_local: true,
                is_neighbour: true,
                is_inner: true,
            }),
            Route::Out {
                interface, gateway, ..
            } => Some(Hop {
                is_inner: gateway.is_none() && self.leads_inside(&interface.name, to),
                interface: interface.name,
                is_service: false,
                is_local: false,
                is_neighbour: gateway.is_none(),
            }),
            Route::None { .. } => None,
        }
    }
}

impl LiveState {
    /// Reports whether `address` is a local address on a link of a kube-proxy mode (`kube-ipvs0`).
    fn is_on_service_link(&self, address: IpAddr) -> bool {
        footprint::links(self.modes).into_iter().any(|link| {
            let link = Interface {
                index: None,
                name: link.to_owned(),
            };
            // If the link does not exist, it has no addresses.
            let kind = self.kernel.address_type(address, Some(&link));
            kind.is_ok_and(|kind| kind == AddressType::Local)
        })
    }

    /// Reports whether an interface may lead to pods: a bridge or a veth that is not the interface
    /// of the default route.
    fn leads_inside(&self, interface: &str, to: IpAddr) -> bool {
        let outside = journeys::nobodys(to.is_ipv4());
        let question = RouteQuestion {
            destination: outside,
            source: None,
            iif: None,
            mark: 0,
        };
        let is_default = matches!(
            self.kernel.route(&question),
            Ok(Route::Out { interface: by, .. }) if by.name == interface
        );
        let kind = self.kernel.link_kind(interface).unwrap_or_default();
        !is_default && matches!(&*kind, "veth" | "bridge")
    }
}

impl EndpointReplies for LiveState {
    fn answers(&self, arrived: &Walk) -> Vec<Walk> {
        let rules = self.rules(arrived.packet.family());
        packet_path::answer(arrived, &rules.all(), &self.kernel)
    }

    fn listens(&self, at: SocketAddr, protocol: Protocol) -> Result<bool, String> {
        listeners::listens(at, protocol)
            .map_err(|error| format!("/proc/net cannot be read: {error}"))
    }
}

impl PacketTracer for LiveState {
    fn follow(&self, planned: &TracedPacket<'_>) -> Vec<Walk> {
        let from = match &planned.sender.way {
            PacketOrigin::Made(source) => Sender::Node(*source),
            PacketOrigin::Comes(interface, source) => {
                // Passes no interface if the route to the source uses the same one. The trace then
                // takes the interface from the route, which also has its index.
                let is_by_route = self
                    .hop(*source)
                    .is_some_and(|hop| hop.interface == *interface);
                let given = Interface {
                    index: None,
                    name: interface.clone(),
                };
                Sender::Other(*source, (!is_by_route).then_some(given))
            }
        };
        let question = Question {
            protocol: planned.protocol,
            from,
            to: planned.to,
            source_port: None,
        };
        let rules = self.rules(IpFamily::of(planned.to.ip()));
        packet_path::walk(&question, &rules.all(), &self.kernel)
    }

    fn unread(&self) -> Vec<String> {
        let read = [&self.v4, &self.v6].into_iter().filter_map(OnceCell::get);
        read.flat_map(|rules| rules.unread.iter().cloned())
            .collect()
    }
}
