//! Actions of an event sequence.

use std::fmt;
use std::str::FromStr;

use chance::Chance;

/// An action of an event sequence. The details of an action depend only on the action's own random
/// number and on the present state. An action therefore keeps its meaning if earlier actions are
/// removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Action {
    /// Kind of the action.
    pub verb: Verb,
    /// Random number from which the action derives its details, such as the Service to change.
    pub dice: u32,
}

macro_rules! verbs {
    ($($(#[doc = $doc:literal])* $name:ident $word:literal $weight:literal,)*) => {
        /// Kinds of actions. Files with saved sequences name the kind of each action.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Verb {
            $($(#[doc = $doc])* $name,)*
        }

        impl Verb {
            const ALL: &'static [(Self, &'static str, u64)] = &[$((Self::$name, $word, $weight),)*];
        }
    };
}

// Each kind has a name and a relative frequency.
verbs! {
    /// Adds Services and endpoints, and runs the daemon until no work is due within 2 s. This is
    /// the first action of most sequences.
    Populate "populate" 0,
    /// Adds or changes a Service.
    Service "service" 9,
    /// Deletes a Service.
    ServiceGone "service-gone" 3,
    /// Assigns the external IP of one Service to the load balancer of another Service.
    Assign "assign" 2,
    /// Adds, changes or removes endpoints of a Service.
    Slice "slice" 16,
    /// Deletes an EndpointSlice.
    SliceGone "slice-gone" 2,
    /// Moves the Node to a random zone.
    Node "node" 1,
    /// Makes a Service or an EndpointSlice unreadable for the daemon.
    Garbled "garbled" 1,
    /// The source lists all objects of one kind again.
    Relist "relist" 1,
    /// Adds or removes an address of the node. The kernel reports the change.
    Address "address" 2,
    /// Another program changes the daemon's entries.
    Damage "damage" 6,
    /// Another program changes its own entries.
    Foreign "foreign" 4,
    /// The kernel refuses the next one to four writes.
    Refuse "refuse" 3,
    /// From now on, the kernel permanently refuses one object.
    Forbid "forbid" 2,
    /// The daemon does not receive the kernel's next reply to a write.
    Lose "lose" 3,
    /// From now on, one of the daemon's worker threads cannot read the kernel's state.
    Unreadable "unreadable" 2,
    /// The daemon's next read of the kernel misses an entry.
    PassOver "pass-over" 1,
    /// Ends all present faults of the kernel.
    Lift "lift" 3,
    /// Delivers some pending events of the source to the daemon.
    Hear "hear" 14,
    /// Lets one of the daemon's worker threads do some reads or writes of the kernel.
    Step "step" 70,
    /// The daemon's engine records finished jobs and starts due jobs.
    Turn "turn" 24,
    /// Advances the clock by less than 40 s.
    Time "time" 8,
    /// Advances the clock to the daemon's next timer.
    Due "due" 8,
    /// Requests the daemon's periodic check, which compares the kernel's state with the state that
    /// the daemon assumes.
    Check "check" 3,
    /// The kernel reports a change, although its state may be unchanged.
    Told "told" 2,
    /// Runs the daemon until no immediate work is left.
    Rest "rest" 4,
    /// Kills and restarts the daemon's process.
    Kill "kill" 2,
    /// Restarts the daemon's process with other settings.
    Switch "switch" 1,
    /// A new instance of the mode takes over in the same process, once the threads of the old
    /// instance are idle.
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

    /// Returns a generator for the action's details.
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

    /// Parses an action. A `#` begins a comment.
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

/// Returns the 60 to 100 actions of a seed.
pub fn history(seed: u64) -> Vec<Action> {
    let mut chance = Chance::new(seed ^ 0x0061_6374_696f_6e73);
    let len = chance.within(60..=100);
    let mut actions: Vec<Action> = (0..len).map(|_| Action::any(&mut chance)).collect();
    // Most sequences begin on a node with working Services.
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
