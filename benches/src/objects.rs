//! Kubernetes objects that every measured program gets. They depend only on the size, so all runs
//! of a size have the same objects.
//!
//! - Service `i` is `bench/svc-<i>` with one TCP port 80 on 10.96.1.0 + i.
//! - Its endpoints listen on port 8080 of addresses from 10.128.1.0 on. One endpoint in 100 is on
//!   this node.
//! - An EndpointSlice has at most 100 endpoints, as with the real controller.

mod served;

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::schema::Size;

/// Namespace of all Services and EndpointSlices.
pub(crate) const NAMESPACE: &str = "bench";
/// TCP port of every Service.
pub(crate) const PORT: u16 = 80;
/// TCP port of every endpoint.
pub(crate) const TARGET_PORT: u16 = 8080;
/// Address range of the pods, for `--cluster-cidr`.
pub(crate) const CLUSTER_CIDR: &str = "10.128.0.0/9";

const FIRST_SERVICE: u32 = u32::from_be_bytes([10, 96, 1, 0]);
const FIRST_ENDPOINT: u32 = u32::from_be_bytes([10, 128, 1, 0]);
/// First address of endpoints that replace others.
const FIRST_OTHER: u32 = u32::from_be_bytes([10, 192, 0, 0]);
/// Number of nodes over which the endpoints are distributed. The measured node is one of them.
const NODES: u32 = 100;
/// Maximum number of endpoints in an EndpointSlice, as with the controller's default
/// `--max-endpoints-per-slice`.
const SLICE: usize = 100;
/// Maximum number of Services or endpoints in one file, which the fake API server reads into memory
/// at once.
const FILE: usize = 20_000;

/// An endpoint of a Service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Endpoint {
    /// Address and port of the endpoint.
    pub(crate) at: SocketAddrV4,
    /// True if the endpoint is on the measured node.
    pub(crate) is_local: bool,
}

/// All Services and EndpointSlices of a size, including changes made so far.
#[derive(Debug, Clone)]
pub(crate) struct Objects {
    size: Size,
    /// Number of Services that exist at present. They have the numbers from 0 on.
    services: u32,
    /// Present endpoints of each Service that had an endpoint replaced.
    others: BTreeMap<u32, Vec<Endpoint>>,
    looks: ObjectContent,
}

/// Choice of fields in the objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum ObjectContent {
    /// Only the fields that a kube-proxy reads.
    #[default]
    Bare,
    /// All fields that controllers and the API server write, so that the objects have realistic
    /// sizes.
    Served,
}

impl Objects {
    /// Returns the objects for this number of Services and endpoints.
    pub(crate) fn new(size: Size) -> Self {
        Self {
            size,
            services: size.services,
            others: BTreeMap::new(),
            looks: ObjectContent::default(),
        }
    }

    /// Selects the fields of the objects.
    pub(crate) fn set_looks(&mut self, looks: ObjectContent) {
        self.looks = looks;
    }

    /// Returns the number of Services that exist at present.
    pub(crate) fn services(&self) -> u32 {
        self.services
    }

    /// Sets the number of Services: adds Services at the end, or removes the last.
    pub(crate) fn set_services(&mut self, services: u32) {
        self.services = services;
    }

    /// Returns the name of the Service with this number. Its first EndpointSlice has this name and
    /// `-0`.
    pub(crate) fn name(service: u32) -> String {
        format!("svc-{service:05}")
    }

    /// Returns the ClusterIP of the Service with this number.
    pub(crate) fn address(service: u32) -> Ipv4Addr {
        Ipv4Addr::from_bits(FIRST_SERVICE + service)
    }

    /// Returns the present endpoints of the Service with this number.
    pub(crate) fn endpoints(&self, service: u32) -> Vec<Endpoint> {
        if let Some(others) = self.others.get(&service) {
            return others.clone();
        }
        let first = service * self.size.endpoints;
        (first..first + self.size.endpoints)
            .map(|number| Endpoint {
                at: SocketAddrV4::new(Ipv4Addr::from_bits(FIRST_ENDPOINT + number), TARGET_PORT),
                is_local: number % NODES == 0,
            })
            .collect()
    }

    /// Replaces an endpoint of a Service by one on another node. `turn` must differ in each call,
    /// because it determines the new address.
    pub(crate) fn replace(&mut self, service: u32, index: usize, turn: u32) -> Endpoint {
        let endpoint = Endpoint {
            at: SocketAddrV4::new(Ipv4Addr::from_bits(FIRST_OTHER + turn), TARGET_PORT),
            is_local: false,
        };
        let mut endpoints = self.endpoints(service);
        if let Some(place) = endpoints.get_mut(index) {
            *place = endpoint;
        }
        self.others.insert(service, endpoints);
        endpoint
    }

    /// Returns the Service with this number as JSON.
    pub(crate) fn service(service: u32) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": { "name": Self::name(service), "namespace": NAMESPACE },
            "spec": {
                "type": "ClusterIP",
                "clusterIP": Self::address(service),
                "selector": { "app": Self::name(service) },
                "ports": [{ "name": "http", "protocol": "TCP", "port": PORT, "targetPort": TARGET_PORT }],
            },
        })
    }

    /// Returns the EndpointSlices of the Service with this number: names and JSON.
    pub(crate) fn slices(&self, service: u32) -> Vec<(String, Value)> {
        let owner = Self::name(service);
        let endpoints = self.endpoints(service);
        endpoints
            .chunks(SLICE)
            .enumerate()
            .map(|(number, endpoints)| {
                let name = format!("{owner}-{number}");
                let mut slice = slice(&owner, &name, endpoints);
                if self.looks == ObjectContent::Served {
                    served::slice(&mut slice, &owner);
                }
                (name, slice)
            })
            .collect()
    }

    /// Writes all objects to files in `folder`, which the fake API server reads.
    pub(crate) fn write(&self, folder: &Path) -> Result<()> {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let node = json!({
            "apiVersion": "v1", "kind": "Node", "metadata": { "name": "node1" },
            "status": { "addresses": [{ "type": "InternalIP", "address": "172.35.0.100" }] },
        });
        write(folder, "node", &[node])?;
        let mut services = Vec::new();
        let mut slices = Vec::new();
        let mut weight = 0;
        for service in 0..self.services {
            let mut object = Self::service(service);
            if self.looks == ObjectContent::Served {
                served::service(&mut object);
            }
            services.push(object);
            slices.extend(self.slices(service).into_iter().map(|(_, slice)| slice));
            weight += 1 + self.size.endpoints as usize;
            if weight >= FILE || service + 1 == self.services {
                write(folder, &format!("services-{service:05}"), &services)?;
                write(folder, &format!("slices-{service:05}"), &slices)?;
                services.clear();
                slices.clear();
                weight = 0;
            }
        }
        Ok(())
    }
}

/// Returns the Service whose endpoint the change `turn` replaces, and the endpoint's index. The
/// changes visit all Services in a scattered order, then again for the next endpoint.
pub(crate) fn changed(size: Size, turn: u32) -> (u32, usize) {
    // A prime number that divides no number of Services in use, so that the changes visit every
    // Service once before they visit one again.
    const STEP: u32 = 7_919;
    let service = u64::from(turn) * u64::from(STEP) % u64::from(size.services);
    let index = turn / size.services % size.endpoints;
    (u32::try_from(service).unwrap_or_default(), index as usize)
}

/// Returns the API path of an object, such as `/api/v1/namespaces/bench/services/NAME`. Without a
/// name, returns the path of the collection.
pub(crate) fn path(version: &str, plural: &str, name: Option<&str>) -> String {
    let root = if version == "v1" { "api" } else { "apis" };
    let name = name.map(|name| format!("/{name}")).unwrap_or_default();
    format!("/{root}/{version}/namespaces/{NAMESPACE}/{plural}{name}")
}

fn slice(owner: &str, name: &str, endpoints: &[Endpoint]) -> Value {
    let endpoints: Vec<Value> = endpoints
        .iter()
        .map(|endpoint| {
            let node = if endpoint.is_local {
                "node1".to_owned()
            } else {
                format!("node{}", 2 + endpoint.at.ip().to_bits() % (NODES - 1))
            };
            json!({
                "addresses": [endpoint.at.ip()],
                "conditions": { "ready": true, "serving": true, "terminating": false },
                "nodeName": node,
            })
        })
        .collect();
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "name": name, "namespace": NAMESPACE,
            "labels": { "kubernetes.io/service-name": owner },
        },
        "addressType": "IPv4",
        "ports": [{ "name": "http", "protocol": "TCP", "port": TARGET_PORT }],
        "endpoints": endpoints,
    })
}

fn write(folder: &Path, name: &str, items: &[Value]) -> Result<()> {
    let file = folder.join(format!("{name}.json"));
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": items });
    fs::write(&file, serde_json::to_vec(&list)?)
        .with_context(|| format!("cannot write {}", file.display()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn endpoint_addresses_are_unique_and_some_are_local() {
        let objects = Objects::new(Size {
            services: 1_000,
            endpoints: 50,
        });
        let all: Vec<Endpoint> = (0..1_000).flat_map(|i| objects.endpoints(i)).collect();
        let unique: BTreeSet<_> = all.iter().map(|endpoint| endpoint.at).collect();
        assert_eq!(unique.len(), 50_000);
        assert_eq!(all.iter().filter(|endpoint| endpoint.is_local).count(), 500);
    }

    #[test]
    fn a_replaced_endpoint_keeps_its_position() {
        let size = Size {
            services: 2,
            endpoints: 250,
        };
        let mut objects = Objects::new(size);
        let before = objects.endpoints(1);
        let new = objects.replace(1, 249, 7);
        let after = objects.endpoints(1);
        assert_eq!(after.last(), Some(&new));
        assert_eq!(before.get(..249), after.get(..249));
        assert_eq!(objects.endpoints(0), Objects::new(size).endpoints(0));
        let names: Vec<String> = objects
            .slices(1)
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        assert_eq!(names, ["svc-00001-0", "svc-00001-1", "svc-00001-2"]);
    }
}
