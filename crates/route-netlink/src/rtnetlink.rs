//! The connection.

use libc::ENODEV;
use netlink_batch::{Batch, Connection, Error, NLM_F_CREATE, NLM_F_EXCL, Protocol, Refusal, Reply};
use netlink_packet_route::RouteNetlinkMessage;

use crate::Family;
use crate::address::{self, Address};
use crate::link::{self, AddressGeneration, Link, LinkState};
use crate::lookup::{self, Lookup, NoWay, Way};
use crate::message::{push, write};
use crate::route::{self, LocalRoute};

/// A connection to rtnetlink. Its calls block for as long as the kernel works; it belongs to the
/// network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Rtnetlink(Connection);

impl Rtnetlink {
    /// Opens a connection.
    ///
    /// # Errors
    ///
    /// [`Error::Open`]: there is no socket.
    pub fn open() -> Result<Self, Error> {
        Connection::open(Protocol::Route).map(Self)
    }

    /// How many messages this has sent; counts on from 0 after `u32::MAX`.
    pub fn sent(&self) -> u32 {
        self.0.sent()
    }

    /// Sends all messages; what became of each. A refused one does not stop those after it.
    ///
    /// # Errors
    ///
    /// Sending or receiving failed ([`Connection::execute`]): what was done is not known.
    pub fn execute(&mut self, batch: &Batch) -> Result<Vec<Reply>, Error> {
        self.0.execute(batch)
    }

    /// The link of this name, if there is one. Asked so, the kernel loads no module for a name that
    /// it does not know, as it does when asked by ioctl.
    ///
    /// # Errors
    ///
    /// The kernel refuses to say ([`Error::Refused`]), or its answer is lost or cannot be
    /// understood.
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

    /// Creates a dummy link, which is down.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`]: `EEXIST` if a link has this name, `EOPNOTSUPP` if the kernel has no
    /// dummy links, `ERANGE` if the name is longer than 15 bytes. Otherwise those of
    /// [`Rtnetlink::execute`], and [`Error::LostReply`].
    pub fn create_dummy(&mut self, name: &str) -> Result<(), Error> {
        let message = RouteNetlinkMessage::NewLink(link::dummy(name));
        self.write(NLM_F_CREATE | NLM_F_EXCL, &message)
    }

    /// Sets a link up or down. With the latter its IPv6 addresses go, and all routes over it.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`]: `ENODEV` if there is no such link. Otherwise as
    /// [`Rtnetlink::create_dummy`].
    pub fn set_link_state(&mut self, name: &str, state: LinkState) -> Result<(), Error> {
        let message = RouteNetlinkMessage::SetLink(link::in_state(name, state));
        self.write(0, &message)
    }

    /// Says which link-local address the link gets when it is set up the next time.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`]: there is no such link, the kernel has no IPv6, or is older than Linux
    /// 3.17. Otherwise as [`Rtnetlink::create_dummy`].
    pub fn set_address_generation(
        &mut self,
        name: &str,
        generation: AddressGeneration,
    ) -> Result<(), Error> {
        let message = RouteNetlinkMessage::SetLink(link::generating(name, generation));
        self.write(0, &message)
    }

    /// Deletes a link with its addresses and routes. What is gone already is deleted.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`]: `EOPNOTSUPP` if it is hardware. Otherwise as
    /// [`Rtnetlink::create_dummy`].
    pub fn delete_link(&mut self, name: &str) -> Result<(), Error> {
        let message = RouteNetlinkMessage::DelLink(link::named(name));
        match self.write(0, &message) {
            Err(error) if is_gone(&error) => Ok(()),
            deleted => deleted,
        }
    }

    /// The addresses of all links.
    ///
    /// # Errors
    ///
    /// They cannot be read, or changed during each attempt ([`Connection::dump`]).
    pub fn addresses(&mut self, family: Family) -> Result<Vec<Address>, Error> {
        self.dump_addresses(family, 0)
    }

    /// The addresses of one link; none if there is no such link.
    ///
    /// # Errors
    ///
    /// As [`Rtnetlink::addresses`].
    pub fn addresses_of(&mut self, link: u32, family: Family) -> Result<Vec<Address>, Error> {
        match self.dump_addresses(family, link) {
            Err(error) if is_gone(&error) => Ok(Vec::new()),
            addresses => {
                let mut addresses = addresses?;
                // Before Linux 4.20 the kernel does not filter.
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
            // A kernel without IPv6 answers with what it has.
            let found = Address::parse(payload)?;
            Ok(found.filter(|found| Family::of(found.address) == family))
        })
    }

    /// The local routes that a protocol has made, over all links.
    ///
    /// # Errors
    ///
    /// As [`Rtnetlink::addresses`].
    pub fn local_routes(&mut self, family: Family, protocol: u8) -> Result<Vec<LocalRoute>, Error> {
        let request = RouteNetlinkMessage::GetRoute(route::request(family, protocol));
        self.dump(&request, |payload| {
            // Before Linux 4.20 the kernel does not filter.
            LocalRoute::parse(payload, family, protocol)
        })
    }

    /// The way that a packet takes, as the kernel's routing decides it.
    ///
    /// # Errors
    ///
    /// The kernel refuses to say ([`Error::Refused`]), as where it has no link of this index
    /// (`ENODEV`), or its answer is lost or cannot be understood.
    pub fn way(&mut self, asked: &Lookup) -> Result<Result<Way, NoWay>, Error> {
        let message = RouteNetlinkMessage::GetRoute(asked.message());
        let kind = message.message_type();
        let ask = |writer: &mut netlink_batch::Writer<'_>| write(writer, &message);
        match self.0.request(kind, 0, ask) {
            Err(error) => lookup::answer(error).map(Err),
            Ok(answer) => {
                let (_, payload) = answer.iter().next().ok_or(Error::LostReply)?;
                Ok(Ok(Way::parse(payload)?))
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

    /// Sends one message and says what became of it.
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

/// Whether the kernel says that there is no such link.
fn is_gone(error: &Error) -> bool {
    matches!(error, Error::Refused(Refusal { errno: ENODEV, .. }))
}
