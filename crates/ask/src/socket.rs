//! Asking the daemon by its local socket.

use std::io::{self, Read as _, Write as _};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::Failure;
use local_socket::Places;

/// How long an answer may take to begin, and to go on.
const PATIENCE: Duration = Duration::from_secs(15);
/// More than any answer has: a page of 5,000 Services is a tenth of it.
const ANSWER_BYTES_MAX: u64 = 256 << 20;

/// The object at a path.
///
/// # Errors
///
/// Nobody listens, the daemon says why not, or what it says is no such object.
pub(super) fn get<T: DeserializeOwned>(path: &str) -> Result<T, Failure> {
    let unreadable = |what: &dyn std::fmt::Display| {
        Failure::Unreadable(format!("kube-proxy's answer cannot be read: {what}"))
    };
    let answer = ask(&Places::default(), path, PATIENCE)?;
    let (code, body) = split(&answer).ok_or_else(|| unreadable(&"it is no HTTP"))?;
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

fn ask(places: &Places, path: &str, patience: Duration) -> Result<Vec<u8>, Failure> {
    let failed = |error: io::Error| {
        Failure::Unreadable(match error.kind() {
            // It was taken by the kernel, and nobody reads it.
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => format!(
                "the daemon is there and has not answered within {} s: it is stopped, hangs or gets no CPU. `ps -C kube-proxy -o \
                 pid,stat,wchan,args` shows it: T is stopped (`kill -CONT PID`), D waits for the kernel; a restart of the pod \
                 loses nothing that is programmed",
                patience.as_secs()
            ),
            _ => format!("cannot ask by the local socket: {error}"),
        })
    };
    let connected = places.connect().map_err(failed)?;
    let mut stream = connected.ok_or(Failure::NoDaemon)?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    let exchange = || {
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        stream.write_all(request.as_bytes())?;
        let mut answer = Vec::new();
        stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
        Ok(answer)
    };
    exchange().map_err(failed)
}

/// Status and body.
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
    fn an_answer_has_a_status_and_a_body() {
        let answer = b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}";
        assert_eq!(split(answer), Some((404, &b"{}"[..])));
        for wrong in ["", "HTTP/1.1", "HTTP/1.1 200 OK\r\n", "x\r\n\r\n{}"] {
            assert_eq!(split(wrong.as_bytes()), None, "{wrong}");
        }
    }

    /// As one that is stopped: the kernel takes in connections and questions for it.
    #[test]
    fn a_daemon_that_does_not_answer_is_told_as_such() {
        let folder = Path::new("/run/kube-proxy/test-nobody");
        let name = format!("kube-proxy-ipvs/silent-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let _silent = UnixListener::bind_addr(&address).unwrap();
        let places = Places::of(folder, &name);
        let failure = ask(&places, "/", Duration::from_millis(50)).unwrap_err();
        let told = failure.to_string();
        assert!(told.contains("has not answered within"), "{told}");
        assert!(told.contains("kill -CONT PID"), "{told}");
    }

    #[test]
    fn without_a_daemon_that_is_said() {
        let nobody = Places::of(
            Path::new("/run/kube-proxy/test-nobody"),
            "kube-proxy-ipvs/nobody",
        );
        let failure = ask(&nobody, "/", PATIENCE).unwrap_err();
        assert!(matches!(failure, Failure::NoDaemon), "{failure}");
    }
}
