//! Writes the files of `tests/data`: nat tables in the kernel's binary layout, captured from a real
//! kernel.
//!
//! ```text
//! cargo build -p lab && cargo build -p bench --example capture_rules
//! for one in leftovers ways; do
//!   data=benches/tests/data/$one
//!   target/debug/lab run -- target/debug/examples/capture_rules $data.rules > $data.hex
//! done
//! ```
//!
//! Loads the rules with `iptables-legacy-restore`. Prints each rule (`struct ipt_entry`) in
//! hexadecimal, one per line.

use std::fmt::Write as _;
use std::fs::File;
use std::process::Command;

use iptables::LegacyTables;
use proxy::IpFamily;

/// Position of the field `next_offset` in an entry: distance to the next entry.
const NEXT: std::ops::Range<usize> = 90..92;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = std::env::args_os()
        .nth(1)
        .ok_or("usage: capture_rules RULES")?;
    let status = Command::new("iptables-legacy-restore")
        .stdin(File::open(file)?)
        .status()?;
    if !status.success() {
        return Err(format!("iptables-legacy-restore: {status}").into());
    }
    let tables = LegacyTables::open(IpFamily::V4)?;
    let content = tables.content(&tables.table("nat")?)?;
    let (mut rest, mut text) = (content.as_slice(), String::new());
    while !rest.is_empty() {
        let next = rest.get(NEXT).ok_or("an entry is cut off")?;
        let next = usize::from(u16::from_ne_bytes(next.try_into()?));
        let (entry, after) = rest.split_at_checked(next).ok_or("an entry is cut off")?;
        for byte in entry {
            write!(text, "{byte:02x}")?;
        }
        text.push('\n');
        rest = after;
    }
    print!("{text}");
    Ok(())
}
