//! Tests a node whose programs announce Service addresses: BIRD by BGP, and an ARP responder like
//! MetalLB's layer 2 mode.

use std::fs;

use anyhow::ensure;
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
    let learned = |place: &Place| place.read(["ip", "route", "show", "proto", "bird"]);
    c.until("the routes of BGP", || {
        let routes = learned(&c.outside)?;
        Ok(routes.contains("192.0.2.0/24 via 172.35.0.100"))
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
