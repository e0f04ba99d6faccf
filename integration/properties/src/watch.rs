//! What must not be taken from those who are served.
//!
//! A *front* is an address, protocol and port at which a Service is to serve. From the moment at
//! which the objects give it a ready endpoint (what a start on an empty kernel makes of them says
//! which), its *period* runs, until they give it none. In it, whoever was to serve there at any
//! moment is *good*: the news of a change takes its time.
//!
//! A front is *served* if the kernel sends its clients to a good endpoint. A piece of ours breaks it
//! if it was served before the piece and is not after it, where
//!
//! - the engine had heard of the period's begin when it planned the piece;
//! - nobody else has damaged anything in the kernel, and nothing on the way to the front was
//!   refused, since all its endpoints served last, and all plans knew of them;
//! - nothing is as somebody else has made it, who may have changed what nothing led to then.

use std::collections::{BTreeMap, BTreeSet};

use hashbrown::HashMap;
use proxy::Target;

use crate::cluster::is_a_cluster_ip;
use crate::subject::{Entries, Served};
use crate::turnstile::{Front, Serves, Write};

/// What is known of a front in its period.
#[derive(Debug)]
struct Period {
    /// The event that has begun it; `None`: it is not told by events, and counts once all rests.
    since: Option<u64>,
    wanted: BTreeSet<Target>,
    /// The event since which exactly these are wanted; `None` as above.
    settled: Option<u64>,
    good: BTreeSet<Target>,
    is_disturbed: bool,
}

/// The fronts, and the entries that are wanted.
#[derive(Debug, Default)]
pub struct Watch {
    fronts: BTreeMap<Front, Period>,
    entries: HashMap<String, Option<u64>>,
    before: Served,
    claims: BTreeMap<Front, BTreeSet<String>>,
    /// Those that others claim than at the event before: they count once all rests.
    handed_over: BTreeSet<Front>,
    /// What somebody has taken away, until it is there again.
    lost: BTreeSet<String>,
    /// What somebody has made of something, as long as it is that.
    altered: Entries,
}

impl Watch {
    /// The objects want something else since this event.
    /// These are good as well, though not wanted.
    pub fn want(
        &mut self,
        served: &Served,
        entries: &Entries,
        makeshift: &BTreeSet<Target>,
        since: Option<u64>,
    ) {
        self.fronts.retain(|front, _| served.contains_key(front));
        let has_lost = self.has_lost();
        for (front, wanted) in served {
            let is_handed_over = self.handed_over.contains(front);
            let period = self.fronts.entry(*front).or_insert_with(|| Period {
                since: since.filter(|_| !is_handed_over),
                wanted: BTreeSet::new(),
                settled: None,
                good: BTreeSet::new(),
                // What somebody has made of an entry that nobody was to be served by counts as well: the mode
                // may not have looked at it since, and puts its own to it as if it were as before.
                is_disturbed: !self.claims.is_empty() || has_lost,
            });
            period.good.extend(wanted.union(makeshift).copied());
            if period.wanted != *wanted {
                period.wanted.clone_from(wanted);
                period.settled = since;
            }
        }
        self.entries.retain(|entry, _| entries.contains_key(entry));
        for entry in entries.keys() {
            if !self.entries.contains_key(entry) {
                self.entries.insert(entry.clone(), since);
            }
        }
    }

    /// A front that other Services claim than before begins a new period.
    pub fn begin_where_others_claim(&mut self, claims: &BTreeMap<Front, BTreeSet<String>>) {
        self.handed_over.clear();
        for (front, by) in claims {
            if self.claims.get(front).is_some_and(|before| before != by) {
                self.fronts.remove(front);
                self.handed_over.insert(*front);
            }
        }
        self.claims.clone_from(claims);
    }

    /// Somebody else has changed something: who serves now is what counts.
    pub fn damaged(&mut self) {
        for period in self.fronts.values_mut() {
            period.is_disturbed = true;
        }
    }

    /// The same: what there was before it, and after it.
    pub fn lose(&mut self, before: &Entries, after: &Entries) {
        for (entry, was) in before {
            match after.get(entry) {
                None => {
                    self.lost.insert(entry.clone());
                }
                Some(is) if is != was => {
                    self.altered.insert(entry.clone(), is.clone());
                }
                Some(_) => {}
            }
        }
    }

    /// Whether something that somebody took away is not there again, or what somebody changed is as
    /// they left it.
    pub fn has_lost(&self) -> bool {
        !(self.lost.is_empty() && self.altered.is_empty())
    }

    /// What somebody took away that is wanted and not there again.
    pub fn lost(&self) -> impl Iterator<Item = &str> {
        self.lost.iter().map(String::as_str)
    }

    /// What there is by now; what nobody wants any more need not come back.
    pub fn repaired(&mut self, there: &Entries) {
        let wanted = &self.entries;
        let is_missing = |entry: &String| wanted.contains_key(entry) && !there.contains_key(entry);
        self.lost.retain(is_missing);
        let is_still = |entry: &String, made: &mut String| there.get(entry) == Some(made);
        self.altered.retain(is_still);
    }

    /// Something was not done.
    pub fn refused(&mut self, write: &Write) {
        for (front, period) in &mut self.fronts {
            period.is_disturbed |= match write.serves {
                Serves::All => true,
                Serves::Address(address) => front.address == address,
                Serves::Nobody => false,
            };
        }
    }

    /// Nothing is left to be done: the engine knows all there is to know by now.
    pub fn rests(&mut self, event: u64) {
        let periods = self.fronts.values_mut().map(|period| &mut period.since);
        for since in periods.chain(self.entries.values_mut()) {
            since.get_or_insert(event);
        }
        for period in self.fronts.values_mut() {
            period.settled.get_or_insert(event);
        }
    }

    /// Who serves now, while whoever plans or carries out anything has heard so much.
    pub fn note(&mut self, served: Served, heard: u64) {
        for (front, period) in &mut self.fronts {
            let is_known = period.settled.is_some_and(|event| event <= heard);
            if period.is_disturbed
                && is_known
                && self.lost.is_empty()
                && served.get(front) == Some(&period.wanted)
            {
                period.is_disturbed = false;
            }
        }
        self.before = served;
    }

    /// Whether a piece may be done at all, of a plan that was made when this had been heard.
    ///
    /// # Errors
    ///
    /// It takes away what is wanted, and was when it was planned.
    pub fn may(&self, write: &Write, heard: u64) -> Result<(), String> {
        let Some(entry) = &write.removes else {
            return Ok(());
        };
        match self.entries.get(entry) {
            Some(Some(since)) if *since <= heard => Err(format!(
                "it takes away what is wanted since event {since}, of which it had heard (up to {heard}): {entry}",
            )),
            _ => Ok(()),
        }
    }

    /// Compares who serves after a piece, of a plan that was made when this had been heard, with who
    /// did before it; so much had been heard when any plan was made that is not done.
    ///
    /// # Errors
    ///
    /// Somebody lost the last endpoint.
    pub fn after(&mut self, served: Served, heard: u64, by_all: u64) -> Result<(), String> {
        for (front, period) in &mut self.fronts {
            let is_claimed_twice = self.claims.get(front).is_some_and(|by| by.len() > 1);
            let is_news = period.since.is_none_or(|since| since > heard);
            let is_nobody = period.good.iter().any(is_a_cluster_ip);
            if period.is_disturbed || is_news || is_claimed_twice || is_nobody {
                continue;
            }
            let serves =
                |by: Option<&BTreeSet<Target>>| by.is_some_and(|by| !by.is_disjoint(&period.good));
            if serves(self.before.get(front)) && !serves(served.get(front)) {
                if !self.altered.is_empty() {
                    // Nothing led to it when somebody changed it, and now something does.
                    period.is_disturbed = true;
                    continue;
                }
                return Err(format!(
                    "{front} is without an endpoint: it was served by {:?}, now by {:?}, wanted are {:?}, and were at some moment {:?}",
                    self.before.get(front),
                    served.get(front),
                    period.wanted,
                    period.good,
                ));
            }
        }
        self.note(served, by_all);
        Ok(())
    }
}
