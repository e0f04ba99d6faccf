//! The daemon's HTTP endpoints for probes, load balancers and monitoring.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context as _, Result};
use lab::Place;

use crate::cluster::{Cluster, at};

/// Address of the daemon's health endpoints, on node1.
pub const HEALTH: &str = "127.0.0.1:10256";
/// Address of the daemon's metrics endpoint, on node1.
pub const METRICS: &str = "127.0.0.1:10249";

/// Sends `GET http://SERVER/PATH` from a node, pod or host. Returns the response's status and body.
pub fn get(from: &Place, server: &str, path: &str) -> Result<(u16, String)> {
    let answer = from.enter(|| {
        let mut stream = TcpStream::connect_timeout(&at(server), Duration::from_secs(5))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: node1\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    })?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no HTTP answer")?;
    let code = head.split(' ').nth(1).context("no status")?.parse()?;
    Ok((code, body.to_owned()))
}

/// Returns the HTTP status of the daemon's health endpoint `path`, such as `/livez`.
pub fn health(c: &Cluster, path: &str) -> Result<u16> {
    Ok(get(&c.node1, HEALTH, path)?.0)
}

/// Returns the value of a metric sample, or `None` without this sample. `series` is its name with
/// its labels.
pub fn metric(c: &Cluster, series: &str) -> Result<Option<f64>> {
    let (_, text) = get(&c.node1, METRICS, "/metrics")?;
    let sample = text
        .lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    Ok(sample.map(str::parse).transpose()?)
}

/// Returns the number of Service changes that the daemon has programmed in IPv4, and the sum of
/// their durations in seconds.
pub fn programmed(c: &Cluster) -> Result<(f64, f64)> {
    let (_, text) = get(&c.node1, METRICS, "/metrics")?;
    let value = |name: &str| -> Result<f64> {
        let name =
            format!("kubeproxy_service_programming_duration_seconds_{name}{{ip_family=\"IPv4\"}} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&name));
        Ok(line.context("no such metric")?.parse()?)
    };
    Ok((value("count")?, value("sum")?))
}
