//! The types of a mode: its configuration, the parts that it reads, its kernel threads, and its
//! plans.

use std::time::Duration;

/// The types of a mode. The implementor is an enum without values, so code that needs only these
/// types need not know the mode's [`Scheme`](crate::Scheme).
pub trait Kinds: 'static {
    /// The mode's settings.
    type Config: Config;
    /// The kernel threads (lanes) of the mode.
    type Lane: Lane;
    /// The parts of the kernel's state that the mode reads.
    type Part: Part<Lane = Self::Lane>;
    /// The work that a lane writes in one step.
    type Plan: Send + Sync + 'static;
}

/// The settings that all modes share.
pub trait Config: Send + Sync + 'static {
    /// Returns the longest pause between reads of an unreadable part.
    fn longest_pause(&self) -> Duration;

    /// Reports whether localhost serves NodePorts.
    fn serves_localhost(&self) -> bool {
        false
    }
}

/// A part of the kernel's state that is read in one piece. Its whole content is known, or none of
/// it.
pub trait Part: Copy + Eq + Send + 'static {
    /// The mode's lanes.
    type Lane;

    /// All parts of the mode.
    const ALL: &'static [Self];

    /// Returns the part's name for operators, such as `the virtual servers`.
    fn name(self) -> &'static str;

    /// Returns the kernel thread that reads the part. No other thread writes the part.
    fn lane(self) -> Self::Lane;
}

/// A kernel thread of a mode, which runs one step after another.
pub trait Lane: Copy + Eq + Send + 'static {
    /// All lanes, in the order of their start: the most urgent work comes first. The first lane
    /// writes changes of Services.
    const ALL: &'static [Self];
}

/// Returns the index of a value in a list of all values.
pub(crate) fn number<T: PartialEq>(all: &[T], one: &T) -> usize {
    // The list contains every value, so the default is never used.
    all.iter().position(|of| of == one).unwrap_or_default()
}

/// Declares the [`Kinds`] of a mode from the types `Lane` and `Part` in scope, and its type
/// `State`.
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

        /// The engine's state for this mode.
        pub(crate) type State = $crate::State<$kinds>;
    };
}

/// Declares the lanes and parts of a mode: each part with the lane that reads it, and its name for
/// operators.
#[macro_export]
macro_rules! parts {
    (
        lanes { $($(#[$about_lane:meta])* $lane:ident,)+ }
        parts { $($(#[$about_part:meta])* $part:ident on $reader:ident: $name:literal,)+ }
    ) => {
        /// A kernel thread of one IP family.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Lane { $($(#[$about_lane])* $lane,)+ }

        impl $crate::Lane for Lane {
            const ALL: &'static [Self] = &[$(Self::$lane),+];
        }

        /// A part of the kernel's state with a separate read.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Part { $($(#[$about_part])* $part,)+ }

        impl Part {
            /// All parts.
            pub const ALL: &'static [Self] = &[$(Self::$part),+];

            /// Returns the part's name for operators.
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
