//! TCP NodePorts that a relay serves on localhost (KEP-6032).

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hashbrown::HashMap;
use proxy::{IpFamily, ServicePortName};
use relay::{PortBackends, Relay, Transport};

use crate::plan::LocalhostPort;

/// Handle to a relay and to the NodePorts that the relay serves on localhost. Clones share the
/// relay and its ports.
#[derive(Debug, Clone)]
pub struct Localhost {
    relay: Relay,
    ports: LocalhostPorts,
}

/// Read-only view of the NodePorts that a relay serves on localhost. Holding the view does not keep
/// the relay running.
#[derive(Debug, Clone, Default)]
pub struct LocalhostPorts(Arc<Mutex<HashMap<SocketAddr, Port>>>);

/// A NodePort at which the relay listens on localhost.
#[derive(Debug, Clone)]
struct Port {
    /// Number that identifies the port in the relay.
    number: u64,
    name: Option<ServicePortName>,
    serving: Arc<PortBackends>,
}

impl Localhost {
    /// Creates a handle to a relay. The handle has no open ports yet.
    pub fn new(relay: Relay) -> Self {
        let ports = LocalhostPorts::default();
        Self { relay, ports }
    }

    /// Opens the listening port of a NodePort, updates its endpoints, or closes it.
    ///
    /// # Errors
    ///
    /// Fails if the port cannot be opened or the relay has ended.
    pub(crate) fn listen(&self, family: IpFamily, port: &LocalhostPort) -> Result<(), String> {
        let at = SocketAddr::new(family.localhost(), port.number);
        let mut ports = self.ports.lock();
        let number = ports.get(&at).map(|open| open.number);
        let Some(serving) = port.serving.clone() else {
            if let Some(number) = number {
                let closed = self.relay.close(number);
                closed.map_err(|error| error.to_string())?;
                ports.remove(&at);
            }
            return Ok(());
        };
        let number = if let Some(number) = number {
            let updated = self.relay.update(number, Arc::clone(&serving));
            updated.map_err(|error| error.to_string())?;
            number
        } else {
            let name = port.name.as_ref().map(ToString::to_string);
            let name = name.unwrap_or_default().into();
            let serving = Arc::clone(&serving);
            let opened = self.relay.open(Transport::Tcp, at, &name, serving);
            opened.map_err(|error| error.to_string())?.number
        };
        let name = port.name.clone();
        let port = Port {
            number,
            name,
            serving,
        };
        ports.insert(at, port);
        Ok(())
    }

    /// Returns a view of the open NodePorts, which always shows their current state.
    pub fn ports(&self) -> LocalhostPorts {
        self.ports.clone()
    }

    /// Returns the relay that serves the ports.
    pub fn relay(&self) -> &Relay {
        &self.relay
    }
}

impl LocalhostPorts {
    /// Returns the Service port that is served at a NodePort on localhost, and its endpoints.
    /// Returns `None` if the NodePort is not open.
    pub fn serving(&self, at: SocketAddr) -> Option<(ServicePortName, Arc<PortBackends>)> {
        let ports = self.lock();
        let port = ports.get(&at)?;
        Some((port.name.clone()?, Arc::clone(&port.serving)))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SocketAddr, Port>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
