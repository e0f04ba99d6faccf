//! Actions of random event sequences: events, faults, and steps of the daemon.

use std::fmt;
use std::str::FromStr;

use chance::Chance;

/// An action of an event sequence. Its details depend only on its own random number and on the
/// state at that moment, so it keeps its meaning after the removal of earlier actions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Action {
    /// Kind of the action.
    pub verb: Verb,
    /// Random number that determines the action's details, such as the Service to change.
    pub dice: u32,
}

macro_rules! verbs {
    ($($(#[doc = $doc:literal])* $name:ident $word:literal $weight:literal,)*) => {
        /// Kinds of actions, each with the name that saved event sequences use.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Verb {
            $($(#[doc = $doc])* $name,)*
        }

        impl Verb {
            const ALL: &'static [(Self, &'static str, u64)] = &[$((Self::$name, $word, $weight),)*];
        }
    };
}

// Each kind has a name for files and a relative frequency.
verbs! {
    /// Adds Services and EndpointSlices, and runs the daemon until it has no work for two seconds.
    /// Most event sequences begin with this action.
    Populate "populate" 0,
    /// Adds or changes a Service.
    Service "service" 9,
    /// Deletes a Service.
    ServiceGone "service-gone" 3,
    /// Gives an external IP of one Service to another Service's load balancer.
    Assign "assign" 2,
    /// Adds or changes an EndpointSlice of a Service.
    Slice "slice" 16,
    /// Deletes an EndpointSlice.
    SliceGone "slice-gone" 2,
    /// Moves the Node to a random zone.
    Node "node" 1,
    /// Makes a Service or an EndpointSlice unreadable, so that the daemon must keep its last
    /// version.
    Garbled "garbled" 1,
    /// Lets the source list all objects of one kind again.
    Relist "relist" 1,
    /// Adds or removes an address of the node, which the kernel reports to the daemon.
    Address "address" 2,
    /// Lets another program change or remove the daemon's kernel entries.
    Damage "damage" 6,
    /// Lets another program change its own kernel entries.
    Foreign "foreign" 4,
    /// Makes the kernel refuse the daemon's next one to four writes.
    Refuse "refuse" 3,
    /// Makes the kernel refuse one entry until the end of the sequence.
    Forbid "forbid" 2,
    /// Loses the kernel's reply to the daemon's next write.
    Lose "lose" 3,
    /// Makes all reads of one worker thread fail, until [`Self::Lift`].
    Unreadable "unreadable" 2,
    /// Lets the daemon's next read of the kernel miss an entry.
    PassOver "pass-over" 1,
    /// Ends all faults of the kernel, except permanent refusals.
    Lift "lift" 3,
    /// Delivers some of the source's pending events to the daemon.
    Hear "hear" 14,
    /// Lets a worker thread of the daemon do some reads or writes of the kernel.
    Step "step" 70,
    /// Runs one turn of the daemon's loop, which records finished jobs and starts new ones.
    Turn "turn" 24,
    /// Advances the clock by less than 40 s.
    Time "time" 8,
    /// Advances the clock to the time at which the daemon next has work to do.
    Due "due" 8,
    /// Starts the daemon's periodic check, which compares the kernel's entries with the recorded
    /// ones.
    Check "check" 3,
    /// Delivers a notification of a change by the kernel, even if nothing has changed.
    Told "told" 2,
    /// Runs the daemon until it has no immediate work.
    Rest "rest" 4,
    /// Kills the daemon's process (kill -9), and starts it again.
    Kill "kill" 2,
    /// Restarts the daemon's process with other flags.
    Switch "switch" 1,
    /// Replaces the mode by a new instance in the same process, once the worker threads are idle.
    Succeed "succeed" 1,
}

impl Action {
    fn any(chance: &mut Chance) -> Self {
        let all = Verb::ALL.iter().map(|(_, _, weight)| weight).sum();
        let mut at = chance.below(all);
        let mut chosen = Verb::Step;
        for (verb, _, weight) in Verb::ALL {
            if at < *weight {
                chosen = *verb;
                break;
            }
            at -= weight;
        }
        Self {
            verb: chosen,
            dice: u32::try_from(chance.below(1 << 32)).unwrap_or(0),
        }
    }

    /// Returns a random generator for the action's details, seeded with its random number.
    pub fn chance(self) -> Chance {
        Chance::new(self.dice.into())
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut all = Verb::ALL.iter();
        let word = all.find(|(verb, ..)| *verb == self.verb);
        write!(f, "{} {:08x}", word.map_or("", |of| of.1), self.dice)
    }
}

impl FromStr for Action {
    type Err = String;

    /// Parses the action's name and random number. `#` begins a comment.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let told = text.split('#').next().unwrap_or_default().trim();
        let (word, dice) = told.split_once(' ').ok_or("a verb and a number")?;
        let mut all = Verb::ALL.iter();
        let known = all.find(|(_, known, _)| *known == word);
        let (verb, ..) = *known.ok_or_else(|| format!("no verb: {word}"))?;
        let dice = u32::from_str_radix(dice.trim(), 16).map_err(|error| error.to_string())?;
        Ok(Self { verb, dice })
    }
}

/// Returns the event sequence (*history*) of a seed: 60 to 100 actions.
pub fn history(seed: u64) -> Vec<Action> {
    let mut chance = Chance::new(seed ^ 0x0061_6374_696f_6e73);
    let len = chance.within(60..=100);
    let mut actions: Vec<Action> = (0..len).map(|_| Action::any(&mut chance)).collect();
    // Four event sequences in five begin on a node that already serves Services.
    if let Some(first) = actions.first_mut().filter(|_| !chance.is_one_in(5)) {
        first.verb = Verb::Populate;
    }
    actions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_actions_parse_to_the_same_actions() {
        for action in history(1) {
            assert_eq!(format!("{action}   # and so").parse(), Ok(action));
        }
        assert!("fly 0".parse::<Action>().is_err());
    }
}
