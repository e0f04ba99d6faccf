//! Entry points for the fuzzer: for each parser of untrusted bytes, a function that takes bytes.
//! Only the fuzzer uses these functions.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;

use flags::nets::nets;
use modes::footprints;

use crate::{check, config, logging, metrics};

use crate::config::command_line;

/// Parses a configuration file, and converts it to the daemon's options.
pub fn configuration(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(read) = config::parse(&text) {
        let line = ["kube-proxy", "--config=/nowhere"];
        let _ = command_line::parse_as_if(line, |_| Ok(read));
    }
}

/// Parses a command line, one word per line. Does not open the files that flags name.
pub fn flags(bytes: &[u8]) {
    let words = bytes.split(|byte| *byte == b'\n').map(<[u8]>::to_vec);
    let line = std::iter::once(b"kube-proxy".to_vec()).chain(words);
    let line: Vec<OsString> = line.map(OsString::from_vec).collect();
    let _ = command_line::asks(&line);
    let _ = command_line::values(&line);
    let _ = command_line::parse_as_if(line, |_| {
        Err(config::ConfigurationError::Syntax {
            file: PathBuf::new(),
            line: None,
            message: String::new(),
        })
    });
}

/// Parses lists of networks, one list per line.
pub fn networks(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let lists: Vec<&str> = text.lines().collect();
    let _ = nets("nodeport-addresses", &lists);
}

/// Parses requests to the local socket and to the pages. Each line is a path with a query, or one
/// of the three arguments of `explain`.
pub fn questions(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let mut lines = text.lines();
    let mut next = || lines.next().unwrap_or_default();
    inspect::read_query(next());
    explain::read_question(next(), next(), next());
    let (pattern, name) = (next(), next());
    let _ = logging::fits(pattern, name);
}

/// Parses bytes with the parser of each `/proc` file that this program reads.
pub fn proc_files(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    check::read_sockets(&text);
    explain::read_sockets(&text);
    metrics::read_proc(&text);
    ipvs_netlink::fuzzed::status(&text);
}

/// Parses the output of `iptables-save` with the readers of each mode and of the cleanup.
pub fn saved(bytes: &[u8]) {
    let modes = footprints::ALL;
    proxy_ipvs::fuzzed::saved(bytes, modes);
    proxy_iptables::fuzzed::saved(bytes, modes);
    proxy_userspace::fuzzed::saved(bytes, modes);
    let text = String::from_utf8_lossy(bytes);
    let found = footprint::Leftovers::find(footprint::Finder::all(modes), &text);
    let _ = found.restore_text();
}

/// Parses objects of an nftables table with each mode's reader.
pub fn tables(bytes: &[u8]) {
    proxy_ipvs::fuzzed::object(bytes);
    proxy_nftables::fuzzed::object(bytes);
    proxy_userspace::fuzzed::object(bytes);
}
