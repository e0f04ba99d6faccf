//! Reads the listening sockets from `/proc/net/tcp` and similar files, and finds their processes.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use proxy::Protocol;

/// A listening TCP socket, or an unconnected UDP socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Listener {
    pub(super) at: SocketAddr,
    pub(super) protocol: Protocol,
    /// Inode of the socket, which identifies its process.
    pub(super) inode: u64,
}

/// Files of `/proc/net`, each with the state code of its listening sockets, and the protocol. The
/// codes are `TCP_LISTEN` and `TCP_CLOSE` of linux/net/tcp_states.h. An unconnected UDP socket is
/// in state `TCP_CLOSE`.
const LISTENING: [(&str, &str, Protocol); 4] = [
    ("tcp", "0A", Protocol::Tcp),
    ("tcp6", "0A", Protocol::Tcp),
    ("udp", "07", Protocol::Udp),
    ("udp6", "07", Protocol::Udp),
];

/// Reads all listening sockets of this network namespace. Adds unreadable files to `unread`.
pub(super) fn read(root: &Path, unread: &mut Vec<String>) -> Vec<Listener> {
    let folder = root.join("proc/thread-self/net");
    let of = |(file, state, protocol): (&str, &str, Protocol)| {
        let text = read_net_file(&folder, file, unread);
        parse(&text, state, protocol)
    };
    LISTENING.into_iter().flat_map(of).collect()
}

/// Reads a file of `/proc/net`. Returns an empty text if the file is missing, because the kernel
/// then lacks the file's IP family.
pub(super) fn read_net_file(folder: &Path, file: &str, unread: &mut Vec<String>) -> String {
    match fs::read_to_string(folder.join(file)) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => {
            unread.push(format!("/proc/net/{file}: {error}"));
            String::new()
        }
    }
}

fn parse(text: &str, wanted: &str, protocol: Protocol) -> Vec<Listener> {
    let listener = |line: &str| {
        let mut fields = line.split_whitespace().skip(1);
        let at = socket(fields.next()?)?;
        let state = fields.nth(1)?;
        let inode = fields.nth(5)?.parse().ok()?;
        (state == wanted).then_some(Listener {
            at,
            protocol,
            inode,
        })
    };
    text.lines().skip(1).filter_map(listener).collect()
}

/// Parses an address such as `0100007F:2710`: groups of four bytes in host byte order, and a port.
fn socket(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| {
        let word = u32::from_str_radix(address.get(at..at + 8)?, 16).ok()?;
        Some(word.to_ne_bytes())
    };
    let ip = if address.len() == 8 {
        IpAddr::from(Ipv4Addr::from(word(0)?))
    } else {
        let words = [word(0)?, word(8)?, word(16)?, word(24)?];
        let mut bytes = [0; 16];
        let flat = words.iter().flatten();
        for (to, from) in bytes.iter_mut().zip(flat) {
            *to = *from;
        }
        IpAddr::from(Ipv6Addr::from(bytes)).to_canonical()
    };
    Some(SocketAddr::new(ip, port))
}

/// Returns the name and process ID of each socket's owner, by inode. Processes of other PID
/// namespaces are not visible.
pub(super) fn owners(root: &Path, inodes: &[u64]) -> BTreeMap<u64, String> {
    let mut owners = BTreeMap::new();
    let links: BTreeMap<String, u64> = inodes
        .iter()
        .map(|inode| (format!("socket:[{inode}]"), *inode))
        .collect();
    let processes = fs::read_dir(root.join("proc"))
        .into_iter()
        .flatten()
        .flatten();
    for process in processes {
        let Ok(files) = fs::read_dir(process.path().join("fd")) else {
            continue;
        };
        for file in files.flatten() {
            let Ok(target) = fs::read_link(file.path()) else {
                continue;
            };
            if let Some(inode) = target.to_str().and_then(|link| links.get(link)) {
                let name = fs::read_to_string(process.path().join("comm"));
                let name = name.unwrap_or_default().trim().to_owned();
                let number = process.file_name().to_string_lossy().into_owned();
                owners.insert(*inode, format!("{name}[{number}]"));
            }
        }
    }
    owners
}

/// Parses text in the format of `/proc/net/tcp`. Entry point for fuzzing.
pub(super) fn read_text(text: &str) {
    drop(parse(text, "0A", Protocol::Tcp));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text has the format of `cat /proc/net/tcp /proc/net/tcp6` on an amd64 machine.
    #[test]
    fn listening_sockets_are_parsed() {
        let text = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
                    \x20  0: 0100007F:2809 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0\n\
                    \x20  1: 0100007F:2809 0100007F:8000 01 00000000:00000000 00:00000000 00000000     0        0 4712 1 0\nodd\n";
        if cfg!(target_endian = "little") {
            let found = parse(text, "0A", Protocol::Tcp);
            assert_eq!(found.len(), 1);
            assert_eq!(
                (found[0].at, found[0].inode),
                ("127.0.0.1:10249".parse().unwrap(), 4711)
            );
            let v6 = "00000000000000000000000001000000:2810";
            assert_eq!(socket(v6), Some("[::1]:10256".parse().unwrap()));
        }
        assert_eq!(
            socket("00000000000000000000000000000000:2810"),
            Some("[::]:10256".parse().unwrap())
        );
        assert_eq!(socket("0:x"), None);
    }

    #[test]
    fn the_process_of_a_listening_socket_is_found() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let root = Path::new("/");
        let found = read(root, &mut Vec::new())
            .into_iter()
            .find(|of| of.at == at)
            .unwrap();
        let owners = owners(root, &[found.inode]);
        let own = format!("[{}]", std::process::id());
        assert!(owners[&found.inode].ends_with(&own), "{owners:?}");
    }
}
