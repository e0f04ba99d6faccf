//! Tests which features the kernel has. One transaction uses all features, and ends with changes
//! that the kernel must refuse. So the kernel applies no change.

use std::fmt;
use std::sync::Arc;

use netlink_batch::Refusal;
use smallvec::SmallVec;

use crate::error::{CommitError, Error};
use crate::expression::{
    CtKey, DynsetOperation, Expression, FIB_DESTINATION, FibResult, LookupFor, MetaKey, NatKind,
    NumGenKind, PayloadBase, Rule, SetRef,
};
use crate::nftables::Nftables;
use crate::object::{
    AnonymousSet, BaseChain, Chain, ChainKind, Element, Hook, Policy, Set, SetKind, Table, Timeout,
};
use crate::transaction::{Change, Transaction};
use crate::value::{Bytes, DataType, Family, Name, Register, Verdict};

/// Name of the table in the probe's transaction. The kernel never commits this table.
const NAME: &str = "nftables-netlink-probe";

/// A feature that a kernel may lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Feature {
    /// Tables of the probed family.
    Tables,
    /// Base chains of type `filter`.
    FilterChains,
    /// Base chains of type `nat`.
    NatChains,
    /// Sets whose keys are concatenations of several values.
    Concatenations,
    /// Maps from keys to an address and a port.
    NatMaps,
    /// Sets to which rules add elements that expire.
    DynamicSets,
    /// Random numbers in rules (`numgen random`).
    NumGen,
    /// Lookups in the routing tables (`fib`).
    Fib,
    /// Connection tracking data in rules (`ct`).
    Conntrack,
    /// Destination NAT (`dnat`).
    DestinationNat,
    /// Source NAT to the address of the outgoing interface.
    Masquerade,
    /// Rejection of packets with an error to the sender.
    Reject,
}

impl Feature {
    /// All features that the probe tests.
    pub const ALL: [Self; 12] = [
        Self::Tables,
        Self::FilterChains,
        Self::NatChains,
        Self::Concatenations,
        Self::NatMaps,
        Self::DynamicSets,
        Self::NumGen,
        Self::Fib,
        Self::Conntrack,
        Self::DestinationNat,
        Self::Masquerade,
        Self::Reject,
    ];

    /// Returns the kernel modules that the feature needs in any IP family. If the kernel has the
    /// feature, each of these modules is loaded or built in.
    pub const fn modules(self) -> &'static [&'static str] {
        match self {
            Self::Tables
            | Self::FilterChains
            | Self::Concatenations
            | Self::NatMaps
            | Self::DynamicSets => &["nf_tables"],
            Self::NatChains | Self::DestinationNat => &["nft_nat", "nft_chain_nat", "nf_nat"],
            Self::NumGen => &["nft_numgen"],
            Self::Fib => &["nft_fib"],
            Self::Conntrack => &["nft_ct", "nf_conntrack"],
            Self::Masquerade => &["nft_masq"],
            Self::Reject => &["nft_reject"],
        }
    }

    /// Returns the kernel's build option for the feature, as text for the user.
    fn option(self, family: Family) -> &'static str {
        let six = family == Family::Ip6;
        match self {
            Self::Tables if six => "CONFIG_NF_TABLES_IPV6",
            Self::Tables if family == Family::Inet => "CONFIG_NF_TABLES_INET",
            Self::Tables => "CONFIG_NF_TABLES_IPV4",
            Self::FilterChains | Self::Concatenations | Self::NatMaps | Self::DynamicSets => {
                "CONFIG_NF_TABLES"
            }
            Self::NatChains | Self::DestinationNat => "CONFIG_NFT_NAT, module nft_chain_nat",
            Self::NumGen => "CONFIG_NFT_NUMGEN, module nft_numgen",
            Self::Fib if six => "CONFIG_NFT_FIB_IPV6, module nft_fib_ipv6",
            Self::Fib => "CONFIG_NFT_FIB_IPV4, module nft_fib_ipv4",
            Self::Conntrack => "CONFIG_NFT_CT, module nft_ct",
            Self::Masquerade => "CONFIG_NFT_MASQ, module nft_masq",
            Self::Reject if six => "CONFIG_NFT_REJECT_IPV6, module nft_reject_ipv6",
            Self::Reject => "CONFIG_NFT_REJECT_IPV4, module nft_reject_ipv4",
        }
    }
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tables => "tables",
            Self::FilterChains => "chains of type filter",
            Self::NatChains => "chains of type nat",
            Self::Concatenations => "sets of concatenated keys",
            Self::NatMaps => "maps to an address and a port",
            Self::DynamicSets => "dynamic sets",
            Self::NumGen => "`numgen`",
            Self::Fib => "`fib`",
            Self::Conntrack => "`ct`",
            Self::DestinationNat => "`dnat`",
            Self::Masquerade => "`masquerade`",
            Self::Reject => "`reject`",
        })
    }
}

/// A feature that the kernel lacks in one family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingFeature {
    /// Feature that the kernel lacks.
    pub feature: Feature,
    /// Table family that lacks the feature.
    pub family: Family,
    /// Error with which the kernel refused the feature.
    pub refusal: Refusal,
}

impl fmt::Display for MissingFeature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            feature,
            family,
            refusal,
        } = self;
        let option = feature.option(*family);
        write!(
            f,
            "this kernel's nf_tables lacks {feature} in family {} ({option}): {refusal}",
            family.name()
        )
    }
}

impl Nftables {
    /// Returns the features that the kernel lacks in tables of a family. The kernel may load
    /// modules for the test. The ruleset and its generation do not change.
    ///
    /// # Errors
    ///
    /// Fails if the socket fails, a privilege is missing, or the kernel lacks nf\_tables.
    pub fn probe(&mut self, family: Family) -> Result<Vec<MissingFeature>, Error> {
        let (features, changes): (Vec<_>, Vec<_>) = one_of_each(family).into_iter().unzip();
        let transaction = Transaction {
            family,
            table: NAME.into(),
            changes,
        };
        self.load_modules(&transaction);
        let refused = match self.commit(&transaction, None) {
            Err(CommitError::Refused { refused, .. }) => refused,
            Err(CommitError::Error(error)) => return Err(error),
            // Cannot happen: the kernel must refuse the last change in the transaction.
            Ok(_) | Err(_) => return Err(Error::Netlink(netlink_batch::Error::LostReply)),
        };
        let mut missing: Vec<MissingFeature> = Vec::new();
        for refused in refused {
            let Some(Some(feature)) = features.get(refused.change) else {
                continue;
            };
            // If the kernel refuses a table, it also refuses all objects inside this table. If it
            // refuses a chain or set, it also refuses the objects that use it. Such further
            // refusals reveal nothing about features.
            let of_another = |cause: &MissingFeature| match cause.feature {
                Feature::Tables => true,
                Feature::NatChains => {
                    matches!(feature, Feature::DestinationNat | Feature::Masquerade)
                }
                cause => cause == *feature,
            };
            if !missing.iter().any(of_another) {
                missing.push(MissingFeature {
                    feature: *feature,
                    family,
                    refusal: refused.refusal,
                });
            }
        }
        Ok(missing)
    }
}

/// Returns the changes of the probe's transaction, each with the feature that it tests. The last
/// two changes test no feature: the kernel must refuse them.
fn one_of_each(family: Family) -> Vec<(Option<Feature>, Change)> {
    const PORT: Option<Register> = Register::at(4);
    let (address, len) = match family {
        Family::Ip6 => (DataType::Ipv6Addr, 16),
        _ => (DataType::Ipv4Addr, 4),
    };
    let first = Register::FIRST;
    let set = |name: &str, key: &[DataType], kind, timeout: Option<Timeout>| Set {
        dynamic: timeout.is_some(),
        timeout,
        ..Set::new(name.into(), key.to_vec(), kind)
    };
    let rule = |chain: &str, expressions: Vec<Expression>| {
        let rule = Rule {
            expressions,
            comment: None,
        };
        Change::AddRule(chain.into(), rule)
    };
    let numgen = Expression::NumGen {
        how: NumGenKind::Random,
        modulus: 1,
        offset: 0,
        to: first,
    };
    let source = Expression::Payload {
        base: PayloadBase::Network,
        offset: if len == 16 { 8 } else { 12 },
        len,
        to: first,
    };
    let mut endpoint: Bytes = SmallVec::new();
    endpoint.resize(len as usize + 4, 0);
    let endpoints = Expression::Lookup {
        key: first,
        set: SetRef::Anonymous(Arc::new(AnonymousSet {
            key: vec![DataType::Mark],
            kind: SetKind::Map(vec![address, DataType::InetService]),
            intervals: false,
            elements: vec![Element::of_map(Bytes::from_slice(&[0; 4]), endpoint)],
        })),
        what: LookupFor::Value(first),
    };
    let mark = Expression::Meta {
        key: MetaKey::Mark,
        to: first,
    };
    let service = [address, DataType::InetProto, DataType::InetService];
    let clients = set(
        "clients",
        &[address],
        SetKind::Set,
        Some(Timeout::OfElements),
    );
    let nowhere: Name = "nowhere".into();
    vec![
        (Some(Feature::Tables), Change::AddTable(table(family))),
        (None, Change::AddChain(chain("plain", None))),
        (
            Some(Feature::FilterChains),
            Change::AddChain(chain("filter", Some(ChainKind::Filter))),
        ),
        (
            Some(Feature::NatChains),
            Change::AddChain(chain("nat", Some(ChainKind::Nat))),
        ),
        (
            Some(Feature::Concatenations),
            Change::AddSet(set("services", &service, SetKind::Verdicts, None)),
        ),
        (Some(Feature::DynamicSets), Change::AddSet(clients)),
        (
            Some(Feature::DynamicSets),
            rule(
                "plain",
                vec![
                    source,
                    Expression::Dynset {
                        set: SetRef::Named("clients".into()),
                        operation: DynsetOperation::Update,
                        key: first,
                        timeout: None,
                    },
                ],
            ),
        ),
        (Some(Feature::NatMaps), rule("plain", vec![mark, endpoints])),
        (Some(Feature::NumGen), rule("plain", vec![numgen])),
        (
            Some(Feature::Fib),
            rule(
                "plain",
                vec![Expression::Fib {
                    result: FibResult::AddressType,
                    flags: FIB_DESTINATION,
                    to: first,
                }],
            ),
        ),
        (
            Some(Feature::Conntrack),
            rule(
                "plain",
                vec![Expression::Ct {
                    key: CtKey::State,
                    to: first,
                }],
            ),
        ),
        (
            Some(Feature::DestinationNat),
            // Destination NAT is not tested in the base chain `nat`, because its hook (postrouting)
            // does not allow it: Linux 5.4 would refuse this rule and all later rules.
            rule(
                "plain",
                vec![
                    immediate(first, len as usize),
                    immediate(PORT.unwrap_or(first), 2),
                    Expression::Nat {
                        kind: NatKind::Destination,
                        family,
                        address: Some(first),
                        port: PORT,
                        flags: 0,
                    },
                ],
            ),
        ),
        (
            Some(Feature::Masquerade),
            rule("nat", vec![Expression::Masquerade { flags: 0x10 }]),
        ),
        (
            Some(Feature::Reject),
            rule("plain", vec![Expression::Reject { kind: 0, code: 4 }]),
        ),
        // The kernel must refuse these two changes, because no chain with the name `nowhere`
        // exists.
        (None, Change::DeleteChain(nowhere.clone())),
        (
            None,
            rule("plain", vec![Expression::Verdict(Verdict::Goto(nowhere))]),
        ),
    ]
}

fn immediate(to: Register, len: usize) -> Expression {
    let mut data: Bytes = SmallVec::new();
    data.resize(len, 0);
    Expression::Immediate { to, data }
}

fn table(family: Family) -> Table {
    Table::new(family, NAME.into())
}

fn chain(name: &str, kind: Option<ChainKind>) -> Chain {
    Chain {
        name: name.into(),
        base: kind.map(|kind| BaseChain {
            kind,
            hook: Hook::Postrouting,
            priority: 100,
            policy: Policy::Accept,
        }),
        comment: None,
    }
}
