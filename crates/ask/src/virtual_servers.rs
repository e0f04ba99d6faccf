//! Lists the IPVS virtual servers of a node on which no daemon runs. The kernel does not know the
//! Service of a virtual server.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;

use anyhow::Result;
use ipvs_netlink::ServiceKey;
use serde::Serialize;
use service_counters::{At, Count, CounterSelection, OfAddress, OfEndpoint, ReadCounters};

use super::Failure;
use super::table::{Cell, TextTable, short};

/// IPVS virtual servers, as `kube-proxy services` prints them.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct VirtualServers {
    /// Always false: this object exists only if no daemon responds.
    daemon: bool,
    virtual_servers: Vec<VirtualServer>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct VirtualServer {
    at: String,
    /// Protocol, or `None` for a virtual server of a firewall mark, which serves all protocols.
    #[serde(skip_serializing_if = "Option::is_none")]
    protocol: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    scheduler: Option<String>,
    connections: u64,
    endpoints: Vec<RealServer>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct RealServer {
    at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    weight: Option<u32>,
    connections: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    active: Option<u64>,
}

impl VirtualServers {
    /// Reads all virtual servers from the kernel.
    ///
    /// # Errors
    ///
    /// Fails if the kernel has no IPVS, or if this process lacks CAP_NET_ADMIN.
    pub(super) fn read(from: &mut dyn ReadCounters) -> Result<Self> {
        let counted = from.read(CounterSelection::All)?;
        let mut by_address: BTreeMap<At, (OfAddress, BTreeMap<SocketAddr, OfEndpoint>)> =
            BTreeMap::new();
        for (at, of) in counted.addresses {
            by_address.entry(at).or_default().0 = of;
        }
        for ((at, endpoint), of) in counted.endpoints {
            by_address.entry(at).or_default().1.insert(endpoint, of);
        }
        let virtual_servers = by_address
            .into_iter()
            .map(|(at, (of, endpoints))| VirtualServer {
                at: SocketAddr::new(at.address, at.port).to_string(),
                protocol: Some(at.protocol.to_string()),
                scheduler: of.scheduler,
                connections: of.count.connections,
                endpoints: endpoints.into_iter().map(real_server).collect(),
            });
        let marks: BTreeMap<_, _> = counted.marks.into_iter().collect();
        let marks = marks.into_iter().map(|((family, mark), of)| VirtualServer {
            at: ServiceKey::Fwmark { family, mark }.to_string(),
            protocol: None,
            scheduler: of.scheduler,
            connections: of.count.connections,
            endpoints: Vec::new(),
        });
        Ok(Self {
            daemon: false,
            virtual_servers: virtual_servers.chain(marks).collect(),
        })
    }

    #[cfg(test)]
    pub(super) fn full() -> Self {
        Self {
            daemon: false,
            virtual_servers: vec![VirtualServer {
                at: "10.96.0.1:80".to_owned(),
                protocol: Some("TCP".to_owned()),
                scheduler: Some("rr".to_owned()),
                connections: 1,
                endpoints: vec![RealServer {
                    at: "10.244.1.1:80".to_owned(),
                    weight: Some(1),
                    connections: 1,
                    active: Some(1),
                }],
            }],
        }
    }

    /// Renders the virtual servers and their destinations as a table.
    pub(super) fn render(&self, has_colours: bool) -> String {
        let mut text = format!(
            "{}: the virtual servers of IPVS are shown, without names\n\n",
            Failure::NoDaemon
        );
        if self.virtual_servers.is_empty() {
            text.push_str("The kernel has no virtual servers.\n");
            return text;
        }
        let mut table = TextTable::new([
            "VIRTUAL SERVER",
            "SCHEDULER",
            "ENDPOINT",
            "WEIGHT",
            "CONNS",
            "ACTIVE",
        ]);
        for server in &self.virtual_servers {
            let dash = || Cell::from("-");
            table.row([
                server.name().into(),
                server.scheduler.as_deref().unwrap_or("-").into(),
                dash(),
                dash(),
                short(server.connections).into(),
                dash(),
            ]);
            for endpoint in &server.endpoints {
                let number = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), short);
                table.row([
                    "".into(),
                    "".into(),
                    (&*endpoint.at).into(),
                    number(endpoint.weight.map(u64::from)).into(),
                    short(endpoint.connections).into(),
                    number(endpoint.active).into(),
                ]);
            }
        }
        text.push_str(&table.render("", has_colours));
        let _ = writeln!(text, "\n{} virtual servers", self.virtual_servers.len());
        text
    }
}

impl VirtualServer {
    fn name(&self) -> String {
        match &self.protocol {
            Some(protocol) => format!("{}/{protocol}", self.at),
            None => self.at.clone(),
        }
    }
}

fn real_server((at, of): (SocketAddr, OfEndpoint)) -> RealServer {
    let Count {
        connections,
        active,
        ..
    } = of.count;
    RealServer {
        at: at.to_string(),
        weight: of.weight,
        connections,
        active,
    }
}

#[cfg(test)]
mod tests {
    use ipvs_netlink::IpFamily;
    use service_counters::CounterSample;

    use super::*;

    /// Fake kernel that has a virtual server for a firewall mark in each IP family.
    struct OfMarks;

    impl ReadCounters for OfMarks {
        fn tell(
            &mut self,
            _: CounterSelection<'_>,
            take: &mut dyn FnMut(CounterSample<'_>),
        ) -> Result<()> {
            let count = Count {
                connections: 3,
                ..Count::default()
            };
            for family in IpFamily::ALL {
                take(CounterSample::Mark(family, 7, "wlc", count));
            }
            Ok(())
        }
    }

    #[test]
    fn virtual_servers_with_a_firewall_mark_are_listed() {
        let servers = VirtualServers::read(&mut OfMarks).unwrap();
        let text = servers.render(false);
        let rows: Vec<Vec<&str>> = text
            .lines()
            .filter(|line| line.starts_with("FWM"))
            .map(|line| line.split_whitespace().collect())
            .collect();
        let rest = ["wlc", "-", "-", "3", "-"];
        assert_eq!(rows[0], [&["FWM", "7"], &rest[..]].concat(), "{text}");
        assert_eq!(
            rows[1],
            [&["FWM", "7", "IPv6"], &rest[..]].concat(),
            "{text}"
        );
        assert!(text.contains("2 virtual servers"), "{text}");
        let json = serde_json::to_string(&servers).unwrap();
        assert!(!json.contains("protocol"), "{json}");
    }
}
