//! Interprets the error of a transaction that the kernel refused.

use nftables_netlink::{CommitError, Error, Transaction};

use crate::describe::describe;
use crate::kernel::{Blame, Refusal};

/// Converts the error of a transaction to a refusal. Includes the refused changes if the kernel
/// named them.
pub(crate) fn refusal_of(transaction: &Transaction, error: CommitError) -> Refusal {
    let reason = error.to_string();
    match error {
        // Blames no change: if the kernel lacks memory, the change that its error names may be
        // valid.
        CommitError::Whole(refusal) if refusal.errno == libc::ENOMEM => Refusal::General(reason),
        CommitError::Refused { refused, .. }
            if refused.iter().any(|of| of.refusal.errno == libc::ENOMEM) =>
        {
            Refusal::General(reason)
        }
        CommitError::Refused { refused, .. } => {
            let changes = refused.into_iter().map(|of| {
                let change = transaction.changes.get(of.change);
                let what = change.map_or_else(String::new, describe);
                Blame {
                    change: of.change,
                    errno: of.refusal.errno,
                    reason: format!("{what}: {}", of.refusal),
                }
            });
            Refusal::Refused {
                reason,
                changes: changes.collect(),
            }
        }
        // Names no change, so that the executor splits the transaction. A smaller transaction may
        // succeed.
        CommitError::Whole(_) | CommitError::TooLarge(_) => Refusal::Refused {
            reason,
            changes: Vec::new(),
        },
        CommitError::WrongGeneration { .. }
        | CommitError::Error(
            Error::NoNftables | Error::Netlink(netlink_batch::Error::Permission { .. }),
        ) => Refusal::General(reason),
        _ => Refusal::Unknown(reason),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use nftables_netlink::{Change, Family, RefusedChange};

    use super::*;

    fn of(error: CommitError) -> Refusal {
        let transaction = Transaction {
            family: Family::Ip,
            table: "t".into(),
            changes: vec![
                Change::FlushChain("a".into()),
                Change::FlushChain("b".into()),
            ],
        };
        refusal_of(&transaction, error)
    }

    fn errno(errno: i32) -> netlink_batch::Refusal {
        netlink_batch::Refusal {
            errno,
            message: None,
            request: Vec::new(),
        }
    }

    fn changes(all: &[(usize, i32)]) -> CommitError {
        let refused = all.iter().map(|&(change, of)| RefusedChange {
            change,
            refusal: errno(of),
        });
        CommitError::Refused {
            refused: refused.collect(),
            more: false,
        }
    }

    #[test]
    fn a_refusal_for_lack_of_memory_blames_no_object() {
        for error in [
            CommitError::Whole(errno(libc::ENOMEM)),
            changes(&[(1, libc::ENOMEM)]),
            changes(&[(0, libc::ENOENT), (1, libc::ENOMEM)]),
        ] {
            let told = of(error);
            assert!(matches!(told, Refusal::General(_)), "{told:?}");
        }
    }

    #[test]
    fn a_refusal_names_the_refused_change() {
        let Refusal::Refused { changes, .. } = of(changes(&[(1, libc::EBUSY)])) else {
            panic!("it is a refusal");
        };
        assert_eq!((changes.len(), changes[0].change), (1, 1));
        assert_eq!(changes[0].errno, libc::EBUSY);
        assert!(changes[0].reason.starts_with("flush chain b: "));
    }

    #[test]
    fn a_transaction_that_the_kernel_refused_as_a_whole_is_split() {
        let too_large = io::Error::from_raw_os_error(libc::EMSGSIZE);
        for error in [
            CommitError::Whole(errno(libc::EINVAL)),
            CommitError::TooLarge(too_large),
        ] {
            let told = of(error);
            let is_whole = matches!(&told, Refusal::Refused { changes, .. } if changes.is_empty());
            assert!(is_whole, "{told:?}");
        }
        assert!(matches!(of(CommitError::Unknown), Refusal::Unknown(_)));
        let missing = CommitError::Error(Error::NoNftables);
        assert!(matches!(of(missing), Refusal::General(_)));
    }
}
