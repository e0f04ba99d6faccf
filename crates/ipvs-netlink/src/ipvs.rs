//! A connection to IPVS in the kernel.

use std::collections::HashSet;

use netlink_batch::{Attributes, Batch, Connection, Dump, Malformed, Protocol, Reply, Writer};

use crate::configuration::{Info, Timeouts};
use crate::destination::DestinationEntry;
use crate::error::Error;
use crate::family::Family;
use crate::service::{ServiceEntry, ServiceKey};
use crate::uapi::{self, command, top};

const ENOENT: i32 = 2;
const ESRCH: i32 = 3;

/// Constants of nlctrl, the generic netlink family that lists other families
/// (`include/uapi/linux/genetlink.h`).
mod control {
    pub(super) const ID: u16 = 16;
    /// Command `CTRL_CMD_GETFAMILY` with its version, as a `genlmsghdr`.
    pub(super) const GET_FAMILY: [u8; 4] = [3, 1, 0, 0];
    pub(super) const FAMILY_ID: u16 = 1;
    pub(super) const FAMILY_NAME: u16 = 2;
}

/// Virtual servers of one dump, without duplicates.
#[derive(Default)]
struct UniqueServices {
    entries: Vec<ServiceEntry>,
    keys: HashSet<ServiceKey>,
    /// True if the kernel returned any virtual server twice.
    has_repeats: bool,
}

impl UniqueServices {
    fn add(&mut self, entry: ServiceEntry) {
        if self.keys.insert(entry.service.key) {
            self.entries.push(entry);
        } else {
            self.has_repeats = true;
        }
    }
}

/// A connection to IPVS in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Ipvs {
    connection: Connection,
    family: Family,
}

impl Ipvs {
    /// Opens a connection. The query for the IPVS family makes the kernel load the module `ip_vs`
    /// if the module is installed.
    ///
    /// # Errors
    ///
    /// Returns [`Error::FamilyMissing`] if the kernel has no IPVS. Also fails if the socket fails.
    pub fn open() -> Result<Self, Error> {
        let mut connection = Connection::open(Protocol::Generic)?;
        let answer = connection.request(control::ID, 0, |message| {
            message.bytes(&control::GET_FAMILY);
            message.attr_str(control::FAMILY_NAME, uapi::NAME);
        });
        Ok(Self {
            family: Family::from_id(family_id(answer)?),
            connection,
        })
    }

    /// Returns the encoder of messages for [`Ipvs::execute`].
    pub fn family(&self) -> Family {
        self.family
    }

    /// Sends a batch. Returns one [`Reply`] per message, by index. See [`Connection::execute`].
    ///
    /// # Errors
    ///
    /// Fails if the socket fails. The results of all messages are then unknown. If the kernel
    /// refuses a message, the call succeeds and the message's [`Reply`] has the refusal.
    pub fn execute(&mut self, batch: &Batch) -> Result<Vec<Reply>, Error> {
        Ok(self.connection.execute(batch)?)
    }

    /// Returns the number of messages that were sent since this connection was opened. The number
    /// wraps to 0 after `u32::MAX`.
    pub fn sent(&self) -> u32 {
        self.connection.sent()
    }

    /// Returns the version of IPVS and the size of its connection table.
    ///
    /// # Errors
    ///
    /// Fails if the socket fails, the kernel refuses (`EPERM`), or the response is malformed.
    pub fn info(&mut self) -> Result<Info, Error> {
        let answer = self.get(command::GET_INFO, |_| {})?;
        Ok(Info::decode(first(&answer)?)?)
    }

    /// Returns all virtual servers of both address families, each once.
    ///
    /// The kernel responds in parts. To begin a part, it skips as many virtual servers as the
    /// earlier parts contained (`ip_vs_genl_dump_services`). It does not report a change to its
    /// hash table between two parts. Linux 7.2 (but not 6.12) moves all virtual servers to a larger
    /// or smaller table some time after their number changed. The next part then repeats some
    /// virtual servers and misses as many others. In this case, the call repeats the dump, a few
    /// times within 0.1 s. If another program keeps adding or removing virtual servers, the result
    /// may still miss some virtual servers.
    ///
    /// # Errors
    ///
    /// See [`Ipvs::info`].
    pub fn services(&mut self) -> Result<Vec<ServiceEntry>, Error> {
        let ask = |message: &mut Writer<'_>| message.bytes(&uapi::header(command::GET_SERVICE));
        let take = |found: &mut UniqueServices, _, payload: &[u8]| {
            found.add(ServiceEntry::decode(payload)?);
            Ok(())
        };
        let id = self.family.id();
        let is_consistent = |found: &UniqueServices| !found.has_repeats;
        let found = self
            .connection
            .dump_verified_into(id, 0, ask, take, is_consistent)?;
        Ok(found.entries)
    }

    /// Returns the virtual server with this key, if it exists.
    ///
    /// # Errors
    ///
    /// See [`Ipvs::info`].
    pub fn service(&mut self, key: &ServiceKey) -> Result<Option<ServiceEntry>, Error> {
        let answer = self.get(command::GET_SERVICE, |message| {
            message.nest(top::SERVICE, |nest| key.encode(nest));
        });
        match answer {
            Ok(answer) => Ok(Some(ServiceEntry::decode(first(&answer)?)?)),
            Err(netlink_batch::Error::Refused(refusal)) if refusal.errno == ESRCH => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the destinations of a virtual server, or an empty list if the virtual server does
    /// not exist. The kernel responds in parts, as for [`Ipvs::services`].
    ///
    /// # Errors
    ///
    /// See [`Ipvs::info`].
    pub fn destinations(&mut self, key: &ServiceKey) -> Result<Vec<DestinationEntry>, Error> {
        let ask = |message: &mut Writer<'_>| {
            message.bytes(&uapi::header(command::GET_DEST));
            message.nest(top::SERVICE, |nest| key.encode(nest));
        };
        let take = |all: &mut Vec<_>, _, payload: &[u8]| {
            all.push(DestinationEntry::decode(payload, key.family())?);
            Ok(())
        };
        Ok(self.connection.dump_into(self.family.id(), 0, ask, take)?)
    }

    /// Returns the timeouts of idle connections.
    ///
    /// # Errors
    ///
    /// See [`Ipvs::info`].
    pub fn timeouts(&mut self) -> Result<Timeouts, Error> {
        let answer = self.get(command::GET_CONFIG, |_| {})?;
        Ok(Timeouts::decode(first(&answer)?)?)
    }

    /// Sets the timeouts of idle connections.
    ///
    /// # Errors
    ///
    /// Fails with `EINVAL` if a timeout is too large for the kernel. Otherwise, see [`Ipvs::info`].
    pub fn set_timeouts(&mut self, timeouts: &Timeouts) -> Result<(), Error> {
        self.one(|family, batch| family.set_timeouts(batch, timeouts))
    }

    /// Deletes all virtual servers with their destinations.
    ///
    /// # Errors
    ///
    /// See [`Ipvs::info`].
    pub fn flush(&mut self) -> Result<(), Error> {
        self.one(Family::flush)
    }

    /// Zeroes the counters of one virtual server and its destinations, or of all virtual servers if
    /// `service` is `None`.
    ///
    /// # Errors
    ///
    /// Fails with `ESRCH` if the virtual server does not exist. Otherwise, see [`Ipvs::info`].
    pub fn zero(&mut self, service: Option<&ServiceKey>) -> Result<(), Error> {
        self.one(|family, batch| family.zero(batch, service))
    }

    fn get(
        &mut self,
        command: u8,
        attributes: impl Fn(&mut Writer<'_>),
    ) -> Result<Dump, netlink_batch::Error> {
        self.connection.request(self.family.id(), 0, |message| {
            message.bytes(&uapi::header(command));
            attributes(message);
        })
    }

    fn one(&mut self, push: impl FnOnce(Family, &mut Batch) -> usize) -> Result<(), Error> {
        let mut batch = Batch::new();
        push(self.family, &mut batch);
        match self.connection.execute(&batch)?.pop() {
            Some(Reply::Done) => Ok(()),
            Some(Reply::Refused(refusal)) => Err(refusal.into()),
            Some(Reply::Unknown) | None => Err(netlink_batch::Error::LostReply.into()),
        }
    }
}

fn first(answer: &Dump) -> Result<&[u8], netlink_batch::Error> {
    // If the dump is empty, the kernel has acknowledged the request, but its response is missing.
    answer
        .iter()
        .next()
        .map(|(_, payload)| payload)
        .ok_or(netlink_batch::Error::LostReply)
}

fn family_id(answer: Result<Dump, netlink_batch::Error>) -> Result<u16, Error> {
    let answer = match answer {
        Err(netlink_batch::Error::Refused(refusal)) if refusal.errno == ENOENT => {
            return Err(Error::FamilyMissing);
        }
        answer => answer?,
    };
    for attribute in Attributes::after(uapi::HEADER, first(&answer)?)? {
        let attribute = attribute?;
        if attribute.kind == control::FAMILY_ID {
            return Ok(attribute.u16()?);
        }
    }
    Err(Malformed::Missing {
        kind: control::FAMILY_ID,
        name: "CTRL_ATTR_FAMILY_ID",
    }
    .into())
}

#[cfg(test)]
mod tests {
    use netlink_batch::Refusal;

    use super::*;

    #[test]
    fn the_error_for_missing_ipvs_support_names_the_modprobe_command() {
        let refused = |errno| {
            Err(Refusal {
                errno,
                message: None,
                request: Vec::new(),
            }
            .into())
        };
        let error = family_id(refused(ENOENT)).unwrap_err();
        assert!(matches!(error, Error::FamilyMissing));
        assert!(error.to_string().contains("`modprobe ip_vs`"), "{error}");
        assert!(matches!(family_id(refused(ESRCH)), Err(Error::Netlink(_))));
        assert!(matches!(
            family_id(Ok(Dump::default())),
            Err(Error::Netlink(netlink_batch::Error::LostReply))
        ));
    }
}
