//! Tests a node whose programs announce Service addresses: BIRD and FRR by BGP, and an ARP responder
//! like MetalLB's layer 2 mode.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;

use anyhow::{Result, ensure};
use lab::Place;
use scenarios::{Cluster, Outcome, SOON, Service, at, tcp};

use super::{Form, in_each_mode};

/// Configuration of BIRD on node1. BIRD announces the Service networks, but does not write them to
/// the kernel. Its table `vips` would get addresses that it finds on `kube-ipvs0`.
const SPEAKER: &str = r#"
router id 172.35.0.100;
protocol device { scan time 1; }
ipv4 table vips;
protocol direct { interface "kube-ipvs0"; ipv4 { table vips; }; }
protocol static {
    ipv4;
    route 192.0.2.0/24 blackhole;
    route 10.96.0.0/16 blackhole;
}
protocol bgp peer {
    local 172.35.0.100 as 64512;
    neighbor 172.35.0.9 as 64513;
    ipv4 { import none; export all; next hop self; };
}
"#;
/// Configuration of BIRD on the external host. BIRD writes the routes that it learns by BGP to the
/// kernel.
const ROUTER: &str = "
router id 172.35.0.9;
protocol device { scan time 1; }
protocol kernel { ipv4 { export all; import none; }; }
protocol bgp peer {
    local 172.35.0.9 as 64513;
    neighbor 172.35.0.100 as 64512;
    ipv4 { import all; export none; };
}
";
/// Load-balancer address that FRR announces.
const ANNOUNCED: &str = "192.0.2.12";
/// Configuration of FRR's `zebra` and `bgpd` on node1, as MetalLB's speaker writes it for its BGP
/// mode. Beyond MetalLB's, it would also announce Service addresses that `zebra` considers
/// connected.
const METALLB: &str = "
ip nht resolve-via-default
ip prefix-list services permit 192.0.2.0/24 le 32
ip prefix-list services permit 10.96.0.0/16 le 32
route-map in deny 20
route-map out permit 1
 match ip address prefix-list services
router bgp 64512
 no bgp ebgp-requires-policy
 no bgp network import-check
 no bgp default ipv4-unicast
 bgp router-id 172.35.0.100
 neighbor 172.35.0.9 remote-as 64513
 address-family ipv4 unicast
  neighbor 172.35.0.9 activate
  neighbor 172.35.0.9 route-map in in
  neighbor 172.35.0.9 route-map out out
  network 192.0.2.12/32
  redistribute connected
 exit-address-family
";
/// Perl program that answers ARP requests for an address as MetalLB's speaker does. Its arguments
/// are the address, the MAC address for its replies, and the interface's index.
const SPEAKER_OF_ARP: &str = r#"
my ($address, $mac, $index) = @ARGV;
($address, $mac) = (pack("C4", split(/\./, $address)), pack("H12", $mac =~ tr/://dr));
my $arp = 0x0806;
socket(my $socket, 17, 3, unpack("S", pack("n", $arp))) or die "socket: $!";
bind($socket, pack("S n l S C C a8", 17, $arp, $index, 0, 0, 0, "")) or die "bind: $!";
while (defined recv($socket, my $frame, 2048, 0)) {
    my ($operation, $asker, $target) = unpack("x20 n a10 x6 a4", $frame);
    next unless $operation == 1 && $target eq $address;
    my $reply = substr($asker, 0, 6) . $mac . pack("n n n C C n", $arp, 1, 0x0800, 6, 4, 2) . $mac . $target . $asker;
    send($socket, $reply, 0) or die "send: $!";
}
"#;

/// Service address in the nodes' network, for which only the Perl program answers ARP requests.
const IN_LAN: &str = "172.35.0.200";

/// Returns the routes that BIRD has learned and written to the kernel of `place`.
fn learned(place: &Place) -> Result<String> {
    Ok(place.read(["ip", "route", "show", "proto", "bird"])?)
}

pub(crate) fn services_are_reached_by_announced_addresses(c: &mut Cluster) -> Outcome {
    for network in ["192.0.2.0/24", "10.96.0.0/16"] {
        c.outside.read(["ip", "route", "del", network])?;
    }
    let mut running = Vec::new();
    for (place, config) in [(&*c.node1, SPEAKER), (&c.outside, ROUTER)] {
        let own = |kind: &str| c.folder().join(format!("{}.{kind}", place.name()));
        let (file, control) = (own("conf"), own("control"));
        fs::write(&file, config)?;
        let (file, control) = (file.display().to_string(), control.display().to_string());
        running.push(place.spawn(["bird", "-f", "-c", &file, "-s", &control])?);
    }
    c.until("the routes of BGP", || {
        Ok(learned(&c.outside)?.contains("192.0.2.0/24 via 172.35.0.100"))
    })?;
    let link = |field: &str| c.sh(&format!("cat /sys/class/net/eth0/{field}"));
    let (mac, index) = (link("address")?, link("ifindex")?);
    let arguments = [
        "perl",
        "-e",
        SPEAKER_OF_ARP,
        IN_LAN,
        mac.trim(),
        index.trim(),
    ];
    running.push(c.node1.spawn(arguments)?);

    c.write("node", super::NODE)?;
    let cluster_wide = Service::new("web", "10.96.0.10")
        .port(tcp(80, 8080))
        .ingress(IN_LAN)
        .endpoints("10.244.1.10 10.244.2.10");
    c.apply(&cluster_wide)?;
    let local = Service::new("local", "10.96.0.11")
        .port(tcp(80, 8080))
        .ingress("192.0.2.11")
        .spec("externalTrafficPolicy: Local")
        .endpoints("10.244.1.10 10.244.2.10");
    c.apply(&local)?;
    c.flags.push("--ipvs-strict-arp=true".into());
    let control = c.folder().join("node1.control").display().to_string();
    in_each_mode(c, "", |c, form: &Form| {
        c.outside.read(["ip", "neighbour", "flush", "all"])?;
        for to in ["192.0.2.11:80", "172.35.0.200:80", "10.96.0.10:80"] {
            c.until_answered(&c.outside, to)?;
        }
        let answer = c.outside.ask_tcp(at("192.0.2.11:80"), SOON)?;
        let seen = (answer.who.as_str(), answer.seen_source.ip().to_string());
        ensure!(seen == ("near", "172.35.0.9".to_owned()), "{seen:?}");
        // `kube-ipvs0` has the Service addresses, but is down. BIRD therefore announces none of
        // them by itself.
        if form.name == "ipvs, upstream's shim" {
            let link = c.sh("ip address show dev kube-ipvs0")?;
            ensure!(link.contains("10.96.0.10/32"), "{link}");
            let vips = c
                .node1
                .read(["birdc", "-s", &control, "show route table vips"])?;
            ensure!(!vips.contains("10.96.0.10"), "{vips}");
        }
        Ok(())
    })?;
    for mut program in running {
        program.stop(SOON)?;
    }
    Ok(())
}

pub(crate) fn frr_announces_load_balancer_addresses(c: &mut Cluster) -> Outcome {
    c.outside.read(["ip", "route", "del", "192.0.2.0/24"])?;
    // Debian's FRR gives up root's rights at its start, and then writes to this folder.
    let folder = c.folder().join("frr");
    fs::create_dir_all(&folder)?;
    fs::set_permissions(&folder, Permissions::from_mode(0o777))?;
    let folder = folder.display().to_string();
    let own = |name: &str| format!("{folder}/{name}");
    let (config, router) = (own("frr.conf"), own("router.conf"));
    let (socket, control) = (own("zserv"), own("router.control"));
    fs::write(&config, METALLB)?;
    fs::write(&router, ROUTER)?;
    let bird = ["bird", "-f", "-c", &router, "-s", &control];
    let mut running = vec![c.outside.spawn(bird)?];
    for program in ["/usr/lib/frr/zebra", "/usr/lib/frr/bgpd"] {
        let pid = own(program.rsplit('/').next().unwrap_or(program));
        running.push(c.node1.spawn([
            program,
            "-P",
            "0",
            "-f",
            &config,
            "-i",
            &pid,
            "-z",
            &socket,
            "--vty_socket",
            &folder,
        ])?);
    }
    c.write("node", super::NODE)?;
    let web = Service::new("web", "10.96.0.10")
        .port(tcp(80, 8080))
        .ingress(ANNOUNCED)
        .spec("externalTrafficPolicy: Local")
        .endpoints("10.244.1.10 10.244.2.10");
    c.apply(&web)?;
    c.until("the route of BGP", || {
        Ok(learned(&c.outside)?.contains("192.0.2.12 via 172.35.0.100"))
    })?;
    in_each_mode(c, "", |c, form: &Form| {
        let to = format!("{ANNOUNCED}:80");
        c.until_answered(&c.outside, &to)?;
        let answer = c.outside.ask_tcp(at(&to), SOON)?;
        let seen = (answer.who.as_str(), answer.seen_source.ip().to_string());
        ensure!(seen == ("near", "172.35.0.9".to_owned()), "{seen:?}");
        // `kube-ipvs0` has the ClusterIP, but is down, so `zebra` does not consider the address
        // connected. The mode before this one used routes, and has left the link up.
        if form.name == "ipvs, shim in nftables" {
            c.node1.read(["ip", "link", "set", "kube-ipvs0", "down"])?;
        }
        c.until("no announced ClusterIP", || {
            Ok(!learned(&c.outside)?.contains("10.96.0.10"))
        })?;
        c.until_answered(&c.outside, &to)?;
        Ok(())
    })?;
    for mut program in running {
        program.stop(SOON)?;
    }
    Ok(())
}
