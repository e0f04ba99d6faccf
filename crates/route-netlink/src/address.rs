//! IP addresses of links, and the netlink messages about them.

use std::net::IpAddr;

use libc::{IFA_ADDRESS, IFA_LOCAL};
use netlink_batch::{Batch, Malformed, NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_core::{Emitable, Parseable};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{
    AddressAttribute, AddressHeader, AddressHeaderFlags, AddressMessage, AddressScope,
};

use crate::Family;
use crate::message::{attributes, push};

/// An IP address of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// Kernel index of the link that has the address.
    pub link: u32,
    /// The IP address. On a point-to-point link, this is the address of this end.
    pub address: IpAddr,
    /// Prefix length of the network that contains the address.
    pub prefix: u8,
}

impl Address {
    /// Creates a link address without a network: its prefix length is 32 or 128.
    pub fn host(link: u32, address: IpAddr) -> Self {
        let prefix = Family::of(address).full_prefix();
        Self {
            link,
            address,
            prefix,
        }
    }

    /// Appends `RTM_NEWADDR`, which adds the address to the link permanently. The kernel replies
    /// `EEXIST` if the link already has the address. An IPv6 address skips duplicate address
    /// detection (`IFA_F_NODAD`). A loopback address gets the scope host.
    ///
    /// The kernel may use a new IPv6 address as the source of packets before this host can receive
    /// the replies ([`KernelRoutes`](crate::KernelRoutes)).
    pub fn push_new(&self, batch: &mut Batch) -> usize {
        let flags = match self.address {
            IpAddr::V4(_) => AddressHeaderFlags::empty(),
            IpAddr::V6(_) => AddressHeaderFlags::Nodad,
        };
        self.push_with(flags, batch)
    }

    /// Appends an `RTM_NEWADDR` like [`push_new`](Self::push_new), but an IPv6 address is tentative
    /// until it has its route. The kernel uses no tentative address as a source.
    ///
    /// On a link that resolves neighbours, the address also stays tentative until duplicate address
    /// detection has ended. The detection does not end while the link is down.
    pub fn push_new_tentative(&self, batch: &mut Batch) -> usize {
        self.push_with(AddressHeaderFlags::empty(), batch)
    }

    fn push_with(&self, flags: AddressHeaderFlags, batch: &mut Batch) -> usize {
        let flags = flags | AddressHeaderFlags::Permanent;
        let message = RouteNetlinkMessage::NewAddress(self.message(flags));
        push(batch, NLM_F_CREATE | NLM_F_EXCL, &message)
    }

    /// Appends `RTM_DELADDR`, which removes the address. The kernel replies `EADDRNOTAVAIL` if the
    /// link has no such address with this prefix length.
    pub fn push_del(&self, batch: &mut Batch) -> usize {
        let message = self.message(AddressHeaderFlags::empty());
        // A deletion has no flags: the kernel would read the bit of `NLM_F_EXCL` as `NLM_F_BULK`.
        push(batch, 0, &RouteNetlinkMessage::DelAddress(message))
    }

    fn message(&self, flags: AddressHeaderFlags) -> AddressMessage {
        let mut message = request(Family::of(self.address));
        message.header.index = self.link;
        message.header.prefix_len = self.prefix;
        message.header.flags = flags;
        if self.address.is_loopback() {
            message.header.scope = AddressScope::Host;
        }
        message.attributes = vec![
            AddressAttribute::Local(self.address),
            AddressAttribute::Address(self.address),
        ];
        message
    }

    /// Parses a message without its `nlmsghdr`. Returns `None` if the message has no address.
    pub(crate) fn parse(payload: &[u8]) -> Result<Option<Self>, Malformed> {
        let header = AddressHeader::parse(payload)?;
        let (mut local, mut address) = (None, None);
        for attribute in attributes(payload, header.buffer_len(), &[IFA_ADDRESS, IFA_LOCAL]) {
            match AddressAttribute::parse(&attribute?)? {
                AddressAttribute::Local(ip) => local = Some(ip),
                AddressAttribute::Address(ip) => address = Some(ip),
                _ => {}
            }
        }
        // On a point-to-point link, IFA_ADDRESS is the address of the other end. On other links,
        // IPv6 addresses have no IFA_LOCAL.
        Ok(local.or(address).map(|address| Self {
            link: header.index,
            address,
            prefix: header.prefix_len,
        }))
    }
}

/// Returns the request for a dump of all addresses of a family.
pub(crate) fn request(family: Family) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.family = family.number();
    message
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn payload(attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut batch = Batch::new();
        batch.push(0, 0, |message| {
            message.bytes(&[2, 32, 0, 0]);
            message.bytes(&7_u32.to_ne_bytes());
            for (kind, value) in attributes {
                message.attr(*kind, value);
            }
        });
        batch.get(0).unwrap().payload.to_vec()
    }

    #[test]
    fn the_local_address_of_a_point_to_point_link_is_used() {
        let (own, other) = ([10, 0, 0, 1], [10, 0, 0, 2]);
        let both = payload(&[(IFA_ADDRESS, &other), (IFA_LOCAL, &own)]);
        let expected = Address {
            link: 7,
            address: own.into(),
            prefix: 32,
        };
        assert_eq!(Address::parse(&both), Ok(Some(expected)));
        let six = [0xfd; 16];
        let found = Address::parse(&payload(&[(IFA_ADDRESS, &six)]));
        assert_eq!(found.unwrap().unwrap().address, IpAddr::from(six));
        assert_eq!(Address::parse(&payload(&[])), Ok(None));
    }

    #[test]
    fn unused_address_attributes_are_ignored_even_if_invalid() {
        let (label, cache) = ((libc::IFA_LABEL, &[0xff, 0xfe][..]), (6, &[1][..]));
        let address = payload(&[label, cache, (IFA_LOCAL, &[10, 0, 0, 1])]);
        assert!(Address::parse(&address).unwrap().is_some());
        assert!(Address::parse(&payload(&[(IFA_LOCAL, &[10, 0, 0])])).is_err());
        assert!(Address::parse(&[0; 7]).is_err());
    }

    /// Checks the bytes of a request against `struct ifaddrmsg` and its attributes in
    /// linux/if_addr.h.
    #[test]
    fn address_requests_have_the_kernels_layout() {
        let mut batch = Batch::new();
        Address::host(7, [10, 96, 0, 1].into()).push_new(&mut batch);
        Address::host(7, [127, 107, 0, 1].into()).push_del(&mut batch);
        let address = Address::host(7, IpAddr::from([0xfd; 16]));
        address.push_new(&mut batch);
        address.push_new_tentative(&mut batch);
        let [index0, index1, index2, index3] = 7_u32.to_ne_bytes();
        let header = |family, prefix, flags, scope| {
            [family, prefix, flags, scope, index0, index1, index2, index3]
        };
        let attribute = |kind: u16, value: &[u8]| {
            let length = u16::try_from(value.len() + 4).unwrap();
            [&length.to_ne_bytes(), &kind.to_ne_bytes(), value].concat()
        };
        let both = |header: [u8; 8], value: &[u8]| {
            [
                &header[..],
                &attribute(IFA_LOCAL, value),
                &attribute(IFA_ADDRESS, value),
            ]
            .concat()
        };
        let message = |index| batch.get(index).unwrap();
        assert_eq!((message(0).kind, message(0).flags), (20, 0x601));
        assert_eq!(
            message(0).payload,
            both(header(2, 32, 0x80, 0), &[10, 96, 0, 1])
        );
        assert_eq!((message(1).kind, message(1).flags), (21, 1));
        assert_eq!(
            message(1).payload,
            both(header(2, 32, 0, 254), &[127, 107, 0, 1])
        );
        assert_eq!(
            message(2).payload,
            both(header(10, 128, 0x82, 0), &[0xfd; 16])
        );
        assert_eq!(
            message(3).payload,
            both(header(10, 128, 0x80, 0), &[0xfd; 16])
        );
    }

    proptest! {
        #[test]
        fn written_addresses_decode_to_the_same_addresses(
            link: u32, six: bool, bits: u128, prefix: u8,
        ) {
            let address = match u32::try_from(bits >> 96) {
                Ok(four) if !six => IpAddr::V4(four.into()),
                _ => IpAddr::V6(bits.into()),
            };
            let address = Address { link, address, prefix };
            let mut batch = Batch::new();
            address.push_new(&mut batch);
            prop_assert_eq!(Address::parse(batch.get(0).unwrap().payload), Ok(Some(address)));
        }

        #[test]
        fn arbitrary_bytes_never_panic_the_address_decoder(payload in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = Address::parse(&payload);
        }
    }
}
