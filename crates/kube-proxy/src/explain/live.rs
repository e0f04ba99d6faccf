//! The kernel as it is now, for one answer.

use std::net::IpAddr;

use packet_path::{Interface, Kernel, Question, Route, RouteQuestion, Ruleset, Sender, Walk};

use super::Follow;
use super::journeys::{Hop, Planned, Routing, Way};

/// The kernel, as it is asked.
pub(crate) struct Live {
    kernel: Box<dyn Kernel>,
    rulesets: Vec<Box<dyn Ruleset>>,
}

impl Live {
    pub(crate) fn open() -> Self {
        todo!()
    }
}

impl Routing for Live {
    fn hop(&self, to: IpAddr) -> Option<Hop> {
        let question = RouteQuestion {
            destination: to,
            source: None,
            iif: None,
            mark: 0,
        };
        match self.kernel.route(&question) {
            Ok(Route::Local { .. }) => Some(Hop {
                interface: Interface::LOOPBACK.to_owned(),
                is_local: true,
                is_neighbour: true,
            }),
            Ok(Route::Out {
                interface, gateway, ..
            }) => Some(Hop {
                interface: interface.name,
                is_local: false,
                is_neighbour: gateway.is_none(),
            }),
            Ok(Route::None { .. }) | Err(_) => None,
        }
    }
}

impl Follow for Live {
    fn follow(&self, planned: &Planned<'_>) -> Vec<Walk> {
        let from = match &planned.sender.way {
            Way::Made(source) => Sender::Node(*source),
            // Its number is looked up by its name where a rule asks for it.
            Way::Comes(interface, source) => Sender::Other(
                *source,
                Some(Interface {
                    index: None,
                    name: interface.clone(),
                }),
            ),
        };
        let question = Question {
            protocol: planned.protocol,
            from,
            to: planned.to,
            source_port: None,
        };
        let rulesets: Vec<&dyn Ruleset> = self.rulesets.iter().map(|one| &**one).collect();
        packet_path::walk(&question, &rulesets, &*self.kernel)
    }

    fn unread(&self) -> Vec<String> {
        Vec::new()
    }
}
