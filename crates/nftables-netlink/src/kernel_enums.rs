//! Enums of linux/netfilter/nf_tables.h that expressions use.

/// Defines enums with the kernel's numbers.
macro_rules! kernel_enums {
    ($($(#[$about:meta])* pub enum $name:ident { $($(#[$of:meta])* $variant:ident = $number:literal,)+ })+) => {
        $(
            $(#[$about])*
            #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
            #[repr(u32)]
            pub enum $name { $($(#[$of])* $variant = $number,)+ }

            impl $name {
                /// All values.
                pub const ALL: &'static [Self] = &[$(Self::$variant),+];

                pub(crate) fn by_number(number: u32) -> Option<Self> {
                    Self::ALL.iter().copied().find(|of| *of as u32 == number)
                }
            }
        )+
    };
}

kernel_enums! {
    /// `NFTA_PAYLOAD_BASE`.
    pub enum PayloadBase {
        /// The link layer header.
        Link = 0,
        /// The network layer header.
        Network = 1,
        /// The transport layer header.
        Transport = 2,
    }

    /// `enum nft_meta_keys`, the supported subset.
    pub enum MetaKey {
        /// Length of the packet, 4 bytes.
        Len = 0,
        /// Ethernet type, 2 bytes, network order.
        Protocol = 1,
        /// The packet's priority, 4 bytes.
        Priority = 2,
        /// The packet's mark, 4 bytes.
        Mark = 3,
        /// Index of the input interface, 4 bytes.
        Iif = 4,
        /// Index of the output interface, 4 bytes.
        Oif = 5,
        /// Name of the input interface, 16 bytes.
        IifName = 6,
        /// Name of the output interface, 16 bytes.
        OifName = 7,
        /// `ARPHRD_*` of the input interface, 2 bytes.
        IifType = 8,
        /// `ARPHRD_*` of the output interface, 2 bytes.
        OifType = 9,
        /// User of the sending socket, 4 bytes.
        SkUid = 10,
        /// Group of the sending socket, 4 bytes.
        SkGid = 11,
        /// 1 if the packet is traced, 1 byte.
        NfTrace = 12,
        /// `NFPROTO_*`, 1 byte.
        NfProto = 15,
        /// IANA protocol number, 1 byte.
        L4Proto = 16,
        /// `PACKET_*`: 0 to this host, 1 broadcast, 2 multicast; 1 byte.
        PktType = 19,
        /// Number of the CPU, 4 bytes.
        Cpu = 20,
        /// Group of the input interface, 4 bytes.
        IifGroup = 21,
        /// Group of the output interface, 4 bytes.
        OifGroup = 22,
        /// Class of the control group (`net_cls`), 4 bytes.
        Cgroup = 23,
    }

    /// `enum nft_ct_keys`, the supported subset.
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

    /// The keys of `enum nft_ct_keys` that exist for each direction.
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
        /// The source address, IPv4 only.
        SourceIp = 19,
        /// The destination address, IPv4 only.
        DestinationIp = 20,
        /// The source address, IPv6 only.
        SourceIp6 = 21,
        /// The destination address, IPv6 only.
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
        /// A counter.
        Incremental = 0,
        /// A random number.
        Random = 1,
    }

    /// `enum nft_nat_types`.
    pub enum NatKind {
        /// Source NAT.
        Source = 0,
        /// Destination NAT.
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
        /// Adds the element if it is missing.
        Add = 0,
        /// Adds the element, or restarts its timeout.
        Update = 1,
        /// Deletes the element.
        Delete = 2,
    }
}
