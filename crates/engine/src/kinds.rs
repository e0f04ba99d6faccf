//! The types that a mode gives to the engine: its settings, the parts of the kernel's state that it
//! reads, its worker threads, and its plans.

use std::time::Duration;

/// Associated types of a mode, implemented for an empty enum. Code that needs only these types
/// needs no bound on the mode's [`Scheme`](crate::Scheme).
pub trait Kinds: 'static {
    /// Settings of the mode, from the flags and from the node.
    type Config: Config;
    /// Enum of the mode's lanes (worker threads).
    type Lane: Lane;
    /// Enum of the parts of the kernel's state that the mode reads.
    type Part: Part<Lane = Self::Lane>;
    /// Batch of kernel writes that one lane (worker thread) makes in one step.
    type Plan: Send + Sync + 'static;
}

/// Settings that the engine needs in every mode.
pub trait Config: Send + Sync + 'static {
    /// Returns the longest pause before the next attempt to read an unreadable part of the kernel's
    /// state.
    fn longest_pause(&self) -> Duration;

    /// Reports whether the mode serves NodePorts on localhost.
    fn serves_localhost(&self) -> bool {
        false
    }
}

/// A part of the kernel's state. A mode always reads a whole part, so it knows either all entries
/// of the part or none.
pub trait Part: Copy + Eq + Send + 'static {
    /// Enum of the mode's lanes (worker threads).
    type Lane;

    /// All parts of the kernel's state that the mode reads.
    const ALL: &'static [Self];

    /// Returns the name of this part of the kernel's state in messages to operators, such as `the
    /// virtual servers`.
    fn name(self) -> &'static str;

    /// Returns the lane (worker thread) that reads this part of the kernel's state. Only this lane
    /// writes the part.
    fn lane(self) -> Self::Lane;
}

/// A worker thread of a mode. It executes one step at a time.
pub trait Lane: Copy + Eq + Send + 'static {
    /// All lanes (worker threads), in the order in which they start. The first lane has the most
    /// urgent work: it writes the changes that Services need.
    const ALL: &'static [Self];
}

/// Returns the index of `one` in `all`, the list of all values of an enum.
pub(crate) fn number<T: PartialEq>(all: &[T], one: &T) -> usize {
    // Every value is in the list, so the default is never used.
    all.iter().position(|of| of == one).unwrap_or_default()
}

/// Declares a mode's enum that implements [`Kinds`], and the alias `State` for the engine's state
/// of this mode. The macro's caller must have the types `Lane` and `Part` in scope.
#[macro_export]
macro_rules! kinds {
    ($(#[$about:meta])* $kinds:ident { config: $config:ty, plan: $plan:ty }) => {
        $(#[$about])*
        pub enum $kinds {}

        impl $crate::Kinds for $kinds {
            type Config = $config;
            type Lane = Lane;
            type Part = Part;
            type Plan = $plan;
        }

        /// State that the engine keeps for this mode.
        pub(crate) type State = $crate::State<$kinds>;
    };
}

/// Declares the lanes (worker threads) of a mode, and the parts of the kernel's state that the mode
/// reads. Each part gets the lane that reads it, and its name in messages to operators.
#[macro_export]
macro_rules! parts {
    (
        lanes { $($(#[$about_lane:meta])* $lane:ident,)+ }
        parts { $($(#[$about_part:meta])* $part:ident on $reader:ident: $name:literal,)+ }
    ) => {
        /// Worker thread of the mode, for one IP family.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Lane { $($(#[$about_lane])* $lane,)+ }

        impl $crate::Lane for Lane {
            const ALL: &'static [Self] = &[$(Self::$lane),+];
        }

        /// Part of the kernel's state. A read covers the whole part.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Part { $($(#[$about_part])* $part,)+ }

        impl Part {
            /// All parts of the kernel's state, in the order of their declaration.
            pub const ALL: &'static [Self] = &[$(Self::$part),+];

            /// Returns the name of this part of the kernel's state in messages to operators.
            pub fn name(self) -> &'static str {
                match self { $(Self::$part => $name,)+ }
            }
        }

        impl $crate::Part for Part {
            type Lane = Lane;

            const ALL: &'static [Self] = Self::ALL;

            fn name(self) -> &'static str {
                self.name()
            }

            fn lane(self) -> Lane {
                match self { $(Self::$part => Lane::$reader,)+ }
            }
        }
    };
}
