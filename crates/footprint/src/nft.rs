//! Finds and removes the nftables tables that modes have created.
//!
//! In each IP family, a mode has all its nftables objects in one table. So one request removes all
//! its chains, sets and maps.
//!
//! Source: upstream's `pkg/proxy/nftables/cleanup.go`.

use inet::IpFamily;
use nftables_netlink::{Change, CommitError, Error, Nftables, Transaction};

/// Failure to find or remove an nftables table.
#[derive(Debug, thiserror::Error)]
#[error(
    "{source}; look at it with `nft list table {family} {table}` and remove it with `nft delete table {family} {table}`"
)]
pub struct NftError {
    source: CommitError,
    /// Address family of the table, as `nft` writes it: `ip` or `ip6`.
    family: &'static str,
    table: &'static str,
}

/// Reports whether a table exists in the network namespace of the calling thread. The query makes
/// the kernel load `nf_tables`, as `iptables-nft-save` does.
///
/// # Errors
///
/// Fails if the query to the kernel fails.
pub fn has_table(family: IpFamily, table: &'static str) -> Result<bool, NftError> {
    let opened = open_with(family, table);
    let opened = opened.map_err(|error| failed(error.into(), family, table))?;
    Ok(opened.is_some())
}

/// Opens a netlink socket for requests about a table. Returns `None` if the table does not exist.
///
/// # Errors
///
/// Fails if the query to the kernel fails.
pub fn open_with(family: IpFamily, table: &str) -> Result<Option<Nftables>, Error> {
    let mut nftables = match Nftables::open() {
        Err(Error::NoNftables) => return Ok(None),
        opened => opened?,
    };
    let tables = match nftables.tables(Some(family.into())) {
        Err(Error::NoNftables) => return Ok(None),
        tables => tables?,
    };
    let is_there = tables.iter().any(|found| *found.name == *table);
    Ok(is_there.then_some(nftables))
}

/// Removes an nftables table with its contents. Succeeds if the table does not exist.
///
/// # Errors
///
/// Fails if the kernel does not remove the table. The error contains the reason.
pub fn remove_table(family: IpFamily, table: &'static str) -> Result<(), NftError> {
    let removal = Transaction {
        family: family.into(),
        table: table.into(),
        changes: vec![Change::DeleteTable],
    };
    let removed = match Nftables::open() {
        Ok(mut nftables) => nftables.commit(&removal, None),
        Err(Error::NoNftables) => return Ok(()),
        Err(error) => Err(error.into()),
    };
    match removed {
        Ok(_) => Ok(()),
        Err(CommitError::Refused { refused, .. })
            if refused
                .iter()
                .all(|change| change.refusal.errno == libc::ENOENT) =>
        {
            Ok(())
        }
        Err(error) => Err(failed(error, family, table)),
    }
}

fn failed(source: CommitError, family: IpFamily, table: &'static str) -> NftError {
    let family = match family {
        IpFamily::V4 => "ip",
        IpFamily::V6 => "ip6",
    };
    NftError {
        source,
        family,
        table,
    }
}
