//! Tables of nftables: whether one is there, and its removal. Nothing else of nftables.
//!
//! A mode holds all it makes in one table of each family, so that one message removes it, with
//! chains, sets and maps, in one transaction.
//!
//! Source: `linux/netfilter/nf_tables.h`, `net/netfilter/nfnetlink.c` (`nfnetlink_rcv_batch`);
//! upstream's `pkg/proxy/nftables/cleanup.go`.

use inet::IpFamily;
use netlink_batch::{Batch, Connection, Error, Protocol, Refusal, Reply, Writer};

const NFNL_MSG_BATCH_BEGIN: u16 = 0x10;
const NFNL_MSG_BATCH_END: u16 = 0x11;
const NFNL_SUBSYS_NFTABLES: u8 = 10;
const NFT_MSG_GETTABLE: u16 = message(1);
const NFT_MSG_DELTABLE: u16 = message(2);
const NFTA_TABLE_NAME: u16 = 1;
const NLM_F_ACK: u16 = 4;

const ENOENT: i32 = 2;
/// The kernel knows neither this subsystem of nfnetlink nor a module for it.
const EINVAL: i32 = 22;
const EPROTONOSUPPORT: i32 = 93;

const fn message(command: u16) -> u16 {
    (NFNL_SUBSYS_NFTABLES as u16) << 8 | command
}

/// Why the table is still there.
#[derive(Debug, thiserror::Error)]
#[error(
    "{source}; look at it with `nft list table {family} {table}` and remove it with `nft delete table {family} {table}`"
)]
pub struct NftError {
    source: Error,
    /// As `nft` names it.
    family: &'static str,
    table: &'static str,
}

/// Whether the table of this name and family is there, in the network namespace of the calling
/// thread. Asking loads `nf_tables`, as `iptables-nft-save` does.
///
/// # Errors
///
/// It cannot be told.
pub fn has_table(family: IpFamily, table: &'static str) -> Result<bool, NftError> {
    let asked = open().and_then(|connection| {
        let Some(mut connection) = connection else {
            return Ok(false);
        };
        match connection.request(NFT_MSG_GETTABLE, 0, |writer| {
            name_table(writer, family, table);
        }) {
            Ok(_) => Ok(true),
            Err(Error::Refused(Refusal {
                errno: ENOENT | EINVAL,
                ..
            })) => Ok(false),
            Err(error) => Err(error),
        }
    });
    asked.map_err(|source| failed(source, family, table))
}

/// Removes the table of this name and family with all it holds. One that is gone already is no
/// error.
///
/// # Errors
///
/// Why it is still there.
pub fn remove_table(family: IpFamily, table: &'static str) -> Result<(), NftError> {
    let removed = open().and_then(|connection| {
        let Some(mut connection) = connection else {
            return Ok(());
        };
        let mut batch = Batch::new();
        let boundary = |writer: &mut Writer<'_>| writer.bytes(&[0, 0, 0, NFNL_SUBSYS_NFTABLES]);
        batch.push(NFNL_MSG_BATCH_BEGIN, 0, boundary);
        // Older kernels acknowledge no end of a transaction, which is what a batch asks for.
        let delete = batch.push(NFT_MSG_DELTABLE, NLM_F_ACK, |writer| {
            name_table(writer, family, table);
        });
        batch.push(NFNL_MSG_BATCH_END, 0, boundary);
        match connection.execute(&batch)?.into_iter().nth(delete) {
            Some(Reply::Refused(Refusal { errno: ENOENT, .. }) | Reply::Done) => Ok(()),
            Some(Reply::Refused(refusal)) => Err(Error::Refused(refusal)),
            Some(Reply::Unknown) | None => Err(Error::LostReply),
        }
    });
    removed.map_err(|source| failed(source, family, table))
}

/// None where the kernel has not even nfnetlink.
fn open() -> Result<Option<Connection>, Error> {
    match Connection::open(Protocol::Netfilter) {
        Ok(connection) => Ok(Some(connection)),
        Err(Error::Open { source, .. }) if source.raw_os_error() == Some(EPROTONOSUPPORT) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn name_table(writer: &mut Writer<'_>, family: IpFamily, table: &str) {
    let protocol = match family {
        IpFamily::V4 => libc::NFPROTO_IPV4,
        IpFamily::V6 => libc::NFPROTO_IPV6,
    };
    // struct nfgenmsg: family, version, resource.
    writer.bytes(&[u8::try_from(protocol).unwrap_or_default(), 0, 0, 0]);
    writer.attr_str(NFTA_TABLE_NAME, table);
}

fn failed(source: Error, family: IpFamily, table: &'static str) -> NftError {
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
