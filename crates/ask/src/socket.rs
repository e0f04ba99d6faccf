//! Sends requests to the daemon through its local socket.

use std::io::{self, Read as _, Write as _};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::Failure;
use local_socket::SocketLocations;

/// Time after which the command prints that it still waits for the daemon's response.
const NOTICE_AFTER: Duration = Duration::from_secs(3);
/// Maximum size of a response, in bytes. A page of 5,000 Services takes a tenth of this size.
const ANSWER_BYTES_MAX: u64 = 256 << 20;

/// Requests the API object at a path, and parses it. `timeout` is the longest time without data
/// from the daemon.
///
/// # Errors
///
/// Fails if no daemon listens, if the daemon returns an error, or if the response cannot be parsed
/// as a `T`.
pub(super) fn get<T: DeserializeOwned>(path: &str, timeout: Duration) -> Result<T, Failure> {
    let unreadable = |what: &dyn std::fmt::Display| {
        Failure::Unreadable(format!(
            "the daemon's answer cannot be read: {what}; if the daemon has another version than this \
             program, run the daemon's own (kubectl -n kube-system exec POD -- kube-proxy ...)"
        ))
    };
    let answer = ask(&SocketLocations::default(), path, timeout)?;
    let (code, body) = split(&answer).ok_or_else(|| unreadable(&"it is not HTTP"))?;
    if code == 200 {
        return serde_json::from_slice(body).map_err(|error| unreadable(&error));
    }
    let why = serde_json::from_slice(body).ok();
    let why = why.and_then(|object: Value| Some(object.get("error")?.as_str()?.to_owned()));
    let why = why.unwrap_or_else(|| String::from_utf8_lossy(body).trim().to_owned());
    Err(if code == 404 {
        Failure::NotFound(why)
    } else {
        Failure::Unreadable(format!("kube-proxy answers {code}: {why}"))
    })
}

fn ask(places: &SocketLocations, path: &str, patience: Duration) -> Result<Vec<u8>, Failure> {
    let failed = |error: io::Error| {
        Failure::Unreadable(match error.kind() {
            // The kernel accepted the connection, but the daemon has not read the request.
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => format!(
                "the daemon has not answered within {patience:?} (--timeout): it is stopped, hangs or gets no CPU. `ps -C kube-proxy \
                 -o pid,stat,wchan,args` shows it: T is stopped (`kill -CONT PID`), D waits for the kernel; a restart of the pod \
                 loses nothing that is programmed"
            ),
            _ => format!("cannot ask by the local socket: {error}"),
        })
    };
    let connected = places.connect().map_err(failed)?;
    let mut stream = connected.ok_or(Failure::NoDaemon)?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    let exchange = || {
        // Uses at least 1 ms, because a socket timeout of 0 means no timeout.
        let patience = patience.max(Duration::from_millis(1));
        let (first, rest) = match patience.checked_sub(NOTICE_AFTER) {
            Some(rest) if !rest.is_zero() => (NOTICE_AFTER, Some(rest)),
            _ => (patience, None),
        };
        stream.set_write_timeout(Some(patience))?;
        stream.write_all(request.as_bytes())?;
        let mut answer = Vec::new();
        stream.set_read_timeout(Some(first))?;
        let begun = (&stream).take(1).read_to_end(&mut answer);
        match (begun, rest) {
            (Err(error), Some(rest)) if error.kind() == io::ErrorKind::WouldBlock => {
                view::print_error(format_args!(
                    "kube-proxy: waiting for the daemon's answer, {rest:?} more at most"
                ));
                stream.set_read_timeout(Some(rest))?;
                (&stream).take(1).read_to_end(&mut answer)?;
            }
            (begun, _) => {
                begun?;
            }
        }
        stream.set_read_timeout(Some(patience))?;
        stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
        Ok(answer)
    };
    exchange().map_err(failed)
}

/// Splits an HTTP response into its status code and its body. Returns `None` if it is not HTTP.
fn split(answer: &[u8]) -> Option<(u16, &[u8])> {
    const END: &[u8] = b"\r\n\r\n";
    let at = answer.windows(END.len()).position(|part| part == END)?;
    let (head, rest) = answer.split_at_checked(at)?;
    let head = str::from_utf8(head).ok()?;
    let code = head.split(' ').nth(1)?.parse().ok()?;
    Some((code, rest.get(END.len()..)?))
}

#[cfg(test)]
mod tests {
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::{SocketAddr, UnixListener};
    use std::path::Path;

    use super::*;

    #[test]
    fn an_http_response_is_split_into_status_code_and_body() {
        let answer = b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}";
        assert_eq!(split(answer), Some((404, &b"{}"[..])));
        for wrong in ["", "HTTP/1.1", "HTTP/1.1 200 OK\r\n", "x\r\n\r\n{}"] {
            assert_eq!(split(wrong.as_bytes()), None, "{wrong}");
        }
    }

    /// Simulates a stopped daemon: the kernel accepts connections to its socket, but the daemon
    /// reads no request.
    #[test]
    fn a_daemon_that_does_not_respond_causes_an_error_with_advice() {
        let folder = Path::new("/run/kube-proxy/test-nobody");
        let name = format!("kube-proxy-ipvs/silent-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let _silent = UnixListener::bind_addr(&address).unwrap();
        let places = SocketLocations::of(folder, &name);
        let failure = ask(&places, "/", Duration::from_millis(50)).unwrap_err();
        let message = failure.to_string();
        assert!(
            message.contains("has not answered within 50ms (--timeout)"),
            "{message}"
        );
        assert!(message.contains("kill -CONT PID"), "{message}");
    }

    #[test]
    fn a_missing_daemon_causes_the_error_no_daemon() {
        let nobody = SocketLocations::of(
            Path::new("/run/kube-proxy/test-nobody"),
            "kube-proxy-ipvs/nobody",
        );
        let failure = ask(&nobody, "/", NOTICE_AFTER).unwrap_err();
        assert!(matches!(failure, Failure::NoDaemon), "{failure}");
    }
}
