//! The API server fixture on a host of the lab, and a server that returns invalid bodies.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use apiserver::{Cluster, Kind, Options, Request, Server, Tls};
use lab::{Crew, Place};
use serde_json::Value;

fn with_node1() -> Result<Cluster> {
    let objects = Cluster::new(&Options::default());
    objects.apply_yaml(
        "{apiVersion: v1, kind: Node, metadata: {name: node1}, \
         status: {addresses: [{type: InternalIP, address: 172.35.0.100}, {type: InternalIP, address: 'fd35::100'}]}}",
    )?;
    Ok(objects)
}

/// An API server fixture. Its objects survive a stop of the server.
#[derive(Debug)]
pub struct ApiServer {
    place: Place,
    address: SocketAddr,
    watch_list: bool,
    objects: Cluster,
    server: Option<Server>,
    /// TLS configuration of the server, and the only token that the server accepts. `None`: the
    /// server uses HTTP and accepts every client.
    tls: Option<(Tls, String)>,
}

impl ApiServer {
    /// Creates a stopped server with the first objects: the Node `node1` and the cluster's
    /// ServiceCIDR. `watch_list` enables streamed initial lists.
    pub(crate) fn new(place: &Place, address: SocketAddr, watch_list: bool) -> Result<Self> {
        Ok(Self {
            place: place.clone(),
            address,
            watch_list,
            objects: with_node1()?,
            server: None,
            tls: None,
        })
    }

    /// Returns a handle to the server's objects, which other threads may use.
    pub fn objects(&self) -> Cluster {
        self.objects.clone()
    }

    /// Returns the switches for the running server's faults, or `None` while the server is stopped.
    pub fn faults(&self) -> Option<&apiserver::Faults> {
        self.server.as_ref().map(Server::faults)
    }

    /// Creates or replaces all objects of a YAML text.
    pub fn apply(&self, yaml: &(impl ToString + ?Sized)) -> Result<()> {
        self.objects.apply_yaml(&yaml.to_string())?;
        Ok(())
    }

    /// Deletes a Service of the namespace default.
    pub fn delete_service(&self, name: &str) -> Result<()> {
        self.delete(Kind::Service, name)
    }

    /// Deletes an EndpointSlice of the namespace default.
    pub fn delete_slice(&self, name: &str) -> Result<()> {
        self.delete(Kind::EndpointSlice, name)
    }

    /// Deletes the Node object `name`.
    pub fn delete_node(&self, name: &str) -> Result<()> {
        self.delete_in("", Kind::Node, name)
    }

    fn delete(&self, kind: Kind, name: &str) -> Result<()> {
        self.delete_in("default", kind, name)
    }

    fn delete_in(&self, namespace: &str, kind: Kind, name: &str) -> Result<()> {
        self.objects
            .delete(kind, namespace, name)
            .map_err(|status| anyhow!("{name} cannot be deleted: {status:?}"))
    }

    /// Returns a Service of the namespace default as the server stores it, or `None` if it does not
    /// exist.
    pub fn service(&self, name: &str) -> Option<Value> {
        self.objects.get(Kind::Service, "default", name)
    }

    /// Returns the Events that clients have posted, in the order of namespace and name.
    pub fn events(&self) -> Vec<Value> {
        self.objects.events()
    }

    /// Compacts the objects' history, as etcd does for a real API server. A client that reconnects
    /// cannot resume its watch, and must list again.
    pub fn compact(&self) {
        self.objects.compact();
    }

    /// Makes the server lose its storage. From its next start on, the server has only the first
    /// objects, and its resource versions begin again at the lowest number.
    pub fn lose_all(&mut self) -> Result<()> {
        self.objects = with_node1()?;
        Ok(())
    }

    /// Makes the server use HTTPS and accept only this token, from its next start on.
    pub fn secure(&mut self, tls: Tls, token: &str) {
        self.tls = Some((tls, token.to_owned()));
    }

    /// Starts the server at its address, with its present objects.
    pub fn start(&mut self) -> Result<()> {
        let options = Options {
            listener: Some(self.listen()?),
            watch_list: self.watch_list,
            tls: self.tls.as_ref().map(|(tls, _)| tls.clone()),
            tokens: self.tls.as_ref().map(|(_, token)| vec![token.clone()]),
            ..Options::default()
        };
        self.server = Some(Server::spawn_on(self.objects.clone(), options)?);
        Ok(())
    }

    /// Sets the address on which the server listens from its next start on.
    pub fn move_to(&mut self, address: SocketAddr) {
        self.address = address;
    }

    /// Stops the server and closes all connections.
    pub fn stop(&mut self) {
        self.server = None;
    }

    /// Returns the requests that the server has received since its start, or none while it is
    /// stopped.
    pub fn requests(&self) -> Vec<Request> {
        self.server
            .as_ref()
            .map(Server::requests)
            .unwrap_or_default()
    }

    /// Returns a kubeconfig for HTTP access to this server by its IP address.
    pub fn kubeconfig(&self) -> String {
        self.kubeconfig_of(&self.address.ip().to_string())
    }

    /// Returns a kubeconfig for HTTP access to this server by the host name `host`.
    pub fn kubeconfig_of(&self, host: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: lab\n\
             clusters: [{{name: lab, cluster: {{server: 'http://{host}:{}'}}}}]\n\
             contexts: [{{name: lab, context: {{cluster: lab, user: lab}}}}]\nusers: [{{name: lab, user: {{}}}}]\n",
            self.address.port()
        )
    }

    /// Starts another server on the address of the API server, which must be stopped. The new
    /// server responds with `bodies`, one after another, as if they were JSON.
    pub fn nonsense(&self, bodies: &'static [&'static str]) -> Result<InvalidApiServer> {
        InvalidApiServer::start(self.listen()?, bodies)
    }

    fn listen(&self) -> Result<TcpListener> {
        let (place, address) = (&self.place, self.address);
        let made = place.enter(|| TcpListener::bind(address));
        made.with_context(|| format!("{} cannot listen on {address}", place.name()))
    }
}

/// An HTTP server that responds with invalid bodies until it is dropped.
#[derive(Debug)]
pub struct InvalidApiServer {
    answers: Arc<AtomicUsize>,
    _thread: Crew,
}

impl InvalidApiServer {
    fn start(listener: TcpListener, bodies: &'static [&'static str]) -> Result<Self> {
        listener.set_nonblocking(true)?;
        let answers = Arc::new(AtomicUsize::new(0));
        let answered = Arc::clone(&answers);
        let mut bodies = bodies.iter().cycle();
        let mut thread = Crew::default();
        thread.begin(move |over| {
            while !over.is_over() {
                match listener.accept() {
                    Ok((mut socket, _)) => {
                        // Ignores errors, because the client may have disconnected.
                        let _ = socket.set_nonblocking(false);
                        let _ = socket.set_read_timeout(Some(Duration::from_secs(1)));
                        let _ = socket.read(&mut [0; 8192]);
                        let _ = socket
                            .write_all(http(bodies.next().copied().unwrap_or_default()).as_bytes());
                        answered.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(_) => std::thread::sleep(Duration::from_millis(10)),
                }
            }
        });
        Ok(Self {
            answers,
            _thread: thread,
        })
    }

    /// Returns the number of responses that this server has sent.
    pub fn answers(&self) -> usize {
        self.answers.load(Ordering::Relaxed)
    }
}

fn http(body: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}
