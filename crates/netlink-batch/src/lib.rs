//! Netlink transport: many messages in one send, errors by sequence number.
//!
//! The kernel works a netlink send off before `send` returns, message by message, and reports
//! every failure whether or not an acknowledgement was asked for. So a [`Batch`] of any length
//! costs a few system calls: [`Connection::execute`] asks for one acknowledgement, on the last
//! message of each send, and everything that was not refused before it was done.
//!
//! ```text
//!  Batch ── push(kind, flags, |Writer|) ──▶ index          Connection::execute ──▶ [Reply] by index
//!  Connection::{request, dump} ──▶ Dump ── iter() ──▶ (kind, payload) ──▶ Attributes ──▶ Attribute
//!  Connection::dump_into ── each (kind, payload) as it comes, none of them held
//! ```
//!
//! The same rules hold for rtnetlink, nfnetlink (ipset, conntrack) and generic netlink.
//! [`Connection::transact`] is for nf\_tables, whose transaction is what is in one send.
//! Not here: subscriptions, and the meaning of any message.
//!
//! Source: `include/uapi/linux/netlink.h`, `net/netlink/af_netlink.c` (`netlink_rcv_skb`,
//! `netlink_ack`, `netlink_dump`).

mod attributes;
mod batch;
mod connection;
mod error;
mod exchange;
#[doc(hidden)]
pub mod fuzzed;
mod lane;
mod message;
mod protocol;
mod reply;
mod worker;

pub use attributes::{Attribute, Attributes, Malformed};
pub use batch::{Batch, Message, Writer, messages};
pub use connection::{Buffers, Connection};
pub use error::{Error, Refusal};
pub use exchange::CHUNK_MESSAGES;
pub use lane::Lane;
pub use netlink_packet_core::{
    NLM_F_APPEND, NLM_F_CREATE, NLM_F_DUMP, NLM_F_ECHO, NLM_F_EXCL, NLM_F_REPLACE,
};
pub use protocol::Protocol;
pub use reply::{Answers, Dump, Reply};
pub use worker::{Gone, HandedOut, Job, Worker};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
