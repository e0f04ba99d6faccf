//! Numbers of linux/netfilter/nf_tables.h that expressions have, by name.

/// Enums whose numbers are the kernel's.
macro_rules! numbered {
    ($($(#[$about:meta])* pub enum $name:ident { $($(#[$of:meta])* $variant:ident = $number:literal,)+ })+) => {
        $(
            $(#[$about])*
            #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
            #[repr(u32)]
            pub enum $name { $($(#[$of])* $variant = $number,)+ }

            impl $name {
                /// All of them.
                pub const ALL: &'static [Self] = &[$(Self::$variant),+];

                pub(crate) fn by_number(number: u32) -> Option<Self> {
                    Self::ALL.iter().copied().find(|of| *of as u32 == number)
                }
            }
        )+
    };
}

numbered! {
    /// `NFTA_PAYLOAD_BASE`.
    pub enum PayloadBase {
        /// Of the link layer.
        Link = 0,
        /// Of the network layer.
        Network = 1,
        /// Of the transport layer.
        Transport = 2,
    }

    /// `enum nft_meta_keys`, as far as needed.
    pub enum MetaKey {
        /// Bytes of the packet, 4 bytes.
        Len = 0,
        /// The number of its ethernet type, 2 bytes, network order.
        Protocol = 1,
        /// The packet's priority, 4 bytes.
        Priority = 2,
        /// The packet's mark, 4 bytes.
        Mark = 3,
        /// Index of the interface by which it came, 4 bytes.
        Iif = 4,
        /// Index of the interface by which it goes, 4 bytes.
        Oif = 5,
        /// Name of the interface by which it came, 16 bytes.
        IifName = 6,
        /// Name of the interface by which it goes, 16 bytes.
        OifName = 7,
        /// `ARPHRD_*` of the interface by which it came, 2 bytes.
        IifType = 8,
        /// `ARPHRD_*` of the interface by which it goes, 2 bytes.
        OifType = 9,
        /// The user whose socket sends it, 4 bytes.
        SkUid = 10,
        /// The group of that socket, 4 bytes.
        SkGid = 11,
        /// Whether it is traced, 1 byte.
        NfTrace = 12,
        /// `NFPROTO_*`, 1 byte.
        NfProto = 15,
        /// IANA protocol number, 1 byte.
        L4Proto = 16,
        /// `PACKET_*`: 0 to this host, 1 broadcast, 2 multicast; 1 byte.
        PktType = 19,
        /// The processor, 4 bytes.
        Cpu = 20,
        /// The group of the interface by which it came, 4 bytes.
        IifGroup = 21,
        /// The group of the interface by which it goes, 4 bytes.
        OifGroup = 22,
        /// `net_cls`, 4 bytes.
        Cgroup = 23,
    }

    /// `enum nft_ct_keys`, as far as needed.
    pub enum CtKey {
        /// `NF_CT_STATE_BIT`: 1 invalid, 2 established, 4 related, 8 new.
        State = 0,
        /// 0 original, 1 reply.
        Direction = 1,
        /// `IPS_*`: 0x10 source NAT, 0x20 destination NAT.
        Status = 2,
        /// The connection's mark.
        Mark = 3,
    }

    /// Of `enum nft_ct_keys`, what each direction has of its own.
    pub enum TupleKey {
        /// `NFPROTO_*`, 1 byte.
        L3Proto = 7,
        /// The source address.
        Source = 8,
        /// The destination address.
        Destination = 9,
        /// IANA protocol number, 1 byte.
        L4Proto = 10,
        /// The source port, 2 bytes, network order.
        SourcePort = 11,
        /// The destination port, 2 bytes, network order.
        DestinationPort = 12,
        /// The source address where it is of IPv4.
        SourceIp = 19,
        /// The destination address where it is of IPv4.
        DestinationIp = 20,
        /// The source address where it is of IPv6.
        SourceIp6 = 21,
        /// The destination address where it is of IPv6.
        DestinationIp6 = 22,
    }

    /// `enum nft_cmp_ops`.
    pub enum Comparison {
        /// `==`
        Equal = 0,
        /// `!=`
        NotEqual = 1,
        /// `<`
        Less = 2,
        /// `<=`
        LessOrEqual = 3,
        /// `>`
        Greater = 4,
        /// `>=`
        GreaterOrEqual = 5,
    }

    /// `enum nft_ng_types`.
    pub enum NumGenKind {
        /// One after the other.
        Incremental = 0,
        /// By chance.
        Random = 1,
    }

    /// `enum nft_nat_types`.
    pub enum NatKind {
        /// Source.
        Source = 0,
        /// Destination.
        Destination = 1,
    }

    /// `enum nft_fib_result`.
    pub enum FibResult {
        /// The index of the interface.
        Oif = 1,
        /// The name of the interface.
        OifName = 2,
        /// `RTN_*`: 2 is local.
        AddressType = 3,
    }

    /// `enum nft_dynset_ops`.
    pub enum DynsetOperation {
        /// Where it is not there.
        Add = 0,
        /// And begin its time anew where it is.
        Update = 1,
        /// Take it away.
        Delete = 2,
    }
}
