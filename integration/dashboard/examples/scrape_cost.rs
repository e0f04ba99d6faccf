//! Measures the cost of a scrape in IPVS mode: duration and size of `/metrics` with
//! `--metrics-per-service=none`, `ports` and `endpoints`. Also measures how long a status request
//! and an endpoint change take, with and without concurrent scrapes.
//!
//! ```text
//! cargo build --release -p kube-proxy -p lab
//! cargo build --release -p dashboard --example scrape_cost
//! target/release/lab run --memory 3G -- target/release/examples/scrape_cost [10_000]
//! ```
#![allow(clippy::print_stdout, reason = "a measurement")]

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use scenarios::{Cluster, METRICS, Outcome, Service, Story, at, get, programmed, tcp, tell};

/// Number of measurements from which each result is computed.
const TIMES: usize = 10;
/// Pause between two scrapes, so that the daemon reads the kernel's counters again.
const FRESH: Duration = Duration::from_millis(1100);

macro_rules! stories {
    ($($services:literal $detail:literal),+) => {
        [$(Story {
            name: concat!(stringify!($services), "_", $detail),
            tell: |c| measure(c, $services, $detail),
            is_possible: || true,
        }),+]
    };
}

fn main() {
    let stories = stories!(
        10_000 "none", 10_000 "ports", 10_000 "endpoints",
        50_000 "none", 50_000 "ports", 50_000 "endpoints"
    );
    tell(&stories, Duration::from_mins(10))
}

fn measure(c: &mut Cluster, services: usize, detail: &str) -> Outcome {
    c.patience = Duration::from_mins(2);
    c.write("many", &many(services))?;
    c.apply(&web("10.244.1.10"))?;
    c.start(&[&format!("--metrics-per-service={detail}"), "--v=0"])?;
    // Gives the daemon time to finish the work that follows its start.
    thread::sleep(Duration::from_secs(2));
    scrape(c)?;
    let mut scrapes = Vec::new();
    let mut bytes = 0;
    for _ in 0..TIMES {
        thread::sleep(FRESH);
        let (took, length) = scrape(c)?;
        scrapes.push(took);
        bytes = length;
    }
    let alone = [status_requests(c)?, changes(c)?];
    let is_over = AtomicBool::new(false);
    let meanwhile = thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                // Ignores errors: if the daemon does not respond, the other thread's measurements
                // fail.
                drop(scrape(c));
            }
        });
        let both = status_requests(c).and_then(|requests| Ok([requests, changes(c)?]));
        is_over.store(true, Ordering::Relaxed);
        both
    })?;
    println!(
        "{services} Services with two endpoints each, --metrics-per-service={detail}: a scrape {}, {bytes} bytes; \
         a status request {}, during scrapes {}; a change {}, during scrapes {}",
        spread(&scrapes),
        spread(&alone[0]),
        spread(&meanwhile[0]),
        spread(&alone[1]),
        spread(&meanwhile[1]),
    );
    c.stop()
}

/// Scrapes `/metrics` once. Returns the duration, and the size of the response in bytes.
fn scrape(c: &Cluster) -> Result<(Duration, usize)> {
    let began = Instant::now();
    let length = c.node1.enter(|| {
        let mut stream = TcpStream::connect(at(METRICS))?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        write!(stream, "GET /metrics HTTP/1.0\r\nHost: node1\r\n\r\n")?;
        let mut response = Vec::new();
        stream.read_to_end(&mut response)
    })?;
    Ok((began.elapsed(), length))
}

/// Measures status requests, which the daemon's main loop handles. Returns their durations.
fn status_requests(c: &Cluster) -> Result<Vec<Duration>> {
    let mut took = Vec::new();
    for _ in 0..TIMES {
        let began = Instant::now();
        get(&c.node1, METRICS, "/api/v1/status")?;
        took.push(began.elapsed());
        thread::sleep(Duration::from_millis(200));
    }
    Ok(took)
}

/// Changes a Service's endpoints several times. Returns each change's time from receipt to the
/// kernel, as in the daemon's metrics.
fn changes(c: &Cluster) -> Result<Vec<Duration>> {
    let mut took = Vec::new();
    let mut before = programmed(c)?;
    for number in 0..TIMES {
        let endpoints = ["10.244.1.10 10.244.2.10", "10.244.1.10"];
        c.apply(&web(endpoints.get(number % 2).context("one of two")?))?;
        let mut after = before;
        c.until("the change", || {
            after = programmed(c)?;
            Ok(after.0 > before.0)
        })?;
        let each = (after.1 - before.1) / (after.0 - before.0);
        took.push(Duration::from_secs_f64(each));
        before = after;
    }
    Ok(took)
}

/// Formats the median and the maximum of the durations.
fn spread(took: &[Duration]) -> String {
    let mut sorted = took.to_vec();
    sorted.sort_unstable();
    let median = sorted.get(sorted.len() / 2).copied().unwrap_or_default();
    let longest = sorted.last().copied().unwrap_or_default();
    let ms = |time: Duration| format!("{:.1}", time.as_secs_f64() * 1e3);
    format!("{} ms (at most {})", ms(median), ms(longest))
}

fn web(endpoints: &str) -> Service {
    Service::new("web", "10.96.0.10")
        .port(tcp(80, 8080))
        .endpoints(endpoints)
}

fn many(services: usize) -> String {
    let mut text = String::new();
    for number in 0..services {
        let (third, last) = (number / 250, number % 250 + 1);
        // A write to a String cannot fail.
        let _ = write!(
            text,
            "---\n{{apiVersion: v1, kind: Service, metadata: {{namespace: team-{0}, name: web-{number}}}, \
             spec: {{clusterIPs: [10.97.{third}.{last}], clusterIP: 10.97.{third}.{last}, ports: [{{port: 80}}]}}}}\n\
             ---\n{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4, \
             metadata: {{namespace: team-{0}, name: web-{number}, labels: {{kubernetes.io/service-name: web-{number}}}}}, \
             ports: [{{port: 8080}}], endpoints: [{{addresses: [10.244.1.{last}], conditions: {{ready: true}}}}, \
             {{addresses: [10.244.2.{last}], conditions: {{ready: true}}}}]}}\n",
            number % 10
        );
    }
    text
}
