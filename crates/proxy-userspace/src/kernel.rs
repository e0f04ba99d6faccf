//! The kernel as this mode sees it: listening ports, redirects, and the node's addresses.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use footprint::Footprints;
use hashbrown::{HashMap, HashSet};
use iptables::Iptables;
use nftables_netlink::OwnSockets;
use proxy::{IpFamily, Protocol, Unreadable};

use crate::config::Config;
use crate::held::Held;
use crate::plan::{Redirects, Refusal, SocketError};
use crate::port::Listener;
use crate::redirect::Redirect;
use crate::redirect::iptables::IptablesRedirect;
use crate::redirect::nftables::NftablesRedirect;
use crate::traffic::Traffic;
use relay::{Opened, Relay, Serving, Transport};

/// How many ports are opened in search for one that is not to be avoided.
const TRIES: usize = 16;

/// What can be read and written, for one IP family. Two implementations: the kernel with a relay,
/// and a strict fake.
pub trait Kernel: Send + 'static {
    /// The addresses of all interfaces of this node, those of localhost included.
    ///
    /// # Errors
    ///
    /// They cannot be read.
    fn addresses(&mut self) -> Result<BTreeSet<IpAddr>, Unreadable>;

    /// What is redirected.
    ///
    /// # Errors
    ///
    /// It cannot be read.
    fn redirects(&mut self, config: &Config) -> Result<Held, Unreadable>;

    /// Carries out what a plan says of redirects, whole or not at all.
    ///
    /// # Errors
    ///
    /// It was not taken.
    fn redirect(&mut self, plan: &Redirects) -> Result<(), Refusal>;

    /// Says who serves from now on at a listening port, if it is open. Its number.
    ///
    /// # Errors
    ///
    /// Nobody serves there any more: the relay has ended.
    fn update(
        &mut self,
        listener: &Listener,
        serving: &Arc<Serving>,
    ) -> Result<Option<u16>, SocketError>;

    /// Opens a listening port that is not open: the one with the number `again` if that can be had,
    /// else at none of the `avoided` ones. Its number.
    ///
    /// # Errors
    ///
    /// It cannot be opened. [`SocketError::Now`] is so for all of its protocol.
    fn open(
        &mut self,
        listener: &Listener,
        serving: &Arc<Serving>,
        again: Option<u16>,
        avoided: &HashSet<(Protocol, u16)>,
    ) -> Result<u16, SocketError>;

    /// Closes a listening port. Connections go on.
    ///
    /// # Errors
    ///
    /// There is none to be closed any more: the relay has ended.
    fn close(&mut self, listener: &Listener) -> Result<(), SocketError>;
}

/// The kernel, and a relay.
pub struct UserspaceKernel {
    family: IpFamily,
    redirect: Box<dyn Redirect>,
    relay: Relay,
    opened: HashMap<Listener, Opened>,
    traffic: Traffic,
    /// Of modes; what they hold are no addresses of the node.
    links: Vec<&'static str>,
}

impl UserspaceKernel {
    /// For one family, which iptables can write ([`Iptables::check`]).
    pub fn with_iptables(family: IpFamily, iptables: Iptables, relay: Relay) -> Self {
        Self {
            family,
            redirect: Box::new(IptablesRedirect::new(family, iptables)),
            relay,
            opened: HashMap::new(),
            traffic: Traffic::default(),
            links: Vec::new(),
        }
    }

    /// The same that takes what the links of these modes hold for no addresses of the node.
    #[must_use]
    pub fn among(mut self, modes: Footprints) -> Self {
        self.links = footprint::links(modes);
        self
    }

    /// Tells there what its listening ports count.
    #[must_use]
    pub fn counted_in(mut self, traffic: &Traffic) -> Self {
        self.traffic = traffic.clone();
        self
    }

    /// For one family, by a table in nf\_tables: neither a program nor a module of iptables.
    ///
    /// # Errors
    ///
    /// The kernel has no nf\_tables, or a right is missing.
    pub fn with_nftables(
        family: IpFamily,
        relay: Relay,
        own: &Arc<OwnSockets>,
    ) -> Result<Self, nftables_netlink::Error> {
        Ok(Self {
            family,
            redirect: Box::new(NftablesRedirect::open(family, own)?),
            relay,
            opened: HashMap::new(),
            traffic: Traffic::default(),
            links: Vec::new(),
        })
    }

    /// Opens a port at any address: with this number, or one that the system chooses.
    fn open_at(
        &self,
        number: u16,
        transport: Transport,
        name: &Arc<str>,
        serving: &Arc<Serving>,
    ) -> io::Result<Opened> {
        let any: IpAddr = match self.family {
            IpFamily::V4 => Ipv4Addr::UNSPECIFIED.into(),
            IpFamily::V6 => Ipv6Addr::UNSPECIFIED.into(),
        };
        let at = SocketAddr::new(any, number);
        self.relay.open(transport, at, name, Arc::clone(serving))
    }

    fn open_at_any(
        &self,
        transport: Transport,
        listener: &Listener,
        serving: &Arc<Serving>,
        avoided: &HashSet<(Protocol, u16)>,
    ) -> Result<Opened, SocketError> {
        let (name, protocol) = (listener.name.to_string().into(), listener.name.protocol);
        // Those that are to be avoided stay open meanwhile: else they would come again.
        let mut left = Vec::new();
        let found = loop {
            match self.open_at(0, transport, &name, serving) {
                Ok(opened) if !avoided.contains(&(protocol, opened.at.port())) => {
                    break Ok(opened);
                }
                Ok(opened) if left.len() < TRIES => left.push(opened),
                Ok(opened) => {
                    left.push(opened);
                    let reason = "rules of a process before us lead to every port that is free";
                    break Err(SocketError::Now(reason.to_owned()));
                }
                Err(error) => break Err(SocketError::Now(error.to_string())),
            }
        };
        for opened in left {
            // If it has ended, they are closed.
            let _ = self.relay.close(opened.number);
        }
        found
    }
}

impl Kernel for UserspaceKernel {
    fn addresses(&mut self) -> Result<BTreeSet<IpAddr>, Unreadable> {
        route_netlink::all_addresses(self.family, &self.links)
            .map_err(|error| Unreadable::new("the addresses of this node", error))
    }

    fn redirects(&mut self, config: &Config) -> Result<Held, Unreadable> {
        self.redirect.read(config)
    }

    fn redirect(&mut self, plan: &Redirects) -> Result<(), Refusal> {
        self.redirect.write(plan)
    }

    fn update(
        &mut self,
        listener: &Listener,
        serving: &Arc<Serving>,
    ) -> Result<Option<u16>, SocketError> {
        let Some(opened) = self.opened.get(listener) else {
            return Ok(None);
        };
        let updated = self.relay.update(opened.number, Arc::clone(serving));
        updated.map_err(|error| SocketError::Now(error.to_string()))?;
        self.traffic.update(self.family, listener, serving);
        Ok(Some(opened.at.port()))
    }

    fn open(
        &mut self,
        listener: &Listener,
        serving: &Arc<Serving>,
        again: Option<u16>,
        avoided: &HashSet<(Protocol, u16)>,
    ) -> Result<u16, SocketError> {
        let protocol = listener.name.protocol;
        let transport = match protocol {
            Protocol::Tcp => Transport::Tcp,
            Protocol::Udp => Transport::Udp,
            Protocol::Sctp => {
                return Err(SocketError::Never(
                    "userspace mode carries TCP and UDP, and no SCTP: choose another mode for it",
                ));
            }
        };
        let again = again.and_then(|number| {
            let name = listener.name.to_string().into();
            // Somebody may have it by now.
            self.open_at(number, transport, &name, serving).ok()
        });
        let opened = match again {
            Some(opened) => opened,
            None => self.open_at_any(transport, listener, serving, avoided)?,
        };
        let number = opened.at.port();
        self.traffic.insert(self.family, listener, &opened, serving);
        self.opened.insert(listener.clone(), opened);
        Ok(number)
    }

    fn close(&mut self, listener: &Listener) -> Result<(), SocketError> {
        let Some(opened) = self.opened.remove(listener) else {
            return Ok(());
        };
        self.traffic.remove(self.family, listener);
        let closed = self.relay.close(opened.number);
        closed.map_err(|error| SocketError::Now(error.to_string()))
    }
}
