//! A packet through each layout: nodes of one world, which take turns.
//!
//! UDP, sent one by one from a pod's socket. A first packet is one that has a source port which
//! none before had; an established flow has been answered once.

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use lab::{Place, World};
use rustix::net::{AddressFamily, SocketType, bind, socket, sockopt};

use super::layout::{Content, first_endpoint, vip};
use super::wire::Kernel;
use super::{Cost, fill};
use crate::data_plane::SERVERS;

const BLOCK: u16 = 100;
const ROUNDS: u16 = 40;
const BEFORE: u16 = 6;
const SERVER_PORT: u16 = 8080;

struct Lane {
    name: String,
    client: Place,
    to: SocketAddrV4,
    established: UdpSocket,
    _answering: UdpSocket,
    values: Vec<f64>,
}

pub(crate) fn measure(options: &Cost, services: u32) -> Result<()> {
    let mut world = World::new("nft")?;
    let server = world.host("server", "172.35.0.200/24")?;
    server.read(["ip", "route", "add", "local", SERVERS, "dev", "lo"])?;
    // It takes everything, and reads nothing.
    let _listening = listen(&server, Ipv4Addr::UNSPECIFIED)?;
    let mut lanes = Vec::new();
    let layouts = std::iter::once(None).chain(options.layout.iter().copied().map(Some));
    for (layout, third) in layouts.zip(2_u8..) {
        let address = format!("172.35.0.{}/24", 100 + u32::from(third));
        let gateway = format!("10.200.{third}.1/24");
        let node = world.node(&format!("node{third}"), address.as_str(), gateway.as_str())?;
        let source = format!("10.200.{third}.2");
        let client = world.pod(&node, &format!("client{third}"), source.as_str())?;
        world.route(&node, SERVERS, &server)?;
        world.route(&server, format!("10.200.{third}.0/24").as_str(), &node)?;
        let direct = Ipv4Addr::new(10, 190, 0, 1);
        let (name, to, endpoint) = match layout {
            // Connections are followed here, too.
            None => {
                node.read(["nft", "add table ip t; add chain ip t c { type nat hook postrouting priority 100; }; add rule ip t c mark 1 masquerade"])?;
                (
                    "no rules".to_owned(),
                    SocketAddrV4::new(direct, SERVER_PORT),
                    direct,
                )
            }
            Some(layout) => {
                let content = Content {
                    layout,
                    services,
                    endpoints: options.endpoints,
                    protocol: super::UDP,
                };
                let kernel = node.enter(Kernel::open)?;
                fill(&kernel, content, options.chunk)?;
                let service = services / 2;
                let to = SocketAddrV4::new(vip(service).into(), 80);
                (
                    format!("{layout:?}"),
                    to,
                    first_endpoint(content, service).into(),
                )
            }
        };
        let (established, answering) =
            establish(&client, &server, to, endpoint).with_context(|| name.clone())?;
        lanes.push(Lane {
            name,
            client,
            to,
            established,
            _answering: answering,
            values: Vec::new(),
        });
    }
    let mut port = 1024;
    for _ in 0..ROUNDS {
        for lane in &mut lanes {
            let took = if options.established {
                block(&mut || Ok(lane.established.send(b"x").map(drop)?), BLOCK)?
            } else {
                let to = lane.to;
                let (client, next) = (&lane.client, port);
                port += BLOCK + BEFORE;
                let sockets = client.enter(|| {
                    (next..next + BLOCK + BEFORE)
                        .map(|port| UdpSocket::bind(("0.0.0.0", port)))
                        .collect::<Result<Vec<_>, _>>()
                })?;
                let mut all = sockets.iter();
                let mut send = || Ok(all.next().context("no more")?.send_to(b"x", to).map(drop)?);
                block(&mut send, BEFORE)?;
                block(&mut send, BLOCK)?
            };
            lane.values.push(took);
        }
        port = if options.established { 1024 } else { port };
        if port > 60_000 {
            break;
        }
    }
    let mut base = None;
    for lane in &mut lanes {
        lane.values.sort_by(f64::total_cmp);
        let at = |share: usize| {
            lane.values
                .get(lane.values.len() * share / 100)
                .copied()
                .unwrap_or(0.0)
        };
        let median = at(50);
        let over = median - *base.get_or_insert(median);
        println!(
            "{:<10} {services:>6} x {}: {median:7.0} ns a packet (quarters {:.0} to {:.0}), over none {over:7.0}",
            lane.name,
            options.endpoints,
            at(25),
            at(75)
        );
    }
    Ok(())
}

fn block(send: &mut impl FnMut() -> Result<()>, count: u16) -> Result<f64> {
    let started = Instant::now();
    for _ in 0..count {
        send()?;
    }
    Ok(started.elapsed().as_secs_f64() * 1e9 / f64::from(count))
}

/// A flow that was answered; other endpoints than the first are tried again.
fn establish(
    client: &Place,
    server: &Place,
    to: SocketAddrV4,
    at: Ipv4Addr,
) -> Result<(UdpSocket, UdpSocket)> {
    let answering = listen(server, at)?;
    answering.set_read_timeout(Some(Duration::from_millis(300)))?;
    for _ in 0..40 {
        let socket = client.enter(|| UdpSocket::bind("0.0.0.0:0"))?;
        socket.connect(to)?;
        socket.set_read_timeout(Some(Duration::from_millis(300)))?;
        socket.send(b"x")?;
        let mut buffer = [0; 8];
        let Ok((_, from)) = answering.recv_from(&mut buffer) else {
            continue;
        };
        answering.send_to(b"y", from)?;
        socket.recv(&mut buffer).context("no answer")?;
        return Ok((socket, answering));
    }
    anyhow::bail!("nothing came to {at}")
}

/// Beside another one on the same port.
fn listen(server: &Place, at: Ipv4Addr) -> Result<UdpSocket> {
    let socket = server.enter(|| {
        let socket = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        bind(&socket, &SocketAddrV4::new(at, SERVER_PORT))?;
        Ok(socket)
    });
    Ok(socket?.into())
}
