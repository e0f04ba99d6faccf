//! Runs many event sequences one after another.

use std::fmt;
use std::time::{Duration, Instant};

use proxy::IpFamily;

use crate::action::{Action, history};
use crate::modes::Form;
use crate::real::on_a_node;
use crate::run::{Failure, HistoryResult, run, run_on_kernel};
use crate::shrink::shrink;
use crate::stepped_threads::Threads;

/// Distance between the seeds of successive sequences that run twice on the fake kernels. The
/// campaign compares both runs of such a sequence.
const TWICE: u64 = 20;

/// Settings of a campaign: a run of many event sequences.
#[derive(Debug, Clone)]
pub struct Campaign {
    /// Maximum number of sequences that the campaign runs.
    pub histories: u64,
    /// Time after which no further sequence starts, or `None` for no limit.
    pub limit: Option<Duration>,
    /// Seed of the first sequence. Each further sequence has the next number.
    pub seed: u64,
    /// Forms to test. A form is a mode with flags, such as IPVS mode with `--ipvs-shim=lean`. The
    /// sequences use the forms in turn.
    pub forms: Vec<&'static Form>,
    /// Kernel on which the sequences run.
    pub ground: Ground,
}

/// Kernel on which event sequences run: fake or real.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ground {
    /// The strict fake kernels of the modes.
    Fakes,
    /// This machine's kernel. Each sequence has a separate network namespace as its node.
    Kernel,
}

impl Ground {
    /// Runs a sequence. Keeps a log if `is_told` is true.
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
                    // All threads of the run share the node's network namespace.
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

/// Returns the mode variants that this machine's kernel supports for an address family. For each
/// unsupported variant, also returns the reason.
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

/// Result of a campaign: numbers of sequences and steps, and the first failure.
#[derive(Debug, Default)]
pub struct Account {
    /// Number of sequences that ran to their end, or to their failure.
    pub histories: u64,
    /// Number of steps of the daemon's threads. A step is one read or write of the kernel.
    pub pieces: u64,
    /// Duration of the campaign.
    pub took: Duration,
    /// Number of sequences that ran twice, to compare both runs.
    pub twice: u64,
    /// Number of repeated sequences whose second run planned writes in another order. The daemon
    /// iterates over a hash table, so this is no error.
    pub unlike: u64,
    /// The first failed sequence, which ended the campaign, or `None` if no sequence failed.
    pub failed: Option<FailedSequence>,
}

/// A failed sequence, shortened to the actions that the failure needs.
#[derive(Debug)]
pub struct FailedSequence {
    /// Seed of the failed sequence.
    pub seed: u64,
    /// Mode of the failed sequence, with its shim or layout.
    pub form: &'static Form,
    /// The address family in the failed sequence.
    pub family: IpFamily,
    /// Actions that are necessary for the failure.
    pub actions: Vec<Action>,
    /// Property that the sequence violated.
    pub failure: Failure,
    /// Readable log of the shortened sequence.
    pub log: Vec<String>,
}

impl fmt::Display for FailedSequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seed, name, what) = (self.seed, self.form.name, &self.failure.what);
        write!(f, "seed {seed} in {name}: {what}\n{}", self.log.join("\n"))
    }
}

/// Returns the address family of a seed. One seed in seven gives IPv6.
pub fn family(seed: u64) -> IpFamily {
    if seed.is_multiple_of(7) {
        IpFamily::V6
    } else {
        IpFamily::V4
    }
}

/// Runs sequences until one fails.
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
            account.failed = Some(FailedSequence {
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
