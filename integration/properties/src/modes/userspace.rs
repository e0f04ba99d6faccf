//! Userspace mode as a test subject, on its fake kernel.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use chance::Chance;
use hashbrown::HashSet;
use proxy::{IpFamily, Mode, Model, Notice, Protocol, Service, Target, Unreadable};
use proxy_userspace::fake::FakeKernel;
use proxy_userspace::{
    Config, Kernel, Listener, Portal, RedirectState, RedirectTarget, Redirects, Refusal,
    RefusalMeaning as BlameOf, SocketError, Userspace as Scheme,
};
use relay::PortBackends;

use crate::cluster::{SERVICES, at};
use crate::stepped_threads::{
    ClientLocation, Front, Permit, RejectionCause, SteppedThread, Turnstile, Write,
};
use crate::subject::{
    Damage, Entries, FreshStart, RejectedPart, Subject, detector, node, node_addresses, run_afresh,
    start, toggle_address,
};
use crate::verdict::{SeenClient, Verdicts, accepted};

pub(super) fn subject(family: IpFamily, _: &'static str) -> Box<dyn Subject> {
    let kernel = FakeKernel::new(&[]);
    kernel.state().addresses = node_addresses(family).into();
    Box::new(Userspace {
        family,
        kernel,
        config: Config {
            detector: detector(family),
            localhost_node_ports: family == IpFamily::V4,
            ..Config::default()
        },
        barred: Vec::new(),
    })
}

struct Userspace {
    family: IpFamily,
    kernel: FakeKernel,
    config: Config,
    barred: Vec<RejectedPart>,
}

impl Subject for Userspace {
    fn family(&self) -> IpFamily {
        self.family
    }

    fn start(&mut self, now: Instant) -> (Box<dyn Mode>, Vec<SteppedThread>) {
        // Closes the listening ports of the former process. The new process may get the same port
        // numbers.
        {
            let mut state = self.kernel.state();
            state.open.clear();
            state.next_port = 40_000;
        }
        let (config, node) = (self.config.clone(), node(self.family));
        start::<2, Scheme, _>(config, node, || self.kernel.clone(), now)
    }

    fn barred(&self) -> &[RejectedPart] {
        &self.barred
    }

    fn forbid(&mut self, chance: &mut Chance) -> Option<String> {
        let address = at(self.family, [10, 96, 0, 10 + chance.small(SERVICES)]);
        let (protocol, port) = (Protocol::Tcp, 80);
        let portal = Portal {
            address: Some(address),
            protocol,
            port,
        };
        let mut state = self.kernel.state();
        if state.redirects.contains_key(&portal) || !state.refused.insert(portal) {
            return None;
        }
        drop(state);
        self.barred
            .push(RejectedPart::Portal(address, protocol, port));
        Some(format!("{portal} cannot be redirected"))
    }

    fn is_forbidden(&self, write: &Write, _barred: &[Service]) -> bool {
        // Userspace mode does not support SCTP.
        let mut refused = self.barred.iter().filter_map(|barred| match barred {
            RejectedPart::Portal(address, ..) => Some(format!("{address}")),
            _ => None,
        });
        write.what.contains("/SCTP") || refused.any(|part| write.what.contains(&part))
    }

    fn ends_with_process(&self) -> bool {
        true
    }

    fn addresses(&self) -> BTreeSet<IpAddr> {
        self.kernel.state().addresses.clone()
    }

    fn verdicts(&self, fronts: &BTreeSet<Front>) -> Verdicts {
        let state = self.kernel.state();
        let mut served = Verdicts::new();
        for front in fronts {
            let portal = |address| Portal {
                address,
                protocol: front.protocol,
                port: front.port,
            };
            let of_address = state.redirects.get(&portal(Some(front.address)));
            let of_node = || {
                let is_own = state.addresses.contains(&front.address);
                state.redirects.get(&portal(None)).filter(|_| is_own)
            };
            let Some(aim) = of_address.or_else(of_node) else {
                continue;
            };
            let to = match front.from {
                ClientLocation::Node => aim.node,
                ClientLocation::Pod => aim.pods,
                // Without `via`, no rule redirects packets from outside the cluster.
                ClientLocation::Outside if aim.via.is_none() => continue,
                ClientLocation::Outside => aim.outside,
            };
            let mut open = state.open.iter();
            let listens = open.find(|(listener, (port, _))| {
                *port == to && listener.name.protocol == front.protocol
            });
            let Some((_, (_, serving))) = listens else {
                continue;
            };
            let endpoints = serving.endpoints.iter();
            let targets = endpoints.map(|at| Target {
                ip: at.ip(),
                port: at.port(),
            });
            let targets = accepted(targets, SeenClient::Node);
            if !targets.is_empty() {
                served.insert(*front, targets);
            }
        }
        served
    }

    fn ours(&self) -> Entries {
        let state = self.kernel.state();
        let mut ours = Entries::new();
        ours.insert("base".to_owned(), format!("{:?}", state.base));
        let name = |protocol: Protocol, port: u16| {
            let mut open = state.open.iter();
            let of = open.find(|(listener, (number, _))| {
                *number == port && listener.name.protocol == protocol
            });
            match of {
                Some((listener, _)) => listener.to_string(),
                None if port == 0 => "nothing".to_owned(),
                None => format!("port {port}, closed"),
            }
        };
        for (portal, aim) in &state.redirects {
            let [outside, pods, node] =
                [aim.outside, aim.pods, aim.node].map(|port| name(portal.protocol, port));
            let to = format!("{} {:?}: {outside}, {pods}, {node}", aim.name, aim.via);
            ours.insert(format!("redirect {portal}"), to);
        }
        for (listener, (_, serving)) in &state.open {
            ours.insert(format!("listener {listener}"), format!("{serving:?}"));
        }
        ours
    }

    fn damage(&mut self, chance: &mut Chance) -> Option<Damage> {
        let mut state = self.kernel.state();
        let at = chance.index(state.redirects.len());
        let portal = state.redirects.keys().nth(at).copied();
        let is_told = chance.is_one_in(2).then_some(Notice::Ruleset);
        let damage = |what: String| {
            Some(Damage {
                what,
                told: is_told,
            })
        };
        match chance.below(5) {
            0 => {
                state.base = None;
                state.redirects.clear();
                damage("all redirects are flushed".to_owned())
            }
            4 => {
                state.base = None;
                damage("a rule of somebody else is among ours".to_owned())
            }
            1 => {
                state.redirects.remove(&portal?);
                damage(format!("the redirect of {} is deleted", portal?))
            }
            2 => {
                let aim: &mut RedirectTarget = state.redirects.get_mut(&portal?)?;
                aim.node = 1;
                damage(format!("the redirect of {} leads elsewhere", portal?))
            }
            _ => {
                let portal = Portal { port: 9, ..portal? };
                let aim = RedirectTarget {
                    name: Arc::from("default/somebody"),
                    via: None,
                    outside: 7,
                    pods: 7,
                    node: 7,
                };
                state.redirects.insert(portal, aim);
                damage(format!("{portal} is redirected"))
            }
        }
    }

    fn change_address(&mut self, chance: &mut Chance) -> Notice {
        toggle_address(self.family, chance, &mut self.kernel.state().addresses)
    }

    fn afresh(&self, model: &Model) -> FreshStart {
        let kernel = FakeKernel::new(&[]);
        kernel.state().addresses = self.addresses();
        let refused = self.kernel.state().refused.clone();
        kernel.state().refused = refused;
        let (config, node) = (self.config.clone(), node(self.family));
        let pending = run_afresh::<Scheme, _>(config, node, || kernel.clone(), model);
        let subject = Box::new(Self {
            family: self.family,
            kernel,
            config: self.config.clone(),
            barred: self.barred.clone(),
        });
        FreshStart { subject, pending }
    }
}

const SOCKETS: &str = "on purpose";

impl Turnstile<FakeKernel> {
    fn socket<T>(
        &mut self,
        what: String,
        act: impl FnOnce(&mut FakeKernel) -> Result<T, SocketError>,
    ) -> Result<T, SocketError> {
        // Another thread of the daemon's own process carries out the request, so its reply cannot
        // be lost.
        match self.pass_write(what) {
            Permit::Go | Permit::LoseDone => act(&mut self.kernel),
            _ => Err(SocketError::Now(SOCKETS.to_owned())),
        }
    }
}

impl Kernel for Turnstile<FakeKernel> {
    fn addresses(&mut self) -> Result<BTreeSet<IpAddr>, Unreadable> {
        self.read("the addresses of this node", Kernel::addresses)
    }

    fn redirects(&mut self, config: &Config) -> Result<RedirectState, Unreadable> {
        let part = "the rules that redirect to listening ports";
        self.read(part, |kernel| kernel.redirects(config))
    }

    fn redirect(&mut self, plan: &Redirects) -> Result<(), Refusal> {
        let refuse = |blame| {
            let reason = "on purpose".to_owned();
            Err(Refusal { reason, blame })
        };
        let what = format!("{plan:?}");
        match self.pass_write(what) {
            Permit::Go => self.kernel.redirect(plan),
            Permit::LoseDone => {
                self.kernel.redirect(plan)?;
                refuse(BlameOf::None)
            }
            Permit::Refuse(RejectionCause::Entry) => refuse(BlameOf::One),
            _ => refuse(BlameOf::None),
        }
    }

    fn update(
        &mut self,
        listener: &Listener,
        serving: &Arc<PortBackends>,
    ) -> Result<Option<u16>, SocketError> {
        self.socket(format!("update {listener}: {serving:?}"), |kernel| {
            kernel.update(listener, serving)
        })
    }

    fn open(
        &mut self,
        listener: &Listener,
        serving: &Arc<PortBackends>,
        again: Option<u16>,
        avoided: &HashSet<(Protocol, u16)>,
    ) -> Result<u16, SocketError> {
        self.socket(format!("open {listener}"), |kernel| {
            kernel.open(listener, serving, again, avoided)
        })
    }

    fn close(&mut self, listener: &Listener) -> Result<(), SocketError> {
        self.socket(format!("close {listener}"), |kernel| kernel.close(listener))
    }
}
