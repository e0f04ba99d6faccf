//! Clients that send requests in a loop until the test stops them. One or more clients share an
//! account, which counts their results.
//!
//! ```text
//!  client: a place, a pause, counted requests ──▶ a thread that sends requests ──▶ its account
//!  meter: a thread that only sleeps           ──▶ stalls, which excuse timeouts
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::stalls::Meter;
use crate::{Crew, Failure, Place, StopSignal};

/// Maximum number of different failures that an account prints.
const SHOWN: usize = 10;

/// Settings of a client: its account, its pause between requests, and the requests that count.
/// [`Traffic`] runs the client.
#[derive(Debug, Clone)]
pub struct Client {
    /// Name of the account that counts this client's results. Clients may share an account.
    pub account: String,
    /// Pause of the client after each request.
    pub rest: Duration,
    /// Requests that count in the account.
    pub counts: Counts,
    /// Minimum stall of the VM that excuses a timeout at the same time. The account counts an
    /// excused request as unjudged.
    pub excuse: Duration,
}

/// Requests of a client that count in its account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counts {
    /// All requests of the client count.
    All,
    /// The first successful request and all requests after it.
    FromFirstAnswer,
    /// All requests up to the first failure, after which the client stops.
    UntilFailure,
}

impl Client {
    /// Returns the settings of a client whose requests all count, and whose timeouts are never
    /// excused.
    pub fn new(account: impl Into<String>, rest: Duration) -> Self {
        Self {
            account: account.into(),
            rest,
            counts: Counts::All,
            excuse: Duration::MAX,
        }
    }
}

/// Results of the requests of one or more clients.
#[derive(Debug, Clone, Default)]
pub struct Account {
    /// Number of clients that [`Traffic`] has started for this account.
    pub clients: u64,
    /// Number of counted requests: answered, failed and unjudged.
    pub requests: u64,
    /// Number of counted requests that failed.
    pub failed: u64,
    /// Number of counted requests that timed out during a stall of the VM, so that their timeouts
    /// prove nothing.
    pub unjudged: u64,
    /// Longest time between a request and its reply.
    pub longest: Duration,
    /// Number of failures by client and cause.
    pub reasons: BTreeMap<String, u64>,
    /// Number of replies by the server's name.
    pub by_server: BTreeMap<String, u64>,
    /// Time of the last reply to a counted request, if any.
    pub last_answer: Option<Instant>,
    /// Time of the last failure of a counted request, if any.
    pub last_failure: Option<Instant>,
}

impl Account {
    /// Returns the number of counted requests that got a reply.
    pub fn answered(&self) -> u64 {
        self.requests - self.failed - self.unjudged
    }

    /// Returns true if fewer than one in 20 requests are unjudged because of the VM's stalls.
    pub fn is_judged(&self) -> bool {
        self.requests > 20 * self.unjudged
    }

    /// Adds the results of another account to this account.
    pub fn add(&mut self, other: &Self) {
        self.clients += other.clients;
        self.requests += other.requests;
        self.failed += other.failed;
        self.unjudged += other.unjudged;
        self.longest = self.longest.max(other.longest);
        for (reason, times) in &other.reasons {
            *self.reasons.entry(reason.clone()).or_default() += times;
        }
        for (server, answers) in &other.by_server {
            *self.by_server.entry(server.clone()).or_default() += answers;
        }
        self.last_answer = self.last_answer.max(other.last_answer);
        self.last_failure = self.last_failure.max(other.last_failure);
    }

    fn note(
        &mut self,
        client: &str,
        began: Instant,
        result: Result<String, Failure>,
        is_excused: bool,
    ) {
        let now = Instant::now();
        self.requests += 1;
        match result {
            Ok(server) => {
                self.longest = self.longest.max(now - began);
                self.last_answer = Some(now);
                *self.by_server.entry(server).or_default() += 1;
            }
            Err(_) if is_excused => self.unjudged += 1,
            Err(failure) => {
                self.failed += 1;
                self.last_failure = Some(now);
                *self
                    .reasons
                    .entry(format!("{client}: {failure}"))
                    .or_default() += 1;
            }
        }
    }
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of {} requests failed ({} not judged), the longest took {:.1?}",
            self.failed, self.requests, self.unjudged, self.longest
        )?;
        for (reason, times) in self.reasons.iter().take(SHOWN) {
            write!(f, "; {times} × {reason}")?;
        }
        Ok(())
    }
}

/// Accounts of all clients, by name.
type Accounts = BTreeMap<String, Account>;

/// Running client threads, and their accounts. Dropping this value stops the threads.
#[derive(Debug)]
pub struct Traffic {
    accounts: Arc<Mutex<Accounts>>,
    meter: Meter,
    clients: Crew<io::Result<()>>,
}

impl Default for Traffic {
    fn default() -> Self {
        let (meter, mut clients) = (Meter::default(), Crew::default());
        let measuring = meter.clone();
        clients.begin(move |over| {
            measuring.run(over);
            Ok(())
        });
        Self {
            accounts: Arc::default(),
            meter,
            clients,
        }
    }
}

impl Traffic {
    /// Starts a client: a thread in the network namespace of `place`, which calls `ask` in a loop.
    /// `ask` sends one request, and returns the name of the server that replied.
    pub fn start(
        &mut self,
        place: &Place,
        client: Client,
        ask: impl FnMut() -> Result<String, Failure> + Send + 'static,
    ) {
        lock(&self.accounts)
            .entry(client.account.clone())
            .or_default()
            .clients += 1;
        let (place, meter) = (place.clone(), self.meter.clone());
        let accounts = Arc::clone(&self.accounts);
        self.clients.begin(move |over| {
            place.enter(|| {
                work(&client, ask, &accounts, &meter, over);
                Ok(())
            })
        });
    }

    /// Returns a copy of all accounts, by name, while the clients continue.
    pub fn accounts(&self) -> BTreeMap<String, Account> {
        lock(&self.accounts).clone()
    }

    /// Returns the longest time for which the host gave this VM no CPU time.
    pub fn longest_stall(&self) -> Duration {
        self.meter.longest()
    }

    /// Stops all clients. Each finishes its current request first.
    ///
    /// # Errors
    /// Returns an error if a client could not enter its network namespace.
    ///
    /// # Panics
    /// Panics if a client has panicked.
    pub fn stop(&mut self) -> io::Result<()> {
        match self.clients.stop() {
            Ok(ends) => ends.into_iter().collect(),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

/// Sends requests in a loop, at least one, until `over` is set or the client stops by itself
/// ([`Counts::UntilFailure`]).
fn work(
    client: &Client,
    mut ask: impl FnMut() -> Result<String, Failure>,
    accounts: &Mutex<Accounts>,
    meter: &Meter,
    over: &StopSignal,
) {
    let mut is_counting = client.counts != Counts::FromFirstAnswer;
    loop {
        let (began, stalls) = (Instant::now(), meter.so_far());
        let result = ask();
        let stall = meter.so_far().saturating_sub(stalls);
        let is_excused = stall >= client.excuse && matches!(result, Err(Failure::TimedOut));
        let is_failure = result.is_err();
        is_counting |= result.is_ok();
        if is_counting {
            let mut accounts = lock(accounts);
            let account = accounts.entry(client.account.clone()).or_default();
            account.note(&client.account, began, result, is_excused);
        }
        if over.is_over() || is_failure && client.counts == Counts::UntilFailure {
            return;
        }
        thread::sleep(client.rest);
    }
}

fn lock(accounts: &Mutex<Accounts>) -> MutexGuard<'_, Accounts> {
    accounts.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// Runs a client whose requests have these results in order, and returns its account.
    fn play(client: &Client, results: &[Result<&str, Failure>]) -> Account {
        let over = StopSignal::default();
        let mut left: VecDeque<_> = results.iter().cloned().collect();
        let accounts = Mutex::default();
        let ending = over.clone();
        let ask = || {
            let result = left.pop_front().unwrap();
            if left.is_empty() {
                ending.end();
            }
            result.map(str::to_owned)
        };
        work(client, ask, &accounts, &Meter::default(), &over);
        let mut accounts = accounts.into_inner().unwrap();
        accounts.remove(&client.account).unwrap_or_default()
    }

    fn client(counts: Counts, excuse: Duration) -> Client {
        Client {
            counts,
            excuse,
            ..Client::new("web", Duration::ZERO)
        }
    }

    #[test]
    fn a_traffic_report_counts_each_kind_of_failure() {
        use Failure::{Reset, TimedOut};
        let results = [Ok("near"), Err(TimedOut), Err(Reset), Err(TimedOut)];
        let account = play(&client(Counts::All, Duration::MAX), &results);
        let text = account.to_string();
        assert!(
            text.starts_with("3 of 4 requests failed (0 not judged)"),
            "{text}"
        );
        assert!(
            text.ends_with("1 × web: connection reset; 2 × web: timed out"),
            "{text}"
        );
        assert_eq!((account.answered(), account.by_server["near"]), (1, 1));
    }

    #[test]
    fn only_a_timeout_during_a_stall_is_excused() {
        let results = [Err(Failure::TimedOut), Err(Failure::Refused)];
        let account = play(&client(Counts::All, Duration::ZERO), &results);
        assert_eq!((account.failed, account.unjudged), (1, 1));
        assert!(!account.is_judged());
        let account = play(&client(Counts::All, Duration::from_secs(1)), &results);
        assert_eq!((account.failed, account.unjudged), (2, 0));
    }

    #[test]
    fn failures_before_the_first_reply_can_be_ignored() {
        let results = [Err(Failure::Refused), Ok("near"), Err(Failure::Refused)];
        let account = play(&client(Counts::FromFirstAnswer, Duration::MAX), &results);
        assert_eq!((account.requests, account.failed), (2, 1));
    }

    #[test]
    fn a_client_can_stop_at_its_first_failure() {
        let results = [Ok("near"), Err(Failure::Reset), Ok("near")];
        let account = play(&client(Counts::UntilFailure, Duration::MAX), &results);
        assert_eq!((account.requests, account.failed), (2, 1));
    }
}
