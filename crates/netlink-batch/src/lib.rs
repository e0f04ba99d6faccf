//! Netlink transport: sends many messages in one system call, and matches errors to messages by
//! sequence number.
//!
//! The kernel processes a netlink send before `send` returns, message by message. The kernel
//! reports every failure, even if no message requests an acknowledgement.
//!
//! So a [`Batch`] of any length costs only a few system calls. [`Connection::execute`] requests one
//! acknowledgement, for the last message of each send. Every earlier message that the kernel has
//! not refused has succeeded.
//!
//! ```text
//!  Batch ── push(kind, flags, |Writer|) ──▶ index         Connection::execute ──▶ [Reply] by index
//!  Connection::{request, dump} ──▶ Dump ── iter() ──▶ (kind, payload) ──▶ Attributes ──▶ Attribute
//!  Connection::dump_into ── each (kind, payload) as it arrives, without buffering
//! ```
//!
//! These rules apply to rtnetlink, nfnetlink (ipset, conntrack) and generic netlink alike.
//! [`Connection::transact`] is for nf\_tables, in which one send is one transaction. [`subscribe`]
//! opens a socket for notifications. Other crates encode and decode the payloads of messages.
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
mod subscribe;
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
pub use reply::{Dump, Replies, Reply};
pub use subscribe::subscribe;
pub use worker::{Job, JobQueue, Worker, WorkerEnded};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
