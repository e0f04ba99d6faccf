//! Prints the messages between the kernel and `ipvsadm` as hex: the data of `tests/bytes.rs`.
//!
//! ```sh
//! capture_services replies  > tests/data/replies.hex   # the kernel's answers to each command
//! capture_services requests > tests/data/requests.hex  # ipvsadm's messages, as strace sees them
//! ```
//!
//! Run the program as root on a node where IPVS may be flushed. The program needs `ipvsadm`,
//! `strace` and the modules `ip_vs_rr`, `ip_vs_wrr`, `ip_vs_mh`, `ip_vs_sh`, `ip_vs_pe_sip`.

#![allow(clippy::print_stdout, reason = "that is what it is for")]

use std::fmt::Write as _;
use std::io::{Read, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use ipvs_netlink::{Ipvs, ServiceEntry};
use netlink_batch::{Connection, Protocol};

/// Commands that create virtual servers and destinations of every kind.
const COMMANDS: &[&str] = &[
    "-A -t 10.0.0.1:80 -s rr",
    "-A -u 10.0.0.1:53 -s wrr -o",
    "-A --sctp-service 10.0.0.1:9 -s rr",
    "-A -t 10.0.0.2:443 -s wrr -p 10800",
    "-A -t 10.0.0.3:443 -s wrr -p 300 -M 255.255.255.0",
    "-A -t 10.0.0.4:80 -s mh -b mh-fallback,mh-port",
    "-A -t 10.0.0.5:80 -s sh -b sh-fallback",
    "-A -u 10.0.0.6:5060 -s rr -p 60 --pe sip",
    "-A -f 7 -s rr",
    "-A -f 8 -6 -s rr -p 90",
    "-A -t [fd00::1]:80 -s rr",
    "-A -u [fd00::1]:53 -s rr -p 10800",
    "-A -t [fd00::2]:80 -s rr -p 300 -M 64",
    "-a -t 10.0.0.1:80 -r 192.0.2.1:8080 -m -w 1",
    "-a -t 10.0.0.1:80 -r 192.0.2.2:8080 -m -w 100 -x 200 -y 150",
    "-a -t 10.0.0.1:80 -r 192.0.2.3:80 -g -w 0",
    "-a -t 10.0.0.1:80 -r 192.0.2.4:80 -i -w 65535",
    "-a -t 10.0.0.1:80 -r 192.0.2.5:80 -i --tun-type gue --tun-port 6080 --tun-csum",
    "-a -t 10.0.0.1:80 -r 127.0.0.1:80 -g -w 1",
    "-a -f 7 -r 192.0.2.1 -m",
    "-a -t [fd00::1]:80 -r [fd00:1::1]:8080 -m -w 3",
    "-a -t 10.0.0.2:443 -r [fd00:1::2]:443 -i -w 1",
    "-E -t 10.0.0.1:80 -s wrr -p 60",
    "-e -t 10.0.0.1:80 -r 192.0.2.1:8080 -m -w 7",
    "-d -t 10.0.0.1:80 -r 192.0.2.1:8080",
    "-d -t [fd00::1]:80 -r [fd00:1::1]:8080",
    "-D -u 10.0.0.1:53",
    "-D -f 8 -6",
    "-Z -t 10.0.0.1:80",
    "-Z",
    "--set 900 120 300",
    "-C",
];

fn main() -> Result<()> {
    let mut ipvs = Ipvs::open()?;
    ipvs.flush()?;
    match std::env::args().nth(1).as_deref() {
        Some("replies") => replies(&mut ipvs)?,
        Some("requests") => requests()?,
        _ => bail!("say what to capture: replies or requests"),
    }
    Ok(ipvs.flush()?)
}

fn ipvsadm(arguments: &str) -> Result<()> {
    let status = Command::new("ipvsadm")
        .args(arguments.split(' '))
        .status()?;
    ensure!(status.success(), "ipvsadm {arguments}: {status}");
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Executes the `ipvsadm` commands that add virtual servers and destinations. After each command,
/// prints the virtual servers and destinations that are new in the kernel's dumps. At the end,
/// prints the counters after three connections to a real server. The last connection is still open.
fn replies(ipvs: &mut Ipvs) -> Result<()> {
    println!(
        "# Payloads of the kernel's answers (genlmsghdr and attributes), new after each command."
    );
    let id = ipvs.family().id();
    let mut raw = Connection::open(Protocol::Generic)?;
    let mut seen = Vec::new();
    let mut news = |raw: &mut Connection, title: &str| -> Result<()> {
        println!("$ {title}");
        let services = raw.dump(id, 0, |message| message.bytes(&[4, 1, 0, 0]))?;
        for (_, service) in services.iter() {
            // These attributes, exactly as the kernel sent them, identify the virtual server in a
            // later query for its destinations.
            let nest = service.get(4..).context("no attribute")?;
            let entry = ServiceEntry::decode(service)?;
            if !seen.contains(&service.to_vec()) {
                println!("service {}", hex(service));
                seen.push(service.to_vec());
            }
            let question = raw.dump(id, 0, |message| {
                message.bytes(&[8, 1, 0, 0]);
                message.bytes(nest);
            });
            for (_, destination) in question
                .with_context(|| entry.service.key.to_string())?
                .iter()
            {
                if !seen.contains(&destination.to_vec()) {
                    println!("destination {}", hex(destination));
                    seen.push(destination.to_vec());
                }
            }
        }
        Ok(())
    };
    for command in COMMANDS
        .iter()
        .take_while(|command| !command.starts_with("-E"))
    {
        ipvsadm(command)?;
        news(&mut raw, &format!("ipvsadm {command}"))?;
    }

    ipvs.flush()?;
    let server = TcpListener::bind("127.0.0.1:0")?;
    let address = server.local_addr()?;
    for command in [
        "-A -t 127.0.0.9:80 -s rr",
        &format!("-a -t 127.0.0.9:80 -r {address} -m -w 1"),
    ] {
        ipvsadm(command)?;
    }
    let mut open = None;
    for _ in 0..3 {
        let mut client = TcpStream::connect("127.0.0.9:80")?;
        let (mut served, _) = server.accept()?;
        client.write_all(b"hello, kernel!!!")?;
        served.read_exact(&mut [0; 16])?;
        open = Some((client, served));
    }
    // The kernel updates its counters every two seconds, so the program waits.
    sleep(Duration::from_secs(5));
    news(
        &mut raw,
        "three connections of 16 bytes to 127.0.0.9:80, the last one open",
    )?;
    drop(open);

    for (name, command) in [("info", 15), ("config", 13)] {
        println!("$ IPVS_CMD_GET_{}", name.to_uppercase());
        for (_, payload) in raw
            .request(id, 0, |message| message.bytes(&[command, 1, 0, 0]))?
            .iter()
        {
            println!("{name} {}", hex(payload));
        }
    }
    Ok(())
}

/// Runs each of `COMMANDS` once under strace. Prints the IPVS messages with which the command
/// requests a change.
fn requests() -> Result<()> {
    println!("# Payloads (genlmsghdr and attributes) that ipvsadm sends for each command.");
    let trace = std::env::temp_dir().join(format!("capture-{}.strace", std::process::id()));
    for command in COMMANDS {
        println!("$ ipvsadm {command}");
        let status = Command::new("strace")
            .args(["-xx", "-s", "65535", "-e", "trace=sendto,sendmsg", "-o"])
            .arg(&trace)
            .arg("ipvsadm")
            .args(command.split(' '))
            .status()?;
        ensure!(status.success(), "ipvsadm {command}: {status}");
        for line in std::fs::read_to_string(&trace)?
            .lines()
            .filter(|line| line.contains("nlmsg_type=IPVS"))
        {
            // strace prints the header field by field and the payload as "\x01\x01...".
            let payload = line
                .split('"')
                .find(|part| part.starts_with("\\x"))
                .context("no payload")?;
            let payload = payload.replace("\\x", "");
            // Before a change, ipvsadm sends IPVS_CMD_GET_INFO, which this program skips.
            if !payload.starts_with("0f") {
                println!("request {payload}");
            }
        }
    }
    Ok(std::fs::remove_file(trace)?)
}
