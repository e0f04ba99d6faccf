//! Finds out whether a socket of this network namespace receives packets to an address and port.
//!
//! For TCP, `/proc/net` lists the listening sockets first. The search ends after them, so many
//! connections do not slow it down. For UDP, the search reads lines until a socket matches.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use proxy::Protocol;

/// State of a listening socket (`TCP_LISTEN` of net/tcp_states.h), as `/proc/net` prints it.
const LISTEN: &str = "0A";

/// Reports whether a socket receives packets to the address and port. Assumes that a socket on `::`
/// also receives IPv4 packets.
///
/// # Errors
///
/// Fails if a file with the list of sockets cannot be read.
pub(crate) fn listens(at: SocketAddr, protocol: Protocol) -> io::Result<bool> {
    let files: &[&str] = match (protocol, at.is_ipv4()) {
        (Protocol::Tcp, true) => &["tcp", "tcp6"],
        (Protocol::Tcp, false) => &["tcp6"],
        (Protocol::Udp, true) => &["udp", "udp6"],
        (Protocol::Udp, false) => &["udp6"],
        (Protocol::Sctp, _) => &["sctp/eps"],
    };
    for file in files {
        let opened = match File::open(format!("/proc/thread-self/net/{file}")) {
            Ok(opened) => BufReader::new(opened),
            // Without the file, the kernel does not support this protocol or family, and has no
            // such sockets.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let mut lines = opened.lines().skip(1);
        let found = match protocol {
            Protocol::Tcp => takes(&mut lines, at, Some(LISTEN))?,
            Protocol::Udp => takes(&mut lines, at, None)?,
            Protocol::Sctp => takes_sctp(&mut lines, at)?,
        };
        if found {
            return Ok(true);
        }
    }
    Ok(false)
}

type Lines<'a> = &'a mut dyn Iterator<Item = io::Result<String>>;

/// Reports whether an unconnected socket in `lines` receives packets to `at`. If `state` is given,
/// stops at the first socket in another state.
fn takes(lines: Lines<'_>, at: SocketAddr, state: Option<&str>) -> io::Result<bool> {
    for line in lines {
        let line = line?;
        let mut words = line.split_whitespace().skip(1);
        let (Some(local), Some(remote), Some(is)) = (words.next(), words.next(), words.next())
        else {
            continue;
        };
        if state.is_some_and(|state| state != is) {
            return Ok(false);
        }
        let is_connected = socket(remote).is_none_or(|remote| remote.port() != 0);
        if !is_connected && socket(local).is_some_and(|own| is_for(own, at)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Reports whether a socket in `lines`, the SCTP list, receives packets to `at`. A line looks like
/// `... LPORT UID INODE LADDRS`, with a decimal port.
fn takes_sctp(lines: Lines<'_>, at: SocketAddr) -> io::Result<bool> {
    for line in lines {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let Some((Ok(port), addresses)) = words
            .get(5..)
            .and_then(|rest| Some((rest.first()?.parse::<u16>(), rest.get(3..)?)))
        else {
            continue;
        };
        let mut addresses = addresses.iter().filter_map(|text| text.parse().ok());
        if addresses.any(|own| is_for(SocketAddr::new(own, port), at)) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn is_for(own: SocketAddr, at: SocketAddr) -> bool {
    let own_ip = own.ip().to_canonical();
    let is_any = match own.ip() {
        IpAddr::V4(own) => own.is_unspecified() && at.is_ipv4(),
        IpAddr::V6(own) => own.is_unspecified(),
    };
    own.port() == at.port() && (is_any || own_ip == at.ip().to_canonical())
}

/// Parses a socket address such as `0100007F:1F90`. The address consists of 32-bit words in the
/// machine's byte order, and the port is hexadecimal.
fn socket(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| {
        let digits = address.get(at * 8..at * 8 + 8)?;
        Some(u32::from_str_radix(digits, 16).ok()?.to_ne_bytes())
    };
    let address = match address.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
        32 => {
            let words = [word(0)?, word(1)?, word(2)?, word(3)?];
            let bytes: [u8; 16] = words.concat().try_into().ok()?;
            IpAddr::V6(Ipv6Addr::from(bytes))
        }
        _ => return None,
    };
    Some(SocketAddr::new(address, port))
}

/// Parses a list of sockets in the format of TCP and UDP and in that of SCTP, for the fuzzer.
pub(super) fn read(text: &str) {
    let at = SocketAddr::from(([127, 0, 0, 1], 80));
    let lines = || text.lines().map(|line| Ok(line.to_owned()));
    drop(takes(&mut lines(), at, Some(LISTEN)));
    drop(takes(&mut lines(), at, None));
    drop(takes_sctp(&mut lines(), at));
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};

    use proptest::prelude::*;

    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    /// The texts are from /proc/net/tcp and /proc/net/tcp6 on a little-endian machine.
    #[test]
    #[cfg(target_endian = "little")]
    fn socket_addresses_are_parsed_in_the_machines_byte_order() {
        assert_eq!(socket("0100007F:1F90"), Some(at("127.0.0.1:8080")));
        assert_eq!(
            socket("B80D0120000000000000000001000000:0050"),
            Some(at("[2001:db8::1]:80"))
        );
        assert_eq!(socket("0100007F"), None);
    }

    #[test]
    fn only_listening_sockets_are_found() {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.connect(udp.local_addr().unwrap()).unwrap();
        let tcp_at = tcp.local_addr().unwrap();
        assert!(listens(tcp_at, Protocol::Tcp).unwrap());
        assert!(listens(udp.local_addr().unwrap(), Protocol::Udp).unwrap());
        assert!(!listens(client.local_addr().unwrap(), Protocol::Udp).unwrap());
        let elsewhere = SocketAddr::new([127, 0, 0, 2].into(), tcp_at.port());
        assert!(!listens(elsewhere, Protocol::Tcp).unwrap());
        drop(tcp);
        assert!(!listens(tcp_at, Protocol::Tcp).unwrap());
    }

    #[test]
    fn an_sctp_socket_listens_on_all_its_addresses() {
        let line = " e1 s1 2 10 28 36422 0 26412 10.0.0.1 10.0.0.2 ".to_owned();
        let has = |text| takes_sctp(&mut std::iter::once(Ok(line.clone())), at(text)).unwrap();
        assert!(has("10.0.0.2:36422"));
        assert!(!has("10.0.0.3:36422"));
        assert!(!has("10.0.0.2:36423"));
    }

    proptest! {
        #[test]
        fn arbitrary_socket_lists_never_panic_the_parser(text in ".{0,80}") {
            let _ = socket(&text);
            let line = || std::iter::once(Ok(text.clone()));
            let _ = takes(&mut line(), at("10.0.0.1:80"), None);
            let _ = takes_sctp(&mut line(), at("10.0.0.1:80"));
        }
    }
}
