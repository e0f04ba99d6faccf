//! Single things asked by name or by key, for who does not want to read a table whole: where a
//! table has 50,000 Services, one packet meets a dozen of its objects.

use netlink_batch::Refusal;

use crate::decode::{self, AnySet};
use crate::encode::{header, list_one};
use crate::error::Error;
use crate::nftables::Nftables;
use crate::object::{Element, FoundSet, Hooked};
use crate::value::{Bytes, Family};
use crate::wire::{command, element, message, set};

impl Nftables {
    /// The base chains of all tables of all families that this crate knows. The chains between are
    /// passed over as they come: there may be 100,000 of them.
    ///
    /// # Errors
    ///
    /// The socket's, or the kernel's refusal.
    pub fn hooked(&mut self) -> Result<Vec<Hooked>, Error> {
        Ok(self.connection.dump_into(
            message(command::GET_CHAIN),
            0,
            |w| header(w, 0),
            |all: &mut Vec<Hooked>, _, payload| {
                all.extend(decode::hooked(payload)?);
                Ok(())
            },
        )?)
    }

    /// A named set or map of a table, without its elements; `None` where there is no such set, or no
    /// such table.
    ///
    /// # Errors
    ///
    /// The socket's, or the kernel's refusal.
    pub fn set(
        &mut self,
        family: Family,
        table: &str,
        name: &str,
    ) -> Result<Option<FoundSet>, Error> {
        let answer = self.connection.request(message(command::GET_SET), 0, |w| {
            header(w, family as u8);
            w.attr_str(set::TABLE, table);
            w.attr_str(set::NAME, name);
        });
        let Some(answer) = unless_absent(answer)? else {
            return Ok(None);
        };
        for (_, payload) in answer.iter() {
            if let Some(AnySet::Named(found)) = decode::set_of(table, payload)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// The element of a set that a key is in: of this key, or of the range that it lies in. `None`
    /// where it is in none; also where there is no such set. One for all other keys (`*`) is asked
    /// for by [`Nftables::catch_all`].
    ///
    /// # Errors
    ///
    /// The socket's, or the kernel's refusal.
    pub fn element(
        &mut self,
        family: Family,
        table: &str,
        set: &str,
        key: &[u8],
    ) -> Result<Option<Element>, Error> {
        self.one_element(family, table, set, Some(key), 0)
    }

    /// Where the range ends that a key lies in, in a set of ranges of single values: the marker, whose
    /// key is no part of it. `None` where the range has no end, as it goes up to the last value.
    ///
    /// # Errors
    ///
    /// The socket's, or the kernel's refusal.
    pub fn interval_end(
        &mut self,
        family: Family,
        table: &str,
        set: &str,
        key: &[u8],
    ) -> Result<Option<Element>, Error> {
        // As `nft` asks: for the next key. By that which begins a range, Linux 6.1 gives the beginning.
        let Some(next) = next(key) else {
            return Ok(None);
        };
        let flags = element::INTERVAL_END;
        let found = self.one_element(family, table, set, Some(&next), flags)?;
        Ok(found
            .filter(|found| found.ends_interval || found.key == next)
            .map(|found| {
                // Where another range begins at the next key, this one ends there.
                Element {
                    key: found.key,
                    ends_interval: true,
                    ..Element::of_set(Bytes::new())
                }
            }))
    }

    /// The element of a set that all keys are in that are in no other (`*`, Linux 5.13); its key is
    /// empty. `None` where the set has none, or the kernel does not know of such.
    ///
    /// # Errors
    ///
    /// The socket's, or the kernel's refusal.
    pub fn catch_all(
        &mut self,
        family: Family,
        table: &str,
        set: &str,
    ) -> Result<Option<Element>, Error> {
        self.one_element(family, table, set, None, element::CATCH_ALL)
    }

    fn one_element(
        &mut self,
        family: Family,
        table: &str,
        set: &str,
        key: Option<&[u8]>,
        flags: u32,
    ) -> Result<Option<Element>, Error> {
        let kind = message(command::GET_ELEMENTS);
        let answer = self.connection.request(kind, 0, |w| {
            header(w, family as u8);
            list_one(w, table, set, key, flags);
        });
        let answer = match answer {
            Err(netlink_batch::Error::Refused(Refusal {
                errno: libc::EINVAL | libc::EOPNOTSUPP,
                ..
            })) if key.is_none() => return Ok(None),
            answer => unless_absent(answer)?,
        };
        for (_, payload) in answer.iter().flat_map(netlink_batch::Dump::iter) {
            if let Some(found) = decode::one_element(payload)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }
}

/// The key that follows, in the network's order; `None` behind the last.
fn next(key: &[u8]) -> Option<Bytes> {
    let mut next = Bytes::from_slice(key);
    for byte in next.iter_mut().rev() {
        let (more, carries) = byte.overflowing_add(1);
        *byte = more;
        if !carries {
            return Some(next);
        }
    }
    None
}

/// `None` of what is not there.
fn unless_absent<T>(answer: Result<T, netlink_batch::Error>) -> Result<Option<T>, Error> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(netlink_batch::Error::Refused(Refusal {
            errno: libc::ENOENT,
            ..
        })) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
