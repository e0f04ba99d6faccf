//! A TCP port. The port's task accepts connections, connects each client to an endpoint, and
//! forwards the bytes.

use std::cell::RefCell;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SocketFlags, acceptfrom_with};
use socket2::{Domain, SockRef, Socket, TcpKeepalive, Type};
use tokio::io::Interest;
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::spawn_local;
use tokio::time::{sleep, timeout};

use super::balance::{Balance, Choice};
use super::descriptors::is_exhausted;
use super::limits::{AllowedClients, DIAL_TIMEOUTS, Dial, Pin};
use super::pump::{CutSignal, reset};
use super::shared::{Shared, set_mark};
use super::traffic::PortCounters;

/// Number of descriptors that a connection needs: the client's socket and the endpoint's socket.
const OF_CONNECTION: u32 = 2;

/// Idle time before the first keepalive probe, as in Go and upstream.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Pause after an unexpected error of `accept`.
const PAUSE: Duration = Duration::from_millis(100);

/// A listening TCP port, with its endpoints and the signal that ends its connections.
pub(crate) struct Port {
    pub(crate) balance: RefCell<Balance>,
    pub(crate) counters: Arc<PortCounters>,
    /// Signal that ends the port's connections.
    pub(crate) cut: CutSignal,
    service: Arc<str>,
}

impl Port {
    pub(crate) fn new(service: Arc<str>, balance: Balance, counters: Arc<PortCounters>) -> Self {
        Self {
            balance: RefCell::new(balance),
            counters,
            cut: CutSignal::default(),
            service,
        }
    }
}

/// Creates a non-blocking TCP socket that listens on `at`.
///
/// # Errors
///
/// Fails if the kernel refuses the socket.
pub(crate) fn listen(at: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(at), Type::STREAM, None)?;
    if at.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_nonblocking(true)?;
    if at.port() != 0 {
        // Allows the bind while connections of an earlier process are still closing at this port.
        socket.set_reuse_address(true)?;
    }
    socket.bind(&at.into())?;
    // The kernel limits this value to `net.core.somaxconn`.
    socket.listen(i32::from(i16::MAX))?;
    Ok(socket.into())
}

/// Accepts connections until the runtime aborts the task.
pub(crate) async fn serve(shared: Rc<Shared>, port: Rc<Port>, listener: TcpListener) {
    let own = listener.local_addr();
    let own = own.map_or(Ipv4Addr::UNSPECIFIED.into(), |own| own.ip());
    // Wraps the listening socket in a `TcpStream`, which can report a waiting client without
    // accepting it. tokio's `TcpListener` cannot.
    let Ok(listener) = TcpStream::from_std(OwnedFd::from(listener).into()) else {
        // Never happens, because the runtime can watch every socket of the system.
        return;
    };
    loop {
        if listener.readable().await.is_err() {
            return;
        }
        // Polls the socket, because tokio's readiness may be outdated. Without a waiting client,
        // this task takes no descriptors.
        if listener
            .try_io(Interest::READABLE, || is_waited_at(&listener))
            .is_err()
        {
            continue;
        }
        // Takes descriptors before the accept. Until then, the connection waits in the kernel's
        // queue, and costs this process nothing.
        let Some(place) = shared.descriptors.take_connection().await else {
            return;
        };
        let Some(held) = shared.take(OF_CONNECTION).await else {
            return;
        };
        let held = (place, held);
        // Opens the outgoing socket before the accept. Otherwise, when descriptors run short, each
        // connection could hold one socket and wait for a second socket. The endpoint has the IP
        // family of the listening socket, so the family is already known.
        let outward = match open_outward(own, shared.limits.mark) {
            Ok(outward) => outward,
            Err(error) => {
                drop(held);
                shared.descriptors.back_off(&error).await;
                continue;
            }
        };
        let accepted = listener.try_io(Interest::READABLE, || accept(&listener));
        let (stream, client) = match accepted {
            Ok(accepted) => accepted,
            // The client closed the connection before the accept.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) if is_exhausted(&error) => {
                drop((held, outward));
                shared.descriptors.back_off(&error).await;
                continue;
            }
            Err(error) => {
                drop((held, outward));
                // An error of the new connection needs no pause. An error of the listener needs a
                // pause (accept(2)).
                if !is_of_connection(&error) {
                    sleep(PAUSE).await;
                }
                continue;
            }
        };
        let open = shared.count_connection();
        let (shared, port) = (Rc::clone(&shared), Rc::clone(&port));
        spawn_local(async move {
            let _counted = open;
            let _held = held;
            tokio::select! {
                biased;
                () = port.cut.until_end() => reset(&stream),
                () = connect_and_carry(&shared, &port, &stream, client, outward) => {}
            }
        });
    }
}

/// Returns success if a client waits or the listener has an error. Returns
/// [`WouldBlock`](io::ErrorKind::WouldBlock) if no client waits.
fn is_waited_at(listener: &TcpStream) -> io::Result<()> {
    let mut asked = [PollFd::new(listener, PollFlags::IN)];
    match poll(&mut asked, Some(&Timespec::default())) {
        Ok(0) => Err(io::ErrorKind::WouldBlock.into()),
        // The following call of `accept` reports the error.
        _ => Ok(()),
    }
}

fn accept(listener: &TcpStream) -> io::Result<(TcpStream, SocketAddr)> {
    let (stream, client) = acceptfrom_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    let client = client.and_then(|client| client.try_into().ok());
    let client: SocketAddr = client.ok_or(io::ErrorKind::ConnectionAborted)?;
    Ok((TcpStream::from_std(stream.into())?, client))
}

fn is_of_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::Interrupted
            | io::ErrorKind::TimedOut
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::NetworkDown
            | io::ErrorKind::PermissionDenied
    )
}

async fn connect_and_carry(
    shared: &Shared,
    port: &Port,
    client: &TcpStream,
    from: SocketAddr,
    outward: TcpSocket,
) {
    let is_welcome = (shared.limits.reach == AllowedClients::Anybody || was_redirected(client))
        && port.balance.borrow().serving().admits(from.ip());
    if !is_welcome {
        shared.counters.add_refused();
        return reset(client);
    }
    let cut = Rc::<CutSignal>::default();
    let place = shared.admit(&port.service, from.ip(), &cut).await;
    let carried = async {
        let Some((server, endpoint)) = dial(shared, port, from.ip(), outward).await else {
            shared.counters.add_refused();
            return reset(client);
        };
        prepare(client);
        prepare(&server);
        let carrying = port.counters.connect(endpoint);
        tokio::select! {
            biased;
            () = cut.until_end() => {
                reset(client);
                reset(&server);
            }
            () = shared.pump.run(client, &server, &carrying, &place) => {}
        }
    };
    // The eviction signal may also arrive while the relay still connects to an endpoint.
    tokio::select! {
        biased;
        () = carried => {}
        () = cut.until_end() => reset(client),
    }
}

/// Reports whether the kernel redirected the client: the client has connected to an address or port
/// other than those of this socket.
fn was_redirected(client: &TcpStream) -> bool {
    let socket = SockRef::from(client);
    let Ok(own) = client.local_addr() else {
        return false;
    };
    let meant = if own.is_ipv4() {
        socket.original_dst_v4()
    } else {
        socket.original_dst_v6()
    };
    meant.is_ok_and(|meant| meant.as_socket() != Some(own))
}

fn prepare(connection: &TcpStream) {
    // Ignores an error: a connection also works without these options.
    let _ = connection.set_nodelay(true);
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE)
        .with_interval(KEEPALIVE);
    let _ = SockRef::from(connection).set_tcp_keepalive(&keepalive);
}

/// Connects to the first endpoint that accepts. Returns the connection and its endpoint, or `None`
/// if no endpoint accepts in time.
///
/// If an endpoint refuses, tries the next endpoint, until each endpoint has refused. After a
/// timeout, the next attempt has more time. The first attempt uses the socket that was opened
/// before `accept`.
async fn dial(
    shared: &Shared,
    port: &Port,
    client: IpAddr,
    outward: TcpSocket,
) -> Option<(TcpStream, SocketAddr)> {
    let client = match shared.limits.pin {
        Pin::Client => client,
        Pin::Port => Ipv4Addr::UNSPECIFIED.into(),
    };
    let once = match shared.limits.dial {
        Dial::Several => None,
        Dial::Once(time) => Some([time]),
    };
    let mut outward = Some(outward);
    let mut choice = Choice::Kept;
    let times = once.as_ref().map_or(DIAL_TIMEOUTS.as_slice(), |once| once);
    let (mut refusals, mut waits) = (0, times.iter());
    let mut wait = waits.next()?;
    loop {
        let endpoint = {
            let mut balance = port.balance.borrow_mut();
            if refusals > balance.serving().endpoints.len() {
                return None;
            }
            balance.pick(client, choice, Instant::now())?
        };
        let socket = outward
            .take()
            .map_or_else(|| open_outward(endpoint.ip(), shared.limits.mark), Ok);
        let connected = async { socket?.connect(endpoint).await };
        match timeout(*wait, connected).await {
            Ok(Ok(server)) => {
                shared.descriptors.succeeded();
                return Some((server, endpoint));
            }
            // A lack of descriptors or memory on this node is not a failure of the endpoint.
            Ok(Err(error)) if is_exhausted(&error) => {
                shared.descriptors.back_off(&error).await;
                wait = waits.next()?;
                continue;
            }
            Ok(Err(_)) if once.is_some() => return None,
            Ok(Err(_)) => refusals += 1,
            Err(_) => wait = waits.next()?,
        }
        choice = Choice::Another;
    }
}

/// Opens an outgoing socket for endpoints of this address family.
fn open_outward(family: IpAddr, mark: Option<u32>) -> io::Result<TcpSocket> {
    let socket = match family {
        IpAddr::V4(_) => TcpSocket::new_v4(),
        IpAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    set_mark(&SockRef::from(&socket), mark);
    Ok(socket)
}
