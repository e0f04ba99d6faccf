//! The local socket: where it is, and who may ask there.

use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net as std_unix;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::geteuid;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tracing::{debug, info, warn};

use crate::http_server::{self, Accepted, Client, Listen, Respond};

/// The socket's abstract name.
pub(crate) const NAME: &str = "kube-proxy-ipvs/inspect";
/// How often a name that somebody else has is tried again: it is free once that ends.
const RETRY_PERIOD: Duration = if cfg!(test) {
    Duration::from_millis(50)
} else {
    Duration::from_secs(5)
};

/// The address of an abstract name in this network namespace.
///
/// # Errors
///
/// The name is too long for one.
pub(crate) fn address(name: &str) -> io::Result<std_unix::SocketAddr> {
    std_unix::SocketAddr::from_abstract_name(name)
}

/// Answers on the socket until it is dropped.
#[derive(Debug)]
pub(crate) struct Server(JoinHandle<()>);

impl Drop for Server {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Starts to answer on the socket. Where another process has the name, a warning says so, once, and
/// it is tried again: nothing else waits for it.
pub(crate) fn start(name: &'static str, respond: impl Respond) -> Server {
    let first = listen(name);
    if let Err(error) = &first {
        warn!(
            "cannot listen on the local socket @{name}, by which kube-proxy status and others ask: {error}. Another kube-proxy \
             serves in this network namespace (ss -xlp | grep {name}); all else goes on, and it is tried again"
        );
    }
    Server(tokio::spawn(async move {
        let listener = match first {
            Ok(listener) => listener,
            Err(_) => until_bound(name).await,
        };
        let what = "the local socket";
        http_server::serve(listener, what, Arc::new(respond)).await;
    }))
}

async fn until_bound(name: &str) -> Local {
    loop {
        sleep(RETRY_PERIOD).await;
        match listen(name) {
            Ok(listener) => {
                info!("the local socket @{name} is served now");
                return listener;
            }
            Err(error) => debug!(%error, "still cannot listen on the local socket @{name}"),
        }
    }
}

fn listen(name: &str) -> io::Result<Local> {
    let listener = std_unix::UnixListener::bind_addr(&address(name)?)?;
    listener.set_nonblocking(true)?;
    Ok(Local {
        listener: UnixListener::from_std(listener)?,
        own: geteuid().as_raw(),
    })
}

/// The socket.
#[derive(Debug)]
struct Local {
    listener: UnixListener,
    /// The user that the daemon runs as.
    own: u32,
}

impl Listen for Local {
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<Accepted<UnixStream>> {
        let (stream, _) = self.listener.accept().await?;
        // As they were when it connected, by the kernel's word; who is gone already may not ask.
        let user = stream.peer_cred().map(|credentials| credentials.uid());
        Ok(accepted(stream, user.ok(), self.own))
    }
}

fn accepted(stream: UnixStream, user: Option<u32>, own: u32) -> Accepted<UnixStream> {
    let refusal = refusal(user, own);
    Accepted {
        stream,
        client: match (user, &refusal) {
            (Some(user), None) => Client::Local(user),
            _ => Client::Refused,
        },
        refusal,
    }
}

/// Why a user may not ask; `None` if they may.
fn refusal(user: Option<u32>, own: u32) -> Option<String> {
    match user {
        Some(user) if user == 0 || user == own => None,
        Some(user) => Some(format!(
            "user {user} may not ask: only root, and the user that kube-proxy runs as ({own}), may. Ask as root (sudo)"
        )),
        None => Some("it cannot be told who asks".to_owned()),
    }
}

#[cfg(test)]
mod tests;
