//! Measures the cost of reading a list of EndpointSlices, in each format.
//!
//! `cargo run --release -p source --example decode_cost [SLICES [ENDPOINTS]]`
//!
//! The API fixture returns the lists: whole, as from a watch cache, or streamed as the beginning of
//! a watch (`WatchList`). Servers compress streamed lists from Kubernetes 1.37 on. The formats take
//! turns, one run at a time. In each run:
//!
//! 1. A separate process reads the list from a socket, up to the event that completes the list, and
//!    drops the objects.
//! 2. The program prints the elapsed time, the process's CPU time, and its peak memory above the
//!    peak for an empty list.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a measurement stops at the first surprise"
)]

use std::env;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Instant;

use futures::StreamExt as _;
use proxy::{Event, Kind};
use serde_json::{Value, json};
use source::{Api, ContentType, Lists, Settings};

const PATH: &str = "/apis/discovery.k8s.io/v1/endpointslices";
/// Number of runs of each format. The program prints the median.
const RUNS: usize = 5;
/// Timeout in seconds for recording a streamed list.
const STREAM_SECONDS: u32 = 20;
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const JSON: &str = "application/json";
/// Measured formats: name, accepted content types, accepted compression, and method of listing.
const FORMS: [(&str, &str, &str, Lists); 6] = [
    ("JSON", JSON, "identity", Lists::Cached),
    ("JSON, gzip", JSON, "gzip", Lists::Cached),
    ("protobuf", PROTOBUF, "identity", Lists::Cached),
    ("protobuf, gzip", PROTOBUF, "gzip", Lists::Cached),
    ("streamed protobuf", PROTOBUF, "identity", Lists::Streamed),
    ("streamed, gzip", PROTOBUF, "gzip", Lists::Streamed),
];

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if let [read, url, lists] = &arguments[..]
        && read == "read"
    {
        let lists = match &**lists {
            "streamed" => Lists::Streamed,
            _ => Lists::Cached,
        };
        println!("{}", serde_json::to_string(&read_list(url, lists)).unwrap());
        return;
    }
    let number = |at: usize, default| {
        arguments
            .get(at)
            .map_or(default, |text| text.parse().unwrap())
    };
    let (slices, endpoints) = (number(0, 10_000), number(1, 50));
    let bodies = bodies(slices, endpoints);
    let lengths: Vec<usize> = bodies.iter().map(Vec::len).collect();
    let urls: Vec<String> = bodies.into_iter().map(serve).collect();
    let nothing = serve(self::bodies(0, 0).swap_remove(0));
    let mut runs = vec![Vec::new(); FORMS.len()];
    let mut empty = Vec::new();
    for _ in 0..RUNS {
        empty.push(run(&nothing, Lists::Cached));
        for ((url, (.., lists)), runs) in urls.iter().zip(FORMS).zip(&mut runs) {
            runs.push(run(url, lists));
        }
    }
    let empty = median(empty);
    println!("{slices} EndpointSlices of {endpoints} endpoints\n");
    println!(
        "{:18}{:>12}{:>12}{:>12}{:>15}",
        "form", "MB sent", "time, ms", "CPU, ms", "peak, MB more"
    );
    for (((form, ..), length), runs) in FORMS.iter().zip(lengths).zip(runs) {
        let [wall, nanos, bytes] = median(runs);
        println!(
            "{form:18}{:>12}{:>12}{:>12}{:>15}",
            tenths(length as u64, 1_000_000),
            tenths(wall.saturating_sub(empty[0]), 1_000_000),
            tenths(nanos.saturating_sub(empty[1]), 1_000_000),
            tenths(bytes.saturating_sub(empty[2]), 1_000_000),
        );
    }
}

fn tenths(value: u64, unit: u64) -> String {
    let tenths = (value * 10 + unit / 2) / unit;
    format!("{}.{}", tenths / 10, tenths % 10)
}

/// Reads the list in a separate process. Returns the elapsed time and the CPU time, in nanoseconds,
/// and the memory in bytes.
fn run(url: &str, lists: Lists) -> [u64; 3] {
    let lists = match lists {
        Lists::Streamed => "streamed",
        Lists::Cached => "cached",
    };
    let mut read = Command::new(env::current_exe().unwrap());
    let output = read.args(["read", url, lists]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn median(mut runs: Vec<[u64; 3]>) -> [u64; 3] {
    [0, 1, 2].map(|which| {
        runs.sort_by_key(|run| run[which]);
        runs[runs.len() / 2][which]
    })
}

/// Reads the EndpointSlices in this process. Returns the same three numbers as [`run`].
fn read_list(url: &str, lists: Lists) -> [u64; 3] {
    let began = Instant::now();
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build().unwrap();
    runtime.block_on(async {
        let settings = Settings::Api(Api {
            master: Some(url.to_owned()),
            content_type: ContentType::Protobuf,
            lists,
            ..Api::default()
        });
        let (mut events, _) = source::open(&settings, "node1", source::uncounted)
            .await
            .unwrap();
        let complete = Event::ListComplete {
            kind: Kind::EndpointSlice,
            is_whole: true,
        };
        while events.next().await.unwrap() != complete {}
    });
    let wall = u64::try_from(began.elapsed().as_nanos()).unwrap();
    let schedule = fs::read_to_string("/proc/self/schedstat").unwrap();
    let nanos = schedule.split(' ').next().unwrap().parse().unwrap();
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let most = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap();
    let kilobytes: u64 = most.trim().trim_end_matches(" kB").parse().unwrap();
    [wall, nanos, kilobytes * 1024]
}

/// Returns a complete HTTP response with the list of EndpointSlices, in each format of [`FORMS`].
fn bodies(slices: usize, endpoints: usize) -> Vec<Vec<u8>> {
    let (send, address) = mpsc::channel();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().build().unwrap();
        runtime.block_on(async {
            let options = apiserver::Options {
                streamed_lists: apiserver::StreamedLists::Compressed,
                ..apiserver::Options::default()
            };
            let server = apiserver::Server::start(options).await.unwrap();
            for number in 0..slices {
                server.apply(slice(number, endpoints)).unwrap();
            }
            send.send(server.address()).unwrap();
            std::future::pending::<()>().await;
        });
    });
    let address = address.recv().unwrap();
    let got = FORMS.map(|(_, accept, encoding, lists)| {
        let query = match lists {
            Lists::Cached => "resourceVersion=0".to_owned(),
            Lists::Streamed => format!(
                "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&\
                 timeoutSeconds={STREAM_SECONDS}"
            ),
        };
        let accept = match lists {
            Lists::Cached => accept.to_owned(),
            Lists::Streamed => format!("{accept};stream=watch"),
        };
        let mut connection = TcpStream::connect(address).unwrap();
        let head = format!(
            "GET {PATH}?{query} HTTP/1.0\r\nAccept: {accept}\r\nAccept-Encoding: {encoding}\r\n\r\n"
        );
        connection.write_all(head.as_bytes()).unwrap();
        let mut answer = Vec::new();
        connection.read_to_end(&mut answer).unwrap();
        assert!(answer.starts_with(b"HTTP/1.0 200"));
        answer
    });
    got.into()
}

/// Starts a server that replies with `answer` to every list of EndpointSlices. Returns its URL.
fn serve(answer: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    let answer = Arc::new(answer);
    thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            let answer = Arc::clone(&answer);
            thread::spawn(move || {
                let mut lines = BufReader::new(&connection).lines().map_while(Result::ok);
                let asked = lines.next().unwrap_or_default();
                let is_list = !asked.contains("watch=true") || asked.contains("sendInitialEvents");
                if asked.contains(PATH) && is_list {
                    lines.find(String::is_empty);
                    // Ignores an error: the client may close the connection once it has read
                    // enough.
                    let _ = (&connection).write_all(&answer);
                } else {
                    // Keeps the connection open while the client waits.
                    lines.for_each(drop);
                }
            });
        }
    });
    format!("http://{address}")
}

/// Returns an EndpointSlice like the controller's EndpointSlices for a Deployment's Pods.
fn slice(number: usize, endpoints: usize) -> Value {
    let service = format!("service-{number}");
    let list: Vec<Value> = (0..endpoints)
        .map(|i| {
            let pod = number * endpoints + i;
            json!({
                "addresses": [format!("10.{}.{}.{}", pod >> 16 & 255, pod >> 8 & 255, pod & 255)],
                "conditions": {"ready": true, "serving": true, "terminating": false},
                "nodeName": format!("node-{}", pod % 1000),
                "zone": format!("zone-{}", pod % 3),
                "targetRef": {
                    "kind": "Pod", "namespace": "default", "name": format!("{service}-7c5ddbdf54-{i:05}"),
                    "uid": format!("3f0c1f0e-5d0d-4d5b-9d0a-{pod:012}"),
                },
            })
        })
        .collect();
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {
            "name": format!("{service}-x7f2k"), "generateName": format!("{service}-"), "namespace": "default",
            "labels": {
                "kubernetes.io/service-name": service,
                "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
            },
            "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": "2026-01-02T03:04:05Z"},
        },
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        "endpoints": list,
    })
}
