//! Writes the files of `tests/data`: the bytes that a real kernel and the real `conntrack`
//! exchange.
//!
//! ```text
//! cargo build -p conntrack-netlink --example capture_flows
//! unshare --net target/debug/examples/capture_flows crates/conntrack-netlink/tests/data
//! ```
//!
//! Needs root, `conntrack` and `strace`.
//!
//! | file | messages |
//! |---|---|
//! | `replies.hex` | the kernel's messages for the flows of `FLOWS`, in order |
//! | `requests.hex` | the messages by which `conntrack -D` deletes each flow |
//!
//! Each line is one message in hex, without its `nlmsghdr`. The line before it begins with `#` and
//! has the flow in the notation of `conntrack -I`.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use netlink_batch::{Connection, Protocol};

const FLOWS: [&str; 7] = [
    "-p udp -s 10.244.1.99 --sport 40000 -d 10.96.0.10 --dport 53 -r 10.244.2.10 --reply-port-src 5353 -q 10.244.1.99 --reply-port-dst 40000 -t 600",
    "-p udp -s 10.244.1.99 --sport 40001 -d 10.96.0.10 --dport 53 -r 10.244.2.10 --reply-port-src 5353 -q 192.168.0.10 --reply-port-dst 61001 -t 600 -m 16384 -w 7",
    "-p udp -s 10.244.1.99 --sport 40002 -d 10.96.0.10 --dport 53 -t 600 --orig-zone 9",
    "-p udp -s fd44:1::99 --sport 40000 -d fd96::10 --dport 53 -r fd44:2::10 --reply-port-src 5353 -q fd44:1::99 --reply-port-dst 40000 -t 600",
    "-p tcp -s 10.244.1.99 --sport 40003 -d 10.96.0.1 --dport 443 -r 10.0.0.5 --reply-port-src 6443 -q 10.244.1.99 --reply-port-dst 40003 -t 600 --state ESTABLISHED -u ASSURED",
    "-p sctp -s 10.244.1.99 --sport 40004 -d 10.96.0.7 --dport 9999 -t 600 --state ESTABLISHED --orig-vtag 1 --reply-vtag 2",
    "-p icmp -s 10.244.1.99 -d 10.96.0.10 --icmp-type 8 --icmp-code 0 --icmp-id 77 -t 600",
];

/// Netlink message type that requests a dump of flows. The high byte is the subsystem number of
/// ctnetlink, and the low byte its command (`IPCTNL_MSG_CT_GET`).
const GET: u16 = 1 << 8 | 1;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args_os()
        .nth(1)
        .ok_or("usage: capture_flows FOLDER")?;
    let (mut replies, mut requests) = (String::new(), String::new());
    for flow in FLOWS {
        let family = if flow.contains("fd44") { 10 } else { 2 };
        conntrack(&mut Command::new("conntrack"), "-I", flow)?;
        let mut connection = Connection::open(Protocol::Netfilter)?;
        let dump = connection.dump(GET, 0, |w| w.bytes(&[family, 0, 0, 0]))?;
        let (_, payload) = dump.iter().next().ok_or("the flow is not told")?;
        writeln!(replies, "# {flow}\n{}", hex(payload))?;

        let mut strace = Command::new("strace");
        strace.args([
            "-qq",
            "-o",
            "/dev/stdout",
            "-e",
            "trace=sendto",
            "-e",
            "write=all",
            "conntrack",
        ]);
        let words: Vec<&str> = flow.split(' ').collect();
        let protocol = words.get(1).ok_or("no protocol")?;
        let select = format!(
            "-f {} -p {protocol}",
            if family == 2 { "ipv4" } else { "ipv6" }
        );
        let sent = conntrack(&mut strace, "-D", &select)?;
        writeln!(
            requests,
            "# {flow}\n{}",
            hex(last_message(&sent)?.get(16..).unwrap_or_default())
        )?;
    }
    std::fs::write(Path::new(&folder).join("replies.hex"), replies)?;
    std::fs::write(Path::new(&folder).join("requests.hex"), requests)?;
    Ok(())
}

fn conntrack(
    command: &mut Command,
    verb: &str,
    flow: &str,
) -> Result<String, Box<dyn std::error::Error>> {
    let output = command.arg(verb).args(flow.split(' ')).output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("conntrack {verb} {flow}: {said}").into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// Returns the bytes of the last message in strace's output. A line of a dumped message looks like
/// this: ` | 00000 1c 00 00 00 ... text |`.
fn last_message(text: &str) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    let mut message = Vec::new();
    for line in text.lines().filter_map(|line| line.strip_prefix(" | ")) {
        if line.starts_with("00000 ") {
            message.clear();
        }
        let bytes = line.get(7..7 + 49).ok_or("a short line of strace")?;
        for byte in bytes.split_whitespace() {
            message.push(u8::from_str_radix(byte, 16)?);
        }
    }
    Ok(message)
}

fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
}
