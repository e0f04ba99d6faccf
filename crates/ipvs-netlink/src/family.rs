//! Encodes changes to virtual servers and destinations as netlink messages.

use netlink_batch::{Batch, Writer};

use crate::configuration::Timeouts;
use crate::destination::{Destination, DestinationKey};
use crate::service::{Service, ServiceKey};
use crate::uapi::{self, command, top};

/// Encoder of messages. Each method appends one message to a batch and returns the message's index.
///
/// The encoder contains the number that the running kernel has given to IPVS's generic netlink
/// family. This number is valid until the kernel unloads the module.
///
/// The kernel may refuse any change with `EINVAL` for invalid values, with `EPERM` without the
/// privilege, or with `EAFNOSUPPORT` if it lacks IPv6. The comment of each method lists further
/// errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Family(u16);

impl Family {
    /// Creates an encoder for the family number `id`, which [`Ipvs::open`](crate::Ipvs::open)
    /// queries from the kernel.
    pub fn from_id(id: u16) -> Self {
        Self(id)
    }

    /// Returns the family number: the `nlmsg_type` of every message.
    pub fn id(self) -> u16 {
        self.0
    }

    /// Adds a virtual server. Fails with `EEXIST` if the key exists, or `ENOENT` if the kernel
    /// lacks the scheduler or persistence engine.
    pub fn new_service(self, batch: &mut Batch, service: &Service) -> usize {
        self.service(batch, command::NEW_SERVICE, service)
    }

    /// Changes all parts of a virtual server except its key. Fails with `ESRCH` if the virtual
    /// server does not exist, or with `ENOENT` if the kernel lacks the scheduler or persistence
    /// engine.
    pub fn set_service(self, batch: &mut Batch, service: &Service) -> usize {
        self.service(batch, command::SET_SERVICE, service)
    }

    /// Deletes a virtual server and its destinations. Fails with `ESRCH` if the virtual server does
    /// not exist.
    pub fn del_service(self, batch: &mut Batch, key: &ServiceKey) -> usize {
        self.push(batch, command::DEL_SERVICE, |message| {
            message.nest(top::SERVICE, |nest| key.encode(nest));
        })
    }

    /// Adds a destination to a virtual server. The kernel refuses the destination with:
    ///
    /// * `EEXIST` if the virtual server already has the destination.
    /// * `ESRCH` if the virtual server does not exist.
    /// * `ERANGE` if the weight is over 2,147,483,647, or the lower threshold is over the upper
    ///   threshold.
    /// * `EINVAL` if the destination's address is not unicast or has the wrong family.
    /// * `EINVAL` if the network namespace has no address yet, not even on loopback.
    pub fn new_destination(
        self,
        batch: &mut Batch,
        service: &ServiceKey,
        destination: &Destination,
    ) -> usize {
        self.destination(batch, command::NEW_DEST, service, destination)
    }

    /// Changes all parts of a destination except its key. Fails with `ENOENT` if the virtual server
    /// does not have the destination. Otherwise, see [`new_destination`](Self::new_destination).
    pub fn set_destination(
        self,
        batch: &mut Batch,
        service: &ServiceKey,
        destination: &Destination,
    ) -> usize {
        self.destination(batch, command::SET_DEST, service, destination)
    }

    /// Deletes a destination. IPVS then drops packets of its connections until the destination
    /// returns or the connections time out. With the sysctl `net.ipv4.vs.expire_nodest_conn`, the
    /// first packet of a connection ends the connection instead. Fails with `ENOENT` if the virtual
    /// server does not have the destination, and with `ESRCH` if the virtual server does not exist.
    pub fn del_destination(
        self,
        batch: &mut Batch,
        service: &ServiceKey,
        destination: &DestinationKey,
    ) -> usize {
        self.push(batch, command::DEL_DEST, |message| {
            message.nest(top::SERVICE, |nest| service.encode(nest));
            message.nest(top::DEST, |nest| destination.encode(nest));
        })
    }

    /// Deletes all virtual servers with their destinations.
    pub fn flush(self, batch: &mut Batch) -> usize {
        self.push(batch, command::FLUSH, |_| {})
    }

    /// Zeroes the counters of one virtual server and its destinations, or of all virtual servers if
    /// `service` is `None`. Fails with `ESRCH` if the virtual server does not exist.
    pub fn zero(self, batch: &mut Batch, service: Option<&ServiceKey>) -> usize {
        self.push(batch, command::ZERO, |message| {
            if let Some(key) = service {
                message.nest(top::SERVICE, |nest| key.encode(nest));
            }
        })
    }

    /// Sets the timeouts of idle connections.
    pub fn set_timeouts(self, batch: &mut Batch, timeouts: &Timeouts) -> usize {
        self.push(batch, command::SET_CONFIG, |message| {
            message.attr_u32(top::TIMEOUT_TCP, timeouts.tcp);
            message.attr_u32(top::TIMEOUT_TCP_FIN, timeouts.tcp_fin);
            message.attr_u32(top::TIMEOUT_UDP, timeouts.udp);
        })
    }

    fn service(self, batch: &mut Batch, command: u8, service: &Service) -> usize {
        self.push(batch, command, |message| {
            message.nest(top::SERVICE, |nest| service.encode(nest));
        })
    }

    fn destination(
        self,
        batch: &mut Batch,
        command: u8,
        service: &ServiceKey,
        destination: &Destination,
    ) -> usize {
        self.push(batch, command, |message| {
            message.nest(top::SERVICE, |nest| service.encode(nest));
            message.nest(top::DEST, |nest| destination.encode(nest));
        })
    }

    fn push(
        self,
        batch: &mut Batch,
        command: u8,
        attributes: impl FnOnce(&mut Writer<'_>),
    ) -> usize {
        batch.push(self.0, 0, |message| {
            message.bytes(&uapi::header(command));
            attributes(message);
        })
    }
}
