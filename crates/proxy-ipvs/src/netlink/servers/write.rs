//! Writes virtual servers and destinations in batches, and determines the outcome of each write.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use ipvs_netlink::{BadName, Destination, DestinationKey, Error, Family, Flags, Service};
use netlink_batch::{Batch, CHUNK_MESSAGES, Refusal, Reply};
use proxy::Target;

use crate::netlink::reason::{refused, refused_or_wrong, said, surprise, unsent, wrong};
use crate::plan::{Fault, Op, Outcome};
use crate::server::{Properties, RealServer, VirtualServerKey};

const OF_ANOTHER: &str = "its virtual server is another program's";

/// Writer of virtual servers and destinations. `execute` sends a batch and returns the replies.
pub(super) struct Writing<'a, E> {
    family: Family,
    execute: E,
    takes_notes: &'a mut bool,
    /// Virtual servers that the kernel refused to create. Writes of their destinations fail for the
    /// same reason.
    missing: BTreeSet<VirtualServerKey>,
    /// Other programs' virtual servers at keys that Services want. They get none of our
    /// destinations.
    taken: BTreeSet<VirtualServerKey>,
    batch: Batch,
}

impl<E: FnMut(&Batch) -> Result<Vec<Reply>, Error>> Writing<'_, E> {
    pub(super) fn new(family: Family, execute: E, takes_notes: &mut bool) -> Writing<'_, E> {
        Writing {
            family,
            execute,
            takes_notes,
            missing: BTreeSet::new(),
            taken: BTreeSet::new(),
            batch: Batch::new(),
        }
    }

    /// Executes the writes in the order that is cheapest for the kernel. Returns the outcomes in
    /// the order of `run`.
    pub(super) fn run(&mut self, run: &[Op]) -> Vec<Outcome> {
        let mut outcomes = vec![Outcome::Unknown; run.len()];
        let mut places: Vec<(&Op, &mut Outcome)> = run.iter().zip(&mut outcomes).collect();
        order(&mut places);
        for part in places.chunks_mut(CHUNK_MESSAGES) {
            let ops: Vec<&Op> = part.iter().map(|(op, _)| *op).collect();
            for ((_, place), outcome) in part.iter_mut().zip(self.apply(&ops)) {
                **place = outcome;
            }
        }
        outcomes
    }

    /// Executes writes that fit into one batch.
    fn apply(&mut self, part: &[&Op]) -> Vec<Outcome> {
        let (mut outcomes, unnoted) = self.send(part);
        if unnoted.is_empty() {
            return outcomes;
        }
        // Repeats the refused writes without the ownership flag, which is optional.
        *self.takes_notes = false;
        self.missing.retain(|key| !unnoted.contains(key));
        let (again, places): (Vec<&Op>, Vec<&mut Outcome>) = part
            .iter()
            .zip(&mut outcomes)
            .filter(|(op, _)| op.server().is_some_and(|key| unnoted.contains(key)))
            .unzip();
        let mut is_for_the_note = false;
        for ((op, place), outcome) in again.iter().zip(places).zip(self.send(&again).0) {
            is_for_the_note |= noted(op).is_some() && outcome == Outcome::Done;
            *place = outcome;
        }
        *self.takes_notes = !is_for_the_note;
        outcomes
    }

    /// Sends the writes once. Returns the outcome of each write, and the virtual servers that the
    /// kernel may have refused because of [`Properties::OWNED`].
    fn send(&mut self, part: &[&Op]) -> (Vec<Outcome>, BTreeSet<VirtualServerKey>) {
        let mut unnoted = BTreeSet::new();
        self.batch.clear();
        // Skips a write that no netlink message can express.
        let pushed: Vec<Result<_, Outcome>> = part.iter().map(|op| self.push(op)).collect();
        let mut replies = match (self.execute)(&self.batch) {
            Ok(replies) => replies.into_iter(),
            Err(error) => {
                let outcome = |_: &&Op| match &error {
                    Error::Netlink(error) => unsent(error),
                    error => refused(error.to_string()),
                };
                return (part.iter().map(outcome).collect(), unnoted);
            }
        };
        let mut outcomes = Vec::with_capacity(part.len());
        for (op, pushed) in part.iter().zip(pushed) {
            let outcome = match pushed {
                Ok(_) => match replies.next() {
                    Some(Reply::Done) => Outcome::Done,
                    Some(Reply::Refused(refusal)) => {
                        let key = noted(op).filter(|_| *self.takes_notes);
                        unnoted.extend(key.filter(|_| may_mean_the_note(&refusal)));
                        outcome(op, &refusal, &self.missing)
                    }
                    Some(Reply::Unknown) | None => Outcome::Unknown,
                },
                Err(outcome) => outcome,
            };
            if let (
                Op::AddServer(key, _),
                Outcome::Refused {
                    fault: Fault::Entry | Fault::Node | Fault::Scheduler,
                    ..
                },
            ) = (op, &outcome)
            {
                self.missing.insert(*key);
            }
            if let (
                Op::AddServer(key, _),
                Outcome::Refused {
                    fault: Fault::Belief,
                    ..
                },
            ) = (op, &outcome)
            {
                self.taken.insert(*key);
            }
            outcomes.push(outcome);
        }
        self.take_back(part, &mut outcomes);
        (outcomes, unnoted)
    }

    /// Removes the destinations that these writes have just added to other programs' virtual
    /// servers, as the kernel's replies have shown.
    fn take_back(&mut self, part: &[&Op], outcomes: &mut [Outcome]) {
        if self.taken.is_empty() {
            return;
        }
        self.batch.clear();
        for (op, outcome) in part.iter().zip(outcomes) {
            if let Op::AddDestination(key, real) = op
                && self.taken.contains(key)
                && *outcome == Outcome::Done
            {
                let target = destination_key(real.target);
                self.family
                    .del_destination(&mut self.batch, &(*key).into(), &target);
                *outcome = refused(OF_ANOTHER.to_owned());
            }
        }
        if !self.batch.is_empty() {
            // Ignores the replies: the virtual server counts as unknown, so the proxy reads it
            // again.
            let _ = (self.execute)(&self.batch);
        }
    }

    fn push(&mut self, op: &Op) -> Result<usize, Outcome> {
        let (family, batch) = (self.family, &mut self.batch);
        let takes_notes = *self.takes_notes;
        let service = |key, properties| {
            service(key, properties, takes_notes)
                .map_err(|bad| refused(format!("{bad}: choose another --ipvs-scheduler")))
        };
        Ok(match op {
            Op::AddServer(key, properties) => family.new_service(batch, &service(key, properties)?),
            Op::SetServer(key, properties) => family.set_service(batch, &service(key, properties)?),
            Op::RemoveServer(key) => family.del_service(batch, &(*key).into()),
            Op::AddDestination(key, _) if self.taken.contains(key) => {
                return Err(refused(OF_ANOTHER.to_owned()));
            }
            Op::AddDestination(key, real) => {
                family.new_destination(batch, &(*key).into(), &destination(real))
            }
            Op::SetDestination(key, real) => {
                family.set_destination(batch, &(*key).into(), &destination(real))
            }
            Op::RemoveDestination(key, target) => {
                family.del_destination(batch, &(*key).into(), &destination_key(*target))
            }
            _ => return Err(Outcome::Unknown),
        })
    }
}

/// Sorts consecutive removals by virtual server, in the reverse order of additions. Within a
/// virtual server, the plan has already sorted the destinations in reverse.
///
/// **Faster additions.** The kernel keeps a removed destination in a trash list for two to three
/// minutes, the latest at the head. For each added destination, it searches this list from the
/// head. So destinations that return after an outage should be near the head: 20,000 additions then
/// take 0.03 s instead of 0.6 s. The difference grows with the square of the number. For new
/// destinations, the order does not matter (`ipvs-netlink/examples/trash_cost.rs`).
///
/// **Faster removals.** The kernel searches a virtual server's destinations from the youngest to
/// the oldest, and this order removes the youngest first.
fn order(writes: &mut [(&Op, &mut Outcome)]) {
    let removed = |op: &Op| match *op {
        Op::RemoveServer(key) | Op::RemoveDestination(key, _) => Some(key),
        _ => None,
    };
    let are_alike = |one: &(&Op, &mut Outcome), next: &(&Op, &mut Outcome)| {
        removed(one.0).is_some() == removed(next.0).is_some()
    };
    for run in writes.chunk_by_mut(are_alike) {
        if run.first().is_some_and(|(op, _)| removed(op).is_some()) {
            // A stable sort keeps the plan's order of destinations within a virtual server.
            run.sort_by_key(|(op, _)| Reverse(removed(op)));
        }
    }
}

/// Returns the virtual server that a write creates or changes with the ownership flag.
fn noted(op: &Op) -> Option<&VirtualServerKey> {
    match op {
        Op::AddServer(key, properties) | Op::SetServer(key, properties) => {
            properties.is_owned().then_some(key)
        }
        _ => None,
    }
}

/// Returns true if the kernel may have refused the ownership flag, according to this error.
fn may_mean_the_note(refusal: &Refusal) -> bool {
    matches!(
        refusal.errno,
        libc::EINVAL | libc::ERANGE | libc::EOPNOTSUPP
    )
}

fn outcome(op: &Op, refusal: &Refusal, missing: &BTreeSet<VirtualServerKey>) -> Outcome {
    let gone = "the virtual server is gone; it is added again";
    match (op, refusal.errno) {
        (Op::RemoveServer(_), libc::ESRCH)
        | (Op::RemoveDestination(..), libc::ENOENT | libc::ESRCH) => Outcome::Done,
        (Op::AddServer(..) | Op::AddDestination(..), libc::EEXIST) => surprise(said(
            refusal,
            "somebody else made it; the kernel is read again",
        )),
        (Op::AddDestination(key, _), libc::ESRCH) if missing.contains(key) => {
            refused(said(refusal, "its virtual server was refused"))
        }
        (Op::SetServer(..) | Op::AddDestination(..) | Op::SetDestination(..), libc::ESRCH) => {
            surprise(said(refusal, gone))
        }
        (Op::SetDestination(..), libc::ENOENT) => {
            surprise(said(refusal, "the destination is gone; it is added again"))
        }
        (
            Op::AddServer(_, Properties { scheduler, .. })
            | Op::SetServer(_, Properties { scheduler, .. }),
            libc::ENOENT,
        ) => Outcome::Refused {
            reason: said(
                refusal,
                &format!(
                    "the kernel has no scheduler `{scheduler}`: run `modprobe ip_vs_{scheduler}` on the host, or choose another \
                     --ipvs-scheduler"
                ),
            ),
            fault: Fault::Scheduler,
        },
        (_, libc::EAFNOSUPPORT) => refused(said(
            refusal,
            "this kernel's IPVS has no IPv6 (CONFIG_IP_VS_IPV6)",
        )),
        (_, libc::EPROTONOSUPPORT) => wrong(said(
            refusal,
            "this kernel's IPVS does not balance that protocol (CONFIG_IP_VS_PROTO_SCTP for SCTP)",
        )),
        (Op::AddDestination(..) | Op::SetDestination(..), libc::EINVAL) => wrong(said(
            refusal,
            "the destination's address is not one that a pod can have: correct the EndpointSlice",
        )),
        _ => refused_or_wrong(refusal, "try it with `ipvsadm` by hand"),
    }
}

fn service(
    key: &VirtualServerKey,
    properties: &Properties,
    takes_notes: bool,
) -> Result<Service, BadName> {
    let scheduler = properties.scheduler.parse()?;
    let without = if takes_notes { 0 } else { Properties::OWNED };
    Ok(Service {
        flags: Flags::from_bits_retain(properties.flags & !without),
        timeout: properties.timeout,
        ..Service::new((*key).into(), scheduler)
    })
}

fn destination_key(target: Target) -> DestinationKey {
    DestinationKey {
        address: target.ip,
        port: target.port,
    }
}

/// Encodes a destination. Its forwarding method is NAT, as for all of this proxy's destinations.
fn destination(real: &RealServer) -> Destination {
    Destination {
        upper_threshold: real.max_connections.into(),
        ..Destination::new(destination_key(real.target), real.weight.into())
    }
}

#[cfg(test)]
mod tests {
    use ipvs_netlink::ServiceEntry;
    use netlink_batch::Attributes;
    use proxy::{Protocol, ServiceAddress};

    use super::*;

    const NEW_SERVICE: u8 = 1;
    const SET_SERVICE: u8 = 2;
    const DEL_SERVICE: u8 = 3;
    const NEW_DEST: u8 = 5;
    const DEL_DEST: u8 = 7;

    /// Fake kernel that refuses every flag outside `known`.
    struct Strict {
        known: u32,
        /// Virtual servers in the fake kernel: encoded attributes and flags.
        servers: Vec<(Vec<u8>, u32)>,
        sends: usize,
    }

    impl Strict {
        fn new(known: u32) -> Self {
            Self {
                known,
                servers: Vec::new(),
                sends: 0,
            }
        }

        fn execute(&mut self, batch: &Batch) -> Vec<Reply> {
            self.sends += 1;
            let messages = (0..batch.len()).filter_map(|at| batch.get(at));
            messages.map(|message| self.take(message.payload)).collect()
        }

        fn take(&mut self, payload: &[u8]) -> Reply {
            let mut attributes = Attributes::after(4, payload).unwrap();
            let server = attributes.next().unwrap().unwrap().payload;
            if payload[0] == NEW_DEST {
                // A message that creates a virtual server begins with the virtual server's key.
                let is_it = |(made, _): &(Vec<u8>, u32)| made.starts_with(server);
                return if self.servers.iter().any(is_it) {
                    Reply::Done
                } else {
                    refuse(libc::ESRCH)
                };
            }
            assert!([NEW_SERVICE, SET_SERVICE].contains(&payload[0]));
            let service = ServiceEntry::decode(payload).unwrap().service;
            let flags = service.flags.bits();
            if flags & !self.known != 0 {
                return refuse(libc::EINVAL);
            }
            self.servers.push((server.to_vec(), flags));
            Reply::Done
        }

        fn flags(&self) -> Vec<u32> {
            self.servers.iter().map(|(_, flags)| *flags).collect()
        }
    }

    fn refuse(errno: i32) -> Reply {
        Reply::Refused(Refusal {
            errno,
            message: None,
            request: Vec::new(),
        })
    }

    fn apply(kernel: &mut Strict, takes_notes: &mut bool, ops: &[Op]) -> Vec<Outcome> {
        run(|batch| Ok(kernel.execute(batch)), takes_notes, ops)
    }

    fn run(
        execute: impl FnMut(&Batch) -> Result<Vec<Reply>, Error>,
        takes_notes: &mut bool,
        ops: &[Op],
    ) -> Vec<Outcome> {
        Writing::new(Family::from_id(30), execute, takes_notes).run(ops)
    }

    fn key(port: u16) -> VirtualServerKey {
        ServiceAddress::new([192, 0, 2, 1].into(), port, Protocol::Tcp).into()
    }

    /// Returns the writes that create three virtual servers, each with one destination. The second
    /// one serves a NodePort.
    fn three() -> Vec<Op> {
        let server = |(port, flags)| {
            let key = key(port);
            let properties = Properties {
                scheduler: "rr".into(),
                flags,
                timeout: 0,
            };
            let target = Target {
                ip: [10, 244, 0, 1].into(),
                port: 8080,
            };
            [
                Op::AddServer(key, properties),
                Op::AddDestination(key, RealServer::new(target)),
            ]
        };
        let all = [(80, 0), (30_080, Properties::OWNED), (81, 0)];
        all.into_iter().flat_map(server).collect()
    }

    #[test]
    fn virtual_servers_are_written_without_flags_that_the_kernel_refuses() {
        let mut kernel = Strict::new(Properties::PERSISTENT);
        let mut takes_notes = true;
        let outcomes = apply(&mut kernel, &mut takes_notes, &three());
        assert_eq!(outcomes, vec![Outcome::Done; 6]);
        assert_eq!((kernel.flags(), kernel.sends), (vec![0; 3], 2));
        // The writer has learned to omit the flag, so the next writes are sent only once.
        assert!(!takes_notes);
        apply(&mut kernel, &mut takes_notes, &three());
        assert_eq!(kernel.sends, 3);
    }

    #[test]
    fn a_foreign_virtual_server_gets_no_destination() {
        let mut sends = Vec::new();
        let execute = |batch: &Batch| {
            let commands = (0..batch.len()).filter_map(|at| batch.get(at));
            let commands: Vec<u8> = commands.map(|message| message.payload[0]).collect();
            // The first virtual server is refused, as if another program had created it.
            let is_first = sends.is_empty();
            let reply = |at: usize| match (is_first, at) {
                (true, 0) => refuse(libc::EEXIST),
                _ => Reply::Done,
            };
            let replies = (0..commands.len()).map(reply).collect();
            sends.push(commands);
            Ok(replies)
        };
        let outcomes = run(execute, &mut true, &three());
        let refused: Vec<_> = outcomes.iter().map(|one| *one != Outcome::Done).collect();
        assert_eq!(refused, [true, true, false, false, false, false]);
        assert_eq!(sends[1..], [vec![DEL_DEST]]);
    }

    #[test]
    fn the_kernel_keeps_the_ownership_flag() {
        let (mut kernel, mut takes_notes) = (Strict::new(u32::MAX), true);
        let outcomes = apply(&mut kernel, &mut takes_notes, &three());
        assert_eq!(outcomes, vec![Outcome::Done; 6]);
        let flags = vec![0, Properties::OWNED, 0];
        assert_eq!((kernel.flags(), kernel.sends), (flags, 1));
        assert!(takes_notes);
    }

    #[test]
    fn refusals_for_other_reasons_do_not_disable_the_ownership_flag() {
        let (mut kernel, mut takes_notes) = (Strict::new(u32::MAX), true);
        let mut ops = three();
        let [Op::AddServer(_, properties), Op::AddDestination(..)] = &mut ops[2..4] else {
            panic!("{ops:?}");
        };
        // Adds a flag that this fake kernel refuses; it accepts the ownership flag.
        properties.flags |= Properties::HASH_PORT;
        kernel.known = Properties::OWNED;
        let outcomes = apply(&mut kernel, &mut takes_notes, &ops);
        let refused: Vec<_> = outcomes.iter().map(|one| *one != Outcome::Done).collect();
        assert_eq!(refused, [false, false, true, true, false, false]);
        // The flag causes the refusal of the virtual server, and the missing virtual server that of
        // its destination. So neither refusal means that the tables are wrong (`Belief`).
        let surprises = outcomes.iter().filter(|one| {
            matches!(
                one,
                Outcome::Refused {
                    fault: Fault::Belief,
                    ..
                }
            )
        });
        assert_eq!(surprises.count(), 0);
        assert!(takes_notes);
    }

    /// Encoded attributes of a virtual server and of one of its destinations.
    type Pair = (Vec<u8>, Vec<u8>);

    /// Fake destination lists: like the kernel, they grow at the head and are searched from there.
    #[derive(Default)]
    struct Lists {
        used: Vec<Pair>,
        removed: Vec<Pair>,
        /// Number of list entries visited by all searches of the trash list.
        steps: usize,
    }

    impl Lists {
        fn execute(&mut self, batch: &Batch) -> Vec<Reply> {
            let messages = (0..batch.len()).filter_map(|at| batch.get(at));
            for message in messages {
                let mut attributes = Attributes::after(4, message.payload).unwrap();
                let mut next = || {
                    attributes
                        .next()
                        .map(|found| found.unwrap().payload.to_vec())
                };
                let server = next().unwrap();
                // The attributes of a destination begin with its key: family, address, port.
                let mut pair = || (server.clone(), next().unwrap()[..36].to_vec());
                match message.payload[0] {
                    NEW_SERVICE => {}
                    DEL_SERVICE => {
                        let gone = self.used.extract_if(.., |(of, _)| *of == server);
                        self.removed
                            .splice(0..0, gone.collect::<Vec<_>>().into_iter().rev());
                    }
                    NEW_DEST => {
                        let pair = pair();
                        let found = self.removed.iter().position(|there| *there == pair);
                        self.steps += found.unwrap_or(self.removed.len());
                        found.map(|at| self.removed.remove(at));
                        self.used.insert(0, pair);
                    }
                    DEL_DEST => {
                        let pair = pair();
                        let at = self.used.iter().position(|there| *there == pair);
                        self.used.remove(at.unwrap());
                        self.removed.insert(0, pair);
                    }
                    other => panic!("command {other}"),
                }
            }
            vec![Reply::Done; batch.len()]
        }
    }

    #[test]
    fn the_kernel_finds_a_returning_destination_at_the_head_of_its_trash_list() {
        let target = |number: u16| Target {
            ip: [10, 244, 0, 1].into(),
            port: number,
        };
        let all: Vec<_> = (0..40_u16)
            .flat_map(|port| (0..20_u16).map(move |number| (key(port), target(number))))
            .collect();
        let add: Vec<Op> = all
            .iter()
            .map(|(key, target)| Op::AddDestination(*key, RealServer::new(*target)))
            .collect();
        // The planner reverses the destinations within a virtual server, and `order` reverses the
        // virtual servers.
        let of_one = |one: &(VirtualServerKey, _), next: &(VirtualServerKey, _)| one.0 == next.0;
        let remove = all.chunk_by(of_one).flat_map(|of_one| of_one.iter().rev());
        let remove = remove.map(|(key, target)| Op::RemoveDestination(*key, *target));
        let remove_servers = (0..40).map(|port| Op::RemoveServer(key(port)));
        for removal in [remove.collect::<Vec<_>>(), remove_servers.collect()] {
            let (mut kernel, mut takes_notes) = (Lists::default(), true);
            for ops in [&add, &removal, &add] {
                let execute = |batch: &Batch| Ok(kernel.execute(batch));
                let outcomes = run(execute, &mut takes_notes, ops);
                assert_eq!(outcomes, vec![Outcome::Done; ops.len()]);
            }
            assert_eq!((kernel.used.len(), kernel.removed.len()), (800, 0));
            assert_eq!(kernel.steps, 0);
        }
    }

    #[test]
    fn each_write_gets_its_own_outcome_after_the_writes_are_reordered() {
        let mut ops = three();
        let keys: Vec<_> = ops.iter().filter_map(Op::server).copied().collect();
        ops.extend([keys[0], keys[2], keys[4]].map(Op::RemoveServer));
        // The kernel refuses the first removal.
        let mut is_first = true;
        let execute = |batch: &Batch| {
            let messages = (0..batch.len()).filter_map(|at| batch.get(at));
            let mut reply = |command| match command {
                DEL_SERVICE if std::mem::take(&mut is_first) => refuse(libc::EPERM),
                _ => Reply::Done,
            };
            Ok(messages.map(|message| reply(message.payload[0])).collect())
        };
        let outcomes = run(execute, &mut true, &ops);
        let refused = outcomes.iter().position(|one| *one != Outcome::Done);
        // The virtual server with the highest port is removed first.
        assert_eq!(keys[2], key(30_080));
        assert_eq!(refused, Some(7));
    }
}
