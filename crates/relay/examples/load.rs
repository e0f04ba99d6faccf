//! Measures the cost of the relay on loopback, with and without `splice`:
//!
//! * connections per second;
//! * throughput;
//! * round trips per second;
//! * memory of an idle connection.
//!
//! ```text
//! cargo run --release -p relay --example load
//! ```
//!
//! The clients and the endpoint are separate processes, so this process measures only the relay.
//! The rows `direct` measure the same traffic without a relay.
#![allow(clippy::unwrap_used, reason = "an example stops at the first surprise")]

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use relay::{AllowedClients, Carriage, Limits, PortBackends, Relay, Transport};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Duration of each measurement.
const TIME: Duration = Duration::from_secs(3);

/// Number of idle connections whose memory is measured.
const IDLE: usize = 10_000;

/// Number of descriptors that this process needs besides those of connections.
const OTHERS: usize = 100;

/// Number of clients that connect in parallel.
const CLIENTS: usize = 4;

fn main() {
    let limit = getrlimit(Resource::Nofile);
    let current = limit.maximum;
    setrlimit(Resource::Nofile, Rlimit { current, ..limit }).unwrap();
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match *arguments.as_slice() {
        [] => measure(current),
        ["server"] => serve(),
        ["client", at, what, count] => {
            client(at.parse().unwrap(), what, count.parse().unwrap());
        }
        _ => eprintln!("usage: load"),
    }
}

// ---- the endpoint ----

/// Runs the endpoint. The first byte of each connection tells the endpoint what to do.
fn serve() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    println!("{}", listener.local_addr().unwrap());
    let mut idle = Vec::new();
    for connection in listener.incoming() {
        let mut connection = connection.unwrap();
        connection.set_nodelay(true).unwrap();
        let mut what = [0; 1];
        if connection.read_exact(&mut what).is_err() {
            continue;
        }
        match what {
            [b'i'] => {
                connection.write_all(b"i").unwrap();
                idle.push(connection);
            }
            [b'c'] => drop(connection.write_all(b"c")),
            [b'n'] => idle.clear(),
            [b'b'] => drop(thread::spawn(move || {
                let mut buffer = vec![0; 256 * 1024];
                while let Ok(1..) = connection.read(&mut buffer) {}
            })),
            _ => drop(thread::spawn(move || {
                let mut buffer = [0; 64];
                while connection.read_exact(&mut buffer).is_ok() {
                    connection.write_all(&buffer).unwrap();
                }
            })),
        }
    }
}

// ---- clients ----

fn connect(at: SocketAddr) -> TcpStream {
    let client = TcpStream::connect(at).unwrap();
    client.set_nodelay(true).unwrap();
    client
}

/// Runs a client, and prints its result: connections, bytes or round trips per second, or the
/// number of idle connections.
fn client(at: SocketAddr, what: &str, count: usize) {
    let start = Instant::now();
    match what {
        "connections" => {
            let one = move || {
                let mut done = 0_usize;
                while start.elapsed() < TIME {
                    let mut client = connect(at);
                    client.write_all(b"c").unwrap();
                    let mut answer = [0; 1];
                    client.read_exact(&mut answer).unwrap();
                    done += 1;
                }
                done
            };
            let all: Vec<_> = (0..count).map(|_| thread::spawn(one)).collect();
            let all = all.into_iter().map(|one| one.join().unwrap());
            println!("{}", per_second(all.sum(), start));
        }
        "bytes" => {
            let mut client = connect(at);
            client.write_all(b"b").unwrap();
            let (chunk, mut done) = (vec![7; 256 * 1024], 0);
            while start.elapsed() < TIME {
                client.write_all(&chunk).unwrap();
                done += chunk.len();
            }
            client.shutdown(Shutdown::Write).unwrap();
            // Waits until the endpoint has read everything.
            let _ = client.read(&mut [0; 1]);
            println!("{}", per_second(done, start));
        }
        "round trips" => {
            let mut client = connect(at);
            client.write_all(b"r").unwrap();
            let (mut buffer, mut done) = ([0; 64], 0);
            while start.elapsed() < TIME {
                client.write_all(&buffer).unwrap();
                client.read_exact(&mut buffer).unwrap();
                done += 1;
            }
            println!("{}", per_second(done, start));
        }
        _ => {
            let one = |_| {
                let mut client = connect(at);
                client.write_all(b"i").unwrap();
                let mut answer = [0; 1];
                client.read_exact(&mut answer).unwrap();
                client
            };
            let all: Vec<TcpStream> = (0..count).map(one).collect();
            println!("{}", all.len());
            // Keeps the connections open until the measuring process closes this pipe.
            let _ = std::io::stdin().read(&mut [0; 1]);
        }
    }
}

fn per_second(count: usize, start: Instant) -> u64 {
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a figure to be read"
    )]
    let per_second = (count as f64 / start.elapsed().as_secs_f64()) as u64;
    per_second
}

// ---- Functions that run the relay and its clients, and print the table ----

fn start(arguments: &[&str]) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut child = Command::new(env::current_exe().unwrap())
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    (child, output)
}

fn line<T: std::str::FromStr>(output: &mut impl BufRead) -> T
where
    T::Err: std::fmt::Debug,
{
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    line.trim().parse().unwrap()
}

/// Runs a client. Returns its result, and the CPU seconds that this process needed during the run.
fn run(at: SocketAddr, what: &str, count: usize) -> (u64, f64) {
    let before = worked();
    let (mut child, mut output) = start(&["client", &at.to_string(), what, &count.to_string()]);
    let found = line(&mut output);
    child.wait().unwrap();
    (found, worked() - before)
}

/// Returns the CPU time of this process, in seconds.
fn worked() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let fields = stat.rsplit(')').next().unwrap().split_whitespace();
    // User time and system time, in ticks of 10 ms.
    let ticks = fields.skip(11).take(2);
    ticks
        .map(|field| field.parse::<f64>().unwrap())
        .sum::<f64>()
        / 100.0
}

/// Returns the resident memory of this process, in bytes.
fn resident() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

fn measure(descriptors: Option<u64>) {
    let (mut server, mut output) = start(&["server"]);
    let endpoint: SocketAddr = line(&mut output);
    let descriptors = descriptors.map_or(usize::MAX, |most| most.try_into().unwrap());
    // The relay in this process needs two descriptors for each connection.
    let idle = IDLE.min((descriptors - OTHERS) / 2);
    let all = [
        ("direct", None),
        ("copy", Some(Carriage::Copy)),
        ("splice", Some(Carriage::Splice)),
        ("adaptive", Some(Carriage::Adaptive)),
    ];
    println!(
        "| method of the relay | new connections/s | throughput, MB/s | relay's CPU time, s/GB | round trips/s | idle connections | memory of each, bytes |"
    );
    println!("|---|---|---|---|---|---|---|");
    for (name, carriage) in all {
        let relay = carriage.map(|carriage| {
            let limits = Limits {
                carriage,
                descriptors: Some(descriptors),
                reach: AllowedClients::Anybody,
                ..Limits::default()
            };
            let relay = Relay::start(limits).unwrap();
            let serving = PortBackends {
                endpoints: [endpoint].into(),
                ..PortBackends::default()
            };
            let any = (Ipv4Addr::LOCALHOST, 0).into();
            let opened = relay
                .open(Transport::Tcp, any, &"load".into(), Arc::new(serving))
                .unwrap();
            (relay, opened.at)
        });
        let at = relay.as_ref().map_or(endpoint, |(_, at)| *at);
        let (connections, _) = run(at, "connections", CLIENTS);
        let (bytes, seconds) = run(at, "bytes", 1);
        #[allow(clippy::cast_precision_loss, reason = "a figure to be read")]
        let cost = seconds / (bytes as f64 * TIME.as_secs_f64() / 1e9);
        let (trips, _) = run(at, "round trips", 1);
        let held = if relay.is_some() {
            let before = resident();
            let count = idle.to_string();
            let (mut child, mut output) = start(&["client", &at.to_string(), "idle", &count]);
            let count: u64 = line(&mut output);
            let each = resident().saturating_sub(before) / count;
            drop(child.stdin.take());
            child.wait().unwrap();
            connect(endpoint).write_all(b"n").unwrap();
            format!("{count} | {each}")
        } else {
            "| ".to_owned()
        };
        println!(
            "| {name} | {connections} | {} | {cost:.2} | {trips} | {held} |",
            bytes / 1_000_000
        );
        if let Some((relay, _)) = relay {
            relay.finish(Duration::from_secs(5));
        }
    }
    server.kill().unwrap();
    server.wait().unwrap();
}
