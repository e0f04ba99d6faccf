//! The kinds of things that a mode has: what it can be set to, what it reads and where, what it
//! writes.

use std::net::IpAddr;
use std::time::Duration;

/// The kinds of things of a mode. A type without values: what needs to know no more of a mode than
/// these need not know its [`Scheme`](crate::Scheme).
pub trait Kinds: 'static {
    /// What the flags say to it.
    type Config: Config;
    /// Its kernel threads.
    type Lane: Lane;
    /// What it reads.
    type Part: Part<Lane = Self::Lane>;
    /// What a lane writes in one go.
    type Plan: Send + Sync + 'static;
}

/// What the flags say to a mode, as far as it is the same for each.
pub trait Config: Send + Sync + 'static {
    /// The longest pause before what cannot be read is read again.
    fn longest_pause(&self) -> Duration;

    /// The node's address, where the flags say it: it counts before those of the Node object.
    fn node_ip(&self) -> Option<IpAddr>;

    /// Whether localhost serves NodePorts, too.
    fn serves_localhost(&self) -> bool {
        false
    }
}

/// A part of the kernel's state: what is read as one, and known as one.
pub trait Part: Copy + Eq + Send + 'static {
    /// The mode's lanes.
    type Lane;

    /// All of them.
    const ALL: &'static [Self];

    /// In an operator's words: `the virtual servers`.
    fn name(self) -> &'static str;

    /// The kernel thread that reads it. If any other writes it as well, the two are one.
    fn lane(self) -> Self::Lane;
}

/// A kernel thread of a mode: what is done on it is done one after another.
pub trait Lane: Copy + Eq + Send + 'static {
    /// All of them. The first carries out changes of what is served; and they are started in this
    /// order, so that what most wait for comes first.
    const ALL: &'static [Self];
}

/// The place of one of a few.
pub(crate) fn number<T: PartialEq>(all: &[T], one: &T) -> usize {
    // Each is among them.
    all.iter().position(|of| of == one).unwrap_or_default()
}

/// Declares the [`Kinds`] of a mode, by the names `Lane` and `Part` that are in scope, and the type
/// `State` of what the engine keeps for it.
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

/// Declares the lanes and parts of a mode: each part with the lane that reads it, and its name in an
/// operator's words.
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

        /// A part of the kernel's state that is read by itself.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Part { $($(#[$about_part])* $part,)+ }

        impl Part {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$part),+];

            /// Its name in an operator's words.
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
