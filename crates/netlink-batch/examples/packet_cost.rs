//! Measures how much longer a packet takes on a node that has many addresses. The result is the
//! table in docs/operating.md under "Many service addresses, and what a packet costs".
//!
//! ```text
//! cargo build --release -p netlink-batch -p lab --example packet_cost --bin lab
//! target/release/lab run --timeout 300 -- target/release/examples/packet_cost
//! ```
//!
//! There are three network namespaces (client – node – other host) with `rp_filter` 0, veth links
//! and routes.
//!
//! 1. A raw socket of the client sends a block of ICMP echo requests to the other host, with one
//!    `sendmmsg`.
//! 2. With one CPU, as in the lab, the kernel handles all packets and replies within this call.
//! 3. A missing reply is an error.
//!
//! The result is the fastest block, because other work on the machine only adds time.
//!
//! Each row uses new namespaces. Once a namespace has had a local route, the kernel checks the
//! source of each packet in full, even after the route is removed. The run takes about a minute,
//! mostly for the 50,000 addresses of the last row.

use std::error::Error;
use std::fs::{File, read_to_string, write};
use std::io::IoSlice;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4, UdpSocket};
use std::ops::Range;
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use netlink_batch::{Batch, Connection, NLM_F_CREATE, NLM_F_EXCL, Protocol, Reply};
use rustix::net::{
    AddressFamily, MMsgHdr, RecvFlags, SendAncillaryBuffer, SendFlags, SocketAddrAny, SocketFlags,
    SocketType, ipproto, recv, sendmmsg, socket_with, sockopt,
};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

const IPV4_COUNTS: [u32; 6] = [0, 1_000, 2_000, 5_000, 10_000, 50_000];
const IPV6_COUNTS: [u32; 3] = [0, 1_000, 10_000];
const BLOCK: u16 = 500;
const BLOCKS: usize = 300;
const CONNECTIONS: usize = 101;
/// Maximum wait until a kernel worker has added the routes of IPv6 addresses.
const ROUTED_WITHIN: Duration = Duration::from_secs(30);

/// Kernel index of the link `kube-ipvs0`.
const INDEX: u32 = 1_000;
const RTM_NEWADDR: u16 = 20;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
/// Address flags that each `RTM_NEWADDR` sets (`IFA_F_PERMANENT | IFA_F_NODAD`).
const FLAGS: u8 = 0x82;

const OTHER: Ipv4Addr = Ipv4Addr::new(10, 2, 0, 2);
/// ICMP echo request (type 8) with identifier 0x6b and a valid checksum.
const ECHO_REQUEST: [u8; 8] = [8, 0, 0xf7, 0x94, 0, 0x6b, 0, 0];

fn main() -> Result<(), Box<dyn Error>> {
    // Loads the IPv6 module, if the kernel has one.
    Command::new("modprobe").args(["-q", "ipv6"]).status()?;
    let sources = ipv6_sources()?;
    let kernel = read_to_string("/proc/sys/kernel/osrelease")?;
    println!("Linux {}, fastest of {BLOCKS} blocks:\n", kernel.trim());
    println!("| addresses | short cut | full check on the node | and in the client's namespace |");
    println!("|---|---|---|---|");
    for count in IPV4_COUNTS {
        let [short, node, client] = ipv4_row(count)?;
        println!(
            "| {} | {short:.2} µs | {node:.2} µs | {client:.2} µs |",
            thousands(count)
        );
    }
    println!("\nIPv6, `connect` of a UDP socket, which chooses a source, median: {sources}");
    Ok(())
}

/// Measures the microseconds for a packet and its reply in three cases:
///
/// 1. without an added local route;
/// 2. with an added local route on the node;
/// 3. with an added local route on the node and in the client's namespace.
fn ipv4_row(count: u32) -> Result<[f64; 3], Box<dyn Error>> {
    for name in ["client", "node", "other"] {
        ip(&format!("netns add {name}"))?;
        enter(name)?;
        for of in ["all", "default"] {
            write(format!("/proc/sys/net/ipv4/conf/{of}/rp_filter"), "0")?;
        }
        write("/proc/sys/net/ipv4/ip_forward", "1")?;
        ip("link set lo up")?;
    }
    enter("node")?;
    for (name, net) in [("client", "10.1.0"), ("other", "10.2.0")] {
        ip(&format!(
            "link add {name} type veth peer name eth0 netns {name}"
        ))?;
        ip(&format!("address add {net}.1/24 dev {name}"))?;
        ip(&format!("link set {name} up"))?;
        ip(&format!("-n {name} address add {net}.2/24 dev eth0"))?;
        ip(&format!("-n {name} link set eth0 up"))?;
        ip(&format!("-n {name} route add default via {net}.1"))?;
    }
    ip(&format!("link add kube-ipvs0 index {INDEX} type dummy"))?;
    add(0..count, |number| {
        Ipv4Addr::from(0x0a60_0001 + number).octets().to_vec()
    })?;

    enter("client")?;
    let socket = socket_with(
        AddressFamily::INET,
        SocketType::RAW,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        Some(ipproto::ICMP),
    )?;
    // The receive buffer has room for all replies to a block of packets.
    sockopt::set_socket_recv_buffer_size_force(&socket, 4 << 20)?;
    let short = fastest(&socket)?;
    ip("-n node route add local 127.107.0.2 dev kube-ipvs0")?;
    let node = fastest(&socket)?;
    ip("route add local 127.107.0.2 dev lo")?;
    let client = fastest(&socket)?;

    // Deletes the link before the namespace. After `ip netns del`, the kernel still needs some time
    // to remove a namespace, and the link's addresses would disturb the next row.
    if Some(&count) != IPV4_COUNTS.last() {
        ip("-n node link del kube-ipvs0")?;
    }
    for name in ["client", "node", "other"] {
        ip(&format!("netns del {name}"))?;
    }
    Ok([short, node, client])
}

/// Measures the duration of `connect` on a UDP socket, during which the kernel chooses an IPv6
/// source address.
fn ipv6_sources() -> Result<String, Box<dyn Error>> {
    ip("netns add six")?;
    enter("six")?;
    ip("link add eth0 type dummy")?;
    ip("link set eth0 up")?;
    ip("address add fd00:10::1/64 dev eth0 nodad")?;
    ip(&format!("link add kube-ipvs0 index {INDEX} type dummy"))?;
    let (mut there, mut told) = (0, Vec::new());
    for count in IPV6_COUNTS {
        add(there..count, |number| {
            Ipv6Addr::from((0xfd96_u128 << 112) + 1 + u128::from(number))
                .octets()
                .to_vec()
        })?;
        there = count;
        await_routes(count as usize)?;
        let mut times = Vec::with_capacity(CONNECTIONS);
        for _ in 0..CONNECTIONS {
            let socket = UdpSocket::bind("[::]:0")?;
            let started = Instant::now();
            socket.connect("[fd00:10::2]:9")?;
            times.push(started.elapsed());
        }
        times.sort_unstable();
        let median = times.get(CONNECTIONS / 2).copied().unwrap_or_default();
        told.push(format!(
            "{:.0} µs with {} addresses",
            median.as_secs_f64() * 1e6,
            thousands(count)
        ));
    }
    ip("netns del six")?;
    Ok(told.join(", "))
}

fn await_routes(count: usize) -> Result<(), Box<dyn Error>> {
    let deadline = Instant::now() + ROUTED_WITHIN;
    loop {
        let shown = Command::new("ip")
            .args(["-6", "route", "show", "table", "local"])
            .args(["dev", "kube-ipvs0"])
            .output()?
            .stdout;
        if String::from_utf8(shown)?.lines().count() >= count {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(format!("{count} IPv6 addresses have not got their routes").into());
        }
        sleep(Duration::from_millis(100));
    }
}

/// Measures the time for a packet and its reply, in microseconds.
fn fastest(socket: &OwnedFd) -> Result<f64, Box<dyn Error>> {
    // Sends one packet that is not measured, because the first packets wait for neighbour
    // resolution.
    block(socket, 1)?;
    sleep(Duration::from_millis(50));
    answers(socket)?;
    let mut fastest = Duration::MAX;
    for _ in 0..BLOCKS {
        fastest = fastest.min(block(socket, BLOCK)?);
        let answers = answers(socket)?;
        if answers != usize::from(BLOCK) {
            return Err(format!("{answers} answers to {BLOCK} packets").into());
        }
    }
    Ok(fastest.as_secs_f64() * 1e6 / f64::from(BLOCK))
}

fn block(socket: &OwnedFd, count: u16) -> Result<Duration, Box<dyn Error>> {
    // The socket is not connected. A connected socket would keep its route, so the kernel would not
    // look up each packet's source.
    let to = SocketAddrAny::from(SocketAddrV4::new(OTHER, 0));
    let packet = [IoSlice::new(&ECHO_REQUEST)];
    let mut control: Vec<SendAncillaryBuffer<'_, '_, '_>> = Vec::new();
    control.resize_with(count.into(), SendAncillaryBuffer::default);
    let mut messages: Vec<MMsgHdr<'_>> = control
        .iter_mut()
        .map(|control| MMsgHdr::new_with_addr(&to, &packet, control))
        .collect();
    let started = Instant::now();
    let sent = sendmmsg(socket, &mut messages, SendFlags::empty())?;
    let took = started.elapsed();
    if sent != usize::from(count) {
        return Err(format!("{sent} of {count} packets were sent").into());
    }
    Ok(took)
}

/// Returns the number of echo replies in the socket's queue.
fn answers(socket: &OwnedFd) -> Result<usize, Box<dyn Error>> {
    let mut answers = 0;
    let mut packet = [0; 64];
    loop {
        match recv(socket, &mut packet[..], RecvFlags::empty()) {
            // The ICMP type follows the IPv4 header of 20 bytes. Type 0 is an echo reply.
            Ok(_) => answers += usize::from(packet.get(20) == Some(&0)),
            Err(rustix::io::Errno::AGAIN) => return Ok(answers),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Adds addresses to the link `kube-ipvs0` in this thread's network namespace.
fn add(numbers: Range<u32>, address: impl Fn(u32) -> Vec<u8>) -> Result<(), Box<dyn Error>> {
    let mut batch = Batch::new();
    for address in numbers.map(address) {
        let (family, prefix) = if address.len() == 4 {
            (2, 32)
        } else {
            (10, 128)
        };
        batch.push(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, |message| {
            message.bytes(&[family, prefix, FLAGS, 0]);
            message.bytes(&INDEX.to_ne_bytes());
            message.attr(IFA_LOCAL, &address);
            message.attr(IFA_ADDRESS, &address);
        });
    }
    let replies = Connection::open(Protocol::Route)?.execute(&batch)?;
    match replies.iter().find(|reply| **reply != Reply::Done) {
        Some(reply) => Err(format!("an address cannot be added: {reply:?}").into()),
        None => Ok(()),
    }
}

/// Moves this thread and its child processes into a network namespace.
fn enter(name: &str) -> Result<(), Box<dyn Error>> {
    let namespace = File::open(format!("/run/netns/{name}"))?;
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
    Ok(())
}

fn ip(arguments: &str) -> Result<(), Box<dyn Error>> {
    if Command::new("ip")
        .args(arguments.split(' '))
        .status()?
        .success()
    {
        return Ok(());
    }
    Err(format!("ip {arguments} failed").into())
}

fn thousands(count: u32) -> String {
    match (count / 1_000, count % 1_000) {
        (0, rest) => rest.to_string(),
        (thousands, rest) => format!("{thousands},{rest:03}"),
    }
}
