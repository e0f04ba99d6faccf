//! Measures the time of a packet from a client's socket to the server's network stack.
//!
//! - A raw socket sends a block of TCP SYN packets with one `sendmmsg`. The VM has one CPU, so the
//!   kernel forwards each packet to the server within this call.
//! - The time of one packet is the duration of the call divided by the number of packets.
//! - The server counts the packets that arrive. A lost packet makes the measurement fail.
//! - If the server replies with TCP resets, the kernel forwards them to the client within the same
//!   call.

use std::fs::File;
use std::io::{self, IoSlice};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lab::Place;
use rustix::net::{
    AddressFamily, MMsgHdr, SendAncillaryBuffer, SendFlags, SocketFlags, SocketType, connect,
    ipproto, sendmmsg, socket_with,
};

/// Size of a packet in bytes: an IPv4 header and a TCP header, both without options.
const PACKET: usize = 40;
/// Number of packets that are sent before the first measured block. They load code and tables into
/// the CPU's caches.
const WARM_UP: u16 = 16;
const ARRIVED_WITHIN: Duration = Duration::from_secs(2);

/// Raw socket of a client, with the source address and the destination of its packets.
#[derive(Debug)]
pub(crate) struct ClientSocket {
    socket: OwnedFd,
    source: Ipv4Addr,
    to: SocketAddrV4,
}

impl ClientSocket {
    /// Opens a raw socket in the network namespace of `client`. `source` must be an address of the
    /// client.
    pub(crate) fn open(client: &Place, source: Ipv4Addr, to: SocketAddrV4) -> Result<Self> {
        let socket = client
            .enter(|| {
                let flags = SocketFlags::CLOEXEC;
                let raw = Some(ipproto::RAW);
                let socket = socket_with(AddressFamily::INET, SocketType::RAW, flags, raw)?;
                connect(&socket, &SocketAddrV4::new(*to.ip(), 0))?;
                Ok(socket)
            })
            .context("cannot open a raw socket")?;
        Ok(Self { socket, source, to })
    }
}

/// Sender of packet blocks, which also checks that all packets arrive at the server.
#[derive(Debug)]
pub(crate) struct Sender {
    arrivals: Arrivals,
    /// Source port of the next flow. No two flows in a VM have the same source port.
    port: u16,
}

impl Sender {
    pub(crate) fn new(server: &Place) -> Result<Self> {
        Ok(Self {
            arrivals: Arrivals::open(server)?,
            port: 1_024,
        })
    }

    /// Sends packets before the measurement, until all neighbours (ARP) on the path are known and
    /// caches are warm.
    pub(crate) fn warm_up(&mut self, lane: &ClientSocket) -> Result<()> {
        // Until a neighbour is known, the kernel queues packets to it. So these packets go first,
        // one by one.
        for _ in 0..3 {
            self.new_flows(lane, 1)?;
        }
        self.new_flows(lane, WARM_UP).map(drop)
    }

    /// Sends a block of packets, each of which begins a new flow. Returns the time per packet in
    /// nanoseconds.
    pub(crate) fn new_flows(&mut self, lane: &ClientSocket, count: u16) -> Result<f64> {
        let end = self
            .port
            .checked_add(count)
            .context("there are no more source ports")?;
        let ports: Vec<u16> = (self.port..end).collect();
        self.port = end;
        self.send(lane, &ports)
    }

    fn send(&mut self, lane: &ClientSocket, ports: &[u16]) -> Result<f64> {
        let packets: Vec<[u8; PACKET]> = ports
            .iter()
            .map(|&port| syn(lane.source, port, lane.to))
            .collect();
        let slices: Vec<[IoSlice<'_>; 1]> = packets
            .iter()
            .map(|packet| [IoSlice::new(packet)])
            .collect();
        let mut control: Vec<SendAncillaryBuffer<'_, '_, '_>> = Vec::new();
        control.resize_with(ports.len(), SendAncillaryBuffer::default);
        let mut messages: Vec<MMsgHdr<'_>> = slices
            .iter()
            .zip(&mut control)
            .map(|(slice, control)| MMsgHdr::new(slice, control))
            .collect();
        let before = self.arrivals.count()?;
        let mut rest = messages.as_mut_slice();
        let started = Instant::now();
        while !rest.is_empty() {
            let sent = sendmmsg(&lane.socket, rest, SendFlags::empty())
                .with_context(|| format!("cannot send to {}", lane.to))?;
            rest = rest.get_mut(sent..).unwrap_or_default();
        }
        let mut took = started.elapsed();
        loop {
            let arrived = self.arrivals.count()? - before;
            if arrived == ports.len() as u64 {
                break;
            }
            took = started.elapsed();
            ensure!(
                arrived < ports.len() as u64 && took < ARRIVED_WITHIN,
                "of {} packets to {}, {arrived} arrived",
                ports.len(),
                lane.to
            );
        }
        let count = u32::try_from(ports.len()).unwrap_or(u32::MAX);
        Ok(took.as_secs_f64() * 1e9 / f64::from(count))
    }
}

/// Counter of the IPv4 packets that a node or host has received (`InReceives`).
#[derive(Debug)]
struct Arrivals(File);

impl Arrivals {
    fn open(place: &Place) -> io::Result<Self> {
        // The open file shows the network namespace of the thread that opened it, whichever thread
        // reads it.
        place
            .enter(|| File::open("/proc/thread-self/net/snmp"))
            .map(Self)
    }

    fn count(&self) -> Result<u64> {
        let mut text = [0; 2048];
        let length = self.0.read_at(&mut text, 0)?;
        let text = std::str::from_utf8(text.get(..length).unwrap_or_default())?;
        // Of the two lines with `Ip:`, the first has the names
        // (`Ip: Forwarding DefaultTTL InReceives ...`), the second has the values.
        let values = text.lines().filter(|line| line.starts_with("Ip:")).nth(1);
        values
            .and_then(|values| values.split_whitespace().nth(3)?.parse().ok())
            .context("/proc/net/snmp is not understood")
    }
}

/// Returns a TCP SYN packet with its TCP checksum. The kernel fills in the checksum of the IPv4
/// header.
fn syn(source: Ipv4Addr, port: u16, to: SocketAddrV4) -> [u8; PACKET] {
    let mut packet = Vec::with_capacity(PACKET);
    packet.extend([0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0]);
    packet.extend(source.octets());
    packet.extend(to.ip().octets());
    let mut tcp = Vec::with_capacity(20);
    tcp.extend(port.to_be_bytes());
    tcp.extend(to.port().to_be_bytes());
    tcp.extend([0, 0, 0, 1, 0, 0, 0, 0, 5 << 4, 2, 0xff, 0xff]);
    let pseudo = [source.octets(), to.ip().octets(), [0, 6, 0, 20]].concat();
    let sum = !sum(&[pseudo.as_slice(), tcp.as_slice()].concat());
    packet.extend(tcp);
    packet.extend(sum.to_be_bytes());
    packet.extend([0, 0]);
    let mut whole = [0; PACKET];
    for (to, from) in whole.iter_mut().zip(packet) {
        *to = from;
    }
    whole
}

/// Returns the Internet checksum (RFC 1071) of these bytes, not inverted.
fn sum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = bytes
        .chunks(2)
        .map(|pair| match *pair {
            [high, low] => u32::from(u16::from_be_bytes([high, low])),
            [high] => u32::from(high) << 8,
            _ => 0,
        })
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_syn_packet_has_a_valid_checksum() {
        let to = "10.96.1.0:80".parse().unwrap();
        let packet = syn(Ipv4Addr::new(10, 200, 1, 2), 1_024, to);
        assert_eq!(packet.len(), PACKET);
        // With a correct checksum, the words of the TCP segment and its pseudo-header add up to
        // 0xffff.
        let pseudo = [&packet[12..20], &[0, 6, 0, 20]].concat();
        assert_eq!(sum(&[pseudo.as_slice(), &packet[20..]].concat()), 0xffff);
        assert_eq!(packet[20..24], [4, 0, 0, 80]);
        assert_eq!(packet[33], 2, "SYN");
    }
}
