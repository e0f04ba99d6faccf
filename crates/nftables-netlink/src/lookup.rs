//! Looks up single objects by name or by key.
//!
//! The rules for one packet use only a dozen objects of a table. Reading the whole table would take
//! too long, because the table may contain 50,000 Services.

use netlink_batch::{Dump, Refusal};

use crate::decode::{self, AnySet};
use crate::encode::{header, list_one};
use crate::error::{Error, unless_absent};
use crate::nftables::Nftables;
use crate::object::{Element, HookedChain, KernelSet};
use crate::value::{Bytes, Family};
use crate::wire::{command, element, message, set};

impl Nftables {
    /// Returns the base chains of all tables, in all families that this crate supports. Discards
    /// each regular chain when it arrives, because a node may have 100,000 of them.
    ///
    /// # Errors
    ///
    /// Fails if the socket fails, or if the kernel refuses the request.
    pub fn base_chains(&mut self) -> Result<Vec<HookedChain>, Error> {
        Ok(self.connection.dump_into(
            message(command::GET_CHAIN),
            0,
            |w| header(w, 0),
            |all: &mut Vec<HookedChain>, _, payload| {
                all.extend(decode::hooked(payload)?);
                Ok(())
            },
        )?)
    }

    /// Returns a named set or map without its elements, or `None` if the set or its table does not
    /// exist.
    ///
    /// # Errors
    ///
    /// Fails if the socket fails, or if the kernel refuses the request.
    pub fn set(
        &mut self,
        family: Family,
        table: &str,
        name: &str,
    ) -> Result<Option<KernelSet>, Error> {
        let answer = self.set_message(family, table, name);
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

    /// Requests one set by name, without its elements, and returns the kernel's reply.
    pub(crate) fn set_message(
        &mut self,
        family: Family,
        table: &str,
        name: &str,
    ) -> Result<Dump, netlink_batch::Error> {
        self.connection.request(message(command::GET_SET), 0, |w| {
            header(w, family as u8);
            w.attr_str(set::TABLE, table);
            w.attr_str(set::NAME, name);
        })
    }

    /// Returns the element that matches a key: the element with this key, or the range that
    /// contains the key. Returns `None` if no element matches, or if the set does not exist.
    /// [`Nftables::catch_all`] returns the catch-all element (`*`).
    ///
    /// # Errors
    ///
    /// Fails if the socket fails, or if the kernel refuses the request.
    pub fn element(
        &mut self,
        family: Family,
        table: &str,
        set: &str,
        key: &[u8],
    ) -> Result<Option<Element>, Error> {
        self.one_element(family, table, set, Some(key), 0)
    }

    /// Returns the end marker of the range that contains a key, in a set whose keys are not
    /// concatenations. The marker's key is the first key after the range. Returns `None` if the
    /// range extends to the last value.
    ///
    /// # Errors
    ///
    /// Fails if the socket fails, or if the kernel refuses the request.
    pub fn interval_end(
        &mut self,
        family: Family,
        table: &str,
        set: &str,
        key: &[u8],
    ) -> Result<Option<Element>, Error> {
        // Requests the next key, as `nft` does. For a key that begins a range, Linux 6.1 would
        // return the range's beginning instead of its end.
        let Some(next) = next(key) else {
            return Ok(None);
        };
        let flags = element::INTERVAL_END;
        let found = self.one_element(family, table, set, Some(&next), flags)?;
        Ok(found
            .filter(|found| found.ends_interval || found.key == next)
            .map(|found| {
                // If another range begins at the next key, the kernel returns the beginning of that
                // range. The requested range also ends there.
                Element {
                    key: found.key,
                    ends_interval: true,
                    ..Element::of_set(Bytes::new())
                }
            }))
    }

    /// Returns the catch-all element of a set (`*`, Linux 5.13), which matches every key that no
    /// other element matches. The returned key is empty. Returns `None` if the set has no catch-all
    /// element, or if the kernel does not support it.
    ///
    /// # Errors
    ///
    /// Fails if the socket fails, or if the kernel refuses the request.
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
        for (_, payload) in answer.iter().flat_map(Dump::iter) {
            if let Some(found) = decode::one_element(payload)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }
}

/// Returns the next higher key in network order, or `None` after the last key.
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
