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
                /// All values of the enum.
                pub const ALL: &'static [Self] = &[$(Self::$variant),+];

                pub(crate) fn by_number(number: u32) -> Option<Self> {
                    Self::ALL.iter().copied().find(|of| *of as u32 == number)
                }
            }
        )+
    };
}

kernel_enums! {
    /// Header that a payload expression reads (`NFTA_PAYLOAD_BASE`).
    pub enum PayloadBase {
        /// Header of the link layer.
        Link = 0,
        /// Header of the network layer.
        Network = 1,
        /// Header of the transport layer.
        Transport = 2,
    }

    /// Metadata of a packet, in the supported subset of `enum nft_meta_keys`.
    pub enum MetaKey {
        /// Length of the packet, 4 bytes.
        Len = 0,
        /// Protocol number of the Ethernet frame, 2 bytes, network order.
        Protocol = 1,
        /// Priority of the packet, 4 bytes.
        Priority = 2,
        /// Mark of the packet, 4 bytes.
        Mark = 3,
        /// Index of the input interface, 4 bytes.
        Iif = 4,
        /// Index of the output interface, 4 bytes.
        Oif = 5,
        /// Name of the input interface, 16 bytes.
        IifName = 6,
        /// Name of the output interface, 16 bytes.
        OifName = 7,
        /// Hardware type (`ARPHRD_*`) of the input interface, 2 bytes.
        IifType = 8,
        /// Hardware type (`ARPHRD_*`) of the output interface, 2 bytes.
        OifType = 9,
        /// User ID of the socket that sends the packet, 4 bytes.
        SkUid = 10,
        /// Group ID of the socket that sends the packet, 4 bytes.
        SkGid = 11,
        /// Trace flag, 1 byte: 1 if the packet is traced.
        NfTrace = 12,
        /// Family of the packet (`NFPROTO_*`), 1 byte.
        NfProto = 15,
        /// IANA number of the transport protocol, 1 byte.
        L4Proto = 16,
        /// Packet type (`PACKET_*`): 0 to this host, 1 broadcast, 2 multicast; 1 byte.
        PktType = 19,
        /// Number of the CPU that handles the packet, 4 bytes.
        Cpu = 20,
        /// Device group of the input interface, 4 bytes.
        IifGroup = 21,
        /// Device group of the output interface, 4 bytes.
        OifGroup = 22,
        /// Class ID of the sender's control group (`net_cls`), 4 bytes.
        Cgroup = 23,
    }

    /// Connection tracking data, in the supported subset of `enum nft_ct_keys`.
    pub enum CtKey {
        /// State of the connection (`NF_CT_STATE_BIT`): 1 invalid, 2 established, 4 related, 8 new.
        State = 0,
        /// Direction of the packet: 0 original, 1 reply.
        Direction = 1,
        /// Status bits of the connection (`IPS_*`): 0x10 source NAT, 0x20 destination NAT.
        Status = 2,
        /// Mark of the connection, 4 bytes.
        Mark = 3,
    }

    /// Connection tracking data that exists for each direction (subset of `enum nft_ct_keys`).
    pub enum TupleKey {
        /// Family of the connection (`NFPROTO_*`), 1 byte.
        L3Proto = 7,
        /// Source address, IPv4 or IPv6.
        Source = 8,
        /// Destination address, IPv4 or IPv6.
        Destination = 9,
        /// IANA number of the transport protocol, 1 byte.
        L4Proto = 10,
        /// Source port, 2 bytes, network order.
        SourcePort = 11,
        /// Destination port, 2 bytes, network order.
        DestinationPort = 12,
        /// Source address, IPv4 only.
        SourceIp = 19,
        /// Destination address, IPv4 only.
        DestinationIp = 20,
        /// Source address, IPv6 only.
        SourceIp6 = 21,
        /// Destination address, IPv6 only.
        DestinationIp6 = 22,
    }

    /// Comparison operator (`enum nft_cmp_ops`).
    pub enum Comparison {
        /// The register equals the constant (`==`).
        Equal = 0,
        /// The register does not equal the constant (`!=`).
        NotEqual = 1,
        /// The register is less than the constant (`<`).
        Less = 2,
        /// The register is less than the constant, or equal (`<=`).
        LessOrEqual = 3,
        /// The register is greater than the constant (`>`).
        Greater = 4,
        /// The register is greater than the constant, or equal (`>=`).
        GreaterOrEqual = 5,
    }

    /// Method of generating numbers (`enum nft_ng_types`).
    pub enum NumGenKind {
        /// Counter that advances by one for each packet.
        Incremental = 0,
        /// Random number for each packet.
        Random = 1,
    }

    /// Kind of address translation (`enum nft_nat_types`).
    pub enum NatKind {
        /// Source NAT (`snat`).
        Source = 0,
        /// Destination NAT (`dnat`).
        Destination = 1,
    }

    /// Property of a route that a `fib` expression loads (`enum nft_fib_result`).
    pub enum FibResult {
        /// Index of the route's interface.
        Oif = 1,
        /// Name of the route's interface.
        OifName = 2,
        /// Type of the address (`RTN_*`): 2 is local.
        AddressType = 3,
    }

    /// Operation of a rule on a set's element (`enum nft_dynset_ops`).
    pub enum DynsetOperation {
        /// Adds the element if it is missing.
        Add = 0,
        /// Adds the element, or restarts its timeout.
        Update = 1,
        /// Deletes the element.
        Delete = 2,
    }
}
