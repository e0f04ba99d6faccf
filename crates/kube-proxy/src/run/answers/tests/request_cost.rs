//! Tests that limit the cost of requests: for the thread of the daemon's loop, for memory, and for
//! other clients.

use std::sync::Mutex;
use std::sync::mpsc;

use anyhow::Result;
use service_counters::{At, Count, CounterSample, CounterSelection, ReadCounters};

use super::*;

/// A fake kernel with counters at `addresses` addresses. A read reports that it has begun, and then
/// waits until the test lets it continue.
struct Kernel {
    addresses: u32,
    gate: Option<(mpsc::Sender<()>, mpsc::Receiver<()>)>,
    /// Number of addresses that each read requested individually. `None`: the read returned all
    /// addresses.
    looks: Arc<Mutex<Vec<Option<usize>>>>,
}

impl Kernel {
    fn of(addresses: u32) -> Self {
        Self {
            addresses,
            gate: None,
            looks: Arc::default(),
        }
    }

    fn closed() -> (Self, mpsc::Receiver<()>, mpsc::Sender<()>) {
        let (began, begins) = mpsc::channel();
        let (go_on, goes_on) = mpsc::channel();
        let kernel = Self {
            gate: Some((began, goes_on)),
            ..Self::of(1)
        };
        (kernel, begins, go_on)
    }
}

impl ReadCounters for Kernel {
    fn tell(
        &mut self,
        which: CounterSelection<'_>,
        take: &mut dyn FnMut(CounterSample<'_>),
    ) -> Result<()> {
        if let Some((began, goes_on)) = &self.gate {
            // Ignores a dropped receiver: the test that waited may have ended.
            let _ = began.send(());
            let _ = goes_on.recv();
        }
        self.looks.lock().unwrap().push(match which {
            CounterSelection::Of(asked) => Some(asked.len()),
            CounterSelection::Addresses | CounterSelection::All => None,
        });
        for number in 0..self.addresses {
            let at = At {
                address: std::net::Ipv4Addr::from_bits(0x0a00_0000 + number / 2).into(),
                port: if number % 2 == 0 { 80 } else { 443 },
                protocol: Protocol::Tcp,
            };
            let count = Count {
                connections: number.into(),
                bytes_in: Some(number.into()),
                ..Count::default()
            };
            take(CounterSample::Address(at, None, count));
        }
        Ok(())
    }

    fn tells_more_of_single(&self) -> bool {
        true
    }
}

/// Replies to requests as the daemon's loop does, until `asking` is complete. Also returns the CPU
/// time of this thread outside of the replies.
async fn beside<R>(daemon: &mut Daemon, asking: impl Future<Output = R>) -> (R, Duration) {
    let (began, mut answering) = (worked(), Duration::ZERO);
    tokio::pin!(asking);
    loop {
        tokio::select! {
            done = &mut asking => {
                return (done, worked().saturating_sub(began + answering));
            }
            Some(question) = daemon.observed.questions.recv() => {
                let began = worked();
                daemon.answer(question);
                answering += worked().saturating_sub(began);
            }
        }
    }
}

/// Returns only the status code of a response. Other tests check the body.
async fn code(inspect: &Arc<Inspect>, path: &str) -> u16 {
    let request = http::Request::get(path).body(()).unwrap();
    let (head, ()) = request.into_parts();
    inspect.respond(&head, Asker::Root).await.status().as_u16()
}

#[tokio::test]
async fn busiest_services_are_ranked_outside_the_main_loop() {
    let (mut daemon, inspect) = daemon(50_000, 1);
    daemon
        .observed
        .counters
        .asked
        .set(Box::new(Kernel::of(100_000)));
    let asked = beside(&mut daemon, code(&inspect, "/api/v1/top"));
    let (code, took) = asked.await;
    println!("top of 100,000 addresses: {took:?} of the loop's thread");
    assert_eq!(code, 200);
    assert!(took < Duration::from_millis(20), "{took:?}");
}

#[tokio::test]
async fn explanations_are_computed_outside_the_main_loop() {
    let (mut daemon, inspect) = daemon(1, 20_000);
    let path = "/api/v1/explain?to=ns-0/web-0:http&from=node";
    let (_, took) = beside(&mut daemon, code(&inspect, path)).await;
    println!("a Service of 20,000 endpoints: {took:?} of the loop's thread");
    assert!(took < Duration::from_millis(20), "{took:?}");
}

#[tokio::test]
async fn a_cancelled_request_keeps_its_slot_until_its_work_ends() {
    let (mut daemon, inspect) = daemon(10, 1);
    let (kernel, begins, go_on) = Kernel::closed();
    daemon.observed.counters.asked.set(Box::new(kernel));
    let path = "/api/v1/services?counters=true";
    let asking = async {
        for _ in 0..6 {
            let asked = tokio::time::timeout(Duration::from_millis(20), code(&inspect, path));
            assert!(asked.await.is_err());
        }
        while begins.try_recv().is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    let ((), _, questions) = serve(&mut daemon, asking).await;
    assert_eq!(questions, 2 * 3, "names, the ground and Services, of two");
    drop(go_on);
}

#[tokio::test]
async fn a_status_request_does_not_wait_for_kernel_reads() {
    let (mut daemon, inspect) = daemon(10, 1);
    let (kernel, begins, go_on) = Kernel::closed();
    daemon.observed.counters.asked.set(Box::new(kernel));
    let asking = async {
        let slow = || code(&inspect, "/api/v1/services?counters=true");
        let status = async {
            while begins.try_recv().is_err() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let code = code(&inspect, "/api/v1/status").await;
            drop(go_on);
            code
        };
        tokio::join!(slow(), slow(), slow(), status)
    };
    let (codes, ..) = serve(&mut daemon, asking).await;
    assert_eq!(codes, (200, 200, 200, 200));
}

#[tokio::test]
async fn a_page_of_services_ends_at_its_endpoint_limit() {
    let (mut daemon, inspect) = daemon(300, 100);
    let path = "/api/v1/services?limit=5000&endpoints=true";
    let ((_, list), ..) = serve(&mut daemon, get(&inspect, path)).await;
    let services = list["items"].as_array().unwrap();
    let ports = services
        .iter()
        .flat_map(|one| one["ports"].as_array().unwrap());
    let listed: usize = ports
        .map(|port| port["endpoints"].as_array().unwrap().len())
        .sum();
    // One turn returns 100 Services.
    assert_eq!((services.len(), listed), (100, 20_000));
    assert!(list["next"].is_string());
}

#[tokio::test]
async fn a_small_page_reads_only_its_own_addresses() {
    let (mut daemon, inspect) = daemon(2_000, 1);
    let kernel = Kernel::of(4_000);
    let looks = Arc::clone(&kernel.looks);
    daemon.observed.counters.asked.set(Box::new(kernel));
    for limit in [100, 2_000] {
        let path = format!("/api/v1/services?counters=true&limit={limit}");
        let ((code, list), ..) = serve(&mut daemon, get(&inspect, &path)).await;
        assert_eq!(code, 200);
        assert_eq!(
            list["items"][1]["ports"][1]["counters"]["connections"], 201,
            "ns-0/web-100 at 443"
        );
    }
    assert_eq!(*looks.lock().unwrap(), [Some(200), None]);
}
