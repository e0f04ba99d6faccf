//! Reads the files of `tests/data`, for unit tests.

const REPLIES: &str = include_str!("../tests/data/replies.hex");
const REQUESTS: &str = include_str!("../tests/data/requests.hex");

/// Returns the payloads of the kernel's flow messages, without their `nlmsghdr`.
pub(crate) fn replies() -> Vec<Vec<u8>> {
    messages(REPLIES)
}

/// Returns the payloads of the delete requests that the `conntrack` tool sent for the flows of
/// [`replies`], in the same order.
pub(crate) fn requests() -> Vec<Vec<u8>> {
    messages(REQUESTS)
}

fn messages(text: &str) -> Vec<Vec<u8>> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|hex| {
            let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
            (0..hex.len()).step_by(2).map(byte).collect()
        })
        .collect()
}
