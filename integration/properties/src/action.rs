//! Actions of a history, in order.

use std::fmt;
use std::str::FromStr;

use chance::Chance;

/// A thing that happens. What it is in detail follows from its own number, and from what there is
/// then: so that it means the same when others before it are left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Action {
    /// The action.
    pub verb: Verb,
    /// Random number for its details.
    pub dice: u32,
}

macro_rules! verbs {
    ($($(#[doc = $doc:literal])* $name:ident $word:literal $weight:literal,)*) => {
        /// The kinds of things that happen.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Verb {
            $($(#[doc = $doc])* $name,)*
        }

        impl Verb {
            const ALL: &'static [(Self, &'static str, u64)] = &[$((Self::$name, $word, $weight),)*];
        }
    };
}

// Each with its word, and how often it comes.
verbs! {
    /// Services and endpoints come, and all goes on until they serve. It begins a history.
    Populate "populate" 0,
    /// A Service comes, or changes.
    Service "service" 9,
    /// A Service goes.
    ServiceGone "service-gone" 3,
    /// A load balancer is given what another Service has as an external IP.
    Assign "assign" 2,
    /// Endpoints of a Service come, change, go.
    Slice "slice" 16,
    /// A slice goes.
    SliceGone "slice-gone" 2,
    /// The Node changes.
    Node "node" 1,
    /// An object changes into what cannot be read.
    Garbled "garbled" 1,
    /// The source tells everything again.
    Relist "relist" 1,
    /// The node gets an address, or loses one; the kernel tells.
    Address "address" 2,
    /// Another program changes our entries.
    Damage "damage" 6,
    /// Another program changes its own entries.
    Foreign "foreign" 4,
    /// The next writes are refused.
    Refuse "refuse" 3,
    /// The kernel refuses one object from now on, and never takes it.
    Forbid "forbid" 2,
    /// The next answer to a write is lost.
    Lose "lose" 3,
    /// A part cannot be read from now on.
    Unreadable "unreadable" 2,
    /// The next read misses an entry.
    PassOver "pass-over" 1,
    /// The kernel's faults end.
    Lift "lift" 3,
    /// Some of what was told arrives.
    Hear "hear" 14,
    /// A kernel thread goes on for some pieces.
    Step "step" 70,
    /// Finished pieces are booked, and due ones begin.
    Turn "turn" 24,
    /// A little time passes.
    Time "time" 8,
    /// The next timer fires.
    Due "due" 8,
    /// The kernel is to be compared with what is believed.
    Check "check" 3,
    /// The kernel tells that something may have changed.
    Told "told" 2,
    /// Everything runs until nothing is left to be done at once.
    Rest "rest" 4,
    /// The process is killed, and started again.
    Kill "kill" 2,
    /// The process ends and starts with other settings.
    Switch "switch" 1,
    /// Another daemon takes over in the same process, once its threads are idle.
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

    /// The numbers of its own.
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

    /// A `#` begins a note for people.
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
    // Most begin on a node that serves.
    if let Some(first) = actions.first_mut().filter(|_| !chance.is_one_in(5)) {
        first.verb = Verb::Populate;
    }
    actions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_is_read_back() {
        for action in history(1) {
            assert_eq!(format!("{action}   # and so").parse(), Ok(action));
        }
        assert!("fly 0".parse::<Action>().is_err());
    }
}
