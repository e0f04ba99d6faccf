//! A test network: a fabric (a switch), nodes and external hosts on it, and pods on the nodes.
//!
//! ```text
//!            fabric (bridge in its own network namespace)
//!       ┌─────────┬──────┴───┐
//!    eth0│     eth0│      eth0│
//!     node1      node2       host        nodes route each other's pod ranges
//!       cni0       cni0                  bridge with the gateway addresses; hairpin; bridged
//!      ┌──┴──┐      │                    packets go through iptables, as in real clusters
//!   eth0│  eth0│  eth0│
//!     pod    pod    pod                  default route through the gateway
//! ```
//!
//! Each node, pod and external host (a *place*) is a network namespace. All places share the lab's
//! files and processes. The network has no kube-proxy, so Service addresses do not work until a
//! test starts one.

mod dial;
mod netns;
mod running;
mod server;

use std::ffi::OsStr;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::ops::Deref;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Once};
use std::time::Duration;

use ipnet::IpNet;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, sockopt};

pub use dial::{Answer, Connection, Dial, Failure, Transport};
pub use running::{Output, Running};
pub use server::Server;

use netns::Netns;
use server::{Listening, Servers};

/// Timeout of a program that [`Place::run`] runs.
const RUN_LIMIT: Duration = Duration::from_mins(1);

/// Sysctls that disable duplicate address detection and router advertisements, so that an IPv6
/// address works immediately, and stays.
const QUIET_IPV6: [(&str, &str); 6] = [
    ("net/ipv6/conf/all/accept_dad", "0"),
    ("net/ipv6/conf/default/accept_dad", "0"),
    ("net/ipv6/conf/all/accept_ra", "0"),
    ("net/ipv6/conf/default/accept_ra", "0"),
    ("net/ipv6/conf/all/router_solicitations", "0"),
    ("net/ipv6/conf/default/router_solicitations", "0"),
];

const FORWARDING: [(&str, &str); 2] = [
    ("net/ipv4/ip_forward", "1"),
    ("net/ipv6/conf/all/forwarding", "1"),
];

/// Reason why a world cannot be built or changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The process runs outside the lab, where it must not change the network.
    #[error(
        "a world can be built in the lab only: start with `lab run --`, or call lab::enter() first in main"
    )]
    NotInLab,
    /// The kernel lacks a module that every world needs.
    #[error("the kernel has no {what}: {next}")]
    Missing {
        /// Name of the missing module.
        what: &'static str,
        /// Advice for the user, such as a command that loads the module.
        next: &'static str,
    },
    /// An address from a test is invalid, or unsuitable for this network.
    #[error("{text}: {why}")]
    Address {
        /// Address as the caller wrote it.
        text: String,
        /// Reason why the address is invalid or unsuitable.
        why: String,
    },
    /// A program exited with an error, did not start, or ran into its timeout.
    #[error("{command}: {text}")]
    Command {
        /// Program and arguments.
        command: String,
        /// Description of the failed step, followed by the program's output.
        text: String,
    },
    /// A system call or file operation failed.
    #[error("{step}: {source}")]
    Io {
        /// Description of the step that failed.
        step: String,
        /// Error that the operating system returned.
        source: io::Error,
    },
}

/// Parses IP addresses separated by commas or spaces. An address without a prefix length gets the
/// longest (/32 or /128).
fn parse(text: &str) -> Result<Vec<IpNet>, Error> {
    let parts = text
        .split(|letter: char| letter == ',' || letter.is_whitespace())
        .filter(|part| !part.is_empty());
    parts
        .map(|part| {
            let net = part
                .parse::<IpNet>()
                .or_else(|_| part.parse::<IpAddr>().map(IpNet::from));
            net.map_err(|error| Error::Address {
                text: part.to_owned(),
                why: error.to_string(),
            })
        })
        .collect()
}

/// A fabric with all its nodes, pods and external hosts. Dropping this value removes their
/// namespaces, links, servers and processes.
#[derive(Debug)]
pub struct World {
    /// Prefix of the names of this world's namespaces. No other world has the same prefix.
    prefix: String,
    /// All namespaces of this world, including those of nodes and pods whose setup has failed.
    namespaces: Vec<Netns>,
    fabric: Netns,
    nodes: Vec<Node>,
    /// Number of veth pairs created so far. It is part of the name of a pair's port on the bridge.
    cables: u32,
    servers: Arc<Servers>,
}

impl World {
    /// Creates a world with only a fabric. `name` becomes part of its namespaces' names in
    /// `ip netns`. Several worlds may have the same `name`.
    pub fn new(name: &str) -> Result<Self, Error> {
        static WORLDS: AtomicU32 = AtomicU32::new(0);
        if !crate::in_lab() {
            return Err(Error::NotInLab);
        }
        load_modules()?;
        let prefix = format!(
            "{name}-{}-{}",
            std::process::id(),
            WORLDS.fetch_add(1, Ordering::Relaxed)
        );
        let servers = Servers::start().map_err(|source| Error::Io {
            step: "cannot start the thread that serves".into(),
            source,
        })?;
        let fabric = Netns::new(format!("{prefix}-fabric"), &QUIET_IPV6)?;
        let world = Self {
            prefix,
            namespaces: vec![fabric.clone()],
            fabric,
            nodes: Vec::new(),
            cables: 0,
            servers: Arc::new(servers),
        };
        // Excludes the fabric's bridge from iptables, because a switch has no firewall.
        world.fabric.sysctl(&bridged_through_iptables("0"))?;
        world.fabric.ip(&[
            "link add fabric type bridge mcast_snooping 0".into(),
            "link set fabric up".into(),
        ])?;
        Ok(world)
    }

    /// Adds a node on the fabric with `addresses`.
    ///
    /// - `gateways` are the addresses of the node's pod bridge in its pod ranges
    ///   (`"192.167.1.1/24"`), or `""` for a node without pods.
    /// - The node forwards packets. Bridged packets traverse its iptables rules.
    /// - Nodes have routes to each other's pod ranges.
    pub fn node(&mut self, name: &str, addresses: &str, gateways: &str) -> Result<Node, Error> {
        let gateways = parse(gateways)?;
        let node = Node {
            place: self.host(name, addresses)?,
            gateways,
        };
        node.netns().sysctl(&FORWARDING)?;
        node.netns().sysctl(&bridged_through_iptables("1"))?;
        // Sets a fixed MAC address for the bridge. Otherwise it would have the lowest MAC address
        // of its ports, which can change with a new pod, while other pods have the previous address
        // in their neighbour tables.
        let mut lines =
            vec!["link add cni0 address 02:00:00:00:00:01 type bridge mcast_snooping 0".to_owned()];
        lines.extend(
            node.gateways
                .iter()
                .map(|gateway| add_address(gateway, "cni0")),
        );
        lines.push("link set cni0 up".into());
        for other in &self.nodes {
            lines.extend(other.routes_to_pods(&node));
            other.netns().ip(&node.routes_to_pods(other))?;
        }
        node.netns().ip(&lines)?;
        self.nodes.push(node.clone());
        Ok(node)
    }

    /// Adds an external host to the fabric. The host has routes only to the fabric's range, and to
    /// ranges that [`route`](Self::route) adds.
    pub fn host(&mut self, name: &str, addresses: &str) -> Result<Place, Error> {
        let addresses = parse(addresses)?;
        let fabric = self.fabric.clone();
        self.connect(name, addresses, &fabric, "fabric", &[])
    }

    /// Adds a pod to `node`. Each of its `addresses` must be in a pod range of the node. The node's
    /// gateway in this range becomes the pod's default gateway.
    pub fn pod(&mut self, node: &Node, name: &str, addresses: &str) -> Result<Place, Error> {
        let (mut own, mut routes) = (Vec::new(), Vec::new());
        for address in parse(addresses)? {
            let ip = address.addr();
            let gateway = node
                .gateways
                .iter()
                .find(|gateway| gateway.contains(&ip))
                .ok_or_else(|| Error::Address {
                    text: ip.to_string(),
                    why: format!("in no pod range of {}", node.name()),
                })?;
            own.push(IpNet::new(ip, gateway.prefix_len()).unwrap_or(address));
            let route = format!("route add default via {}", gateway.addr());
            if !routes.contains(&route) {
                routes.push(route);
            }
        }
        self.connect(name, own, node.netns(), "cni0", &routes)
    }

    /// Adds routes from `from` to `ranges`, through the first address of `via` in the same IP
    /// family.
    pub fn route(&self, from: &Place, ranges: &str, via: &Place) -> Result<(), Error> {
        let lines = parse(ranges)?.into_iter().map(|range| {
            let gateway = via.ip_like(&range).ok_or_else(|| Error::Address {
                text: range.to_string(),
                why: format!("{} has no address of its family", via.name()),
            })?;
            Ok(format!("route add {} via {gateway}", range.trunc()))
        });
        from.netns().ip(&lines.collect::<Result<Vec<_>, Error>>()?)
    }

    /// Removes a node, pod or external host, with its servers, processes and links. Its other
    /// handles no longer work.
    pub fn remove(&mut self, place: &Place) {
        self.servers.stop_at(place.netns().name());
        netns::remove(std::slice::from_ref(place.netns()));
        self.namespaces.retain(|one| one != place.netns());
        self.nodes.retain(|node| node.netns() != place.netns());
    }

    /// Creates the network namespace of a node, pod or host, and connects its `eth0` by a veth pair
    /// to the bridge `bridge` in the namespace `switch`.
    fn connect(
        &mut self,
        name: &str,
        addresses: Vec<IpNet>,
        switch: &Netns,
        bridge: &str,
        routes: &[String],
    ) -> Result<Place, Error> {
        let netns = Netns::new(format!("{}-{name}", self.prefix), &QUIET_IPV6)?;
        self.namespaces.push(netns.clone());
        let port = format!("port{}", self.cables);
        self.cables += 1;
        switch.ip(&[
            format!(
                "link add {port} up master {bridge} type veth peer name eth0 netns {}",
                netns.name()
            ),
            // Hairpin mode: the bridge can send a packet back through the port by which it arrived,
            // as when a pod uses its own Service.
            format!("link set {port} type bridge_slave hairpin on"),
        ])?;
        let mut lines = vec!["link set lo up".to_owned()];
        lines.extend(
            addresses
                .first()
                .map(|address| format!("link set eth0 address {}", mac_of(address.addr()))),
        );
        lines.extend(addresses.iter().map(|address| add_address(address, "eth0")));
        lines.push("link set eth0 up".into());
        lines.extend_from_slice(routes);
        netns.ip(&lines)?;
        let inner = Inner {
            name: name.to_owned(),
            addresses,
            netns,
            servers: Arc::clone(&self.servers),
        };
        Ok(Place(Arc::new(inner)))
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.servers.end();
        netns::remove(&self.namespaces);
    }
}

/// A node, a pod or an external host: a network namespace with a name and addresses. Clones are
/// handles to the same namespace, which the world removes at its end.
#[derive(Debug, Clone)]
pub struct Place(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    name: String,
    addresses: Vec<IpNet>,
    netns: Netns,
    servers: Arc<Servers>,
}

impl Place {
    /// Returns the name of this node, pod or host, which is also the name in its servers' replies.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns the addresses of `eth0`, as the test passed them.
    pub fn addresses(&self) -> &[IpNet] {
        &self.0.addresses
    }

    /// Returns the name of this network namespace in `ip netns`.
    pub fn netns_name(&self) -> &str {
        self.netns().name()
    }

    fn netns(&self) -> &Netns {
        &self.0.netns
    }

    /// Returns the first address of `eth0` in the IP family of `net`.
    fn ip_like(&self, net: &IpNet) -> Option<IpAddr> {
        self.addresses()
            .iter()
            .map(IpNet::addr)
            .find(|ip| ip.is_ipv4() == net.addr().is_ipv4())
    }

    /// Starts a TCP server on a port of all present and later addresses of this node, pod or host.
    pub fn serve_tcp(&self, port: u16) -> Result<Server, Error> {
        self.serve_stream(port, ipproto::TCP)
    }

    /// Starts an SCTP server on a port of all present and later addresses of this node, pod or
    /// host. Fails if the kernel does not support SCTP.
    pub fn serve_sctp(&self, port: u16) -> Result<Server, Error> {
        self.serve_stream(port, ipproto::SCTP)
    }

    /// Starts a UDP server on a port of loopback and of each present address of `eth0`. Each
    /// address has its own socket, so a reply has the source address to which the request was sent.
    pub fn serve_udp(&self, port: u16) -> Result<Server, Error> {
        let loopback = [
            IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V6(Ipv6Addr::LOCALHOST),
        ];
        let ips: Vec<IpAddr> = self
            .addresses()
            .iter()
            .map(IpNet::addr)
            .chain(loopback)
            .collect();
        self.serve(port, || {
            ips.iter()
                .map(|&ip| {
                    let socket = UdpSocket::bind((ip, port))?;
                    socket.set_nonblocking(true)?;
                    Ok(Listening::Datagram(socket))
                })
                .collect()
        })
    }

    fn serve_stream(&self, port: u16, protocol: rustix::net::Protocol) -> Result<Server, Error> {
        self.serve(port, || {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = rustix::net::socket_with(
                AddressFamily::INET6,
                SocketType::STREAM,
                flags,
                Some(protocol),
            )?;
            sockopt::set_socket_reuseaddr(&socket, true)?;
            sockopt::set_ipv6_v6only(&socket, false)?;
            rustix::net::bind(&socket, &SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)))?;
            rustix::net::listen(&socket, 1024)?;
            Ok(vec![Listening::Stream(socket.into())])
        })
    }

    fn serve(
        &self,
        port: u16,
        listen: impl FnOnce() -> io::Result<Vec<Listening>> + Send,
    ) -> Result<Server, Error> {
        let sockets = self.netns().enter(listen).map_err(|source| Error::Io {
            step: format!("{} cannot serve on port {port}", self.name()),
            source,
        })?;
        Ok(self.0.servers.add(self.name(), self.netns_name(), sockets))
    }

    /// Runs `inside` in a new thread in this network namespace, and returns its result. A socket
    /// from `inside` stays in the namespace, and any thread can use it.
    pub fn enter<T: Send>(&self, inside: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        self.netns().enter(inside)
    }

    /// Prepares a connection to `to`. The caller may change its settings before it opens it.
    pub fn dial(&self, transport: Transport, to: SocketAddr) -> Dial<'_> {
        Dial::new(self, transport, to)
    }

    /// Opens a TCP connection, sends one request, returns the reply, and closes the connection.
    pub fn ask_tcp(&self, to: SocketAddr, timeout: Duration) -> Result<Answer, Failure> {
        self.dial(Transport::Tcp, to).timeout(timeout).ask()
    }

    /// Sends a request in one UDP datagram, and returns the reply.
    pub fn ask_udp(&self, to: SocketAddr, timeout: Duration) -> Result<Answer, Failure> {
        self.dial(Transport::Udp, to).timeout(timeout).ask()
    }

    /// Opens an SCTP association, sends one request, returns the reply, and closes the association.
    pub fn ask_sctp(&self, to: SocketAddr, timeout: Duration) -> Result<Answer, Failure> {
        self.dial(Transport::Sctp, to).timeout(timeout).ask()
    }

    /// Opens a TCP connection for any number of requests.
    pub fn open_tcp(&self, to: SocketAddr, timeout: Duration) -> Result<Connection, Failure> {
        self.dial(Transport::Tcp, to).timeout(timeout).open()
    }

    /// Returns a command that runs `program` in this network namespace, with the namespace's
    /// `/sys`. Its process ID is that of `program`, because `ip netns exec` replaces itself with
    /// the program.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", self.netns_name()])
            .arg(program);
        command
    }

    /// Starts a program in this network namespace. A thread collects its output.
    pub fn spawn<S: AsRef<OsStr>>(
        &self,
        argv: impl IntoIterator<Item = S>,
    ) -> Result<Running, Error> {
        let mut argv = argv.into_iter();
        let program = argv.next();
        let mut command = self.command(program.as_ref().map_or(OsStr::new(""), AsRef::as_ref));
        command.args(argv);
        Running::start(command)
    }

    /// Runs a program in this network namespace for at most a minute, and returns its output.
    pub fn run<S: AsRef<OsStr>>(&self, argv: impl IntoIterator<Item = S>) -> Result<Output, Error> {
        self.spawn(argv)?.wait(RUN_LIMIT)
    }

    /// Runs a program in this network namespace, which must succeed. Returns its standard output.
    pub fn read<S: AsRef<OsStr>>(
        &self,
        argv: impl IntoIterator<Item = S>,
    ) -> Result<String, Error> {
        let mut running = self.spawn(argv)?;
        let output = running.wait(RUN_LIMIT)?;
        if output.status.success() {
            return Ok(output.stdout);
        }
        Err(Error::Command {
            command: running.command().to_owned(),
            text: format!("{}: {}", output.status, output.stderr.trim_end()),
        })
    }
}

/// A node: a network namespace that forwards packets, with a bridge `cni0` for its pods.
#[derive(Debug, Clone)]
pub struct Node {
    place: Place,
    gateways: Vec<IpNet>,
}

impl Node {
    /// Returns the IP ranges of this node's pods.
    pub fn pod_ranges(&self) -> impl Iterator<Item = IpNet> {
        self.gateways.iter().map(IpNet::trunc)
    }

    /// Returns the `ip` commands that add routes from `from` to this node's pods, in the IP
    /// families that `from` has.
    fn routes_to_pods(&self, from: &Place) -> Vec<String> {
        let ranges = self
            .pod_ranges()
            .filter(|range| from.ip_like(range).is_some());
        ranges
            .filter_map(|range| Some(format!("route add {range} via {}", self.ip_like(&range)?)))
            .collect()
    }
}

impl Deref for Node {
    type Target = Place;

    fn deref(&self) -> &Place {
        &self.place
    }
}

/// Returns a locally administered MAC address, which depends only on the IP address. If a new pod
/// gets the IP address of a removed pod, neighbours that have cached the MAC address reach the new
/// pod.
fn mac_of(ip: IpAddr) -> String {
    let mut hasher = DefaultHasher::new();
    ip.hash(&mut hasher);
    let [_, _, _, b1, b2, b3, b4, b5] = hasher.finish().to_be_bytes();
    format!("02:{b1:02x}:{b2:02x}:{b3:02x}:{b4:02x}:{b5:02x}")
}

fn add_address(address: &IpNet, link: &str) -> String {
    let nodad = if address.addr().is_ipv6() {
        " nodad"
    } else {
        ""
    };
    format!("addr add {address} dev {link}{nodad}")
}

fn bridged_through_iptables(value: &str) -> [(&'static str, &str); 2] {
    [
        ("net/bridge/bridge-nf-call-iptables", value),
        ("net/bridge/bridge-nf-call-ip6tables", value),
    ]
}

/// Loads the kernel modules that worlds and the daemon need, once per process. Ignores errors of
/// `modprobe`, because a module may be built in. Fails only without br_netfilter; `ip` later
/// reports a missing link type.
fn load_modules() -> Result<(), Error> {
    static LOADED: Once = Once::new();
    LOADED.call_once(|| {
        let _ = Command::new("modprobe")
            .args(["-q", "-a", "bridge", "br_netfilter", "veth", "dummy"])
            // Tests set sysctls of nf_conntrack, which exist only while it is loaded.
            .arg("nf_conntrack")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
    });
    if Path::new("/proc/sys/net/bridge/bridge-nf-call-iptables").exists() {
        return Ok(());
    }
    Err(Error::Missing {
        what: "br_netfilter",
        next: "run `modprobe br_netfilter`, or `lab doctor` outside the lab",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_networks_are_parsed_with_and_without_prefix_length() {
        let both: Vec<IpNet> = vec![
            "10.0.0.1/24".parse().unwrap(),
            "fd00::1/64".parse().unwrap(),
        ];
        assert_eq!(parse("10.0.0.1/24, fd00::1/64").unwrap(), both);
        assert_eq!(parse("10.0.0.1").unwrap(), ["10.0.0.1/32".parse().unwrap()]);
        assert_eq!(parse("").unwrap(), []);
        let error = parse("10.0.0.1/24 10.0.0.256").unwrap_err().to_string();
        assert!(error.starts_with("10.0.0.256"), "{error}");
    }

    #[test]
    fn a_world_cannot_be_built_outside_the_lab() {
        if !crate::in_lab() {
            assert!(matches!(World::new("x"), Err(Error::NotInLab)));
        }
    }
}
