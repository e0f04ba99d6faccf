//! A server's start and stop: its listening socket, and its runtime or task.

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

/// A running API server. Dropping it stops the server and closes its connections. Dereferences to
/// its [`Cluster`], whose other clones stay usable after the server has stopped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
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
    /// Starts a server with a new cluster, as a task of the current runtime. Fails if it cannot
    /// listen on the address.
    pub async fn start(options: Options) -> io::Result<Self> {
        Self::start_on(Cluster::new(&options), options).await
    }

    /// Starts a server with an existing cluster, such as the cluster of a stopped server.
    #[expect(
        clippy::unused_async,
        reason = "it needs a runtime, and says so by its type"
    )]
    pub async fn start_on(cluster: Cluster, options: Options) -> io::Result<Self> {
        let (mut server, accept) = Self::bind(cluster, options)?;
        server.running = Some(Running::Task(tokio::spawn(accept)));
        Ok(server)
    }

    /// Starts a server with a new cluster on its own thread and runtime, for callers without a
    /// runtime.
    pub fn spawn(options: Options) -> io::Result<Self> {
        Self::spawn_on(Cluster::new(&options), options)
    }

    /// Starts a server with an existing cluster on its own thread and runtime.
    pub fn spawn_on(cluster: Cluster, options: Options) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (mut server, accept) = {
            let _guard = runtime.enter();
            Self::bind(cluster, options)?
        };
        let thread = std::thread::Builder::new().name("apiserver".into());
        let thread = thread.spawn(move || runtime.block_on(accept))?;
        server.running = Some(Running::Thread(thread));
        Ok(server)
    }

    /// Binds the listening socket, which requires a runtime. Returns the server, and a future that
    /// serves requests until the server stops.
    fn bind(
        cluster: Cluster,
        options: Options,
    ) -> io::Result<(Self, impl Future<Output = ()> + Send + 'static)> {
        let service = Service::new(cluster, &options)?;
        let listener = match options.listener {
            Some(listener) => listener,
            None => std::net::TcpListener::bind(options.address)?,
        };
        listener.set_nonblocking(true)?;
        let (stop, stopped) = oneshot::channel();
        let server = Self {
            address: listener.local_addr()?,
            service: Arc::clone(&service),
            stop: Some(stop),
            running: None,
        };
        Ok((
            server,
            service.accept(TcpListener::from_std(listener)?, stopped),
        ))
    }

    /// Returns the server's listen address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the cluster that this server serves.
    pub fn cluster(&self) -> &Cluster {
        &self.service.cluster
    }

    /// Returns all requests received so far, oldest first, with the bytes sent for each so far.
    pub fn requests(&self) -> Vec<Request> {
        self.service.log.requests()
    }

    /// Returns the handle through which a test injects faults into this server. A new server has no
    /// faults.
    pub fn faults(&self) -> &Faults {
        &self.service.faults
    }

    /// Replaces the bearer tokens that the server accepts. A request with another token gets 401.
    /// Watches that are already open continue.
    pub fn set_tokens(&self, tokens: &[&str]) {
        let tokens = tokens.iter().map(|&token| token.to_owned()).collect();
        *self.service.tokens() = Some(tokens);
    }

    /// Returns the number of connections accepted so far. With TLS, a connection counts after its
    /// handshake.
    pub fn connections(&self) -> usize {
        self.service.connections.load(Ordering::Relaxed)
    }

    /// Returns the server's URL: `http://` or `https://`, address and port.
    pub fn url(&self) -> String {
        let scheme = match self.service.tls {
            Some(_) => "https",
            None => "http",
        };
        format!("{scheme}://{}", self.address())
    }

    /// Returns a kubeconfig for this server, as YAML. It contains no CA certificate and no
    /// credentials.
    pub fn kubeconfig(&self) -> String {
        format!(
            "apiVersion: v1\nkind: Config\nclusters:\n- name: fixture\n  cluster:\n    server: {}\ncontexts:\n\
             - name: fixture\n  context:\n    cluster: fixture\n    user: fixture\ncurrent-context: fixture\nusers:\n\
             - name: fixture\n  user: {{}}\n",
            self.url(),
        )
    }

    /// Stops the server. Waits until the listening socket and all connections are closed.
    ///
    /// Dropping a server from [`Server::start`] does not wait: the server stops once its runtime
    /// runs the server's task.
    pub async fn stop(mut self) {
        self.stop.take();
        if let Some(Running::Task(task)) = &mut self.running {
            // Ignores a panic of the task, which its panic hook has already printed.
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
