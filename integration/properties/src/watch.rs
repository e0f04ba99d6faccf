//! Checks that no write of the daemon takes service from clients.
//!
//! A *front* is a frontend: an address, protocol and port of a Service, as clients in one location
//! see it. The *wanted* verdicts of a front are the verdicts after a start on an empty kernel.
//!
//! A *period* of a front begins when the objects give the front a ready endpoint. The period ends
//! when the objects remove the last endpoint. A second kind of period begins when the objects make
//! the kernel reject the front's clients. Within a period, each verdict that was wanted at any time
//! is *good*, because a change takes time to arrive.
//!
//! A step of the daemon breaks a front in three cases:
//!
//! - Before the step, a good endpoint got packets. After the step, no good endpoint gets packets.
//! - Before the step, all verdicts were good. After the step, one verdict is not good: an unwanted
//!   endpoint, a wrong client address, or packets that are dropped or accepted by mistake.
//! - An endpoint with a wrong client address begins to get packets.
//!
//! The check applies only under three conditions:
//!
//! - When the engine planned the step, the engine had received the event that began the period.
//! - All endpoints of the front have worked at a time when all plans included them. Since then, no
//!   other program has damaged the kernel's state, and the kernel has refused no write for the
//!   front.
//! - The daemon has repaired all entries that other programs changed.

use std::collections::{BTreeMap, BTreeSet};

use hashbrown::HashMap;
use proxy::Target;

use crate::cluster::{POD_ADDRESS, at, is_a_cluster_ip, is_for_cluster};
use crate::stepped_threads::{AffectedClients, ClientLocation, Front, Write};
use crate::subject::Entries;
use crate::verdict::{SeenClient, Verdict, Verdicts, is_served};

/// State of a frontend since its present period began.
#[derive(Debug)]
struct Period {
    /// Number of the event that started the period. `None` if no event did: then the test checks
    /// the frontend only after the daemon has been idle.
    since: Option<u64>,
    wanted: BTreeSet<Verdict>,
    /// Number of the event that set the wanted verdicts. `None` if no event did.
    settled: Option<u64>,
    good: BTreeSet<Verdict>,
    /// True after damage or a refused write, until the frontend has its wanted verdicts again. The
    /// test does not check it meanwhile.
    is_disturbed: bool,
    /// True from the kernel's refusal to admit a client, or to show its rules, until the daemon is
    /// idle: the source-range firewall may close the port meanwhile.
    may_close: bool,
}

impl Period {
    fn is_served(&self) -> bool {
        is_served(&self.wanted)
    }

    /// Returns true if packets reach a good endpoint, whichever client address it sees.
    fn serves(&self, verdicts: &BTreeSet<Verdict>) -> bool {
        let mut targets = verdicts.iter().filter_map(Verdict::target);
        targets.any(|target| self.is_good(target))
    }

    fn is_good(&self, target: Target) -> bool {
        self.good.iter().any(|good| good.target() == Some(target))
    }

    /// Returns true if a verdict is good. In each of these cases, a good endpoint may see the
    /// node's address as the client, because replies still reach the client:
    ///
    /// - Another good verdict has the node's address.
    /// - An endpoint saw the node's address before the step.
    /// - No endpoint got packets before the step.
    fn allows(&self, verdict: &Verdict, before: &BTreeSet<Verdict>) -> bool {
        let sees_node = |one: &Verdict| matches!(one, Verdict::Accepted(_, SeenClient::Node));
        match verdict {
            Verdict::Accepted(target, SeenClient::Node) => {
                let mut all = self.good.iter().chain(before);
                self.is_good(*target) && (all.any(sees_node) || !is_served(before))
            }
            _ => self.good.contains(verdict),
        }
    }

    /// Returns true if a good endpoint sees a client address that it must not see.
    fn shows_wrong_client(&self, verdicts: &BTreeSet<Verdict>, before: &BTreeSet<Verdict>) -> bool {
        let of_good = |verdict: &&Verdict| verdict.target().is_some_and(|to| self.is_good(to));
        let mut of_good = verdicts.iter().filter(of_good);
        of_good.any(|verdict| !self.allows(verdict, before))
    }

    /// Returns true if the frontend has only good verdicts, at least one. If endpoints are wanted,
    /// a verdict must have an endpoint: rejections may be good, but not alone.
    fn is_right(&self, verdicts: &BTreeSet<Verdict>, before: &BTreeSet<Verdict>) -> bool {
        let is_as_served = is_served(verdicts) || !self.is_served();
        is_as_served
            && !verdicts.is_empty()
            && verdicts.iter().all(|verdict| self.allows(verdict, before))
    }

    /// Returns true if packets reached a good endpoint before the step, and reach none after it.
    fn ends(&self, before: &BTreeSet<Verdict>, after: &BTreeSet<Verdict>) -> bool {
        self.is_served() && self.serves(before) && !self.serves(after)
    }

    /// Returns a description of how the step from the verdicts `before` to `after` breaks the
    /// frontend. `None` if it does not.
    fn fault(&self, before: &BTreeSet<Verdict>, after: &BTreeSet<Verdict>) -> Option<&'static str> {
        if self.ends(before, after) {
            return Some("is without an endpoint");
        }
        if self.shows_wrong_client(after, before) && !self.shows_wrong_client(before, before) {
            return Some("shows an endpoint the wrong client");
        }
        if self.is_right(before, before) && !self.is_right(after, before) {
            return Some("has a verdict that nobody wanted");
        }
        None
    }
}

/// Watched frontends and wanted kernel entries.
#[derive(Debug, Default)]
pub struct Watch {
    fronts: BTreeMap<Front, Period>,
    /// Wanted entries, each with the number of the event since which it is wanted. `None` if no
    /// event made it wanted.
    entries: HashMap<String, Option<u64>>,
    /// Verdicts at each frontend before the next step.
    before: Verdicts,
    /// Service ports that claim each frontend, by name.
    claims: BTreeMap<Front, BTreeSet<String>>,
    /// Frontends that the last event moved to another Service. The test checks them only after the
    /// daemon has been idle.
    handed_over: BTreeSet<Front>,
    /// Entries that other programs have removed and the daemon has not restored.
    lost: BTreeSet<String>,
    /// Entries that other programs have changed and the daemon has not repaired, with their changed
    /// values.
    altered: Entries,
    /// True if the last write repaired an entry that another program had changed.
    is_repair: bool,
    /// True if the mode needs several entries for a frontend without endpoints: see
    /// [`Subject::refuses_in_pieces`](crate::subject::Subject::refuses_in_pieces).
    refuses_in_pieces: bool,
    /// True if the kernel has refused a write since the daemon was last idle.
    has_refused: bool,
}

impl Watch {
    /// Creates a watch that watches no frontends yet.
    pub fn new(refuses_in_pieces: bool) -> Self {
        Self {
            refuses_in_pieces,
            ..Self::default()
        }
    }

    /// Sets the wanted verdicts and entries, which the objects require since event `since`.
    /// Endpoints in `makeshift` are good but not wanted. With `may_serve_former`, the former
    /// endpoints of a frontend without endpoints are good.
    pub fn want(
        &mut self,
        verdicts: &Verdicts,
        entries: &Entries,
        makeshift: &BTreeSet<Target>,
        may_serve_former: bool,
        since: Option<u64>,
    ) {
        let former = self.fronts.iter().filter(|_| may_serve_former);
        let former: BTreeMap<Front, BTreeSet<Verdict>> = former
            .map(|(front, period)| (*front, period.good.clone()))
            .collect();
        self.fronts.retain(|front, period| {
            let wanted = verdicts.get(front);
            wanted.is_some_and(|wanted| is_served(wanted) == period.is_served())
        });
        let has_lost = self.has_lost();
        for (front, wanted) in verdicts {
            let is_handed_over = self.handed_over.contains(front);
            let period = self.fronts.entry(*front).or_insert_with(|| Period {
                since: since.filter(|_| !is_handed_over),
                wanted: BTreeSet::new(),
                settled: None,
                good: BTreeSet::new(),
                // Entries of this frontend may be damaged from before the period, and the mode may
                // write others before it notices the damage.
                is_disturbed: !self.claims.is_empty() || has_lost,
                may_close: false,
            });
            period.good.extend(wanted);
            if let Some(former) = former.get(front).filter(|_| !is_served(wanted)) {
                period.good.extend(former);
            }
            if self.refuses_in_pieces && !is_served(wanted) {
                let unserved = [Verdict::Rejected, Verdict::Dropped, Verdict::Missed];
                period.good.extend(unserved);
            }
            // Packets may reach an endpoint before the rule that masquerades them exists: at a
            // ClusterIP for every endpoint, at other addresses only if the client pod is itself the
            // endpoint.
            let waits_not = |target: &Target| {
                let is_own = || target.ip == at(front.family(), POD_ADDRESS);
                let is_loop = || front.from == ClientLocation::Pod && is_own();
                self.refuses_in_pieces && (is_for_cluster(front.address) || is_loop())
            };
            let targets = wanted.iter().filter_map(Verdict::target).filter(waits_not);
            let unmasked = targets.map(|target| Verdict::Accepted(target, SeenClient::Client));
            period.good.extend(unmasked);
            // A virtual server may exist before the rule that exempts its packets from
            // masquerading.
            let targets = wanted.iter().filter_map(Verdict::target);
            let masked = targets.filter(|_| self.refuses_in_pieces);
            period
                .good
                .extend(masked.map(|target| Verdict::Accepted(target, SeenClient::Node)));
            let clients = [SeenClient::Client, SeenClient::Node];
            let seen = |target: &Target| clients.map(|seen| Verdict::Accepted(*target, seen));
            period.good.extend(makeshift.iter().flat_map(seen));
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

    /// Returns those of the frontends that have no recorded verdicts.
    pub fn unseen(&self, fronts: &BTreeSet<Front>) -> BTreeSet<Front> {
        let fronts = fronts.iter().copied();
        fronts
            .filter(|front| !self.before.contains_key(front))
            .collect()
    }

    /// Records the verdicts at these frontends before the next step.
    pub fn see(&mut self, verdicts: Verdicts) {
        self.before.extend(verdicts);
    }

    /// Begins a new period for each frontend that other Service ports claim than before.
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

    /// Records damage by another program. The test checks each frontend again only after it has had
    /// its wanted verdicts.
    pub fn damaged(&mut self) {
        for period in self.fronts.values_mut() {
            period.is_disturbed = true;
        }
    }

    /// Records which entries another program has removed or changed, by comparing the entries
    /// before and after.
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

    /// Returns true if the daemon has yet to repair entries that other programs have removed or
    /// changed.
    pub fn has_lost(&self) -> bool {
        !(self.lost.is_empty() && self.altered.is_empty())
    }

    /// Returns the entries that other programs have removed and the daemon has not restored.
    pub fn lost(&self) -> impl Iterator<Item = &str> {
        self.lost.iter().map(String::as_str)
    }

    /// Records the daemon's repairs, given the entries that the kernel has now. Entries that are no
    /// longer wanted need no repair.
    pub fn repaired(&mut self, there: &Entries) {
        let wanted = &self.entries;
        let is_missing = |entry: &String| wanted.contains_key(entry) && !there.contains_key(entry);
        self.lost.retain(is_missing);
        let is_still = |entry: &String, made: &mut String| there.get(entry) == Some(made);
        let altered = self.altered.len();
        self.altered.retain(is_still);
        self.is_repair = self.altered.len() < altered;
    }

    /// Records that the kernel has refused a write. The test does not check the frontends that it
    /// serves until they have their wanted verdicts.
    pub fn refused(&mut self, write: &Write) {
        self.has_refused = true;
        for (front, period) in &mut self.fronts {
            let is_affected = match write.serves {
                AffectedClients::All => true,
                AffectedClients::Address(address) | AffectedClients::Admitted(address) => {
                    front.address == address
                }
                AffectedClients::Nobody => false,
            };
            period.is_disturbed |= is_affected;
            period.may_close |= is_affected && matches!(write.serves, AffectedClients::Admitted(_));
        }
    }

    /// Records that source-range firewalls may close their ports, until the daemon is idle. The
    /// test then does not check frontends outside the cluster IPs.
    pub fn may_close(&mut self) {
        for (front, period) in &mut self.fronts {
            let has_ranges = !is_for_cluster(front.address);
            period.is_disturbed |= has_ranges;
            period.may_close |= has_ranges;
        }
    }

    /// Records that the daemon is idle, and so has handled all events up to `event`.
    pub fn rests(&mut self, event: u64) {
        self.has_refused = false;
        let periods = self.fronts.values_mut().map(|period| &mut period.since);
        for since in periods.chain(self.entries.values_mut()) {
            since.get_or_insert(event);
        }
        for period in self.fronts.values_mut() {
            period.settled.get_or_insert(event);
            period.may_close = false;
        }
    }

    /// Records the verdicts after a change. `heard` is the last event that the mode and all running
    /// jobs have received.
    pub fn note(&mut self, verdicts: Verdicts, heard: u64) {
        for (front, period) in &mut self.fronts {
            let is_known = period.settled.is_some_and(|event| event <= heard);
            if period.is_disturbed
                && !period.may_close
                && is_known
                && self.lost.is_empty()
                && verdicts.get(front) == Some(&period.wanted)
            {
                period.is_disturbed = false;
            }
        }
        self.before = verdicts;
    }

    /// Checks a write before the kernel carries it out. The mode had received the events up to
    /// `heard` when it planned the write.
    ///
    /// # Errors
    ///
    /// Returns an error if the write removes an entry that is wanted, and was wanted when the mode
    /// planned the write.
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

    /// Checks the verdicts after a write. The mode had received the events up to `heard` when it
    /// planned the write. `by_all` is the last event that all running jobs had received.
    ///
    /// # Errors
    ///
    /// Returns an error if the write broke a frontend.
    pub fn after(&mut self, verdicts: Verdicts, heard: u64, by_all: u64) -> Result<(), String> {
        let none = BTreeSet::new();
        let is_repair = std::mem::take(&mut self.is_repair);
        for (front, period) in &mut self.fronts {
            let is_claimed_twice = self.claims.get(front).is_some_and(|by| by.len() > 1);
            let is_news = period.since.is_none_or(|since| since > heard);
            let before = self.before.get(front).unwrap_or(&none);
            let after = verdicts.get(front).unwrap_or(&none);
            let all = period.good.iter().chain(before).chain(after);
            let is_nobody = all
                .filter_map(Verdict::target)
                .any(|target| is_a_cluster_ip(&target));
            if period.is_disturbed || is_news || is_claimed_twice || is_nobody {
                continue;
            }
            // After a refused write, a frontend may lack one of its entries. The others may then
            // lead to another endpoint or show it another client address, which the test does not
            // check.
            let is_in_pieces = self.refuses_in_pieces && self.has_refused;
            if is_in_pieces && (front.from == ClientLocation::Pod || !period.ends(before, after)) {
                continue;
            }
            if let Some(fault) = period.fault(before, after) {
                if is_repair || !self.altered.is_empty() {
                    // Damage can take effect later than it happens. And a repair can enable again
                    // what other damage had disabled, such as rules for members that the daemon is
                    // about to remove. So this frontend counts as damaged.
                    period.is_disturbed = true;
                    continue;
                }
                return Err(format!(
                    "{front} {fault}: before {before:?}, now {after:?}, wanted {:?}, at some moment {:?}",
                    period.wanted, period.good,
                ));
            }
        }
        self.note(verdicts, by_all);
        Ok(())
    }
}
