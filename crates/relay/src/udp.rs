//! A UDP port. For each client, the relay opens a flow: a separate socket that sends to one
//! endpoint and receives the endpoint's replies.

use std::cell::RefCell;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket as StdSocket};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::SendFlags;
use socket2::{Domain, SockRef, Socket, Type};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::task::{spawn_local, yield_now};
use tokio::time::{sleep, timeout};

use super::balance::{Balance, Choice};
use super::datagram::{Datagrams, Peer};
use super::descriptors::is_exhausted;
use super::flow::{Flow, FlowKey};
use super::shared::{Shared, set_mark};
use super::shares::Client;
use super::traffic::{CountedConnection, PortCounters};
use super::{Holds, Opening, Transport};

/// Number of datagrams that a port may receive before other tasks get their turn.
const TURN: usize = 64;

/// Pause after an unexpected error of a receive call.
const PAUSE: Duration = Duration::from_millis(100);

/// A listening UDP port, with its socket and endpoints.
pub(crate) struct Port {
    pub(crate) balance: RefCell<Balance>,
    pub(crate) counters: Arc<PortCounters>,
    number: u64,
    /// Port number of the listening socket.
    at: u16,
    datagrams: Datagrams,
    service: Arc<str>,
}

impl Port {
    /// Creates a UDP port. Returns the port, and the resources that an open port keeps: a
    /// descriptor and, for an ephemeral port, its number.
    ///
    /// # Errors
    ///
    /// Fails if the runtime cannot watch the socket.
    pub(crate) fn new(opening: Opening, socket: StdSocket) -> io::Result<(Self, Holds)> {
        let port = Self {
            balance: RefCell::new(Balance::new(opening.serving)),
            counters: opening.counters,
            number: opening.number,
            at: socket.local_addr()?.port(),
            datagrams: Datagrams::new(UdpSocket::from_std(socket)?),
            service: opening.service,
        };
        Ok((port, opening.holds))
    }

    /// Returns the number that identifies this port within the relay.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Ends the flows to endpoints that the port no longer has.
    pub(crate) fn end_stale(&self, shared: &Shared) {
        let balance = self.balance.borrow();
        let mut flows = shared.flows.borrow_mut();
        flows.retain(|key, flow| key.port != self.number || balance.serving().has(&flow.endpoint));
        shared.counters.set_flows(flows.len());
    }

    /// Ends all flows of the port.
    pub(crate) fn end_all(&self, shared: &Shared) {
        let mut flows = shared.flows.borrow_mut();
        flows.retain(|key, _| key.port != self.number);
        shared.counters.set_flows(flows.len());
    }
}

/// Creates a socket that reports the destination address of each datagram.
///
/// # Errors
///
/// Fails if the kernel refuses the socket.
pub(crate) fn bind(at: SocketAddr) -> io::Result<StdSocket> {
    let socket = Socket::new(Domain::for_address(at), Type::DGRAM, None)?;
    if at.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_nonblocking(true)?;
    super::datagram::want_destination(&socket, at)?;
    socket.bind(&at.into())?;
    Ok(socket.into())
}

/// Receives datagrams until the runtime aborts the task.
pub(crate) async fn serve(shared: Rc<Shared>, port: Rc<Port>) {
    let mut turn = 0;
    loop {
        if port.datagrams.readable().await.is_err() {
            return;
        }
        let received = shared.with_datagram(|buffer| {
            let (count, peer) = port.datagrams.receive(buffer)?;
            let bytes = buffer.get(..count).unwrap_or_default();
            pass_on(&shared, &port, peer, bytes);
            Ok::<_, io::Error>(())
        });
        match received {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            // The error is about an earlier datagram, or is unexpected.
            Err(_) => sleep(PAUSE).await,
        }
        turn += 1;
        if turn >= TURN {
            turn = 0;
            yield_now().await;
        }
    }
}

fn pass_on(shared: &Rc<Shared>, port: &Rc<Port>, peer: Peer, bytes: &[u8]) {
    let key = FlowKey {
        port: port.number,
        peer,
    };
    let now = Instant::now();
    let mut flows = shared.flows.borrow_mut();
    let mut choice = Choice::Kept;
    if let Some(flow) = flows.get(&key, now) {
        if send(&flow.socket, bytes).is_ok() {
            flow.carrying.datagram_in(bytes.len());
            flow.place.note_use();
            return;
        }
        // No process listens at this endpoint, so the relay sends the datagram to another endpoint.
        flows.remove(&key);
        choice = Choice::Another;
    }
    let client = peer.client.ip();
    let own = SocketAddr::new(peer.own, port.at);
    // Checks only the first datagram of a flow: the original destination in the flow's conntrack
    // entry does not change later.
    if choice == Choice::Kept && !shared.redirected.borrow_mut().is(peer.client, own) {
        return;
    }
    let endpoint = {
        let mut balance = port.balance.borrow_mut();
        if !balance.serving().admits(client) {
            return;
        }
        balance.pick(client, choice, now)
    };
    let Some(endpoint) = endpoint else { return };
    let places = &shared.flow_places;
    let Some(admitted) = places.admit(&port.service, Client::of(client), key) else {
        return;
    };
    if let Some(evicted) = admitted.evicted {
        shared.counters.add_evicted(Transport::Udp);
        flows.remove(&evicted);
    }
    let held = shared.try_take(1).or_else(|| {
        if flows.give_way() {
            shared.counters.add_evicted(Transport::Udp);
        }
        shared.try_take(1)
    });
    let Some(held) = held else { return };
    let mark = shared.limits.mark;
    let socket = connect(endpoint, mark).or_else(|error| {
        if is_exhausted(&error) && flows.give_way() {
            shared.counters.add_evicted(Transport::Udp);
            return connect(endpoint, mark);
        }
        Err(error)
    });
    let Ok(socket) = socket else { return };
    let socket = Rc::new(socket);
    // Ignores an error: a new socket has no pending error, so only its buffer can be full.
    let _ = send(&socket, bytes);
    let carrying = Rc::new(port.counters.connect(endpoint));
    carrying.datagram_in(bytes.len());
    let (both, counted) = (Rc::clone(&socket), Rc::clone(&carrying));
    let answers = answer(Rc::clone(shared), Rc::clone(port), both, counted, key);
    let answers = spawn_local(answers).abort_handle();
    let flow = Flow::new(endpoint, socket, carrying, answers, admitted.place, held);
    flows.insert(key, flow, now);
    shared.counters.set_flows(flows.len());
}

/// Sends the replies of an endpoint to the client, until the flow has been idle for too long.
async fn answer(
    shared: Rc<Shared>,
    port: Rc<Port>,
    socket: Rc<UdpSocket>,
    carrying: Rc<CountedConnection>,
    key: FlowKey,
) {
    let idle = shared.limits.udp_idle;
    let mut wait = idle;
    loop {
        let heard = socket.ready(Interest::READABLE | Interest::ERROR);
        match timeout(wait, heard).await {
            Ok(Ok(ready)) if ready.is_readable() => {}
            // No process listens at the endpoint.
            Ok(_) => break,
            Err(_) => match shared.flows.borrow().used(&key) {
                Some(used) if used.elapsed() < idle => {
                    wait = idle.saturating_sub(used.elapsed());
                    continue;
                }
                _ => break,
            },
        }
        wait = idle;
        let received = socket.try_io(Interest::READABLE, || {
            shared.with_datagram(|buffer| {
                let count = rustix::io::read(&*socket, &mut *buffer)?;
                let bytes = buffer.get(..count).unwrap_or_default();
                // If the buffer is full, the datagram is lost, as in any network.
                let _ = port.datagrams.send(key.peer, bytes);
                carrying.datagram_out(count);
                Ok(())
            })
        });
        match received {
            Ok(()) => {
                shared.flows.borrow_mut().get(&key, Instant::now());
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // The flow ends, and the relay will send the client's next datagram to another
            // endpoint.
            Err(_) => break,
        }
    }
    let mut flows = shared.flows.borrow_mut();
    let ended = flows.remove(&key);
    shared.counters.set_flows(flows.len());
    drop(flows);
    drop(ended);
}

/// Sends a datagram, or drops it if a buffer is full or the datagram is too long. Bypasses tokio,
/// which reports a new socket as not writable until tokio has polled it.
fn send(socket: &UdpSocket, bytes: &[u8]) -> io::Result<()> {
    match rustix::net::send(socket, bytes, SendFlags::DONTWAIT) {
        Ok(_) | Err(Errno::AGAIN | Errno::NOBUFS | Errno::MSGSIZE) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn connect(endpoint: SocketAddr, mark: Option<u32>) -> io::Result<UdpSocket> {
    let any: IpAddr = match endpoint {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = StdSocket::bind((any, 0))?;
    socket.set_nonblocking(true)?;
    set_mark(&SockRef::from(&socket), mark);
    socket.connect(endpoint)?;
    UdpSocket::from_std(socket)
}
