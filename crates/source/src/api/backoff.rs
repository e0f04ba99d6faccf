//! Computes the waits between attempts to reach the API server.
//!
//! | what failed | first wait | doubles up to |
//! |---|---|---|
//! | connecting: refused, no route, no reply, or no connection by the proxy | 0.8 s | 5 s |
//! | a connected server: rejects (429, 5xx, 403), breaks off, is silent, untrusted | 0.8 s | 30 s |
//! | a server that does not serve an optional kind | 0.8 s | 5 min |
//!
//! - **Random**: each wait is between half of the time in the table and the whole time. So nodes
//!   that lost the server at the same time do not reconnect at the same time.
//! - **Counting**: each row counts its own failures. So failed connections during an outage do not
//!   lengthen the waits after the outage, when a server that has just started may reject requests.
//! - **Reset**: a row begins again with its first wait after a success, or after two minutes
//!   without a failure of this row.
//!
//! **Why refused connections have short waits.** They cost the server nothing. Once the server
//! accepts connections again, each of the three watches (four with ServiceCIDRs) sends a request
//! within 5 s. If the network drops packets, the limit is 8 s: the kernel resends the SYN after 1,
//! 3 and 7 s, the attempt ends after 10 s, and the next attempt follows within 5 s. 1,000 nodes
//! then send 600 requests a second (800 with ServiceCIDRs), for one object each.
//!
//! **Why rejected requests have longer waits.** A response costs the server some work. So the
//! server gets the next request within 30 s, or later if its `Retry-After` says so.
//!
//! In client-go, the waits grow from 0.8 s to between 30 and 60 s, after refused connections and
//! after rejected requests.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use tokio::time::Instant;

/// Longest wait after the first failure, as in client-go.
const FIRST: Duration = Duration::from_millis(800);
/// Longest delay between attempts while the API server accepts no connection.
const MOST_UNCONNECTED: Duration = Duration::from_secs(5);
/// Longest delay between attempts while the API server accepts connections.
const MOST_ANSWERED: Duration = Duration::from_secs(30);
/// Longest delay between attempts while the API server does not serve an optional kind.
const MOST_UNTOLD: Duration = Duration::from_mins(5);
/// Time without a failure, beyond the longest wait, after which a row of the table in the module's
/// description begins again with its first wait.
const FORGOTTEN: Duration = Duration::from_mins(2);

/// Work that a failed attempt causes on the API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cost {
    /// The attempt failed without a request, because the API server accepted no connection.
    Nothing,
    /// The API server handled one request.
    Something,
    /// The API server handled one request for an optional kind.
    Optional,
}

/// Waits between the attempts of one watch, or between attempts to send one Kubernetes event.
#[derive(Debug, Default)]
pub struct Backoff {
    unconnected: Steps,
    answered: Steps,
    untold: Steps,
}

/// Number of failures, and time of the last failure, of one row of the table in the module's
/// description.
#[derive(Debug, Default)]
struct Steps {
    count: u32,
    last: Option<Instant>,
}

impl Backoff {
    /// Resets all waits to the first wait, after a success.
    pub fn reset(&mut self) {
        *self = Self::default();
    }

    /// Records a failure at `now`, and returns the random wait before the next attempt.
    pub fn next(&mut self, cost: Cost, now: Instant) -> Duration {
        let longest = self.longest(cost, now);
        longest / 2 + up_to(longest / 2)
    }

    fn longest(&mut self, cost: Cost, now: Instant) -> Duration {
        let (steps, most) = match cost {
            Cost::Nothing => (&mut self.unconnected, MOST_UNCONNECTED),
            Cost::Something => (&mut self.answered, MOST_ANSWERED),
            Cost::Optional => (&mut self.untold, MOST_UNTOLD),
        };
        if steps
            .last
            .is_some_and(|last| now.duration_since(last) > most + FORGOTTEN)
        {
            steps.count = 0;
        }
        let longest = FIRST.saturating_mul(2_u32.saturating_pow(steps.count));
        steps.count += u32::from(longest < most);
        steps.last = Some(now);
        longest.min(most)
    }
}

/// Returns a random number in the range, which includes both ends.
pub(super) fn any_of(range: std::ops::RangeInclusive<u32>) -> u32 {
    let (first, last) = range.into_inner();
    let random = RandomState::new().hash_one(()) % (u64::from(last - first) + 1);
    first + u32::try_from(random).unwrap_or_default()
}

/// Returns a random time of at most `longest`.
pub(super) fn up_to(longest: Duration) -> Duration {
    let longest = u32::try_from(longest.as_millis()).unwrap_or(u32::MAX);
    Duration::from_millis(any_of(0..=longest).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retry_wait_doubles_with_each_failure_up_to_a_limit() {
        let (mut backoff, now) = (Backoff::default(), Instant::now());
        let mut longest = |cost| backoff.longest(cost, now).as_millis();
        let mut of = |cost| [(); 8].map(|()| longest(cost));
        let wanted = [800, 1600, 3200, 5000, 5000, 5000, 5000, 5000];
        assert_eq!(of(Cost::Nothing), wanted);
        // Failures while a server was down do not lengthen the waits after it replies.
        let wanted = [800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000];
        assert_eq!(of(Cost::Something), wanted);
        // A server that starts and stops repeatedly shortens neither wait.
        assert_eq!(longest(Cost::Nothing), 5000);
        assert_eq!(longest(Cost::Something), 30_000);
        backoff.reset();
        assert_eq!(backoff.longest(Cost::Something, now), FIRST);
    }

    #[test]
    fn an_old_failure_does_not_lengthen_retry_waits() {
        let (mut backoff, start) = (Backoff::default(), Instant::now());
        for _ in 0..9 {
            backoff.longest(Cost::Something, start);
        }
        let soon = start + MOST_ANSWERED + FORGOTTEN;
        assert_eq!(backoff.longest(Cost::Something, soon), MOST_ANSWERED);
        let late = soon + MOST_ANSWERED + FORGOTTEN + Duration::from_millis(1);
        assert_eq!(backoff.longest(Cost::Something, late), FIRST);
    }

    #[test]
    fn retry_waits_are_random_between_half_and_all_of_their_length() {
        let now = Instant::now();
        let waits: Vec<_> = (0..1000)
            .map(|_| Backoff::default().next(Cost::Nothing, now))
            .collect();
        assert!(waits.iter().all(|wait| (FIRST / 2..=FIRST).contains(wait)));
        for part in [0.5, 0.6, 0.7, 0.8, 0.9] {
            let from = FIRST.mul_f64(part);
            let within = |wait: &&Duration| (from..from + FIRST / 10).contains(*wait);
            assert!(waits.iter().filter(within).count() > 100, "{part}");
        }
    }
}
