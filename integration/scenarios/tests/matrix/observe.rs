//! Observes requests: the server that replies, and the client address that the endpoint sees.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use lab::{Failure, Place, Transport};
use scenarios::{Cluster, SOON};

/// Timeout of a request that must get no reply. All nodes and pods are on one machine, where
/// replies take milliseconds.
const BRIEFLY: Duration = Duration::from_millis(300);

/// Sends two requests, one for each endpoint of the Service. `expected` selects the timeout.
/// Returns the result in the document's terms, such as `both kept`, `local masq`, `remote vip` or
/// `timeout`.
///
/// Repeats an unexpected result once. For the node's own packets, only a changed source port
/// reveals masquerading. The new random port may by chance equal the original port.
pub(crate) fn see(
    c: &Cluster,
    from: &Place,
    transport: Transport,
    to: SocketAddr,
    expected: &str,
) -> String {
    let look = || look(c, from, transport, to, expected);
    Some(look())
        .filter(|seen| seen == expected)
        .unwrap_or_else(look)
}

/// Sends requests until each expected endpoint has replied, up to a limit of requests, because the
/// mode chooses endpoints at random.
pub(crate) fn see_by_chance(
    c: &Cluster,
    from: &Place,
    transport: Transport,
    to: SocketAddr,
    expected: &str,
) -> String {
    let (asked, wanted) = match expected.strip_prefix("both ") {
        // With a probability of 2⁻³⁰, all 31 requests go to the same one of two endpoints.
        Some(source) => (
            31,
            ["local", "remote"]
                .map(|who| format!("{who} {source}"))
                .into(),
        ),
        None => (2, BTreeSet::from([expected.to_owned()])),
    };
    let (mut seen, mut odd) = (BTreeSet::new(), Vec::new());
    for turn in 1..=asked {
        let word = match ask(c, from, transport, to, expected) {
            Ok((who, source)) => format!("{who} {source}"),
            Err(failure) => failure,
        };
        if wanted.contains(&word) {
            seen.insert(word);
        } else {
            odd.push(word);
        }
        // Accepts one unexpected result, because a random port may once equal the original port,
        // but hardly twice.
        if seen == wanted && odd.len() < 2 && (wanted.len() > 1 || turn == asked) {
            return expected.to_owned();
        }
    }
    seen.extend(odd);
    Vec::from_iter(seen).join(", ")
}

fn look(c: &Cluster, from: &Place, transport: Transport, to: SocketAddr, expected: &str) -> String {
    // Two requests reach both endpoints, because round robin takes turns and the Service has at
    // most two endpoints.
    let [one, other] = [(); 2].map(|()| ask(c, from, transport, to, expected));
    match (one, other) {
        (Ok((one, source)), Ok((other, same))) if one != other && source == same => {
            format!("both {source}")
        }
        (one, other) => {
            let word = |seen| match seen {
                Ok((who, source)) => format!("{who} {source}"),
                Err(failure) => failure,
            };
            let words = BTreeSet::from([word(one), word(other)]);
            Vec::from_iter(words).join(", ")
        }
    }
}

/// Sends one request. Returns the endpoint that replied and the kind of client address that it saw,
/// or the failure.
fn ask(
    c: &Cluster,
    from: &Place,
    transport: Transport,
    to: SocketAddr,
    expected: &str,
) -> Result<(&'static str, String), String> {
    let patience = if expected.contains("timeout") {
        BRIEFLY
    } else {
        SOON
    };
    let answered = (|| {
        let mut connection = from
            .dial(transport, to)
            .from_port(unused_port())
            .timeout(patience)
            .reset_on_close()
            .open()?;
        let source = connection.source().map_err(Failure::from)?;
        Ok((connection.ask()?, source))
    })();
    let (answer, source) = answered.map_err(|failure| {
        let word = match failure {
            Failure::Refused => "refused",
            Failure::Unreachable => "unreachable",
            Failure::TimedOut => "timeout",
            Failure::Reset => "reset",
            // EPIPE: the peer reset the connection before the write.
            Failure::Other(text) if text.contains("os error 32)") => "reset",
            // EPERM: a rule or IPVS dropped the packet on output.
            Failure::Other(text) if text.contains("os error 1)") => "not sent",
            other => return other.to_string(),
        };
        word.to_owned()
    })?;
    let has = |place: &Place, ip| place.addresses().iter().any(|net| net.addr() == ip);
    let saw = answer.seen_source;
    let source = if saw == source {
        let own = has(from, saw.ip());
        if own { "kept" } else { "vip" }.to_owned()
    } else if has(&c.node1, saw.ip())
        || ["10.244.1.1", "fd44:1::1"].contains(&&*saw.ip().to_string())
    {
        "masq".to_owned()
    } else {
        format!("seen as {saw}")
    };
    match &*answer.who {
        "near" => Ok(("local", source)),
        "far" => Ok(("remote", source)),
        other => Err(format!("answered by {other}")),
    }
}

/// Returns a source port that no test client has used. The packets of a reused port might match the
/// previous connection's conntrack entry.
fn unused_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(10_000);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
