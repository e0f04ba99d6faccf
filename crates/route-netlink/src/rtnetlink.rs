//! A connection to rtnetlink.

use libc::ENODEV;
use netlink_batch::{Batch, Connection, Error, NLM_F_CREATE, NLM_F_EXCL, Protocol, Refusal, Reply};
use netlink_packet_route::RouteNetlinkMessage;

use crate::Family;
use crate::address::{self, Address};
use crate::link::{self, AddressGeneration, Link, LinkState};
use crate::lookup::{self, Lookup, PacketRoute, RouteRefusal};
use crate::message::{push, write};
use crate::route::{self, LocalRoute, MainRoute};

/// A connection to rtnetlink, in the network namespace of the thread that opened it. Every call
/// blocks while the kernel works.
#[derive(Debug)]
pub struct Rtnetlink(Connection);

impl Rtnetlink {
    /// Opens a connection to rtnetlink in the calling thread's network namespace.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Open`] if the socket cannot be opened.
    pub fn open() -> Result<Self, Error> {
        Connection::open(Protocol::Route).map(Self)
    }

    /// Returns the number of messages that were sent since this connection was opened. The number
    /// wraps to 0 after `u32::MAX`.
    pub fn sent(&self) -> u32 {
        self.0.sent()
    }

    /// Sends all messages, and returns one reply per message. If the kernel refuses one message,
    /// the kernel still handles the remaining messages.
    ///
    /// # Errors
    ///
    /// Fails if sending or receiving fails ([`Connection::execute`]). The results are then unknown.
    pub fn execute(&mut self, batch: &Batch) -> Result<Vec<Reply>, Error> {
        self.0.execute(batch)
    }

    /// Returns the link with this name, or `None` if no link has it. Unlike an ioctl, this call
    /// does not make the kernel load a module for an unknown name.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses ([`Error::Refused`]), or if its reply is lost or malformed.
    pub fn link(&mut self, name: &str) -> Result<Option<Link>, Error> {
        let message = RouteNetlinkMessage::GetLink(link::named(name));
        let answer = match self.0.request(message.message_type(), 0, |writer| {
            write(writer, &message);
        }) {
            Err(error) if is_gone(&error) => return Ok(None),
            answer => answer?,
        };
        let (_, payload) = answer.iter().next().ok_or(Error::LostReply)?;
        Ok(Some(Link::parse(payload)?))
    }

    /// Creates a dummy link. The new link is down.
    ///
    /// # Errors
    ///
    /// - [`Error::Refused`] with `EEXIST`: a link has this name.
    /// - [`Error::Refused`] with `EOPNOTSUPP`: the kernel has no dummy links.
    /// - [`Error::Refused`] with `ERANGE`: the name is longer than 15 bytes.
    /// - [`Error::LostReply`]: the reply is lost.
    /// - Otherwise, see [`Rtnetlink::execute`].
    pub fn create_dummy(&mut self, name: &str) -> Result<(), Error> {
        let message = RouteNetlinkMessage::NewLink(link::dummy(name));
        self.write(NLM_F_CREATE | NLM_F_EXCL, &message)
    }

    /// Sets a link up or down. If a link is set down, the kernel removes its IPv6 addresses and all
    /// routes over it.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Refused`] with `ENODEV` if the link does not exist. Otherwise, see
    /// [`Rtnetlink::create_dummy`].
    pub fn set_link_state(&mut self, name: &str, state: LinkState) -> Result<(), Error> {
        let message = RouteNetlinkMessage::SetLink(link::in_state(name, state));
        self.write(0, &message)
    }

    /// Sets how the kernel generates the link-local IPv6 address of a link. The setting takes
    /// effect the next time that the link is set up.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Refused`] if the link does not exist, or if the kernel has no IPv6 or is
    /// older than Linux 3.17. Otherwise, see [`Rtnetlink::create_dummy`].
    pub fn set_address_generation(
        &mut self,
        name: &str,
        generation: AddressGeneration,
    ) -> Result<(), Error> {
        let message = RouteNetlinkMessage::SetLink(link::generating(name, generation));
        self.write(0, &message)
    }

    /// Deletes a link with its addresses and routes. Succeeds if the link does not exist.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Refused`] with `EOPNOTSUPP` for a hardware link. Otherwise, see
    /// [`Rtnetlink::create_dummy`].
    pub fn delete_link(&mut self, name: &str) -> Result<(), Error> {
        let message = RouteNetlinkMessage::DelLink(link::named(name));
        match self.write(0, &message) {
            Err(error) if is_gone(&error) => Ok(()),
            deleted => deleted,
        }
    }

    /// Returns the addresses of one family on all links.
    ///
    /// # Errors
    ///
    /// Fails if the kernel's reply cannot be read, or if addresses change during each attempt
    /// ([`Connection::dump`]).
    pub fn addresses(&mut self, family: Family) -> Result<Vec<Address>, Error> {
        self.dump_addresses(family, 0)
    }

    /// Returns the addresses of one family on a link, or an empty list if the link does not exist.
    ///
    /// # Errors
    ///
    /// See [`Rtnetlink::addresses`].
    pub fn addresses_of(&mut self, link: u32, family: Family) -> Result<Vec<Address>, Error> {
        match self.dump_addresses(family, link) {
            Err(error) if is_gone(&error) => Ok(Vec::new()),
            addresses => {
                let mut addresses = addresses?;
                // Kernels before Linux 4.20 do not filter the dump by link.
                addresses.retain(|address| address.link == link);
                Ok(addresses)
            }
        }
    }

    fn dump_addresses(&mut self, family: Family, link: u32) -> Result<Vec<Address>, Error> {
        let mut request = address::request(family);
        request.header.index = link;
        let request = RouteNetlinkMessage::GetAddress(request);
        self.dump(&request, |payload| {
            // A kernel without IPv6 returns the IPv4 addresses instead.
            let found = Address::parse(payload)?;
            Ok(found.filter(|found| Family::of(found.address) == family))
        })
    }

    /// Returns the local routes over any link whose origin (`RTPROT_*`) is `protocol`.
    ///
    /// # Errors
    ///
    /// See [`Rtnetlink::addresses`].
    pub fn local_routes(&mut self, family: Family, protocol: u8) -> Result<Vec<LocalRoute>, Error> {
        let request = RouteNetlinkMessage::GetRoute(route::request(family, protocol));
        self.dump(&request, |payload| {
            // Kernels before Linux 4.20 do not filter the dump.
            LocalRoute::parse(payload, family, protocol)
        })
    }

    /// Returns the destinations of the routes in the table `main`, except default routes.
    ///
    /// # Errors
    ///
    /// See [`Rtnetlink::addresses`].
    pub fn main_routes(&mut self, family: Family) -> Result<Vec<MainRoute>, Error> {
        let request = RouteNetlinkMessage::GetRoute(MainRoute::request(family));
        self.dump(&request, |payload| MainRoute::parse(payload, family))
    }

    /// Returns the route that the kernel chooses for a packet.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses the request ([`Error::Refused`]), for example with `ENODEV` for
    /// an unknown link. Also fails if its reply is lost or malformed.
    pub fn way(&mut self, asked: &Lookup) -> Result<Result<PacketRoute, RouteRefusal>, Error> {
        let message = RouteNetlinkMessage::GetRoute(asked.message());
        let kind = message.message_type();
        let ask = |writer: &mut netlink_batch::Writer<'_>| write(writer, &message);
        match self.0.request(kind, 0, ask) {
            Err(error) => lookup::answer(error).map(Err),
            Ok(answer) => {
                let (_, payload) = answer.iter().next().ok_or(Error::LostReply)?;
                Ok(Ok(PacketRoute::parse(payload)?))
            }
        }
    }

    fn dump<T>(
        &mut self,
        request: &RouteNetlinkMessage,
        parse: impl Fn(&[u8]) -> Result<Option<T>, netlink_batch::Malformed>,
    ) -> Result<Vec<T>, Error> {
        let kind = request.message_type();
        let ask = |writer: &mut netlink_batch::Writer<'_>| write(writer, request);
        self.0
            .dump_into(kind, 0, ask, |found: &mut Vec<T>, _, payload| {
                found.extend(parse(payload)?);
                Ok(())
            })
    }

    /// Sends one message. Returns an error if the kernel refuses the message or the reply is lost.
    fn write(&mut self, flags: u16, message: &RouteNetlinkMessage) -> Result<(), Error> {
        let mut batch = Batch::new();
        push(&mut batch, flags, message);
        match self.execute(&batch)?.pop() {
            Some(Reply::Done) => Ok(()),
            Some(Reply::Refused(refusal)) => Err(refusal.into()),
            Some(Reply::Unknown) | None => Err(Error::LostReply),
        }
    }
}

/// Returns true if the error means that the link does not exist.
fn is_gone(error: &Error) -> bool {
    matches!(error, Error::Refused(Refusal { errno: ENODEV, .. }))
}
