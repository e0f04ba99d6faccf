//! Endpoints that change all the time, beside everything else.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use apiserver::Cluster;
use serde_json::{Value, json};

/// An EndpointSlice of `service`, of the family IPv4, ready all.
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
        "metadata": {"name": format!("{service}-ipv4"), "namespace": "default",
                     "labels": {"kubernetes.io/service-name": service}},
        "ports": [{"name": "", "protocol": "TCP", "port": 8080}],
        "endpoints": endpoints,
    })
}

/// Changes under way: `web` loses one of its endpoints and gets it back, and the crowd, if there is
/// one, gets others.
#[derive(Debug)]
pub(crate) struct Churn {
    is_over: Arc<AtomicBool>,
    made: Arc<AtomicUsize>,
    thread: Option<JoinHandle<Result<()>>>,
    began: Instant,
}

impl Churn {
    /// Begins, with so many changes a second at most, and of 1,000 and more a hundred at once.
    /// `web`'s endpoint changes every 300 ms.
    pub(crate) fn start(objects: Cluster, crowd: usize, rate: u32) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let made = Arc::new(AtomicUsize::new(0));
        let (over, count, to) = (Arc::clone(&is_over), Arc::clone(&made), objects);
        let at_once = if rate < 1_000 { 1 } else { 100 };
        let run = move || -> Result<()> {
            let crowd = u32::try_from(crowd)?;
            let began = Instant::now();
            let mut moved = Instant::now();
            let mut is_less = false;
            let mut number: u32 = 0;
            while !over.load(Ordering::Relaxed) {
                let done = if moved.elapsed() > Duration::from_millis(300) {
                    moved = Instant::now();
                    is_less = !is_less;
                    number += 1;
                    to.apply_all([slice("web", &web(is_less))])
                } else if crowd > 0 {
                    let first = number;
                    number += at_once;
                    // Each is made as it is applied: many at once are memory that is new each time.
                    to.apply_all((first..number).map(|change| of_crowd(change, crowd)))
                } else {
                    thread::sleep(Duration::from_millis(20));
                    continue;
                };
                if let Err(status) = done {
                    bail!("a change was refused: {status:?}");
                }
                count.store(usize::try_from(number)?, Ordering::Relaxed);
                let due = Duration::from_secs(1) / rate * number;
                thread::sleep(due.saturating_sub(began.elapsed()));
            }
            // All there, in the end.
            match to.apply(slice("web", &web(false))) {
                Ok(_) => Ok(()),
                Err(status) => bail!("the last change was refused: {status:?}"),
            }
        };
        Self {
            is_over,
            made,
            thread: Some(thread::spawn(run)),
            began: Instant::now(),
        }
    }

    /// How many changes were made.
    pub(crate) fn made(&self) -> usize {
        self.made.load(Ordering::Relaxed)
    }

    /// Ends, with all endpoints back; how many were made, and how many in a second.
    pub(crate) fn stop(mut self) -> Result<(usize, f64)> {
        self.is_over.store(true, Ordering::Relaxed);
        let lasted = self.began.elapsed().as_secs_f64();
        let made = self.made();
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(done)) => done?,
            _ => bail!("the changes ended with a panic"),
        }
        #[allow(clippy::cast_precision_loss, reason = "a count of some thousands")]
        let rate = made as f64 / lasted;
        Ok((made, rate))
    }
}

impl Drop for Churn {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The change of that number: each Service of the crowd gets another endpoint in turn.
fn of_crowd(number: u32, crowd: u32) -> Value {
    let last = 10 + number / crowd % 200;
    slice(
        &format!("crowd-{}", number % crowd),
        &[format!("10.244.2.{last}")],
    )
}

fn web(is_less: bool) -> Vec<String> {
    let all = ["10.244.1.10", "10.244.2.10"];
    let count = if is_less { 1 } else { 2 };
    all.iter().take(count).map(|&at| at.to_owned()).collect()
}
