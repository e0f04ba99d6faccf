//! Campaign: runs many random event sequences, one after another.

use std::fmt;
use std::time::{Duration, Instant};

use proxy::IpFamily;

use crate::action::{Action, history};
use crate::modes::Form;
use crate::real::on_a_node;
use crate::run::{Failure, HistoryResult, run, run_on_kernel};
use crate::shrink::shrink;
use crate::stepped_threads::Threads;

/// A campaign on the fake kernels runs one in this many event sequences a second time, and compares
/// both runs.
const TWICE: u64 = 20;

/// Settings of a campaign, which runs many random event sequences.
#[derive(Debug, Clone)]
pub struct Campaign {
    /// Maximum number of event sequences to run.
    pub histories: u64,
    /// Time after which no further sequence starts, or `None` without a limit.
    pub limit: Option<Duration>,
    /// Seed of the first sequence. Each further sequence has the next number as its seed.
    pub seed: u64,
    /// Forms (modes with flags, such as IPVS mode with `--ipvs-shim=lean`) in which event sequences
    /// run in turn.
    pub forms: Vec<&'static Form>,
    /// Kernel on which the event sequences run.
    pub ground: Ground,
}

/// Kernel on which event sequences run: fake or real.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ground {
    /// The strict fake kernel of each mode.
    Fakes,
    /// This machine's kernel. Each sequence runs in its own network namespace.
    Kernel,
}

impl Ground {
    /// Runs an event sequence. Records a log of its steps if `is_told` is true.
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
                    // All threads that run this sequence are in the node's network namespace.
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

/// Returns the forms that this machine's kernel supports in an IP family, and the reason for each
/// form that it does not support.
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

/// Result of a campaign: counts, and the first failed sequence.
#[derive(Debug, Default)]
pub struct Account {
    /// Number of event sequences that were run, including a failed one.
    pub histories: u64,
    /// Number of steps of all worker threads. A step is one read or write of the kernel.
    pub pieces: u64,
    /// Duration of the campaign.
    pub took: Duration,
    /// Number of event sequences that ran a second time, to compare both runs.
    pub twice: u64,
    /// Number of these event sequences whose second run differed from the first: the daemon's hash
    /// tables have a random order, so this is no error.
    pub unlike: u64,
    /// The failed sequence, which ended the campaign, or `None` if no sequence failed.
    pub failed: Option<FailedSequence>,
}

/// A failed sequence, shrunk to the actions without which it does not fail.
#[derive(Debug)]
pub struct FailedSequence {
    /// Seed from which the sequence was generated.
    pub seed: u64,
    /// Form in which the sequence failed: a mode with flags.
    pub form: &'static Form,
    /// IP family in which the sequence failed.
    pub family: IpFamily,
    /// Actions that remain after shrinking.
    pub actions: Vec<Action>,
    /// Violated property, and the action after which the test found the violation.
    pub failure: Failure,
    /// Log of the shrunk sequence's steps.
    pub log: Vec<String>,
}

impl fmt::Display for FailedSequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seed, name, what) = (self.seed, self.form.name, &self.failure.what);
        write!(f, "seed {seed} in {name}: {what}\n{}", self.log.join("\n"))
    }
}

/// Returns the IP family of a seed: IPv6 for one seed in seven, otherwise IPv4.
pub fn family(seed: u64) -> IpFamily {
    if seed.is_multiple_of(7) {
        IpFamily::V6
    } else {
        IpFamily::V4
    }
}

/// Runs event sequences until one fails, or until a limit of the campaign. Shrinks a failed event
/// sequence.
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
