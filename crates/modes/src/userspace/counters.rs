//! Reads the relay's counters of each Service port. They do not distinguish service addresses,
//! because the relay does not know to which address a client has connected.

use anyhow::Result;
use proxy::{IpFamily, Protocol};
use proxy_userspace::Traffic;
use relay::TrafficCounts;

use service_counters::{
    Count, CounterSample, CounterSelection, Listener, ReadCounters, RelayedPort,
};

/// A reader of the relay's counters.
pub(super) struct RelayCounters(pub(super) Traffic);

impl ReadCounters for RelayCounters {
    fn tell(
        &mut self,
        which: CounterSelection<'_>,
        take: &mut dyn FnMut(CounterSample<'_>),
    ) -> Result<()> {
        for port in self.0.read() {
            let protocol = port.name.protocol;
            let listener = Listener(port.opening);
            take(CounterSample::Port(
                &port.name,
                listener,
                count(&port.sum, protocol),
            ));
            if which == CounterSelection::Addresses {
                continue;
            }
            for (endpoint, carried) in &port.endpoints {
                let count = count(carried, protocol);
                take(CounterSample::PortEndpoint(
                    &port.name, listener, *endpoint, count,
                ));
            }
        }
        Ok(())
    }

    fn note(&self) -> Option<&'static str> {
        Some(
            "userspace mode counts the traffic of this process since it opened the port, by \
             Service port instead of address, without TCP packets",
        )
    }

    fn relayed(&self, family: IpFamily, protocol: Protocol, port: u16) -> Option<RelayedPort> {
        let (name, serving) = self.0.listening(family, protocol, port)?;
        Some(RelayedPort {
            name,
            endpoints: serving.endpoints.to_vec(),
            sources: serving.sources.as_deref().map(<[_]>::to_vec),
        })
    }
}

fn count(carried: &TrafficCounts, protocol: Protocol) -> Count {
    let of_udp = |packets| (protocol == Protocol::Udp).then_some(packets);
    Count {
        connections: carried.connections,
        packets_in: of_udp(carried.packets_in),
        packets_out: of_udp(carried.packets_out),
        bytes_in: Some(carried.bytes_in),
        bytes_out: Some(carried.bytes_out),
        active: Some(carried.active),
        ..Count::default()
    }
}
