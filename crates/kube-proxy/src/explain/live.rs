//! The kernel as it is now, for one answer.

use std::net::IpAddr;

use packet_path::{AddressType, Interface, Kernel as _, Question, Route, RouteQuestion, Walk};

use super::Follow;
use super::journeys::{Hop, Planned, Routing, Sender, Way};
