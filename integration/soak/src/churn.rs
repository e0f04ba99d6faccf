//! Adds, changes and removes Services, and restarts a pod. The number of Services of each kind is
//! constant. The kernel therefore holds the same number of entries at the end of each round.

use anyhow::Result;
use lab::{Place, Transport};
use scenarios::{ApiServer, Cluster, Service, tcp, udp};

const NEAR: &str = "10.244.1.10 fd44:1::10";
const FAR: &str = "10.244.2.10 fd44:2::10";

/// Number of Services among which each round replaces some and changes others.
const POPULATION: u32 = 40;
/// Number of Services that each round replaces.
const REPLACED: u32 = 3;
/// Number of Services whose endpoints each round changes.
const CHANGED: u32 = 5;
/// Number of rounds between two restarts of the pod.
const POD_LIVES: u32 = 4;
/// Number of addresses that the successive Services of a slot use in turn.
const ADDRESSES: u32 = 3;
/// Number of addresses that the pod uses in turn, one after each restart.
const POD_ADDRESSES: u32 = 60;

/// Address and TCP port of the Service `steady`, which always has an endpoint. Clients send
/// requests to it continuously, over TCP and UDP.
/// 80. Clients send requests to it continuously.
pub(crate) const STEADY: &str = "10.96.255.1:80";
/// IPv6 address and TCP port of the Service `steady`, which always has an endpoint.
pub(crate) const STEADY_V6: &str = "[fd96::ff01]:80";
/// Address and TCP port of the Service `sticky`, which has session affinity.
pub(crate) const STICKY: &str = "10.96.255.2:80";

/// Changing Services of a run. A Service belongs to a numbered slot, and a new Service replaces the
/// old Service of its slot.
#[derive(Debug)]
pub(crate) struct Churn {
    /// State of each slot: the number of replacements of its Service, and the number that selects
    /// its endpoints.
    slots: Vec<(u32, u32)>,
    pod: Place,
    /// Index of the pod's present address.
    pod_number: u32,
    round: u32,
}

impl Churn {
    /// Starts the pod, and creates the changing Services and the Services that stay for the whole
    /// run.
    ///
    /// # Errors
    /// Fails if the world or the API server rejects a change.
    pub(crate) fn begin(cluster: &mut Cluster, api: &ApiServer) -> Result<Self> {
        let churn = Self {
            slots: (0..POPULATION).map(|slot| (0, slot)).collect(),
            pod: start_pod(cluster, 0)?,
            pod_number: 0,
            round: 0,
        };
        for service in staying() {
            api.apply(&service)?;
        }
        for slot in 0..POPULATION {
            api.apply(&churn.service(slot))?;
        }
        Ok(churn)
    }

    /// Runs one round of changes. Waits until the last new Service with a TCP port works.
    ///
    /// # Errors
    /// Fails if the world or the API server rejects a change, or if a Service does not work in
    /// time.
    pub(crate) fn round(&mut self, cluster: &mut Cluster, api: &ApiServer) -> Result<()> {
        self.round += 1;
        let first = self.round * (REPLACED + CHANGED);
        let turn = |number: u32| (first + number) % POPULATION;
        let mut came = None;
        for slot in (0..REPLACED).map(turn) {
            let goes = self.service(slot);
            delete(api, &goes)?;
            if let Some((generation, _)) = self.slots.get_mut(slot as usize) {
                *generation += 1;
            }
            let comes = self.service(slot);
            api.apply(&comes)?;
            if speaks_tcp(slot) {
                came = Some(address(slot, self.generation(slot)).0);
            }
        }
        for slot in (REPLACED..REPLACED + CHANGED).map(turn) {
            if let Some((_, endpoints)) = self.slots.get_mut(slot as usize) {
                *endpoints += 1;
            }
            api.apply(&self.service(slot))?;
        }
        if self.round.is_multiple_of(POD_LIVES) {
            self.restart_pod(cluster, api)?;
        }
        if let Some(ip) = came {
            cluster.until_answered(&cluster.outside, &format!("{ip}:80"))?;
        }
        Ok(())
    }

    /// Restarts the pod. The old pod ends abruptly, as in a crash. The new pod gets another
    /// address, and the EndpointSlices then contain this address.
    fn restart_pod(&mut self, cluster: &mut Cluster, api: &ApiServer) -> Result<()> {
        cluster.world.remove(&self.pod);
        self.pod_number = (self.pod_number + 1) % POD_ADDRESSES;
        self.pod = start_pod(cluster, self.pod_number)?;
        for slot in 0..POPULATION {
            if self.endpoints(slot) % 4 == 3 {
                api.apply(&self.service(slot))?;
            }
        }
        Ok(())
    }

    /// Deletes all Services, including those that stayed for the whole run.
    ///
    /// # Errors
    /// Fails if the API server rejects a change.
    pub(crate) fn end(self, api: &ApiServer) -> Result<()> {
        for slot in 0..POPULATION {
            delete(api, &self.service(slot))?;
        }
        for service in staying() {
            delete(api, &service)?;
        }
        Ok(())
    }

    /// Returns an address and a transport protocol that a changing Service has at some time during
    /// the run.
    pub(crate) fn somewhere(number: u32) -> (String, Transport) {
        let slot = number % POPULATION;
        // Computes an address that the slot's Service has in some generation. At other times, this
        // address belongs to no Service.
        let (ip, _) = address(slot, number / POPULATION);
        if speaks_tcp(slot) {
            (format!("{ip}:80"), Transport::Tcp)
        } else {
            (format!("{ip}:53"), Transport::Udp)
        }
    }

    fn generation(&self, slot: u32) -> u32 {
        self.slots.get(slot as usize).map_or(0, |slot| slot.0)
    }

    fn endpoints(&self, slot: u32) -> u32 {
        self.slots.get(slot as usize).map_or(0, |slot| slot.1)
    }

    /// Returns the present Service of a slot. The slot determines the Service's kind.
    fn service(&self, slot: u32) -> Service {
        let generation = self.generation(slot);
        let (ip, ip6) = address(slot, generation);
        let service = Service::new(&format!("s{slot}-{generation}"), &format!("{ip} {ip6}"));
        let pod = pod_addresses(self.pod_number);
        let service = service.endpoints(&match self.endpoints(slot) % 4 {
            0 => NEAR.to_owned(),
            1 => FAR.to_owned(),
            2 => format!("{NEAR} {FAR}"),
            _ => format!("{pod} {FAR}"),
        });
        let http = tcp(80, 8080).named("http");
        match slot % 4 {
            0 => service.port(http).port(udp(53, 8080).named("dns")),
            // Ports stay below 65,536, because the population is small.
            1 => service.port(http.node_port(u16::try_from(30_000 + slot).unwrap_or(30_000))),
            2 => service.port(http).affinity(10),
            _ => service
                .port(udp(53, 8080).named("dns"))
                .external(&format!("192.0.2.{}", slot + 1)),
        }
    }
}

fn speaks_tcp(slot: u32) -> bool {
    slot % 4 != 3
}

/// Returns the Services that stay for the whole run.
fn staying() -> [Service; 2] {
    let both = format!("{NEAR} {FAR}");
    [
        Service::new("steady", "10.96.255.1 fd96::ff01")
            .port(tcp(80, 8080).named("http"))
            .port(udp(80, 8080).named("udp"))
            .endpoints(&both),
        Service::new("sticky", "10.96.255.2")
            .port(tcp(80, 8080).named("http"))
            .affinity(10_800)
            .endpoints(&both),
    ]
}

/// Returns the IPv4 address and the IPv6 address of a slot's Service in a generation. After some
/// generations, the addresses repeat, as in real clusters.
fn address(slot: u32, generation: u32) -> (String, String) {
    let (third, fourth) = (generation % ADDRESSES, slot + 1);
    (
        format!("10.96.{third}.{fourth}"),
        format!("fd96::{:x}", third * 256 + fourth),
    )
}

fn pod_addresses(number: u32) -> String {
    let last = 20 + number;
    format!("10.244.1.{last} fd44:1::{last}")
}

fn start_pod(cluster: &mut Cluster, number: u32) -> Result<Place> {
    let node = cluster.node1.clone();
    let name = format!("pod{number}");
    let pod = cluster
        .world
        .pod(&node, &name, pod_addresses(number).as_str())?;
    pod.serve_tcp(8080)?;
    pod.serve_udp(8080)?;
    Ok(pod)
}

fn delete(api: &ApiServer, service: &Service) -> Result<()> {
    api.delete_service(service.name())?;
    for family in ["ipv4", "ipv6"] {
        let slice = format!("{}-{family}", service.name());
        // Some Services have only IPv4 addresses, and therefore no EndpointSlice for IPv6.
        if let Err(error) = api.delete_slice(&slice)
            && family == "ipv4"
        {
            return Err(error);
        }
    }
    Ok(())
}
