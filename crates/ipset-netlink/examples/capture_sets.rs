//! Writes the files of `tests/data`: the bytes that a real kernel and the real `ipset` exchange.
//!
//! ```text
//! cargo build -p ipset-netlink --example capture_sets
//! unshare --net target/debug/examples/capture_sets crates/ipset-netlink/tests/data
//! ```
//!
//! Needs root, `ipset` and `strace`.
//!
//! | file | messages |
//! |---|---|
//! | `requests.hex` | the messages that `ipset restore` sends for `SCRIPT` |
//! | `replies.hex` | the kernel's replies |
//!
//! Each line is one message: its ipset command number in decimal, and its bytes after the
//! `nlmsghdr` in hex. A line that begins with `#` says where the following messages come from.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use netlink_batch::{Connection, Protocol, Writer};

const SCRIPT: &str = "\
create ip4 hash:ip family inet hashsize 1024 maxelem 65536
add ip4 10.0.0.1
add ip4 10.0.0.2
create ip6 hash:ip family inet6 hashsize 1024 maxelem 65536
add ip6 fd00::1
create port4 hash:ip,port family inet hashsize 64 maxelem 10 comment counters
add port4 10.0.0.1,tcp:80 comment web
add port4 10.0.0.1,udp:53
create port6 hash:ip,port family inet6 hashsize 1024 maxelem 65536
add port6 fd00::1,sctp:9999
create portip4 hash:ip,port,ip family inet hashsize 1024 maxelem 65536
add portip4 10.0.0.1,tcp:80,10.0.0.1
create portip6 hash:ip,port,ip family inet6 hashsize 1024 maxelem 65536
add portip6 fd00::1,tcp:80,fd00::1
create portnet4 hash:ip,port,net family inet hashsize 1024 maxelem 65536
add portnet4 10.0.0.1,tcp:80,10.1.2.0/24
add portnet4 10.0.0.1,tcp:80,10.1.2.7
create portnet6 hash:ip,port,net family inet6 hashsize 1024 maxelem 65536
add portnet6 fd00::1,udp:53,fd00:1::/64
create except hash:ip,port,net family inet hashsize 1024 maxelem 65536
add except 10.0.0.1,tcp:80,10.1.2.128/25 nomatch
create ports bitmap:port range 30000-32767
add ports 30000
add ports 30001
create marks4 hash:ip,port family inet hashsize 1024 maxelem 65536 skbinfo
add marks4 10.0.0.1,tcp:80 skbmark 0x1001
add marks4 10.0.0.1,udp:53 skbmark 0x7/0xff
create marks6 hash:ip,port family inet6 hashsize 1024 maxelem 65536 skbinfo
add marks6 fd00::1,sctp:9999 skbmark 0x1001
create timed hash:ip family inet hashsize 1024 maxelem 65536 netmask 24 timeout 300 forceadd
add timed 10.0.1.0 timeout 100
create nets hash:net family inet hashsize 1024 maxelem 65536
add nets 10.0.0.0/8
";

/// Numbers of ipset commands (`IPSET_CMD_*` in `linux/netfilter/ipset/ip_set.h`).
const PROTOCOL: u16 = 1;
const LIST: u16 = 7;
const HEADER: u16 = 12;
const TYPE: u16 = 13;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args_os()
        .nth(1)
        .ok_or("usage: capture_sets FOLDER")?;
    std::fs::write(Path::new(&folder).join("requests.hex"), requests()?)?;
    std::fs::write(Path::new(&folder).join("replies.hex"), replies()?)?;
    Ok(())
}

/// Runs `ipset restore` under strace. Returns the messages that it sent, as strace dumped them in
/// hex.
fn requests() -> Result<String, Box<dyn std::error::Error>> {
    let mut ipset = Command::new("strace")
        .args([
            "-qq",
            "-o",
            "/dev/stdout",
            "-e",
            "trace=sendto",
            "-e",
            "write=all",
            "ipset",
            "restore",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    ipset
        .stdin
        .take()
        .ok_or("no stdin")?
        .write_all(SCRIPT.as_bytes())?;
    let output = ipset.wait_with_output()?;
    if !output.status.success() {
        return Err("strace ipset restore failed".into());
    }

    let mut text = String::from("# what `ipset restore` sends for\n");
    SCRIPT
        .lines()
        .try_for_each(|line| writeln!(text, "# {line}"))?;
    let mut message: Vec<u8> = Vec::new();
    // A line of strace's hex dump looks like ` | 00000 1c 00 00 00 ... text |`. Any other line ends
    // the dump of a system call.
    for line in String::from_utf8(output.stdout)?.lines().chain([""]) {
        if let Some(dump) = line.strip_prefix(" | ") {
            let bytes = dump.get(7..7 + 49).ok_or("a short line of strace")?;
            for byte in bytes.split_whitespace() {
                message.push(u8::from_str_radix(byte, 16)?);
            }
        } else if let (Some(payload), Some(command)) = (message.get(16..), message.get(4)) {
            writeln!(text, "{command} {}", hex(payload))?;
            message.clear();
        }
    }
    Ok(text)
}

fn replies() -> Result<String, Box<dyn std::error::Error>> {
    let mut connection = Connection::open(Protocol::Netfilter)?;
    let mut text = String::new();
    let mut ask = |what: &str, command: u16, attributes: &dyn Fn(&mut Writer<'_>)| {
        let payload = |w: &mut Writer<'_>| {
            w.bytes(&[2, 0, 0, 0]);
            w.attr_u8(1, 7);
            attributes(w);
        };
        let kind = 6 << 8 | command;
        let answer = match command {
            LIST => connection.dump(kind, 0, payload)?,
            _ => connection.request(kind, 0, payload)?,
        };
        writeln!(text, "# {what}")?;
        for (kind, payload) in answer.iter() {
            writeln!(text, "{} {}", kind & 0xff, hex(payload))?;
        }
        Ok::<_, Box<dyn std::error::Error>>(())
    };
    ask("version", PROTOCOL, &|_| {})?;
    for (type_name, family) in [("hash:ip,port", 2), ("bitmap:port", 0)] {
        ask(&format!("revisions of {type_name}"), TYPE, &|w| {
            w.attr_str(3, type_name);
            w.attr_u8(5, family);
        })?;
    }
    for name in ["port6", "ports", "nets"] {
        ask(&format!("type of {name}"), HEADER, &|w| w.attr_str(2, name))?;
    }
    ask("ipset list", LIST, &|_| {})?;
    ask("ipset list -terse", LIST, &|w| {
        w.attr(6 | 1 << 14, &[0, 0, 0, 4]);
    })?;
    Ok(text)
}

fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
}
