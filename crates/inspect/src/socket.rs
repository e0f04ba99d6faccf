//! The local socket of the API, and its access control.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use http_server::{AcceptedConnection, Client, Listen, Respond};
use local_socket::{OwnFile, SocketLocations};
use rustix::process::geteuid;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tracing::{debug, info, warn};

/// Interval between attempts to bind the local socket while another process has it.
const RETRY_PERIOD: Duration = if cfg!(test) {
    Duration::from_millis(50)
} else {
    Duration::from_secs(5)
};

/// Task that serves the local socket. Dropping the value stops the task.
#[derive(Debug)]
pub struct Server(JoinHandle<()>);

impl Drop for Server {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Starts to serve the local socket. If another process has bound it, logs a warning that names
/// this process, and retries in the background.
pub(crate) fn start(places: SocketLocations, respond: impl Respond) -> Server {
    let first = listen(&places);
    if let Err(error) = &first {
        warn!(
            "cannot listen on the local socket of kube-proxy status: {error}; serving continues, \
             and it is retried"
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

async fn until_bound(places: &SocketLocations) -> Local {
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

fn listen(places: &SocketLocations) -> io::Result<Local> {
    let local_socket::BoundSocket { listener, file } = places.bind()?;
    listener.set_nonblocking(true)?;
    Ok(Local {
        listener: UnixListener::from_std(listener)?,
        own: geteuid().as_raw(),
        _file: file,
    })
}

/// A local socket on which the server listens.
#[derive(Debug)]
struct Local {
    /// File of the socket, or `None` for an abstract name. The field is dropped before `listener`,
    /// so that another daemon never finds a file without a listener.
    _file: Option<OwnFile>,
    listener: UnixListener,
    /// User ID of the daemon.
    own: u32,
}

impl Listen for Local {
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<AcceptedConnection<UnixStream>> {
        let (stream, _) = self.listener.accept().await?;
        // The kernel recorded the user when the client connected. Without such a record, the server
        // rejects the client.
        let user = stream.peer_cred().map(|credentials| credentials.uid());
        Ok(accepted(stream, user.ok(), self.own))
    }
}

fn accepted(stream: UnixStream, user: Option<u32>, own: u32) -> AcceptedConnection<UnixStream> {
    let refusal = refusal(user, own);
    AcceptedConnection {
        stream,
        client: match (user, &refusal) {
            (Some(user), None) => Client::Local(user),
            _ => Client::Refused,
        },
        refusal,
    }
}

/// Returns the reason why the server rejects a client, or `None` if it accepts the client. `user`
/// is the client's user ID, and `own` the daemon's.
fn refusal(user: Option<u32>, own: u32) -> Option<String> {
    match user {
        Some(user) if user == 0 || user == own => None,
        Some(user) => Some(format!(
            "user {user} may not ask: only root, and the user that kube-proxy runs as ({own}), \
             may. Ask as root (sudo)"
        )),
        None => Some("it is unknown who asks".to_owned()),
    }
}

#[cfg(test)]
mod tests;
