//! The kernel interface of userspace mode: listening ports, redirects, and the node's addresses.

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
use crate::part_state::RedirectState;
use crate::plan::{Redirects, Refusal, SocketError};
use crate::port::Listener;
use crate::redirect::Redirect;
use crate::redirect::iptables::IptablesRedirect;
use crate::redirect::nftables::NftablesRedirect;
use crate::traffic::Traffic;
use relay::{ListeningPort, PortBackends, Relay, Transport};

/// Largest number of unsuitable ports that the search for a free port opens before it fails.
const TRIES: usize = 16;

/// Kernel operations of this mode for one IP family. There are two implementations: the real kernel
/// with a relay, and a strict fake.
pub trait Kernel: Send + 'static {
    /// Returns the addresses of all interfaces, including loopback addresses.
    ///
    /// # Errors
    ///
    /// Fails if the addresses cannot be read.
    fn addresses(&mut self) -> Result<BTreeSet<IpAddr>, Unreadable>;

    /// Returns the redirects in the kernel.
    ///
    /// # Errors
    ///
    /// Fails if the redirects cannot be read.
    fn redirects(&mut self, config: &Config) -> Result<RedirectState, Unreadable>;

    /// Writes all redirects of a plan, or none.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses the plan.
    fn redirect(&mut self, plan: &Redirects) -> Result<(), Refusal>;

    /// Sets the endpoints to which the relay sends the connections of a listening port. Returns the
    /// port's number, or `None` if the port is not open.
    ///
    /// # Errors
    ///
    /// Fails if the relay has ended.
    fn update(
        &mut self,
        listener: &Listener,
        serving: &Arc<PortBackends>,
    ) -> Result<Option<u16>, SocketError>;

    /// Opens a listening port and returns its number. Uses the number `again` if that port is free.
    /// Otherwise, uses a number that `avoided` does not contain.
    ///
    /// # Errors
    ///
    /// Fails if the port cannot be opened. [`SocketError::Now`] means that currently no other port
    /// of this protocol can be opened either.
    fn open(
        &mut self,
        listener: &Listener,
        serving: &Arc<PortBackends>,
        again: Option<u16>,
        avoided: &HashSet<(Protocol, u16)>,
    ) -> Result<u16, SocketError>;

    /// Closes a listening port. Its open TCP connections continue for the relay's drain time.
    ///
    /// # Errors
    ///
    /// Fails if the relay has ended.
    fn close(&mut self, listener: &Listener) -> Result<(), SocketError>;
}

/// Access to the real kernel, with a relay that serves the listening ports.
pub struct UserspaceKernel {
    family: IpFamily,
    redirect: Box<dyn Redirect>,
    relay: Relay,
    opened: HashMap<Listener, ListeningPort>,
    traffic: Traffic,
    /// Names of the links that kube-proxy modes create. Addresses on these links are service
    /// addresses instead of addresses of the node.
    links: Vec<&'static str>,
}

impl UserspaceKernel {
    /// Creates access to the kernel for one IP family, with redirects in iptables.
    /// [`Iptables::check`] must have succeeded.
    pub fn with_iptables(family: IpFamily, iptables: Iptables, relay: Relay) -> Self {
        let redirect = Box::new(IptablesRedirect::new(family, iptables));
        Self::new(family, redirect, relay)
    }

    fn new(family: IpFamily, redirect: Box<dyn Redirect>, relay: Relay) -> Self {
        Self {
            family,
            redirect,
            relay,
            opened: HashMap::new(),
            traffic: Traffic::default(),
            links: Vec::new(),
        }
    }

    /// Excludes service addresses from the node's addresses: those on links that these modes
    /// create.
    #[must_use]
    pub fn among(mut self, modes: Footprints) -> Self {
        self.links = footprint::links(modes);
        self
    }

    /// Publishes the counters of listening ports in `traffic`.
    #[must_use]
    pub fn counted_in(mut self, traffic: &Traffic) -> Self {
        self.traffic = traffic.clone();
        self
    }

    /// Creates access to the kernel for one IP family, with redirects in an nf\_tables table. Needs
    /// no iptables program and no iptables kernel module.
    ///
    /// # Errors
    ///
    /// Fails if the kernel lacks nf\_tables, or if the process lacks a privilege.
    pub fn with_nftables(
        family: IpFamily,
        relay: Relay,
        own: &Arc<OwnSockets>,
    ) -> Result<Self, nftables_netlink::Error> {
        let redirect = Box::new(NftablesRedirect::open(family, own)?);
        Ok(Self::new(family, redirect, relay))
    }

    /// Opens a listening port on all addresses of this IP family. If `number` is 0, the kernel
    /// chooses the port number.
    fn open_at(
        &self,
        number: u16,
        transport: Transport,
        name: &Arc<str>,
        serving: &Arc<PortBackends>,
    ) -> io::Result<ListeningPort> {
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
        serving: &Arc<PortBackends>,
        avoided: &HashSet<(Protocol, u16)>,
    ) -> Result<ListeningPort, SocketError> {
        let (name, protocol) = (listener.name.to_string().into(), listener.name.protocol);
        // Closes unsuitable ports only after the search. If they were closed earlier, the kernel
        // could choose them again.
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
            // Ignores an error: if the relay has ended, its ports are closed already.
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

    fn redirects(&mut self, config: &Config) -> Result<RedirectState, Unreadable> {
        self.redirect.read(config)
    }

    fn redirect(&mut self, plan: &Redirects) -> Result<(), Refusal> {
        self.redirect.write(plan)
    }

    fn update(
        &mut self,
        listener: &Listener,
        serving: &Arc<PortBackends>,
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
        serving: &Arc<PortBackends>,
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
            // Ignores an error, because another process may use this port number now. Then searches
            // for another number.
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
