//! Tests the page of a real daemon in the lab. The browser runs on a host outside the cluster, and
//! its connections are forwarded to the node as by kubectl port-forward. The browser cannot run on
//! the node: Chromium aborts its requests whenever an address of its host changes, and the daemon
//! changes addresses of the node.

use std::fmt::Write as _;
use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use browser::{Browser, Key};
use lab::{Running, Transport};
use scenarios::{Cluster, METRICS, Outcome, Service, Story, at, tally, tcp, tell};

/// Number of Services in addition to `default/web`.
const MANY: usize = 10_000;

fn main() {
    let stories = [Story {
        name: "the_page_shows_the_state_of_a_daemon_with_ten_thousand_services",
        tell: |c| read_by_an_operator(c),
        is_possible: || true,
    }];
    tell(&stories, Duration::from_mins(5))
}

fn read_by_an_operator(c: &mut Cluster) -> Outcome {
    c.patience = Duration::from_secs(90);
    c.write("many", &many())?;
    c.apply(&web())?;
    let c = &*c;
    let daemon = c.start_apart(&[])?;
    forward_port(c)?;
    let read = c
        .outside
        .enter(|| in_a_browser(c, daemon).map_err(|error| io::Error::other(format!("{error:?}"))));
    Ok(read?)
}

/// Forwards connections from the outside host's metrics address to the node's metrics address,
/// until the test process ends.
fn forward_port(c: &Cluster) -> Result<()> {
    let listener = c.outside.enter(|| TcpListener::bind(METRICS))?;
    let node = c.node1.clone();
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            // Without a daemon on the node, the client's connection ends without a response.
            if let Ok(server) = node.enter(|| TcpStream::connect(METRICS)) {
                let pair = (client.try_clone(), server.try_clone());
                if let (Ok(from_client), Ok(from_server)) = pair {
                    thread::spawn(move || copy(from_client, server));
                    thread::spawn(move || copy(from_server, client));
                }
            }
        }
    });
    Ok(())
}

/// Copies one direction of a connection until its end. An error ends both directions.
fn copy(mut from: TcpStream, mut to: TcpStream) {
    let how = match io::copy(&mut from, &mut to) {
        Ok(_) => Shutdown::Write,
        Err(_) => Shutdown::Both,
    };
    // Shutdown fails only if the connection is already closed.
    drop(to.shutdown(how));
}

fn web() -> Service {
    let web = Service::new("web", "10.96.0.10 fd96::10").port(tcp(80, 8080).named("http"));
    web.endpoints("10.244.1.10 10.244.2.10 fd44:1::10")
}

fn in_a_browser(c: &Cluster, mut daemon: Running) -> Result<()> {
    let browser = Browser::start(&c.folder().join("profile"))?;
    browser.go(&format!("http://{METRICS}/"))?;
    browser.sees_all(&[
        "All Services are programmed.",
        "node1 · ipvs",
        "10,001",
        "synced",
    ])?;
    browser.picture("daemon-overview")?;
    a_service_is_found(&browser)?;
    its_traffic_is_seen(c, &browser)?;
    its_packets_path_is_drawn(
        &browser,
        "daemon-explain-ipvs",
        &[
            "-A -t 10.96.0.10:80 -s rr",
            "matches KUBE-CLUSTER-IP 10.96.0.10,tcp:80",
            "-a -t 10.96.0.10:80 -r 10.244.2.10:8080",
            "one of 2 paths",
        ],
    )?;
    an_endpoint_that_drains_is_seen(c, &browser)?;
    browser.run("location.hash = '#/top'", &[])?;
    browser.sees("Service ports")?;
    browser.sees("default/web")?;
    // The daemon stops, and the page keeps showing its last state. Then another daemon starts.
    daemon.stop(Duration::from_secs(30))?;
    browser.sees("kube-proxy has not answered since")?;
    browser.sees("default/web")?;
    c.delete("many")?;
    c.apply(&web())?;
    let _daemon = c.start_apart(&["--proxy-mode=iptables"])?;
    browser.until(
        "the end of it",
        "return document.getElementById('gone').hidden",
    )?;
    browser.sees("node1 · iptables")?;
    // Discards the console errors so far, which come from requests to the stopped daemon.
    browser.complaints()?;
    its_packets_path_is_drawn(
        &browser,
        "daemon-explain-iptables",
        &["KUBE-SERVICES", "KUBE-SVC-", "--probability 0.5"],
    )
}

fn a_service_is_found(browser: &Browser) -> Result<()> {
    browser.write("/")?;
    browser.sees("100 of 10,001 Services")?;
    browser.picture("daemon-services")?;
    let began = Instant::now();
    browser.write("default/web")?;
    let one = "return document.querySelectorAll('tbody tr').length === 1";
    browser.until("one row", one)?;
    let took = began.elapsed();
    ensure!(took < Duration::from_secs(5), "a search took {took:?}");
    browser.press(Key::Down)?;
    browser.press(Key::Enter)?;
    browser.sees_all(&[
        "10.96.0.10:80",
        "10.244.1.10:8080",
        "10.244.2.10:8080",
        "3 in",
        "this node",
        "Weight",
    ])?;
    browser.picture("daemon-service")?;
    let complaints = browser.complaints()?;
    ensure!(complaints.is_empty(), "{complaints:#?}");
    Ok(())
}

fn its_traffic_is_seen(c: &Cluster, browser: &Browser) -> Result<()> {
    browser.run("location.hash = '#/top'", &[])?;
    browser.sees("Service ports")?;
    tally(&c.client, Transport::Tcp, at("10.96.0.10:80"), 40)?;
    let busiest = "return document.querySelector('tbody tr')?.textContent.includes('default/web')
        && document.querySelector('tbody td[data-title=\"Connections so far\"]').textContent === '40'";
    browser.until(
        "default/web as the busiest, with its 40 connections",
        busiest,
    )?;
    browser.sees("10.244.1.10:8080")?;
    browser.picture("daemon-top")
}

/// Checks that the drawing of a packet's path contains the kernel entries `entries`, and both
/// endpoints with their probabilities.
fn its_packets_path_is_drawn(browser: &Browser, name: &str, entries: &[&str]) -> Result<()> {
    browser.run("location.hash = '#/explain?to=10.96.0.10:80&from=pod'", &[])?;
    browser.until(
        "the ends of both ways",
        "return document.querySelectorAll('article .end.good').length === 2",
    )?;
    // `textContent` also contains the text of folded branches.
    let drawn = browser.run("return document.querySelector('article').textContent", &[])?;
    let drawn = drawn.as_str().unwrap_or_default();
    let ends = ["10.244.1.10:8080", "10.244.2.10:8080", "50 %", "delivered"];
    for part in ends.iter().chain(entries) {
        ensure!(drawn.contains(part), "{part} is not in {drawn}");
    }
    browser.picture(name)?;
    let complaints = browser.complaints()?;
    ensure!(complaints.is_empty(), "{complaints:#?}");
    Ok(())
}

/// Checks that the page shows a draining endpoint: no EndpointSlice contains it, but a client's
/// connection to it is open.
fn an_endpoint_that_drains_is_seen(c: &Cluster, browser: &Browser) -> Result<()> {
    let dial = || c.client.dial(Transport::Tcp, at("10.96.0.10:80"));
    let mut kept = dial().reset_on_close().open()?;
    while kept.ask()?.who != "far" {
        kept = dial().reset_on_close().open()?;
    }
    c.apply(&web().endpoints("10.244.1.10 fd44:1::10"))?;
    c.until_reals("TCP 10.96.0.10:80", "10.244.1.10:8080*1 10.244.2.10:8080*0")?;
    browser.run("location.hash = '#/services/default/web'", &[])?;
    browser.sees_all(&[
        "no EndpointSlice has it any more; drains",
        "draining for",
        "1 open",
        "2 in, 1 draining",
    ])?;
    browser.picture("daemon-draining")?;
    ensure!(kept.ask()?.who == "far", "the connection ended");
    Ok(())
}

/// Returns the manifests of [`MANY`] Services with one endpoint each, in ten namespaces.
fn many() -> String {
    let mut text = String::new();
    for number in 0..MANY {
        let (namespace, third, last) = (number % 10, number / 250, number % 250 + 1);
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "---\n{{apiVersion: v1, kind: Service, metadata: {{namespace: team-{namespace}, name: web-{number:05}}}, \
             spec: {{clusterIPs: [10.97.{third}.{last}], clusterIP: 10.97.{third}.{last}, ports: [{{port: 80}}]}}}}\n\
             ---\n{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4, \
             metadata: {{namespace: team-{namespace}, name: web-{number:05}, labels: {{kubernetes.io/service-name: web-{number:05}}}}}, \
             ports: [{{port: 8080}}], endpoints: [{{addresses: [10.244.2.{last}], conditions: {{ready: true}}}}]}}\n"
        );
    }
    text
}
