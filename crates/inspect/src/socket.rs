//! The local socket: where it is, and who may ask there.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use http_server::{Accepted, Client, Listen, Respond};
use local_socket::{OwnFile, Places};
use rustix::process::geteuid;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tracing::{debug, info, warn};

/// How often a socket that another process holds is tried again: it is free once that ends.
const RETRY_PERIOD: Duration = if cfg!(test) {
    Duration::from_millis(50)
} else {
    Duration::from_secs(5)
};

/// Answers on the socket until it is dropped.
#[derive(Debug)]
pub struct Server(JoinHandle<()>);

impl Drop for Server {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Starts to answer on the socket. Where another process holds it, a warning names that process,
/// once, and it is tried again: nothing else waits for it.
pub(crate) fn start(places: Places, respond: impl Respond) -> Server {
    let first = listen(&places);
    if let Err(error) = &first {
        warn!(
            "cannot listen on the local socket, by which kube-proxy status and others ask: {error}; all else goes on, and it is \
             tried again"
        );
    }
    Server(tokio::spawn(async move {
        let listener = match first {
            Ok(listener) => listener,
            Err(_) => until_bound(&places).await,
        };
        let what = "the local socket";
        http_server::serve(listener, what, Arc::new(respond)).await;
    }))
}

async fn until_bound(places: &Places) -> Local {
    loop {
        sleep(RETRY_PERIOD).await;
        match listen(places) {
            Ok(listener) => {
                info!("the local socket is served now");
                return listener;
            }
            Err(error) => debug!(%error, "still cannot listen on the local socket"),
        }
    }
}

fn listen(places: &Places) -> io::Result<Local> {
    let local_socket::Bound { listener, file } = places.bind()?;
    listener.set_nonblocking(true)?;
    Ok(Local {
        listener: UnixListener::from_std(listener)?,
        own: geteuid().as_raw(),
        _file: file,
    })
}

/// The socket.
#[derive(Debug)]
struct Local {
    /// Before the listener, which drops later: so another daemon finds no file that nobody listens
    /// at.
    _file: Option<OwnFile>,
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
