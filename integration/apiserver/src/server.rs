//! A server's life: where it listens, what runs it, and when it stops.

use std::io;
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::cluster::Cluster;
use crate::faults::Faults;
use crate::options::Options;
use crate::request::Request;
use crate::service::Service;

/// A server that listens. It stops, and cuts its connections, when it is dropped; the [`Cluster`]
/// that it serves, to which it dereferences, goes on for those who hold a clone.
#[derive(Debug)]
pub struct Server {
    service: Arc<Service>,
    stop: Option<oneshot::Sender<()>>,
    running: Option<Running>,
}

#[derive(Debug)]
enum Running {
    Task(tokio::task::JoinHandle<()>),
    Thread(std::thread::JoinHandle<()>),
}

impl Server {
    /// Serves a new cluster from a task of the current runtime. The error is that of the socket.
    pub async fn start(options: Options) -> io::Result<Self> {
        Self::start_on(Cluster::new(&options), options).await
    }

    /// Serves a cluster that exists already, such as that of a server that was stopped.
    #[expect(
        clippy::unused_async,
        reason = "it needs a runtime, and says so by its type"
    )]
    pub async fn start_on(cluster: Cluster, mut options: Options) -> io::Result<Self> {
        let listener = bind(&mut options)?;
        let service = Service::new(cluster, listener.local_addr()?, &options)?;
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(
            service
                .clone()
                .accept(TcpListener::from_std(listener)?, stopped),
        );
        Ok(Self {
            service,
            stop: Some(stop),
            running: Some(Running::Task(task)),
        })
    }

    /// Serves a new cluster from a thread with its own runtime, for those who have none.
    pub fn spawn(options: Options) -> io::Result<Self> {
        Self::spawn_on(Cluster::new(&options), options)
    }

    /// Starts a server for an existing cluster.
    pub fn spawn_on(cluster: Cluster, mut options: Options) -> io::Result<Self> {
        let listener = bind(&mut options)?;
        let service = Service::new(cluster, listener.local_addr()?, &options)?;
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let listener = {
            let _guard = runtime.enter();
            TcpListener::from_std(listener)?
        };
        let accept = service.clone().accept(listener, stopped);
        let thread = std::thread::Builder::new().name("apiserver".into());
        let thread = thread.spawn(move || runtime.block_on(accept))?;
        Ok(Self {
            service,
            stop: Some(stop),
            running: Some(Running::Thread(thread)),
        })
    }

    /// The address that is listened on.
    pub fn address(&self) -> SocketAddr {
        self.service.address
    }

    /// The cluster that is served.
    pub fn cluster(&self) -> &Cluster {
        &self.service.cluster
    }

    /// The requests that have arrived, in order, with what was sent for each so far.
    pub fn requests(&self) -> Vec<Request> {
        self.service.log.requests()
    }

    /// Returns the faults of this server; it has none at first.
    pub fn faults(&self) -> &Faults {
        &self.service.faults
    }

    /// Accepts exactly these bearer tokens from now on: requests with another are answered with
    /// 401. Responses under way go on.
    pub fn set_tokens(&self, tokens: &[&str]) {
        let tokens = tokens.iter().map(|&token| token.to_owned()).collect();
        *self.service.tokens() = Some(tokens);
    }

    /// Returns the number of accepted connections; with TLS, of finished handshakes.
    pub fn connections(&self) -> usize {
        self.service.connections.load(Ordering::Relaxed)
    }

    /// `http://` or `https://`, and the address.
    pub fn url(&self) -> String {
        let scheme = match self.service.tls {
            Some(_) => "https",
            None => "http",
        };
        format!("{scheme}://{}", self.address())
    }

    /// A kubeconfig for this server, in YAML. It names no authority and no credentials.
    pub fn kubeconfig(&self) -> String {
        format!(
            "apiVersion: v1\nkind: Config\nclusters:\n- name: fixture\n  cluster:\n    server: {}\ncontexts:\n\
             - name: fixture\n  context:\n    cluster: fixture\n    user: fixture\ncurrent-context: fixture\nusers:\n\
             - name: fixture\n  user: {{}}\n",
            self.url(),
        )
    }

    /// Stops, and returns when nothing listens any more and all connections are cut. (When the
    /// server is only dropped, one that was started with [`Server::start`] does this as soon as its
    /// runtime gets to it.)
    pub async fn stop(mut self) {
        self.stop.take();
        if let Some(Running::Task(task)) = &mut self.running {
            // An error would be a panic, which has been reported where it happened.
            _ = task.await;
        }
    }
}

impl Deref for Server {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        self.cluster()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(Running::Thread(thread)) = self.running.take() {
            _ = thread.join();
        }
    }
}

fn bind(options: &mut Options) -> io::Result<std::net::TcpListener> {
    let listener = match options.listener.take() {
        Some(listener) => listener,
        None => std::net::TcpListener::bind(options.address)?,
    };
    listener.set_nonblocking(true)?;
    Ok(listener)
}
