use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, mpsc};
use std::time::Duration;

use anyhow::Result;
use proxy::{Event, Model, NamespacedName, Protocol, Service, ServicePort, ServicePortName};
use service_counters::{At, Count, CounterSample, CounterSelection, Counters, ReadCounters};

use super::rank::{Sort, assemble, busiest};
use super::samples::SampleStore;
use super::*;
use crate::owners::{LOOKED_AT_A_TURN, owners};

/// Fake reader of the counters that the test has set.
#[derive(Clone, Default)]
struct Fake(Arc<Mutex<HashMap<At, u64>>>);

impl Fake {
    fn set(&self, at: &str, connections: u64) {
        self.0.lock().unwrap().insert(here(at), connections);
    }

    fn counters(&self) -> Counters {
        let counters = Counters::default();
        counters.set(Box::new(self.clone()));
        counters
    }
}

impl ReadCounters for Fake {
    fn tell(
        &mut self,
        which: CounterSelection<'_>,
        take: &mut dyn FnMut(CounterSample<'_>),
    ) -> Result<()> {
        for (at, connections) in &*self.0.lock().unwrap() {
            let count = Count {
                connections: *connections,
                bytes_in: Some(connections * 100),
                ..Count::default()
            };
            take(CounterSample::Address(*at, None, count));
            if let CounterSelection::Of(asked) = which
                && asked.contains(at)
            {
                let endpoint = "10.244.1.5:8080".parse().unwrap();
                let active = Some(3);
                take(CounterSample::Endpoint(
                    *at,
                    endpoint,
                    None,
                    Count { active, ..count },
                ));
            }
        }
        Ok(())
    }
}

fn here(at: &str) -> At {
    let at: std::net::SocketAddr = at.parse().unwrap();
    At {
        address: at.ip(),
        port: at.port(),
        protocol: Protocol::Tcp,
    }
}

fn port(number: u16, node_port: Option<u16>) -> ServicePort {
    ServicePort {
        name: "http".into(),
        protocol: Protocol::Tcp,
        port: number,
        node_port,
    }
}

fn model(services: &[(&str, &str, Option<u16>)]) -> Model {
    let mut model = Model::new();
    for (name, ip, node_port) in services {
        let name = NamespacedName::new("default", name);
        let mut service = Service::at(name, [ip.parse().unwrap()]);
        service.ports.push(port(80, *node_port));
        model.apply(Event::ServiceApplied(service));
    }
    model
}

/// Takes two samples, two seconds apart, with a call of `between` after the first. Returns the
/// response.
fn told(fake: &Fake, model: &Model, between: impl FnOnce(), limit: usize) -> view::Top {
    let (counters, looks) = (fake.counters(), SampleStore::new(|| {}));
    let began = Instant::now();
    looks.take(&counters, began).unwrap();
    let first: Vec<At> = fake.0.lock().unwrap().keys().copied().collect();
    looks.endpoints(&counters, &first, began).unwrap();
    between();
    let then = began + Duration::from_secs(2);
    let span = looks.take(&counters, then).unwrap();
    let found = busiest(&span, Sort::Connections, limit);
    let of = owners(model, &RequestedPorts::new(found.at, found.names), 0);
    assert!(of.is_last);
    let is_node = |address| address != IpAddr::from([192, 0, 2, 9]);
    let mut top = assemble(&span, of.found, &is_node, Sort::Connections, limit);
    let endpoints = looks.endpoints(&counters, &top.at, then).unwrap();
    top.add_endpoints(&endpoints, Sort::Connections, limit);
    top.view
}

#[test]
#[allow(clippy::float_cmp, reason = "whole numbers")]
fn the_busiest_service_port_is_first_with_the_sum_of_its_addresses() {
    let fake = Fake::default();
    for at in [
        "10.96.0.1:80",
        "10.96.0.2:80",
        "172.18.0.2:30080",
        "192.0.2.1:443",
    ] {
        fake.set(at, 1_000);
    }
    // This address serves no NodePorts, so its virtual server belongs to another program.
    fake.set("192.0.2.9:30080", 7_000);
    let model = model(&[
        ("quiet", "10.96.0.1", None),
        ("busy", "10.96.0.2", Some(30_080)),
    ]);
    let more = || {
        fake.set("10.96.0.1:80", 1_030);
        fake.set("10.96.0.2:80", 1_020);
        fake.set("172.18.0.2:30080", 1_020);
    };
    let top = told(&fake, &model, more, 50);
    let ports: Vec<_> = top
        .ports
        .iter()
        .map(|port| (port.service.to_string(), port.rate.connections))
        .collect();
    assert_eq!(
        ports,
        [
            ("default/busy".to_owned(), 20.0),
            ("default/quiet".to_owned(), 15.0)
        ]
    );
    assert_eq!(top.ports[0].counters.connections, 2_040);
    // The number of open connections is the sum over the port's two addresses.
    assert_eq!(top.ports[0].counters.active, Some(6));
    assert_eq!(top.seconds, 2.0);
    assert_eq!((top.total.connections, top.total.bytes_in), (35.0, 3_500.0));
    // Traffic that belongs to no Service counts in the total, but is not listed.
    assert_eq!(top.endpoints.len(), 2);
    assert_eq!(top.endpoints[0].service.to_string(), "default/busy");
}

#[test]
#[allow(clippy::float_cmp, reason = "whole numbers")]
fn the_response_of_top_has_a_limit_and_no_negative_rates() {
    let fake = Fake::default();
    for number in 1..=20 {
        fake.set(&format!("10.96.0.{number}:80"), 100);
    }
    let names: Vec<_> = (1..=20)
        .map(|number| (format!("web-{number}"), format!("10.96.0.{number}")))
        .collect();
    let services: Vec<_> = names
        .iter()
        .map(|(name, ip)| (name.as_str(), ip.as_str(), None))
        .collect();
    let top = told(&fake, &model(&services), || fake.set("10.96.0.7:80", 4), 3);
    assert_eq!(top.ports.len(), 3);
    assert_eq!(top.ports[0].service.to_string(), "default/web-7");
    assert_eq!(top.ports[0].rate.connections, 2.0);
}

#[test]
fn requests_within_a_second_share_a_counter_sample() {
    let fake = Fake::default();
    fake.set("10.96.0.1:80", 1);
    let (counters, looks, began) = (fake.counters(), SampleStore::new(|| {}), Instant::now());
    assert!(looks.take(&counters, began).unwrap().before.is_none());
    let after = |milliseconds| {
        looks
            .take(&counters, began + Duration::from_millis(milliseconds))
            .unwrap()
    };
    assert!(after(900).before.is_none());
    assert!((after(1_500).seconds() - 1.5).abs() < 1e-9);
    assert!((after(1_900).seconds() - 1.5).abs() < 1e-9);
    assert!((after(4_500).seconds() - 3.0).abs() < 1e-9);
}

#[tokio::test(start_paused = true)]
async fn counter_samples_are_dropped_a_minute_after_the_last_request() {
    let fake = Fake::default();
    fake.set("10.96.0.1:80", 1);
    let looks = SampleStore::new(|| {});
    looks.take(&fake.counters(), Instant::now()).unwrap();
    looks.forget_later();
    tokio::time::sleep(Duration::from_secs(50)).await;
    looks.forget_later();
    tokio::time::sleep(Duration::from_secs(50)).await;
    assert!(!looks.is_empty());
    tokio::time::sleep(Duration::from_secs(11)).await;
    assert!(looks.is_empty());
}

#[test]
fn a_search_examines_a_limited_number_of_services_per_turn_of_the_main_loop() {
    let names: Vec<_> = (0..LOOKED_AT_A_TURN + 10)
        .map(|number| {
            (
                format!("web-{number}"),
                std::net::Ipv4Addr::from_bits(0x0a60_0000 + u32::try_from(number).unwrap())
                    .to_string(),
            )
        })
        .collect();
    let services: Vec<_> = names
        .iter()
        .map(|(name, ip)| (name.as_str(), ip.as_str(), None))
        .collect();
    let model = model(&services);
    let all = names.iter().map(|(_, ip)| here(&format!("{ip}:80")));
    let by_name = ServicePortName {
        service: NamespacedName::new("default", "web-3"),
        port: "http".into(),
        protocol: Protocol::Tcp,
    };
    let wanted = RequestedPorts::new(all, [by_name]);
    let first = owners(&model, &wanted, 0);
    assert!(!first.is_last);
    let second = owners(&model, &wanted, LOOKED_AT_A_TURN);
    assert!(second.is_last);
    assert_eq!(first.found.len() + second.found.len(), names.len());
}

#[test]
fn top_queries_are_parsed_and_invalid_ones_are_rejected() {
    let read = |query: &str| TopQuery::read(&format!("/api/v1/top{query}").parse().unwrap());
    assert_eq!(
        read("").unwrap(),
        TopQuery {
            limit: 50,
            sort: Sort::Connections
        }
    );
    assert_eq!(
        read("?sort=bytes&limit=3").unwrap(),
        TopQuery {
            limit: 3,
            sort: Sort::Bytes
        }
    );
    for wrong in ["?limit=0", "?limit=x", "?sort=name", "?x=1"] {
        assert!(read(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn clients_that_request_different_service_ports_see_the_same_rates() {
    let fake = Fake::default();
    let (one, other) = ("10.96.0.1:80", "10.96.0.2:80");
    let set = |connections| {
        fake.set(one, connections);
        fake.set(other, connections);
    };
    let (counters, looks, began) = (fake.counters(), SampleStore::new(|| {}), Instant::now());
    let both = [here(one), here(other)];
    let look = |of: &[At], milliseconds| {
        let now = began + Duration::from_millis(milliseconds);
        let found = looks.endpoints(&counters, of, now).unwrap();
        let rate = |at: &str| {
            let of = found.get(&(here(at), "10.244.1.5:8080".parse().unwrap()))?;
            let (before, seconds) = of.before?;
            Some((of.now.connections - before.connections, seconds.to_string()))
        };
        (rate(one), rate(other))
    };
    set(1_000);
    assert_eq!(look(&both, 0), (None, None));
    // The second client lists only the first address.
    set(1_190);
    let is_told = |count: u64, seconds: &str| Some((count, seconds.to_owned()));
    assert_eq!(look(&both[..1], 1_900), (is_told(190, "1.9"), None));
    set(1_200);
    assert_eq!(look(&both, 2_000), (is_told(190, "1.9"), is_told(200, "2")));
    set(1_400);
    assert_eq!(look(&both, 4_000), (is_told(210, "2.1"), is_told(200, "2")));
    // The store removes the samples of an address that no client has listed for a minute.
    look(&both[..1], 70_000);
    assert_eq!(look(&both, 71_500).1, None);
}

/// Fake reader whose read sends a message on the first channel, then waits for a message on the
/// second.
struct Waits(mpsc::Sender<()>, mpsc::Receiver<()>);

impl ReadCounters for Waits {
    fn tell(
        &mut self,
        _: CounterSelection<'_>,
        _: &mut dyn FnMut(CounterSample<'_>),
    ) -> Result<()> {
        self.0.send(())?;
        Ok(self.1.recv_timeout(Duration::from_secs(10))?)
    }
}

#[tokio::test]
async fn dropping_counter_samples_does_not_wait_for_a_read() {
    let (began, begins) = mpsc::channel();
    let (go_on, goes_on) = mpsc::channel();
    let counters = Counters::default();
    counters.set(Box::new(Waits(began, goes_on)));
    let looks = SampleStore::new(|| {});
    let other = looks.clone();
    let reading = spawn_blocking(move || other.take(&counters, Instant::now()).map(drop));
    begins.recv().unwrap();
    looks.forget_later();
    go_on.send(()).unwrap();
    reading.await.unwrap().unwrap();
}
