//! Many histories, one after the other.

use std::time::{Duration, Instant};

use proxy::IpFamily;

use crate::action::{Action, history};
use crate::modes::Form;
use crate::real::on_a_node;
use crate::run::{Failure, HistoryResult, run, run_on_kernel};
use crate::shrink::shrink;
use crate::turnstile::Threads;

/// Share of histories that run twice, to see that they are equal: one in so many.
const TWICE: u64 = 20;

/// Settings of a run.
#[derive(Debug, Clone)]
pub struct Campaign {
    /// Most histories to run.
    pub histories: u64,
    /// Time after which no further history begins.
    pub limit: Option<Duration>,
    /// The seed of the first; each next one has the next number.
    pub seed: u64,
    /// The modes, in turn.
    pub forms: Vec<&'static Form>,
    /// Ground of the histories.
    pub ground: Ground,
}

/// Kernel that histories run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ground {
    /// The strict fakes.
    Fakes,
    /// The kernel of this machine: on a node of its own each.
    Kernel,
}

impl Ground {
    /// Runs a history; its log is told if that is asked for.
    pub fn run(
        self,
        form: &Form,
        family: IpFamily,
        actions: &[Action],
        threads: &Threads,
        is_told: bool,
    ) -> HistoryResult {
        match self {
            Self::Fakes => run(form.subject(family), actions, threads, is_told),
            Self::Kernel => {
                let ran = on_a_node(family, || {
                    let subject = form.on_the_kernel(family)?;
                    // They are in the same network namespace.
                    Ok(run_on_kernel(subject, actions, &Threads::start(), is_told))
                });
                ran.and_then(|ran| ran)
                    .unwrap_or_else(|what| HistoryResult {
                        failure: Some(Failure { at: 0, what }),
                        ..HistoryResult::default()
                    })
            }
        }
    }
}

/// Returns the forms that this machine's kernel can carry in a family, and why it cannot carry the
/// others.
pub fn carried(forms: &[&'static Form], family: IpFamily) -> (Vec<&'static Form>, Vec<String>) {
    let (mut carried, mut others) = (Vec::new(), Vec::new());
    for form in forms.iter().copied().filter(|form| form.has_kernel()) {
        let tried = on_a_node(family, || form.on_the_kernel(family).map(drop));
        match tried.and_then(|tried| tried) {
            Ok(()) => carried.push(form),
            Err(why) => others.push(format!("{} ({family}): {why}", form.name)),
        }
    }
    (carried, others)
}

/// Result of a run.
#[derive(Debug, Default)]
pub struct Account {
    /// Number of histories that were run to their end, or to their failure.
    pub histories: u64,
    /// Number of pieces that kernel threads did in them.
    pub pieces: u64,
    /// Duration.
    pub took: Duration,
    /// Number of histories that were run twice, and of those in which the plans came in another
    /// order, because the product follows the order of a hash table.
    pub twice: u64,
    /// See there.
    pub unlike: u64,
    /// The first one that failed.
    pub failed: Option<Failed>,
}

/// A history that failed, shortened.
#[derive(Debug)]
pub struct Failed {
    /// Seed of the history.
    pub seed: u64,
    /// The mode.
    pub form: &'static Form,
    /// The family.
    pub family: IpFamily,
    /// Actions that are needed for the failure.
    pub actions: Vec<Action>,
    /// The violated property.
    pub failure: Failure,
    /// Log for people.
    pub log: Vec<String>,
}

/// The family of a seed's addresses: one in seven is IPv6.
pub fn family(seed: u64) -> IpFamily {
    if seed.is_multiple_of(7) {
        IpFamily::V6
    } else {
        IpFamily::V4
    }
}

/// Runs them until one fails.
pub fn go(campaign: &Campaign, threads: &Threads) -> Account {
    let began = Instant::now();
    let mut account = Account::default();
    for number in 0..campaign.histories {
        let is_over = campaign.limit.is_some_and(|limit| began.elapsed() >= limit);
        let forms = campaign.forms.iter().cycle();
        let turn = usize::try_from(number % campaign.forms.len().max(1) as u64).unwrap_or(0);
        let Some(form) = forms.copied().nth(turn).filter(|_| !is_over) else {
            break;
        };
        let seed = campaign.seed.wrapping_add(number);
        let family = family(seed);
        let actions = history(seed);
        let ground = campaign.ground;
        let again =
            |actions: &[Action], is_told| ground.run(form, family, actions, threads, is_told);
        let ran = again(&actions, false);
        account.histories += 1;
        account.pieces += ran.pieces as u64;
        if let Some(failure) = ran.failure {
            let fails = |fewer: &[Action]| again(fewer, false).failure;
            let (actions, failure) = shrink(actions, failure, fails);
            let log = again(&actions, true).log;
            account.failed = Some(Failed {
                seed,
                form,
                family,
                actions,
                failure,
                log,
            });
        } else if number.is_multiple_of(TWICE) && ground == Ground::Fakes {
            account.twice += 1;
            account.unlike += u64::from(again(&actions, false).trace != ran.trace);
        }
        if account.failed.is_some() {
            break;
        }
    }
    account.took = began.elapsed();
    account
}
