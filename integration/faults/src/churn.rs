//! Changes endpoints in a background thread while a fault happens.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use apiserver::{Cluster, Recording};
use lab::Crew;
use serde_json::{Value, json};

/// Returns an EndpointSlice (IPv4) of `service` with these addresses, all of them ready.
pub(crate) fn slice(service: &str, addresses: &[String]) -> Value {
    let endpoints: Vec<Value> = addresses
        .iter()
        .map(|address| {
            let node = if address.starts_with("10.244.1.") {
                "node1"
            } else {
                "node2"
            };
            json!({"addresses": [address], "nodeName": node, "conditions": {"ready": true}})
        })
        .collect();
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": name_of_slice(service), "namespace": "default",
                     "labels": {"kubernetes.io/service-name": service}},
        "ports": [{"name": "", "protocol": "TCP", "port": 8080}],
        "endpoints": endpoints,
    })
}

fn name_of_slice(service: &str) -> String {
    format!("{service}-ipv4")
}

/// A background thread that changes endpoints. The Service `web` repeatedly loses an endpoint and
/// gets it back. The Services of the crowd, which have no traffic, get new endpoints in turn.
#[derive(Debug)]
pub(crate) struct Churn {
    made: Arc<AtomicUsize>,
    thread: Crew<Result<()>>,
    began: Instant,
}

impl Churn {
    /// Starts changing endpoints of the `crowd` Services, at most `rate` times per second, and of
    /// `web` every 300 ms.
    pub(crate) fn start(objects: Cluster, crowd: usize, rate: u32) -> Self {
        Self::of(objects, rate, move |to, number| {
            if crowd == 0 {
                thread::sleep(Duration::from_millis(20));
                return Ok(0);
            }
            apply(to, of_crowd(number, u32::try_from(crowd)?))?;
            Ok(1)
        })
    }

    /// Starts changing endpoints at a high rate: stores recorded EndpointSlices ([`record_crowd`]),
    /// a hundred at once. Encoding new objects would be too slow.
    pub(crate) fn replay(objects: Cluster, mut recorded: Vec<Recording>, rate: u32) -> Self {
        const AT_ONCE: usize = 100;
        let chunks = recorded.len().div_ceil(AT_ONCE).max(1);
        let mut turn = 0;
        Self::of(objects, rate, move |to, _| {
            let slices = recorded.chunks_mut(AT_ONCE).nth(turn % chunks);
            let slices = slices.context("nothing was recorded")?;
            turn += 1;
            to.replay(&mut *slices);
            Ok(u32::try_from(slices.len())?)
        })
    }

    /// Starts the background thread. It calls `step` with the number of changes so far. `step`
    /// makes some changes, and returns their number.
    fn of(
        objects: Cluster,
        rate: u32,
        mut step: impl FnMut(&Cluster, u32) -> Result<u32> + Send + 'static,
    ) -> Self {
        let made = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&made);
        let mut thread = Crew::default();
        thread.begin(move |over| {
            let began = Instant::now();
            let mut moved = Instant::now();
            let mut is_less = false;
            let mut number: u32 = 0;
            while !over.is_over() {
                if moved.elapsed() > Duration::from_millis(300) {
                    moved = Instant::now();
                    is_less = !is_less;
                    apply(&objects, slice("web", &web(is_less)))?;
                    number += 1;
                } else {
                    number += step(&objects, number)?;
                }
                count.store(usize::try_from(number)?, Ordering::Relaxed);
                let due = Duration::from_secs(1) / rate * number;
                thread::sleep(due.saturating_sub(began.elapsed()));
            }
            // In the end, `web` has all its endpoints again.
            apply(&objects, slice("web", &web(false)))
        });
        Self {
            made,
            thread,
            began: Instant::now(),
        }
    }

    /// Returns the number of changes so far.
    pub(crate) fn made(&self) -> usize {
        self.made.load(Ordering::Relaxed)
    }

    /// Stops the background thread, after which `web` has all its endpoints again. Returns the
    /// number of changes, and their rate per second.
    pub(crate) fn stop(mut self) -> Result<(usize, f64)> {
        let lasted = self.began.elapsed().as_secs_f64();
        let made = self.made();
        match self.thread.stop() {
            Ok(done) => done.into_iter().collect::<Result<()>>()?,
            Err(_) => bail!("the changes ended with a panic"),
        }
        #[allow(clippy::cast_precision_loss, reason = "a count of some thousands")]
        let rate = made as f64 / lasted;
        Ok((made, rate))
    }
}

fn apply(to: &Cluster, slice: Value) -> Result<()> {
    match to.apply(slice) {
        Ok(_) => Ok(()),
        Err(status) => bail!("a change was refused: {status:?}"),
    }
}

/// Records EndpointSlices for [`Churn::replay`]: a new endpoint for each Service of the crowd,
/// several times over.
pub(crate) fn record_crowd(objects: &Cluster, crowd: usize) -> Result<Vec<Recording>> {
    /// Number of different endpoints that each Service gets in turn.
    const ENDPOINTS: u32 = 5;
    let crowd = u32::try_from(crowd)?;
    let record = |number| -> Result<Recording> {
        apply(objects, of_crowd(number, crowd))?;
        let name = name_of_slice(&member(number, crowd));
        let recording = objects.recording("default", &name);
        recording.context("what was applied is there")
    };
    (0..ENDPOINTS * crowd).map(record).collect()
}

/// Returns the EndpointSlice of change `number`. The changes give each Service of the crowd a new
/// endpoint in turn.
fn of_crowd(number: u32, crowd: u32) -> Value {
    let last = 10 + number / crowd % 200;
    slice(&member(number, crowd), &[format!("10.244.2.{last}")])
}

/// Returns the name of the Service that change `number` gives a new endpoint.
fn member(number: u32, crowd: u32) -> String {
    format!("crowd-{}", number % crowd)
}

fn web(is_less: bool) -> Vec<String> {
    let all = ["10.244.1.10", "10.244.2.10"];
    let count = if is_less { 1 } else { 2 };
    all.iter().take(count).map(|&at| at.to_owned()).collect()
}
