//! Constants of the nf_tables netlink protocol (`linux/netfilter/nf_tables.h`,
//! `linux/netfilter/nfnetlink.h`), and of the user data of `nft` (`libnftnl/udata.h`), which the
//! kernel stores without reading it.

/// Returns the netlink message type of a command: nfnetlink's subsystem number in the high byte,
/// and the command in the low byte.
pub(crate) const fn message(command: u16) -> u16 {
    SUBSYSTEM << 8 | command
}

/// Number of the nf_tables subsystem in nfnetlink (`NFNL_SUBSYS_NFTABLES`).
pub(crate) const SUBSYSTEM: u16 = 10;
/// Type of the message that begins a batch (`NFNL_MSG_BATCH_BEGIN`).
pub(crate) const BATCH_BEGIN: u16 = 16;
/// Type of the message that ends a batch (`NFNL_MSG_BATCH_END`).
pub(crate) const BATCH_END: u16 = 17;
/// Attribute of a batch's first message that holds the expected generation (`NFNL_BATCH_GENID`).
pub(crate) const BATCH_GENERATION: u16 = 1;
/// Size of `struct nfgenmsg` in bytes.
pub(crate) const FIXED_HEADER: usize = 4;
/// Attribute that holds one entry of a list (`NFTA_LIST_ELEM`).
pub(crate) const LIST_ELEMENT: u16 = 1;

/// Attribute that contains the table name of any kind of object (`NFTA_TABLE_NAME`,
/// `NFTA_CHAIN_TABLE`, ...).
pub(crate) const TABLE_OF_ANY: u16 = 1;

/// Commands of nf_tables (`enum nf_tables_msg_types`), the low byte of a message type.
pub(crate) mod command {
    pub(crate) const NEW_TABLE: u16 = 0;
    pub(crate) const GET_TABLE: u16 = 1;
    pub(crate) const DELETE_TABLE: u16 = 2;
    pub(crate) const NEW_CHAIN: u16 = 3;
    pub(crate) const GET_CHAIN: u16 = 4;
    pub(crate) const DELETE_CHAIN: u16 = 5;
    pub(crate) const NEW_RULE: u16 = 6;
    pub(crate) const GET_RULE: u16 = 7;
    pub(crate) const DELETE_RULE: u16 = 8;
    pub(crate) const NEW_SET: u16 = 9;
    pub(crate) const GET_SET: u16 = 10;
    pub(crate) const DELETE_SET: u16 = 11;
    pub(crate) const NEW_ELEMENTS: u16 = 12;
    pub(crate) const GET_ELEMENTS: u16 = 13;
    pub(crate) const DELETE_ELEMENTS: u16 = 14;
    pub(crate) const NEW_GENERATION: u16 = 15;
    pub(crate) const GET_GENERATION: u16 = 16;
    pub(crate) const NEW_OBJECT: u16 = 18;
    pub(crate) const GET_OBJECT: u16 = 19;
    pub(crate) const DELETE_OBJECT: u16 = 20;
}

/// Attributes of a table (`NFTA_TABLE_*`).
pub(crate) mod table {
    pub(crate) const NAME: u16 = 1;
    pub(crate) const FLAGS: u16 = 2;
    pub(crate) const USER_DATA: u16 = 6;
    /// Flag of a dormant table (`NFT_TABLE_F_DORMANT`).
    pub(crate) const DORMANT: u32 = 1;
}

/// Attributes of a chain (`NFTA_CHAIN_*`) and of its `HOOK` (`NFTA_HOOK_*`).
pub(crate) mod chain {
    pub(crate) const TABLE: u16 = 1;
    pub(crate) const HANDLE: u16 = 2;
    pub(crate) const NAME: u16 = 3;
    pub(crate) const HOOK: u16 = 4;
    pub(crate) const POLICY: u16 = 5;
    pub(crate) const TYPE: u16 = 7;
    pub(crate) const USER_DATA: u16 = 12;
    pub(crate) const HOOK_NUMBER: u16 = 1;
    pub(crate) const HOOK_PRIORITY: u16 = 2;
}

/// Attributes of a rule (`NFTA_RULE_*`), and of its expressions (`NFTA_EXPR_*`).
pub(crate) mod rule {
    pub(crate) const TABLE: u16 = 1;
    pub(crate) const CHAIN: u16 = 2;
    pub(crate) const HANDLE: u16 = 3;
    pub(crate) const EXPRESSIONS: u16 = 4;
    pub(crate) const POSITION: u16 = 6;
    pub(crate) const USER_DATA: u16 = 7;
    pub(crate) const EXPRESSION_NAME: u16 = 1;
    pub(crate) const EXPRESSION_DATA: u16 = 2;
}

/// Attributes of a set (`NFTA_SET_*`) and of its `DESCRIPTION` (`NFTA_SET_DESC_*`), and the flags
/// of a set (`NFT_SET_*`).
pub(crate) mod set {
    pub(crate) const TABLE: u16 = 1;
    pub(crate) const NAME: u16 = 2;
    pub(crate) const FLAGS: u16 = 3;
    pub(crate) const KEY_TYPE: u16 = 4;
    pub(crate) const KEY_LEN: u16 = 5;
    pub(crate) const DATA_TYPE: u16 = 6;
    pub(crate) const DATA_LEN: u16 = 7;
    pub(crate) const DESCRIPTION: u16 = 9;
    pub(crate) const ID: u16 = 10;
    pub(crate) const TIMEOUT: u16 = 11;
    pub(crate) const USER_DATA: u16 = 13;
    pub(crate) const HANDLE: u16 = 16;
    pub(crate) const DESCRIPTION_SIZE: u16 = 1;

    pub(crate) const ANONYMOUS: u32 = 0x1;
    pub(crate) const CONSTANT: u32 = 0x2;
    pub(crate) const INTERVAL: u32 = 0x4;
    pub(crate) const MAP: u32 = 0x8;
    pub(crate) const HAS_TIMEOUT: u32 = 0x10;
    pub(crate) const EVAL: u32 = 0x20;
}

/// Attributes of a list of elements (`NFTA_SET_ELEM_LIST_*`).
pub(crate) mod elements {
    pub(crate) const TABLE: u16 = 1;
    pub(crate) const SET: u16 = 2;
    pub(crate) const ELEMENTS: u16 = 3;
    pub(crate) const SET_ID: u16 = 4;
}

/// Attributes of an element (`NFTA_SET_ELEM_*`), and the flag `NFT_SET_ELEM_INTERVAL_END`.
pub(crate) mod element {
    pub(crate) const KEY: u16 = 1;
    pub(crate) const DATA: u16 = 2;
    pub(crate) const FLAGS: u16 = 3;
    pub(crate) const TIMEOUT: u16 = 4;
    pub(crate) const USER_DATA: u16 = 6;
    pub(crate) const KEY_END: u16 = 10;
    pub(crate) const INTERVAL_END: u32 = 1;
    /// Flag of the catch-all element (`NFT_SET_ELEM_CATCHALL`).
    pub(crate) const CATCH_ALL: u32 = 2;
}

/// Attributes of a named object (`NFTA_OBJ_*`), and the object type of a counter
/// (`NFT_OBJECT_COUNTER`).
pub(crate) mod object {
    pub(crate) const TABLE: u16 = 1;
    pub(crate) const NAME: u16 = 2;
    pub(crate) const TYPE: u16 = 3;
    pub(crate) const DATA: u16 = 4;
    pub(crate) const COUNTER: u32 = 1;
}

/// Attributes of data and verdicts (`NFTA_DATA_*`, `NFTA_VERDICT_*`), and the codes of verdicts
/// (`enum nft_verdicts`, `NF_*`).
pub(crate) mod data {
    pub(crate) const VALUE: u16 = 1;
    pub(crate) const VERDICT: u16 = 2;
    pub(crate) const VERDICT_CODE: u16 = 1;
    pub(crate) const VERDICT_CHAIN: u16 = 2;
    pub(crate) const DROP: i32 = 0;
    pub(crate) const ACCEPT: i32 = 1;
    pub(crate) const CONTINUE: i32 = -1;
    pub(crate) const JUMP: i32 = -3;
    pub(crate) const GOTO: i32 = -4;
    pub(crate) const RETURN: i32 = -5;
    /// Data type of verdict maps (`NFT_DATA_VERDICT`).
    pub(crate) const TYPE_VERDICT: u32 = 0xffff_ff00;
}

/// Attributes of a message about a new generation (`NFTA_GEN_*`).
pub(crate) mod generation {
    pub(crate) const ID: u16 = 1;
    pub(crate) const PROCESS: u16 = 2;
    pub(crate) const PROCESS_NAME: u16 = 3;
}

/// Types of entries in the user data of `nft` (`NFTNL_UDATA_*`).
pub(crate) mod user_data {
    pub(crate) const TABLE_COMMENT: u8 = 0;
    pub(crate) const CHAIN_COMMENT: u8 = 0;
    pub(crate) const RULE_COMMENT: u8 = 0;
    pub(crate) const ELEMENT_COMMENT: u8 = 0;
    pub(crate) const SET_KEY_BYTE_ORDER: u8 = 0;
    pub(crate) const SET_DATA_BYTE_ORDER: u8 = 1;
    pub(crate) const SET_MERGE_ELEMENTS: u8 = 2;
    pub(crate) const SET_KEY_TYPE_OF: u8 = 3;
    pub(crate) const SET_DATA_TYPE_OF: u8 = 4;
    pub(crate) const SET_DATA_INTERVAL: u8 = 6;
    pub(crate) const SET_COMMENT: u8 = 7;
    /// Types of the entries in a `TYPE_OF` entry: the kind of expression (`enum expr_types` of
    /// `nft`), and its data.
    pub(crate) const TYPE_OF_EXPRESSION: u8 = 0;
    pub(crate) const TYPE_OF_DATA: u8 = 1;
}

/// Attributes of expressions, in one module for each expression.
pub(crate) mod expression {
    /// Attributes of `payload` (`NFTA_PAYLOAD_*`).
    pub(crate) mod payload {
        pub(crate) const TO: u16 = 1;
        pub(crate) const BASE: u16 = 2;
        pub(crate) const OFFSET: u16 = 3;
        pub(crate) const LEN: u16 = 4;
        pub(crate) const FROM: u16 = 5;
    }
    /// Attributes of `meta` (`NFTA_META_*`).
    pub(crate) mod meta {
        pub(crate) const TO: u16 = 1;
        pub(crate) const KEY: u16 = 2;
        pub(crate) const FROM: u16 = 3;
    }
    /// Attributes of `ct` (`NFTA_CT_*`).
    pub(crate) mod ct {
        pub(crate) const TO: u16 = 1;
        pub(crate) const KEY: u16 = 2;
        pub(crate) const DIRECTION: u16 = 3;
        pub(crate) const FROM: u16 = 4;
    }
    /// Attributes of `cmp` (`NFTA_CMP_*`).
    pub(crate) mod cmp {
        pub(crate) const FROM: u16 = 1;
        pub(crate) const OP: u16 = 2;
        pub(crate) const DATA: u16 = 3;
    }
    /// Attributes of `range` (`NFTA_RANGE_*`).
    pub(crate) mod range {
        pub(crate) const FROM: u16 = 1;
        pub(crate) const OP: u16 = 2;
        pub(crate) const LEAST: u16 = 3;
        pub(crate) const GREATEST: u16 = 4;
    }
    /// Attributes of `bitwise` (`NFTA_BITWISE_*`).
    pub(crate) mod bitwise {
        pub(crate) const FROM: u16 = 1;
        pub(crate) const TO: u16 = 2;
        pub(crate) const LEN: u16 = 3;
        pub(crate) const MASK: u16 = 4;
        pub(crate) const XOR: u16 = 5;
        pub(crate) const OP: u16 = 6;
    }
    /// Attributes of `immediate` (`NFTA_IMMEDIATE_*`).
    pub(crate) mod immediate {
        pub(crate) const TO: u16 = 1;
        pub(crate) const DATA: u16 = 2;
    }
    /// Attributes of `lookup` (`NFTA_LOOKUP_*`), and its flag `NFT_LOOKUP_F_INV`.
    pub(crate) mod lookup {
        pub(crate) const SET: u16 = 1;
        pub(crate) const FROM: u16 = 2;
        pub(crate) const TO: u16 = 3;
        pub(crate) const FLAGS: u16 = 5;
        pub(crate) const INVERTED: u32 = 1;
    }
    /// Attributes of `numgen` (`NFTA_NG_*`).
    pub(crate) mod numgen {
        pub(crate) const TO: u16 = 1;
        pub(crate) const MODULUS: u16 = 2;
        pub(crate) const TYPE: u16 = 3;
        pub(crate) const OFFSET: u16 = 4;
    }
    /// Attributes of `hash` (`NFTA_HASH_*`), and its kind `NFT_HASH_JENKINS`.
    pub(crate) mod hash {
        pub(crate) const FROM: u16 = 1;
        pub(crate) const TO: u16 = 2;
        pub(crate) const LEN: u16 = 3;
        pub(crate) const MODULUS: u16 = 4;
        pub(crate) const SEED: u16 = 5;
        pub(crate) const OFFSET: u16 = 6;
        pub(crate) const TYPE: u16 = 7;
        pub(crate) const JENKINS: u32 = 0;
    }
    /// Attributes of `nat` (`NFTA_NAT_*`), and two flags that the kernel derives from the address
    /// and port.
    pub(crate) mod nat {
        pub(crate) const TYPE: u16 = 1;
        pub(crate) const FAMILY: u16 = 2;
        pub(crate) const ADDRESS: u16 = 3;
        pub(crate) const ADDRESS_MAX: u16 = 4;
        pub(crate) const PORT: u16 = 5;
        pub(crate) const PORT_MAX: u16 = 6;
        pub(crate) const FLAGS: u16 = 7;
        pub(crate) const MAP_ADDRESSES: u32 = 1;
        pub(crate) const PORT_SPECIFIED: u32 = 2;
    }
    /// Attributes of `masq` (`NFTA_MASQ_*`).
    pub(crate) mod masq {
        pub(crate) const FLAGS: u16 = 1;
        pub(crate) const PORT: u16 = 2;
        pub(crate) const PORT_MAX: u16 = 3;
    }
    /// Attributes of `redir` (`NFTA_REDIR_*`).
    pub(crate) mod redir {
        pub(crate) const PORT: u16 = 1;
        pub(crate) const PORT_MAX: u16 = 2;
        pub(crate) const FLAGS: u16 = 3;
    }
    /// Attributes of `fib` (`NFTA_FIB_*`).
    pub(crate) mod fib {
        pub(crate) const TO: u16 = 1;
        pub(crate) const RESULT: u16 = 2;
        pub(crate) const FLAGS: u16 = 3;
    }
    /// Attributes of `dynset` (`NFTA_DYNSET_*`).
    pub(crate) mod dynset {
        pub(crate) const SET: u16 = 1;
        pub(crate) const OP: u16 = 3;
        pub(crate) const KEY: u16 = 4;
        pub(crate) const DATA: u16 = 5;
        pub(crate) const TIMEOUT: u16 = 6;
        pub(crate) const EXPRESSION: u16 = 7;
        pub(crate) const FLAGS: u16 = 9;
        pub(crate) const EXPRESSIONS: u16 = 10;
    }
    /// Attributes of `reject` (`NFTA_REJECT_*`).
    pub(crate) mod reject {
        pub(crate) const TYPE: u16 = 1;
        pub(crate) const CODE: u16 = 2;
    }
    /// Attributes of `byteorder` (`NFTA_BYTEORDER_*`).
    pub(crate) mod byteorder {
        pub(crate) const FROM: u16 = 1;
        pub(crate) const TO: u16 = 2;
        pub(crate) const OP: u16 = 3;
        pub(crate) const LEN: u16 = 4;
        pub(crate) const SIZE: u16 = 5;
    }
    /// Attributes of `limit` (`NFTA_LIMIT_*`), its kind `NFT_LIMIT_PKT_BYTES` and its flag
    /// `NFT_LIMIT_F_INV`.
    pub(crate) mod limit {
        pub(crate) const RATE: u16 = 1;
        pub(crate) const UNIT: u16 = 2;
        pub(crate) const TYPE: u16 = 4;
        pub(crate) const FLAGS: u16 = 5;
        pub(crate) const BYTES: u32 = 1;
        pub(crate) const OVER: u32 = 1;
    }
    /// Attributes of `log` (`NFTA_LOG_*`).
    pub(crate) mod log {
        pub(crate) const PREFIX: u16 = 2;
    }
    /// Attributes of `objref` (`NFTA_OBJREF_*`).
    pub(crate) mod objref {
        pub(crate) const TYPE: u16 = 1;
        pub(crate) const NAME: u16 = 2;
    }
    /// Attributes with the extension's name in iptables expressions (`NFTA_MATCH_NAME`,
    /// `NFTA_TARGET_NAME`).
    pub(crate) mod xt {
        pub(crate) const NAME: u16 = 1;
    }
    /// Attributes of `counter` (`NFTA_COUNTER_*`).
    pub(crate) mod counter {
        pub(crate) const BYTES: u16 = 1;
        pub(crate) const PACKETS: u16 = 2;
    }
}
