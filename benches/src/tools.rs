//! The subject `tools`: writes the final state of IPVS mode with `ipset restore`,
//! `iptables-restore`, `ipvsadm -R` and `ip -batch`, one after another.

use std::fmt::Write as _;
use std::fs;
use std::process::Command;

use anyhow::Result;
use proxy::IpFamily;
use proxy_ipvs::{Set, SetKind, ShimStyle};

use crate::floor;
use crate::kernel::{CLUSTER_IP, IPVS_IPS, LOOP_BACK};
use crate::objects::{Objects, PORT};
use crate::stage::Stage;

/// Writes the input files of the tools. Returns the command that runs all tools, and then sleeps,
/// so that the benchmark can still read its CPU time and memory.
pub(crate) fn command(stage: &Stage) -> Result<Command> {
    let folder = stage.folder();
    let shim = |family| floor::shim(family, ShimStyle::Upstream);
    let (v4, v6) = (shim(IpFamily::V4)?, shim(IpFamily::V6)?);
    fs::write(folder.join("ipset"), sets(&stage.objects))?;
    fs::write(folder.join("iptables"), v4)?;
    fs::write(folder.join("ip6tables"), v6)?;
    fs::write(folder.join("ipvsadm"), servers(&stage.objects))?;
    fs::write(folder.join("ip"), addresses(&stage.objects))?;
    let mut command = stage.node.command("sh");
    command
        .args([
            "-ec",
            "cd \"$1\"; lap() { t=$(date +%s.%N); }; took() { echo \"$1 $t $(date +%s.%N)\"; lap; }; lap
             ipset restore < ipset; took write_members
             iptables-restore --noflush < iptables; ip6tables-restore --noflush < ip6tables; took write_rules
             ipvsadm -R < ipvsadm; took write_servers
             ip -batch ip; took write_addresses
             sleep 1000000",
            "tools",
        ])
        .arg(folder);
    Ok(command)
}

pub(crate) fn sets(objects: &Objects) -> String {
    let mut text = String::new();
    let room = objects.services().max(65_536);
    for family in IpFamily::ALL {
        let inet = match family {
            IpFamily::V4 => "inet",
            IpFamily::V6 => "inet6",
        };
        for set in Set::all() {
            let options = match set.kind() {
                SetKind::Address => format!("hash:ip family {inet} maxelem {room}"),
                SetKind::AddressPort | SetKind::AddressPortMark => {
                    format!("hash:ip,port family {inet} maxelem {room}")
                }
                SetKind::AddressPortAddress => {
                    format!("hash:ip,port,ip family {inet} maxelem {room}")
                }
                SetKind::AddressPortNet => format!("hash:ip,port,net family {inet} maxelem {room}"),
                SetKind::Port => "bitmap:port range 0-65535".to_owned(),
            };
            _ = writeln!(text, "create {} {options}", set.name(family));
        }
    }
    for service in 0..objects.services() {
        let address = Objects::address(service);
        _ = writeln!(text, "add {CLUSTER_IP} {address},tcp:{PORT}");
        _ = writeln!(text, "add {IPVS_IPS} {address}");
        let local = objects.endpoints(service);
        for endpoint in local.iter().filter(|endpoint| endpoint.is_local) {
            let (ip, port) = (endpoint.at.ip(), endpoint.at.port());
            _ = writeln!(text, "add {LOOP_BACK} {ip},tcp:{port},{ip}");
        }
    }
    text
}

fn servers(objects: &Objects) -> String {
    let mut text = String::new();
    for service in 0..objects.services() {
        let at = format!("{}:{PORT}", Objects::address(service));
        _ = writeln!(text, "-A -t {at} -s rr");
        for endpoint in objects.endpoints(service) {
            _ = writeln!(text, "-a -t {at} -r {} -m -w 1", endpoint.at);
        }
    }
    text
}

pub(crate) fn addresses(objects: &Objects) -> String {
    let mut text = "link add kube-ipvs0 type dummy\n".to_owned();
    for service in 0..objects.services() {
        _ = writeln!(
            text,
            "address add {}/32 dev kube-ipvs0",
            Objects::address(service)
        );
    }
    text
}
