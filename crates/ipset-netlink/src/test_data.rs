//! Reads the files of `tests/data`, for unit tests.

use crate::set::Set;

const REQUESTS: &str = include_str!("../tests/data/requests.hex");
const REPLIES: &str = include_str!("../tests/data/replies.hex");

/// A message: its ipset command number, and its payload after the `nlmsghdr`.
pub(crate) type Message = (u16, Vec<u8>);

/// Returns the messages that `ipset restore` sent.
pub(crate) fn requests() -> Vec<Message> {
    REQUESTS
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(message)
        .collect()
}

/// Returns the lines of the script for `ipset restore` that begin with `begin`, without this
/// prefix.
pub(crate) fn script(begin: &str) -> Vec<&'static str> {
    REQUESTS
        .lines()
        .filter_map(|line| line.strip_prefix("# ")?.strip_prefix(begin))
        .collect()
}

/// Returns the kernel's reply to `request`, which is an `ipset` command such as `ipset list`.
pub(crate) fn reply(request: &str) -> Vec<Message> {
    let heading = format!("# {request}");
    let lines = REPLIES.lines().skip_while(|line| **line != heading).skip(1);
    lines
        .take_while(|line| !line.starts_with('#'))
        .map(message)
        .collect()
}

/// Returns the decoded reply to `request`, which must be an `ipset list` command.
pub(crate) fn sets(request: &str) -> Vec<Set> {
    Set::decode_list(reply(request).iter().map(|(_, payload)| payload.as_slice())).unwrap()
}

fn message(line: &str) -> Message {
    let (command, hex) = line.split_once(' ').unwrap();
    let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    (
        command.parse().unwrap(),
        (0..hex.len()).step_by(2).map(byte).collect(),
    )
}

/// Returns a copy of a message in which line numbers and padding are zero. `ipset` leaves both
/// undefined, so tests must not compare them.
pub(crate) fn comparable(payload: &[u8]) -> Vec<u8> {
    let mut comparable = payload.to_vec();
    blank(&mut comparable[4..]);
    comparable
}

fn blank(mut attributes: &mut [u8]) {
    while let [l0, l1, k0, k1, ..] = *attributes {
        let (length, kind) = (
            usize::from(u16::from_ne_bytes([l0, l1])),
            u16::from_ne_bytes([k0, k1]),
        );
        let (attribute, rest) = attributes.split_at_mut(length.next_multiple_of(4));
        let (content, padding) = attribute[4..].split_at_mut(length - 4);
        padding.fill(0);
        match kind & 0x3fff {
            9 => content.fill(0),
            _ if kind & 0x8000 != 0 => blank(content),
            _ => {}
        }
        attributes = rest;
    }
}
