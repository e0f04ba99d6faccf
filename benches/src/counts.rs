//! Counts the measured program's system calls in the output of strace.

use std::collections::BTreeMap;

use crate::schema::Counts;

/// Maximum number of system calls to report by name, the most frequent first.
const NAMED: usize = 12;

/// Counts the system calls in the output of `strace -f -s 1000000 -o FILE`. If the output includes
/// the start of the traced program, this counts as a started program.
pub(crate) fn count(trace: &str) -> Counts {
    let mut counts = Counts::default();
    let mut by_name: BTreeMap<&str, u64> = BTreeMap::new();
    for line in trace.lines() {
        // A system call has the form `123   sendto(5, ...) = 20`, or if another thread interrupts
        // it, ends with `123 <... read resumed>`. Lines such as `123 +++ exited with 0 +++` and
        // `123 --- SIGCHLD ...` are no calls.
        let call = line
            .trim_start_matches(|c: char| c.is_ascii_digit())
            .trim_start();
        counts.processes +=
            u64::from(call.starts_with("<... execve resumed>") && call.ends_with("= 0"));
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
            // A batch for nf_tables without an end message only tests the kernel, which rolls it
            // back. It is no write.
            let is_undone =
                rest.contains("NFNL_MSG_BATCH_BEGIN") && !rest.contains("NFNL_MSG_BATCH_END");
            for message in rest.split("nlmsg_len=").skip(1) {
                counts.netlink_messages += 1;
                if let Some(name) = write(message).filter(|_| !is_undone) {
                    counts.netlink_writes += 1;
                    *counts.writes_by_name.entry(name).or_default() += 1;
                }
            }
        } else if name == "execve" && rest.ends_with("= 0") {
            counts.processes += 1;
        } else if name == "setsockopt" {
            counts.table_writes += u64::from(is_replacement(rest));
        }
    }
    let mut names: Vec<(&str, u64)> = by_name.into_iter().collect();
    names.sort_by_key(|(_, calls)| std::cmp::Reverse(*calls));
    names.truncate(NAMED);
    counts.by_name = names
        .into_iter()
        .map(|(name, calls)| (name.to_owned(), calls))
        .collect();
    counts
}

/// Returns true if this `setsockopt` replaces a table of legacy iptables (`IPT_SO_SET_REPLACE`,
/// 64). strace prints the option as a number, or by the name that it has at another level.
fn is_replacement(arguments: &str) -> bool {
    let mut words = arguments.split(", ").skip(1);
    let (level, option) = (words.next(), words.next().unwrap_or_default());
    matches!(level, Some("SOL_IP" | "SOL_IPV6"))
        && (option.contains("SO_SET_REPLACE") || option.starts_with("0x40"))
}

/// Returns the name of the kernel write that a netlink message requests, or `None` if it only
/// reads. `message` begins with the value of `nlmsg_len`.
fn write(message: &str) -> Option<String> {
    let (_, rest) = message.split_once("nlmsg_type=")?;
    let kind: String = rest
        .chars()
        .take_while(|c| !matches!(c, ',' | ' '))
        .collect();
    // strace cannot name message types on a socket that was opened before it started. `0x12` is
    // RTM_GETLINK of rtnetlink; families of generic netlink begin at 0x13.
    if kind == "0x12" {
        return None;
    }
    if kind == "IPVS" || kind.starts_with("0x") {
        // In a generic netlink family, the first byte of the content is the command.
        // IPVS_CMD_GET_SERVICE, GET_DEST, GET_DAEMON, GET_CONFIG and GET_INFO only read.
        let name = match command(rest) {
            Some(4 | 8 | 11 | 13 | 15) => return None,
            Some(1) => "IPVS_CMD_NEW_SERVICE",
            Some(2) => "IPVS_CMD_SET_SERVICE",
            Some(3) => "IPVS_CMD_DEL_SERVICE",
            Some(5) => "IPVS_CMD_NEW_DEST",
            Some(6) => "IPVS_CMD_SET_DEST",
            Some(7) => "IPVS_CMD_DEL_DEST",
            _ => return Some(kind),
        };
        return Some(name.to_owned());
    }
    let reads = [
        "GET", "LIST", "HEADER", "PROTOCOL", "_TYPE", "NLMSG_", "nlctrl", "_BATCH_",
    ];
    (!reads.iter().any(|read| kind.contains(read))).then_some(kind)
}

/// Returns the first byte of a message's content, which strace prints as a string:
/// `}, "\x08\x01..."`.
fn command(message: &str) -> Option<u8> {
    let (_, content) = message.split_once("}, \"\\x")?;
    u8::from_str_radix(content.get(..2)?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_calls_netlink_messages_and_programs_are_counted() {
        let trace = r#"845   execve("/kube-proxy", ["/kube-proxy"], 0x1 /* 1 var */) = 0
870   sendto(10, [{nlmsg_len=20, nlmsg_type=IPVS, nlmsg_flags=NLM_F_REQUEST, nlmsg_seq=2, nlmsg_pid=0}, "\x04\x01\x00\x00"], 20, 0, NULL, 0) = 20
870   sendto(10, [[{nlmsg_len=20, nlmsg_type=IPVS, nlmsg_flags=NLM_F_REQUEST, nlmsg_seq=2, nlmsg_pid=0}, "\x05\x01\x00\x00"], [{nlmsg_len=20, nlmsg_type=RTM_NEWADDR, nlmsg_flags=0}, {ifa_family=AF_INET}]], 40, 0, NULL, 0 <unfinished ...>
870   <... sendto resumed>) = 40
846   execve("/usr/sbin/iptables-save", ["iptables-save"], 0x5 /* 1 var */ <unfinished ...>
846   <... execve resumed>)             = 0
846   setsockopt(4, SOL_IP, 0x40 /* IP_??? */, "nat", 5096) = 0
846   setsockopt(4, SOL_IPV6, IP6T_SO_SET_REPLACE, "nat", 5096) = 0
846   setsockopt(4, SOL_IP, IP_RECVERR, [1], 4) = 0
846   +++ exited with 0 +++
"#;
        let counts = count(&trace.replace("\\\\", "\\"));
        assert_eq!((counts.system_calls, counts.processes), (7, 2));
        assert_eq!(counts.table_writes, 2);
        let writes: Vec<&str> = counts.writes_by_name.keys().map(String::as_str).collect();
        assert_eq!(writes, ["IPVS_CMD_NEW_DEST", "RTM_NEWADDR"]);
        assert_eq!((counts.netlink_messages, counts.netlink_writes), (3, 2));
    }
}
