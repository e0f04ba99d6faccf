//! Measures how much a tenant with large Services slows down other users of the cluster. The tenant
//! applies, changes and deletes the largest Services that the daemon's limits allow. Meanwhile, the
//! program measures changes of another Service and responses of `/livez`.
//!
//! ```text
//! cargo build --release -p kube-proxy
//! export KUBE_PROXY=target/release/kube-proxy
//! LAB_LANE=host cargo run -p scenarios --example neighbours -- nftables
//! export LAB_LANE=B LAB_KERNEL="$(integration/kernel/build)"
//! cargo run -p scenarios --example neighbours -- ipvs
//! ```
//!
//! The time of a change runs from the write at the API server to the first packet that reaches the
//! new endpoint. The API server fixture runs on the same CPUs, so the times include its work.
#![allow(clippy::print_stdout, reason = "a measurement")]

use std::net::Ipv4Addr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use lab::Transport;
use scenarios::{
    ApiServer, Cluster, HEALTH, METRICS, Outcome, Service, Story, at, get, programmed, tcp, tell,
};
use serde_json::{Value, json};

/// Minimum number of measured changes for each result.
const CHANGES: usize = 20;
/// Time limit of one measurement, and of each change within it.
const PATIENCE: Duration = Duration::from_mins(3);
/// Pause between two changes, and between two requests to `/livez`.
const PAUSE: Duration = Duration::from_millis(20);
/// Number of endpoints per EndpointSlice, as in slices of the real EndpointSlice controller.
const SLICE: usize = 100;
/// Namespace of the tenant's large Services.
const TENANT: &str = "tenant";

/// Shape of the tenant's Services: their number, and the number of ports, external IPs and
/// endpoints of each.
#[derive(Debug, Clone, Copy)]
struct Tenant {
    services: usize,
    ports: usize,
    external_ips: usize,
    endpoints: usize,
    has_affinity: bool,
    /// True if all Services of the tenant claim the same external IPs.
    contends: bool,
}

impl Tenant {
    /// One Service with 41 addresses, 99 ports and 24 endpoints: 41 × 99 × 24 = 97,416 IPVS
    /// destinations.
    const WIDE: Self = Self {
        services: 1,
        ports: 99,
        external_ips: 40,
        endpoints: 24,
        has_affinity: false,
        contends: false,
    };
    /// A Service with more ports and external IPs than the daemon's limits allow. The daemon
    /// programs only a part of it.
    const ABOVE: Self = Self {
        ports: 100,
        external_ips: 5_000,
        ..Self::WIDE
    };
    const MANY: Self = Self {
        services: 30,
        ..Self::WIDE
    };

    /// 100 Services that all claim the same 2,000 pairs of external IP and port.
    const CONTENDING: Self = Self {
        services: 100,
        ports: 10,
        external_ips: 200,
        endpoints: 1,
        has_affinity: false,
        contends: true,
    };

    fn deep(endpoints: usize, has_affinity: bool) -> Self {
        Self {
            services: 1,
            ports: 1,
            external_ips: 0,
            endpoints,
            has_affinity,
            contends: false,
        }
    }

    fn service(&self, number: usize) -> Value {
        let ports: Vec<Value> = (0..self.ports)
            .map(|port| json!({"name": format!("p{port}"), "port": 1_000 + port, "targetPort": 8_080}))
            .collect();
        let first = if self.contends {
            0
        } else {
            number * self.external_ips
        };
        let external: Vec<String> = (0..self.external_ips)
            .map(|ip| numbered([203, 0, 0, 0], first + ip))
            .collect();
        let cluster_ip = numbered([10, 96, 200, 0], number + 1);
        let affinity = if self.has_affinity {
            "ClientIP"
        } else {
            "None"
        };
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"namespace": TENANT, "name": format!("large-{number}")},
            "spec": {"clusterIP": cluster_ip, "clusterIPs": [cluster_ip], "ports": ports,
                "externalIPs": external, "sessionAffinity": affinity},
        })
    }

    /// Returns EndpointSlice number `slice` of Service `number`. `turn` selects the address of the
    /// slice's last endpoint.
    fn slice(&self, number: usize, slice: usize, turn: usize) -> Value {
        let first = slice * SLICE;
        let last = self.endpoints.min(first + SLICE);
        let address = |endpoint: usize| {
            let is_last = endpoint + 1 == last;
            let place = if is_last { 60_000 + turn } else { endpoint };
            numbered(
                [10, 128, 0, 0],
                number * 100 + place + slice * usize::from(is_last) * 100,
            )
        };
        let endpoints: Vec<Value> = (first..last)
            .map(|endpoint| json!({"addresses": [address(endpoint)], "conditions": {"ready": true}, "nodeName": "node2"}))
            .collect();
        let ports: Vec<Value> = (0..self.ports)
            .map(|port| json!({"name": format!("p{port}"), "port": 8_080}))
            .collect();
        let service = format!("large-{number}");
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"namespace": TENANT, "name": format!("{service}-{slice}"),
                "labels": {"kubernetes.io/service-name": service}},
            "ports": ports, "endpoints": endpoints,
        })
    }

    /// Returns the tenant's EndpointSlices and Services as JSON texts.
    fn objects(&self) -> Vec<String> {
        let of_service = |number: usize| {
            let slices = self.endpoints.div_ceil(SLICE);
            let slices = (0..slices).map(move |slice| self.slice(number, slice, 0));
            slices.chain([self.service(number)])
        };
        let all = (0..self.services).flat_map(of_service);
        all.map(|object| object.to_string()).collect()
    }
}

fn numbered(base: [u8; 4], number: usize) -> String {
    let number = u32::try_from(number).unwrap_or(u32::MAX);
    Ipv4Addr::from(u32::from(Ipv4Addr::from(base)).saturating_add(number)).to_string()
}

macro_rules! stories {
    ($($mode:literal [$($flag:literal),*]),+) => {
        vec![$(
            stories!(@one $mode [$($flag),*] "wide", |c| beside(c, Tenant::WIDE)),
            stories!(@one $mode [$($flag),*] "above", |c| beside(c, Tenant::ABOVE)),
            stories!(@one $mode [$($flag),*] "many", |c| beside(c, Tenant::MANY)),
            stories!(@one $mode [$($flag),*] "contending", |c| beside(c, Tenant::CONTENDING)),
            stories!(@one $mode [$($flag),*] "endpoints", |c| one_endpoint(c, false)),
            stories!(@one $mode [$($flag),*] "affinity", |c| one_endpoint(c, true))
        ),+].into_iter().flatten().collect::<Vec<_>>()
    };
    (@one $mode:literal [$($flag:literal),*] $case:literal, $tell:expr) => {
        [Story {
            name: concat!($mode, "::", $case),
            tell: |c| {
                $(c.flags.push($flag.into());)*
                let run: fn(&mut Cluster) -> Outcome = $tell;
                run(c)
            },
            is_possible: || true,
        }]
    };
}

fn main() {
    let stories = stories!(
        "ipvs" [],
        "shim" ["--ipvs-shim=nftables"],
        "iptables" ["--proxy-mode=iptables"],
        "nftables" ["--proxy-mode=nftables"],
        "flat" ["--proxy-mode=nftables", "--nftables-layout=flat"]
    );
    tell(&stories, Duration::from_hours(1))
}

fn start(c: &mut Cluster) -> Result<ApiServer> {
    c.patience = PATIENCE;
    c.program = std::env::var_os("KUBE_PROXY").map(Into::into);
    let way_out = ["ip", "route", "replace", "default", "via", "172.35.0.9"];
    c.node1.read(way_out)?;
    c.flags.push("--iptables-min-sync-period=0s".into());
    let mut api = c.api_server(true)?;
    api.apply(&web(0))?;
    api.apply(&resident())?;
    api.start()?;
    c.launch_on(&api, &[])?;
    c.await_first_sync()?;
    c.until_answered(&c.client, "10.96.0.10:80")?;
    Ok(api)
}

/// Returns the other user's Service `web`, whose changes the program measures. Its endpoint
/// alternates with `turn`.
fn web(turn: usize) -> Service {
    let endpoint = ["10.244.1.10", "10.244.2.10"];
    Service::new("web", "10.96.0.10")
        .port(tcp(80, 8080))
        .endpoints(endpoint.get(turn % 2).copied().unwrap_or_default())
}

/// Returns a Service with an endpoint on node1, as nearly every real node has. Without such an
/// endpoint, the hairpin set would be empty, and changes would add and remove the shim's rules for
/// this set.
fn resident() -> Service {
    Service::new("resident", "10.96.0.11")
        .port(tcp(80, 8080))
        .endpoints("10.244.1.10")
}

/// A measurement of the other user's changes, and of responses of `/livez`, while the tenant acts.
struct Watch<'a> {
    c: &'a Cluster,
    api: &'a ApiServer,
    turn: usize,
}

impl Watch<'_> {
    /// Changes the endpoint of `web`. Returns the time until packets reach the new endpoint.
    fn change(&mut self) -> Result<Duration> {
        self.turn += 1;
        let who = ["near", "far"].get(self.turn % 2).copied();
        let began = Instant::now();
        self.api.apply(&web(self.turn))?;
        loop {
            let dial = self.c.client.dial(Transport::Tcp, at("10.96.0.10:80"));
            let answer = dial.timeout(Duration::from_secs(1)).reset_on_close().ask();
            if answer.is_ok_and(|answer| Some(answer.who.as_str()) == who) {
                return Ok(began.elapsed());
            }
            ensure!(
                began.elapsed() < PATIENCE,
                "the other Service's change is lost"
            );
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Measures changes of `web` while `beside` runs in the background. Returns once the daemon has
    /// programmed the objects of `beside`, and at least [`CHANGES`] changes are measured.
    fn during(&mut self, what: &str, beside: impl FnOnce() -> Outcome + Send) -> Outcome {
        let is_over = AtomicBool::new(false);
        let lives = Mutex::new(Vec::new());
        let c = self.c;
        let began = Instant::now();
        let (changes, took) = thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let began = Instant::now();
                    // Ignores a failure, because a request without a response within 5 s counts as
                    // 5 s.
                    drop(get(&c.node1, HEALTH, "/livez"));
                    if let Ok(mut lives) = lives.lock() {
                        lives.push(began.elapsed());
                    }
                    thread::sleep(PAUSE);
                }
            });
            let doing = scope.spawn(beside);
            let mut changes = Vec::new();
            let mut took = None;
            let measured = loop {
                match self.change() {
                    Ok(change) => changes.push(change),
                    Err(error) => break Err(error),
                }
                if took.is_none() && doing.is_finished() && is_settled(c) {
                    took = Some(began.elapsed());
                }
                if took.is_some() && changes.len() >= CHANGES {
                    break Ok(());
                }
                if began.elapsed() > PATIENCE {
                    break Err(anyhow::anyhow!("{what}: it is not over"));
                }
                thread::sleep(PAUSE);
            };
            is_over.store(true, Ordering::Relaxed);
            doing.join().map_err(|_| anyhow::anyhow!("it panicked"))??;
            measured.map(|()| (changes, took))
        })?;
        let lives = lives.into_inner().unwrap_or_default();
        println!(
            "    {what}: {}; /livez {}; all in {}",
            spread(&changes),
            spread(&lives),
            milliseconds(took.unwrap_or_default()),
        );
        Ok(())
    }
}

/// Returns true if the daemon's metrics report no pending entries. Packets do not prove this,
/// because they may arrive before the kernel has acknowledged the daemon's writes.
fn is_settled(c: &Cluster) -> bool {
    thread::sleep(PAUSE);
    let Ok((_, text)) = get(&c.node1, METRICS, "/metrics") else {
        return false;
    };
    let mut pending = text
        .lines()
        .filter(|line| line.starts_with("kubeproxy_pending_entries{"));
    pending.all(|line| line.ends_with(" 0") || line.ends_with(" 0.0"))
}

fn beside(c: &mut Cluster, tenant: Tenant) -> Outcome {
    let api = start(c)?;
    let objects = api.objects();
    let written = tenant.objects();
    let mut watch = Watch {
        c,
        api: &api,
        turn: 0,
    };
    watch.during("alone", || Ok(()))?;
    watch.during("made", || {
        for object in &written {
            objects.apply_yaml(object)?;
        }
        Ok(())
    })?;
    watch.during("at rest", || Ok(()))?;
    watch.during("one endpoint changes", || {
        for turn in 1..=5 {
            objects.apply_yaml(&tenant.slice(0, 0, turn).to_string())?;
            thread::sleep(Duration::from_millis(300));
        }
        Ok(())
    })?;
    watch.during("deleted", || {
        for number in 0..tenant.services {
            let name = format!("large-{number}");
            let deleted = objects.delete(apiserver::Kind::Service, TENANT, &name);
            deleted.map_err(|status| anyhow::anyhow!("{status:?}"))?;
        }
        Ok(())
    })?;
    let memory = c.sh(&format!("grep VmHWM /proc/{}/status", c.daemon_id()?))?;
    println!("    {}", memory.trim());
    c.stop()
}

fn one_endpoint(c: &mut Cluster, has_affinity: bool) -> Outcome {
    let api = start(c)?;
    let objects = api.objects();
    for endpoints in [100, 1_000, 5_000] {
        let tenant = Tenant::deep(endpoints, has_affinity);
        let mut watch = Watch {
            c,
            api: &api,
            turn: 0,
        };
        watch.change()?;
        watch.during(&format!("{endpoints} endpoints made"), || {
            for object in tenant.objects() {
                objects.apply_yaml(&object)?;
            }
            Ok(())
        })?;
        let (cpu, before) = (cpu(c)?, programmed(c)?);
        let mut at = before;
        for turn in 1..=CHANGES {
            objects.apply_yaml(
                &tenant
                    .slice(0, turn % (endpoints / SLICE), turn)
                    .to_string(),
            )?;
            let wanted = at.0 + 1.0;
            c.until("the change", || {
                at = programmed(c)?;
                Ok(at.0 >= wanted)
            })?;
        }
        let count = at.0 - before.0;
        println!(
            "    {endpoints} endpoints, one changes: {:.1} ms until it is in the kernel, {:.1} ms of CPU",
            (at.1 - before.1) / count * 1e3,
            (self::cpu(c)? - cpu) / count * 1e3,
        );
        watch.during("meanwhile", || {
            for turn in 1..=CHANGES {
                let slice = turn % (endpoints / SLICE);
                objects.apply_yaml(&tenant.slice(0, slice, CHANGES + turn).to_string())?;
                thread::sleep(PAUSE);
            }
            Ok(())
        })?;
    }
    c.stop()
}

/// Returns the CPU time of the daemon and its child processes, in seconds.
fn cpu(c: &Cluster) -> Result<f64> {
    Ok(lab::process::cpu(c.daemon_id()?)?.as_secs_f64())
}

/// Formats the durations' mean, maximum and number.
#[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
fn spread(took: &[Duration]) -> String {
    let sum: Duration = took.iter().sum();
    let mean = sum.div_f64(took.len().max(1) as f64);
    let longest = took.iter().max().copied().unwrap_or_default();
    format!(
        "{} mean, {} longest of {}",
        milliseconds(mean),
        milliseconds(longest),
        took.len()
    )
}

fn milliseconds(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}
