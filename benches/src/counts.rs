//! What a subject did, counted in strace's own words.

use std::collections::BTreeMap;

use crate::schema::Counts;

/// The system calls that are named in the report.
const NAMED: usize = 12;

/// Counts the lines of `strace -f -s 1000000 -o FILE`.
pub(crate) fn count(trace: &str) -> Counts {
    let mut counts = Counts::default();
    let mut by_name: BTreeMap<&str, u64> = BTreeMap::new();
    for line in trace.lines() {
        // `123   sendto(5, ...) = 20`; the end of a call that another thread interrupted is `123 <... read resumed>`, and
        // `123 +++ exited with 0 +++`, `123 --- SIGCHLD ...` are no calls.
        let call = line
            .trim_start_matches(|c: char| c.is_ascii_digit())
            .trim_start();
        let Some((name, rest)) = call.split_once('(') else {
            continue;
        };
        if !name
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
        {
            continue;
        }
        counts.system_calls += 1;
        *by_name.entry(name).or_default() += 1;
        if matches!(name, "sendto" | "sendmsg" | "sendmmsg") {
            for message in rest.split("nlmsg_len=").skip(1) {
                counts.netlink_messages += 1;
                counts.netlink_writes += u64::from(is_write(message));
            }
        } else if name == "execve" && rest.ends_with("= 0") {
            counts.processes += 1;
        }
    }
    // Its own start.
    counts.processes = counts.processes.saturating_sub(1);
    let mut names: Vec<(&str, u64)> = by_name.into_iter().collect();
    names.sort_by_key(|(_, calls)| std::cmp::Reverse(*calls));
    names.truncate(NAMED);
    counts.by_name = names
        .into_iter()
        .map(|(name, calls)| (name.to_owned(), calls))
        .collect();
    counts
}

/// Whether a message, from its length on, asks the kernel to change something.
fn is_write(message: &str) -> bool {
    let Some((_, rest)) = message.split_once("nlmsg_type=") else {
        return false;
    };
    let kind: String = rest
        .chars()
        .take_while(|c| !matches!(c, ',' | ' '))
        .collect();
    let reads = [
        "GET", "LIST", "HEADER", "PROTOCOL", "_TYPE", "NLMSG_", "NLCTRL", "nlctrl",
    ];
    if let Some(family) = kind.strip_prefix("0x") {
        // A generic family known by its number only: the first byte of the content is the command. IPVS: the reading ones
        // are IPVS_CMD_GET_SERVICE, GET_DEST, GET_DAEMON, GET_CONFIG and GET_INFO.
        return !family.is_empty() && !matches!(command(rest), Some(4 | 8 | 11 | 13 | 15));
    }
    !reads.iter().any(|read| kind.contains(read))
}

/// The first byte of a content that strace writes as a string: `"\1\1\0\0..."`.
fn command(message: &str) -> Option<u8> {
    let (_, content) = message.split_once("}, \"\\")?;
    let digits: String = content
        .chars()
        .take(3)
        .take_while(|c| ('0'..='7').contains(c))
        .collect();
    if digits.is_empty() {
        // strace's letters for the numbers that have one.
        return match content.chars().next()? {
            't' => Some(9),
            'n' => Some(10),
            'v' => Some(11),
            'f' => Some(12),
            'r' => Some(13),
            _ => None,
        };
    }
    u8::from_str_radix(&digits, 8).ok()
}
