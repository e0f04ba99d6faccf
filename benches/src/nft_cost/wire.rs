//! nf_tables messages by hand, and the socket that sends a transaction of them.

use std::io;
use std::time::{Duration, Instant};

use netlink_batch::{Batch, NLM_F_APPEND, NLM_F_CREATE, Writer};
use rustix::net::netlink::{NETFILTER, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};

/// `NFNL_SUBSYS_NFTABLES << 8`
const NFTABLES: u16 = 10 << 8;
const NEWTABLE: u16 = NFTABLES;
const DELTABLE: u16 = NFTABLES | 0x2;
const NEWCHAIN: u16 = NFTABLES | 0x3;
const DELCHAIN: u16 = NFTABLES | 0x5;
const NEWRULE: u16 = NFTABLES | 0x6;
const DELRULE: u16 = NFTABLES | 0x8;
const NEWSET: u16 = NFTABLES | 0x9;
const NEWSETELEM: u16 = NFTABLES | 0xc;
const DELSETELEM: u16 = NFTABLES | 0xe;
/// `NFNL_MSG_BATCH_BEGIN` and `NFNL_MSG_BATCH_END`
const BEGIN: u16 = 0x10;
const END: u16 = 0x11;

pub(crate) const TABLE: &str = "kube-proxy";

pub(crate) const ANONYMOUS: u32 = 1;
pub(crate) const CONSTANT: u32 = 2;
pub(crate) const INTERVAL: u32 = 4;
pub(crate) const MAP: u32 = 8;
pub(crate) const CONCAT: u32 = 0x80;

/// `NFT_DATA_VERDICT` as the type of a map's data.
pub(crate) const VERDICT: u32 = 0xffff_ff00;

/// One transaction.
pub(crate) struct Transaction {
    batch: Batch,
    family: u8,
}

/// `NFPROTO_IPV4`, `NFPROTO_IPV6`
pub(crate) const IPV4: u8 = 2;
pub(crate) const IPV6: u8 = 10;

fn header(message: &mut Writer<'_>, family: u8) {
    // NFNETLINK_V0, no resource.
    message.bytes(&[family, 0, 0, 0]);
}

fn mark(message: &mut Writer<'_>) {
    // AF_UNSPEC, NFNETLINK_V0, the subsystem in network order.
    message.bytes(&[0, 0, 0, 10]);
}

impl Transaction {
    pub(crate) fn new(family: u8) -> Self {
        let mut batch = Batch::new();
        batch.push(BEGIN, 0, mark);
        Self { batch, family }
    }

    pub(crate) fn len(&self) -> usize {
        self.batch.len()
    }

    pub(crate) fn table(&mut self) {
        let family = self.family;
        self.batch.push(NEWTABLE, NLM_F_CREATE, |message| {
            header(message, family);
            message.attr_str(1, TABLE);
        });
    }

    pub(crate) fn delete_table(&mut self) {
        let family = self.family;
        self.batch.push(DELTABLE, 0, |message| {
            header(message, family);
            message.attr_str(1, TABLE);
        });
    }

    pub(crate) fn chain(&mut self, name: &str) {
        let family = self.family;
        self.batch.push(NEWCHAIN, NLM_F_CREATE, |message| {
            header(message, family);
            message.attr_str(1, TABLE);
            message.attr_str(3, name);
        });
    }

    pub(crate) fn base_chain(&mut self, name: &str, kind: &str, hook: u32, priority: i32) {
        let family = self.family;
        self.batch.push(NEWCHAIN, NLM_F_CREATE, |message| {
            header(message, family);
            message.attr_str(1, TABLE);
            message.attr_str(3, name);
            message.nest(4, |place| {
                place.attr_be32(1, hook);
                place.attr(2, &priority.to_be_bytes());
            });
            message.attr_str(7, kind);
        });
    }

    pub(crate) fn delete_chain(&mut self, name: &str) {
        let family = self.family;
        self.batch.push(DELCHAIN, 0, |message| {
            header(message, family);
            message.attr_str(1, TABLE);
            message.attr_str(3, name);
        });
    }

    pub(crate) fn flush_chain(&mut self, name: &str) {
        let family = self.family;
        self.batch.push(DELRULE, 0, |message| {
            header(message, family);
            message.attr_str(1, TABLE);
            message.attr_str(2, name);
        });
    }

    pub(crate) fn rule(&mut self, chain: &str, expressions: impl FnOnce(&mut Expressions<'_, '_>)) {
        let family = self.family;
        self.batch
            .push(NEWRULE, NLM_F_CREATE | NLM_F_APPEND, |message| {
                header(message, family);
                message.attr_str(1, TABLE);
                message.attr_str(2, chain);
                message.nest(4, |list| expressions(&mut Expressions(list, family)));
            });
    }

    pub(crate) fn set(&mut self, set: &SetOf<'_>) {
        let family = self.family;
        self.batch.push(NEWSET, NLM_F_CREATE, |message| {
            header(message, family);
            message.attr_str(1, TABLE);
            message.attr_str(2, set.name);
            message.attr_be32(3, set.flags);
            message.attr_be32(4, 0);
            message.attr_be32(5, set.key_len);
            if set.flags & MAP != 0 {
                let kind = if set.data_len == 0 { VERDICT } else { 0 };
                message.attr_be32(6, kind);
                if set.data_len != 0 {
                    message.attr_be32(7, set.data_len);
                }
            }
            if set.size != 0 || !set.fields.is_empty() {
                message.nest(9, |desc| {
                    if set.size != 0 {
                        desc.attr_be32(1, set.size);
                    }
                    if !set.fields.is_empty() {
                        desc.nest(2, |fields| {
                            for len in set.fields {
                                fields.nest(1, |field| field.attr_be32(1, *len));
                            }
                        });
                    }
                });
            }
            message.attr_be32(10, set.id);
        });
    }

    pub(crate) fn add(&mut self, set: &str, id: u32, elements: &[Element]) {
        self.elements(NEWSETELEM, NLM_F_CREATE, set, id, elements);
    }

    pub(crate) fn delete(&mut self, set: &str, elements: &[Element]) {
        self.elements(DELSETELEM, 0, set, 0, elements);
    }

    fn elements(&mut self, kind: u16, flags: u16, set: &str, id: u32, elements: &[Element]) {
        let family = self.family;
        self.batch.push(kind, flags, |message| {
            header(message, family);
            message.attr_str(1, TABLE);
            if !set.is_empty() {
                message.attr_str(2, set);
            }
            if id != 0 {
                message.attr_be32(4, id);
            }
            message.nest(3, |list| {
                for element in elements {
                    list.nest(1, |data| {
                        data.nest(1, |key| key.attr(1, &element.key));
                        if let Some(end) = &element.end {
                            data.nest(10, |key| key.attr(1, end));
                        }
                        match &element.data {
                            Data::None => {}
                            Data::Value(value) => data.nest(2, |data| data.attr(1, value)),
                            Data::Goto(chain) => data.nest(2, |data| {
                                data.nest(2, |verdict| {
                                    // NFT_GOTO
                                    verdict.attr(1, &(-4_i32).to_be_bytes());
                                    verdict.attr_str(2, chain);
                                });
                            }),
                            Data::Drop => data.nest(2, |data| {
                                data.nest(2, |verdict| verdict.attr_be32(1, 0));
                            }),
                        }
                        if element.is_end {
                            data.attr_be32(3, 1);
                        }
                    });
                }
            });
        });
    }

    /// The bytes of it, ready to be sent.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.batch.push(END, 0, mark);
        let mut bytes = Vec::with_capacity(self.batch.byte_len());
        for index in 0..self.batch.len() {
            // No attribute here is too long.
            let Some(message) = self.batch.get(index) else {
                continue;
            };
            let len = u32::try_from(message.payload.len() + 16).unwrap_or(u32::MAX);
            bytes.extend_from_slice(&len.to_ne_bytes());
            bytes.extend_from_slice(&message.kind.to_ne_bytes());
            bytes.extend_from_slice(&message.flags.to_ne_bytes());
            bytes.extend_from_slice(&u32::try_from(index).unwrap_or(u32::MAX).to_ne_bytes());
            bytes.extend_from_slice(&[0; 4]);
            bytes.extend_from_slice(message.payload);
        }
        bytes
    }
}

/// A set or map; with `data_len` 0 a map is one of verdicts.
#[derive(Default)]
pub(crate) struct SetOf<'a> {
    pub(crate) name: &'a str,
    pub(crate) flags: u32,
    pub(crate) key_len: u32,
    pub(crate) data_len: u32,
    pub(crate) size: u32,
    pub(crate) id: u32,
    /// Lengths of a concatenation's parts, where they count.
    pub(crate) fields: &'a [u32],
}

pub(crate) struct Element {
    pub(crate) key: Vec<u8>,
    pub(crate) end: Option<Vec<u8>>,
    pub(crate) data: Data,
    pub(crate) is_end: bool,
}

pub(crate) enum Data {
    None,
    Value(Vec<u8>),
    Goto(String),
    Drop,
}

impl Element {
    pub(crate) fn new(key: Vec<u8>, data: Data) -> Self {
        Self {
            key,
            end: None,
            data,
            is_end: false,
        }
    }
}

/// Writes a rule's expressions.
pub(crate) struct Expressions<'a, 'b>(&'a mut Writer<'b>, u8);

impl Expressions<'_, '_> {
    fn expression(&mut self, name: &str, data: impl FnOnce(&mut Writer<'_>)) {
        self.0.nest(1, |expression| {
            expression.attr_str(1, name);
            expression.nest(2, data);
        });
    }

    /// Base 1: network header, 2: transport header.
    pub(crate) fn payload(&mut self, register: u32, base: u32, offset: u32, len: u32) {
        self.expression("payload", |data| {
            data.attr_be32(1, register);
            data.attr_be32(2, base);
            data.attr_be32(3, offset);
            data.attr_be32(4, len);
        });
    }

    pub(crate) fn l4proto(&mut self, register: u32) {
        self.expression("meta", |data| {
            data.attr_be32(1, register);
            data.attr_be32(2, 16);
        });
    }

    pub(crate) fn load_mark(&mut self, register: u32) {
        self.expression("meta", |data| {
            data.attr_be32(1, register);
            data.attr_be32(2, 3);
        });
    }

    pub(crate) fn set_mark(&mut self, register: u32) {
        self.expression("meta", |data| {
            data.attr_be32(2, 3);
            data.attr_be32(3, register);
        });
    }

    pub(crate) fn bitwise(&mut self, register: u32, mask: u32, xor: u32) {
        self.expression("bitwise", |data| {
            data.attr_be32(1, register);
            data.attr_be32(2, register);
            data.attr_be32(3, 4);
            data.nest(4, |value| value.attr_u32(1, mask));
            data.nest(5, |value| value.attr_u32(1, xor));
        });
    }

    /// Op 0: equal, 1: not.
    pub(crate) fn compare(&mut self, register: u32, op: u32, value: &[u8]) {
        self.expression("cmp", |data| {
            data.attr_be32(1, register);
            data.attr_be32(2, op);
            data.nest(3, |data| data.attr(1, value));
        });
    }

    pub(crate) fn lookup(&mut self, register: u32, set: &str, id: u32, to: Option<u32>) {
        self.expression("lookup", |data| {
            data.attr_str(1, set);
            data.attr_be32(2, register);
            if let Some(to) = to {
                data.attr_be32(3, to);
            }
            if id != 0 {
                data.attr_be32(4, id);
            }
        });
    }

    pub(crate) fn random(&mut self, register: u32, modulus: u32) {
        self.expression("numgen", |data| {
            data.attr_be32(1, register);
            data.attr_be32(2, modulus);
            data.attr_be32(3, 1);
            data.attr_be32(4, 0);
        });
    }

    pub(crate) fn dnat(&mut self, address: u32, port: u32) {
        let family = self.1.into();
        self.expression("nat", |data| {
            data.attr_be32(1, 1);
            data.attr_be32(2, family);
            data.attr_be32(3, address);
            data.attr_be32(5, port);
            data.attr_be32(7, 3);
        });
    }

    /// `NFT_JUMP`
    pub(crate) fn jump(&mut self, chain: &str) {
        self.expression("immediate", |data| {
            data.attr_be32(1, 0);
            data.nest(2, |value| {
                value.nest(2, |verdict| {
                    verdict.attr(1, &(-3_i32).to_be_bytes());
                    verdict.attr_str(2, chain);
                });
            });
        });
    }

    pub(crate) fn reject(&mut self) {
        self.expression("reject", |data| {
            data.attr_be32(1, 0);
            data.attr_u8(2, 3);
        });
    }

    pub(crate) fn masquerade(&mut self) {
        self.expression("masq", |data| data.attr_be32(1, 0x10));
    }

    /// `ct state new` (key 0, bit 8), `ct status dnat` (key 2, bit 0x20).
    pub(crate) fn conntrack(&mut self, key: u32, bit: u32) {
        self.expression("ct", |data| {
            data.attr_be32(1, 1);
            data.attr_be32(2, key);
        });
        self.bitwise(1, bit, 0);
        self.compare(1, 1, &[0; 4]);
    }
}

/// A netlink socket to nf_tables.
pub(crate) struct Kernel(rustix::fd::OwnedFd);

impl Kernel {
    pub(crate) fn open() -> io::Result<Self> {
        let kind = SocketType::RAW;
        let flags = SocketFlags::CLOEXEC;
        let family = AddressFamily::NETLINK;
        let socket = rustix::net::socket_with(family, kind, flags, Some(NETFILTER))?;
        rustix::net::bind(&socket, &SocketAddrNetlink::new(0, 0))?;
        sockopt::set_socket_send_buffer_size_force(&socket, 256 << 20)?;
        sockopt::set_socket_recv_buffer_size_force(&socket, 8 << 20)?;
        Ok(Self(socket))
    }

    /// Sends a transaction: how long the kernel took for it. The system call ends when it is
    /// committed.
    pub(crate) fn send(&self, bytes: &[u8]) -> io::Result<Duration> {
        let started = Instant::now();
        let to = SocketAddrNetlink::new(0, 0);
        let sent = rustix::net::sendto(&self.0, bytes, SendFlags::empty(), &to)?;
        let took = started.elapsed();
        if sent != bytes.len() {
            return Err(io::Error::other("a transaction was cut off"));
        }
        let mut answer = vec![0; 64 << 10];
        match rustix::net::recv(&self.0, answer.as_mut_slice(), RecvFlags::DONTWAIT) {
            Err(rustix::io::Errno::AGAIN) => Ok(took),
            Err(error) => Err(error.into()),
            Ok((len, _)) => {
                let number = |at: usize| {
                    let bytes = answer.get(at..at + 4).and_then(|bytes| bytes.first_chunk());
                    bytes.map_or(0, |bytes| i32::from_ne_bytes(*bytes))
                };
                let text = format!("message {} ({len} bytes)", number(8));
                let error = io::Error::from_raw_os_error(-number(16));
                Err(io::Error::other(format!("{text}: {error}")))
            }
        }
    }
}
