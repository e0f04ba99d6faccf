//! Encodes changes as messages.

use netlink_batch::{Batch, Writer};

use crate::configuration::Timeouts;
use crate::destination::{Destination, DestinationKey};
use crate::service::{Service, ServiceKey};
use crate::uapi::{self, command, top};

/// The number of the running kernel's IPVS family, for encoding messages. Each method appends one
/// message to a batch and returns its index.
///
/// The number is valid until the module is unloaded. Every change may be refused with `EINVAL` for
/// invalid values, `EPERM`, `EAFNOSUPPORT` for IPv6 in a kernel without it, or the errors named at
/// each method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Family(u16);

impl Family {
    /// Creates a family with this number, which [`Ipvs::open`](crate::Ipvs::open) queries.
    pub fn from_id(id: u16) -> Self {
        Self(id)
    }

    /// Returns the number: `nlmsg_type` of its messages.
    pub fn id(self) -> u16 {
        self.0
    }

    /// Adds a service. `EEXIST` if the key exists, `ENOENT` if there is no such scheduler or
    /// persistence engine.
    pub fn new_service(self, batch: &mut Batch, service: &Service) -> usize {
        self.service(batch, command::NEW_SERVICE, service)
    }

    /// Changes all but the key of a service. `ESRCH` if there is none, `ENOENT` as for a new one.
    pub fn set_service(self, batch: &mut Batch, service: &Service) -> usize {
        self.service(batch, command::SET_SERVICE, service)
    }

    /// Deletes a service and its destinations. `ESRCH` if there is none.
    pub fn del_service(self, batch: &mut Batch, key: &ServiceKey) -> usize {
        self.push(batch, command::DEL_SERVICE, |message| {
            message.nest(top::SERVICE, |nest| key.encode(nest));
        })
    }

    /// Adds a destination to a service. `EEXIST` if it has it, `ESRCH` if there is no such
    /// service, `ERANGE` for a weight over 2,147,483,647 or a lower threshold over the upper one,
    /// `EINVAL` for an address that is not unicast, of the wrong family, or in a network
    /// namespace that has no address yet, not even on its loopback device.
    pub fn new_destination(
        self,
        batch: &mut Batch,
        service: &ServiceKey,
        destination: &Destination,
    ) -> usize {
        self.destination(batch, command::NEW_DEST, service, destination)
    }

    /// Changes all but the key of a destination. `ENOENT` if the service does not have it,
    /// otherwise as for a new one.
    pub fn set_destination(
        self,
        batch: &mut Batch,
        service: &ServiceKey,
        destination: &Destination,
    ) -> usize {
        self.destination(batch, command::SET_DEST, service, destination)
    }

    /// Deletes a destination. Packets of its connections are dropped, until it returns or they
    /// time out; with the sysctl `net.ipv4.vs.expire_nodest_conn` the first packet ends them.
    /// `ENOENT` and `ESRCH` as for a change.
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

    /// Deletes all services.
    pub fn flush(self, batch: &mut Batch) -> usize {
        self.push(batch, command::FLUSH, |_| {})
    }

    /// Zeroes the counters of a service and its destinations (`ESRCH` if there is none), or all.
    pub fn zero(self, batch: &mut Batch, service: Option<&ServiceKey>) -> usize {
        self.push(batch, command::ZERO, |message| {
            if let Some(key) = service {
                message.nest(top::SERVICE, |nest| key.encode(nest));
            }
        })
    }

    /// Sets the timeouts of connections.
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
