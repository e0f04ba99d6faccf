//! Measures the kernel's cost of making many addresses local to a node. The addresses are either
//! addresses of one dummy link, or local routes on this link. The cases differ in:
//!
//! * the order of addresses;
//! * the link's state (down or up);
//! * the number of messages in one send.
//!
//! ```text
//! cargo build -p netlink-batch -p lab --example address_cost --bin lab
//! target/debug/lab run --timeout 900 -- target/debug/examples/address_cost
//! ```
//!
//! Each output line is one case in its own network namespace, which `unshare` creates. The columns
//! are the seconds until the last acknowledgement, and the seconds until each address has its
//! route. For IPv6, a kernel worker adds the routes later.
//!
//! With arguments, the program runs one case in the current namespace: `address_cost 4|6 COUNT
//! address|route ascending|descending|shuffled down|up AT_ONCE [IFA_FLAGS]`.

use std::env::{args, current_exe};
use std::error::Error;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use netlink_batch::{Batch, Connection, NLM_F_CREATE, NLM_F_EXCL, Protocol, Reply};

/// Cases to measure. [`Connection::execute`] splits a send of more than 512 messages.
const CASES: &str = "\
4 1000 address ascending down 512
4 10000 address ascending down 512
4 10000 address descending down 512
4 10000 address shuffled down 512
4 10000 address ascending up 512
4 10000 address ascending down 1
4 10000 route ascending down 512
4 40000 address ascending down 512
4 40000 address descending down 512
4 40000 address ascending up 512
4 40000 route ascending down 512
6 1000 address ascending down 512
6 10000 address ascending down 512
6 10000 address descending down 512
6 10000 address shuffled down 512
6 10000 address ascending up 512
6 10000 address ascending down 1
6 10000 address ascending down 32
6 10000 address ascending down 512 0x282
6 10000 address ascending down 512 0x80
6 10000 route ascending up 512
6 40000 address ascending down 512
6 40000 address descending down 512
6 40000 route ascending up 512
";

const LINK: &str = "many0";
const RTM_NEWADDR: u16 = 20;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_FLAGS: u16 = 8;
/// Default flags of each added address (`IFA_F_PERMANENT | IFA_F_NODAD`).
const FLAGS: u32 = 0x82;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RT_TABLE_LOCAL: u8 = 255;
const RT_SCOPE_HOST: u8 = 254;
const RTN_LOCAL: u8 = 2;
const PROTOCOL: u8 = 107;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = args().skip(1).collect();
    if !arguments.is_empty() {
        return one(&arguments);
    }
    // Loads the IPv6 module, if the kernel has one.
    Command::new("modprobe").args(["-q", "ipv6"]).status()?;
    let program = current_exe()?;
    for case in CASES.lines() {
        Command::new("unshare")
            .arg("--net")
            .arg(&program)
            .args(case.split(' '))
            .status()?;
    }
    Ok(())
}

fn one(arguments: &[String]) -> Result<(), Box<dyn Error>> {
    let [family, count, form, order, state, at_once, flags @ ..] = arguments else {
        return Err("see the head of this example's source".into());
    };
    let is_v4 = family == "4";
    let (count, at_once): (u32, usize) = (count.parse()?, at_once.parse()?);
    let flags = flags.first().map_or(Ok(FLAGS), |flags| {
        u32::from_str_radix(flags.trim_start_matches("0x"), 16)
    })?;
    let set = |arguments: &[&str]| Command::new("ip").args(arguments).status();
    set(&["link", "add", LINK, "type", "dummy"])?;
    set(&["link", "set", LINK, state])?;
    let shown = Command::new("ip")
        .args(["-o", "link", "show", LINK])
        .output()?
        .stdout;
    let shown = String::from_utf8(shown)?;
    let index: u32 = shown.split(':').next().unwrap_or_default().parse()?;

    let numbers: Box<dyn Iterator<Item = u32>> = match &**order {
        "descending" => Box::new((0..count).rev()),
        // 7919 and `count` have no common divisor, so each number below `count` appears exactly
        // once.
        "shuffled" => Box::new((0..count).map(|at| at * 7919 % count)),
        _ => Box::new(0..count),
    };
    let numbers: Vec<u32> = numbers.collect();
    let mut connection = Connection::open(Protocol::Route)?;
    let started = Instant::now();
    for part in numbers.chunks(at_once) {
        let mut batch = Batch::new();
        for number in part {
            let address = if is_v4 {
                Ipv4Addr::from(0x0a60_0001 + number).octets().to_vec()
            } else {
                Ipv6Addr::from((0xfd96_u128 << 112) + 1 + u128::from(*number))
                    .octets()
                    .to_vec()
            };
            push(&mut batch, form, &address, index, flags);
        }
        let replies = connection.execute(&batch)?;
        if let Some(reply) = replies.iter().find(|reply| **reply != Reply::Done) {
            return Err(format!("{arguments:?}: {reply:?}").into());
        }
    }
    let acknowledged = started.elapsed();
    let routes = |connection: &mut Connection| -> Result<usize, netlink_batch::Error> {
        let mut header = [0; 12];
        header[0] = if is_v4 { 2 } else { 10 };
        let dump = connection.dump(RTM_GETROUTE, 0, |message| message.bytes(&header))?;
        let is_one = |payload: &[u8]| {
            payload.get(4) == Some(&RT_TABLE_LOCAL) && payload.get(7) == Some(&RTN_LOCAL)
        };
        Ok(dump.iter().filter(|(_, payload)| is_one(payload)).count())
    };
    while routes(&mut connection)? < count as usize
        && started.elapsed() < acknowledged + Duration::from_mins(1)
    {
        sleep(Duration::from_millis(20));
    }
    println!(
        "IPv{family} {count:>5} {form:7} {order:10} {state:4} {at_once:>3} at once, flags {flags:#x}: acknowledged {:6.2} s, routed {:6.2} s",
        acknowledged.as_secs_f64(),
        started.elapsed().as_secs_f64(),
    );
    Ok(())
}

fn push(batch: &mut Batch, form: &str, address: &[u8], index: u32, flags: u32) {
    let (family, prefix) = if address.len() == 4 {
        (2, 32)
    } else {
        (10, 128)
    };
    if form == "address" {
        batch.push(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, |message| {
            message.bytes(&[family, prefix, 0, 0]);
            message.bytes(&index.to_ne_bytes());
            message.attr(IFA_LOCAL, address);
            message.attr(IFA_ADDRESS, address);
            message.attr_u32(IFA_FLAGS, flags);
        });
    } else {
        let scope = if family == 2 { RT_SCOPE_HOST } else { 0 };
        batch.push(RTM_NEWROUTE, NLM_F_CREATE, |message| {
            message.bytes(&[
                family,
                prefix,
                0,
                0,
                RT_TABLE_LOCAL,
                PROTOCOL,
                scope,
                RTN_LOCAL,
                0,
                0,
                0,
                0,
            ]);
            message.attr(RTA_DST, address);
            message.attr_u32(RTA_OIF, index);
        });
    }
}
