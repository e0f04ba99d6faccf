//! Changes endpoints in the background while a fault happens.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use apiserver::{Cluster, Recording};
use lab::Crew;
use serde_json::{Value, json};

/// Returns an IPv4 EndpointSlice of `service`. All its endpoints are ready.
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

/// Changes of endpoints in the background of a fault. The Service `web` repeatedly loses and
/// regains one endpoint. A crowd of Services without traffic repeatedly gets new endpoints.
#[derive(Debug)]
pub(crate) struct Churn {
    made: Arc<AtomicUsize>,
    thread: Crew<Result<()>>,
    began: Instant,
}

impl Churn {
    /// Starts to change the crowd's endpoints, at most `rate` times per second. Also changes an
    /// endpoint of `web` every 300 ms.
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

    /// Starts changes at a high rate. Replays recorded changes ([`record_crowd`]) in batches of a
    /// hundred, because the test could not encode so many changes in time.
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

    /// Starts the changes. `step` gets the number of the next change. `step` makes one or more
    /// changes, and returns how many it made.
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
            // At the end, all endpoints of `web` exist again.
            apply(&objects, slice("web", &web(false)))
        });
        Self {
            made,
            thread,
            began: Instant::now(),
        }
    }

    /// Returns the number of changes made so far.
    pub(crate) fn made(&self) -> usize {
        self.made.load(Ordering::Relaxed)
    }

    /// Stops the changes and restores all endpoints of `web`. Returns the number of changes, and
    /// their rate per second.
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

/// Records several endpoints for each Service of a crowd, for [`Churn::replay`].
pub(crate) fn record_crowd(objects: &Cluster, crowd: usize) -> Result<Vec<Recording>> {
    /// Number of endpoints that each Service gets, one after the other.
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

/// Returns the EndpointSlice of the change `number`. Successive changes give each Service of the
/// crowd a new endpoint in turn.
fn of_crowd(number: u32, crowd: u32) -> Value {
    let last = 10 + number / crowd % 200;
    slice(&member(number, crowd), &[format!("10.244.2.{last}")])
}

/// Returns the name of the Service that the change `number` affects.
fn member(number: u32, crowd: u32) -> String {
    format!("crowd-{}", number % crowd)
}

fn web(is_less: bool) -> Vec<String> {
    let all = ["10.244.1.10", "10.244.2.10"];
    let count = if is_less { 1 } else { 2 };
    all.iter().take(count).map(|&at| at.to_owned()).collect()
}
