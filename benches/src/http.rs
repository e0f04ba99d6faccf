//! Client of the fake API server, with one persistent HTTP/1.1 connection. The benchmark uses it
//! mainly to change objects.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

/// Value of the header `User-Agent`, by which the server's log tells the benchmark's requests from
/// those of the measured kube-proxy.
pub(crate) const USER_AGENT: &str = "bench";

/// A connection to the fake API server.
#[derive(Debug)]
pub(crate) struct Api(BufReader<TcpStream>);

impl Api {
    /// Wraps a connected socket. Disables Nagle's algorithm.
    pub(crate) fn new(socket: TcpStream) -> Result<Self> {
        socket.set_nodelay(true)?;
        Ok(Self(BufReader::new(socket)))
    }

    pub(crate) fn post(&mut self, path: &str, object: &Value) -> Result<()> {
        self.send("POST", path, &serde_json::to_vec(object)?)
            .map(drop)
    }

    pub(crate) fn put(&mut self, path: &str, object: &Value) -> Result<()> {
        self.send("PUT", path, &serde_json::to_vec(object)?)
            .map(drop)
    }

    /// Writes an object that is already encoded. Returns the object as the server stores it.
    pub(crate) fn put_encoded(&mut self, path: &str, object: &[u8]) -> Result<Vec<u8>> {
        self.send("PUT", path, object)
    }

    pub(crate) fn get(&mut self, path: &str) -> Result<Value> {
        Ok(serde_json::from_slice(&self.send("GET", path, b"")?)?)
    }

    pub(crate) fn delete(&mut self, path: &str) -> Result<()> {
        self.send("DELETE", path, b"").map(drop)
    }

    /// Sends a request, and returns the body of the response.
    fn send(&mut self, method: &str, path: &str, body: &[u8]) -> Result<Vec<u8>> {
        let mut request = format!(
            "{method} {path} HTTP/1.1\r\nhost: fixture\r\nuser-agent: {USER_AGENT}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        )
        .into_bytes();
        request.extend_from_slice(body);
        self.0.get_mut().write_all(&request)?;
        let (status, answer) = self
            .answer()
            .with_context(|| format!("{method} {path} is not answered"))?;
        ensure!(
            (200..300).contains(&status),
            "{method} {path}: {status} {}",
            String::from_utf8_lossy(&answer)
        );
        Ok(answer)
    }

    fn answer(&mut self) -> Result<(u16, Vec<u8>)> {
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        let status = line
            .split_whitespace()
            .nth(1)
            .and_then(|status| status.parse().ok())
            .with_context(|| format!("no status line: {line:?}"))?;
        let mut length = None;
        loop {
            line.clear();
            self.0.read_line(&mut line)?;
            let header = line.trim_end().to_ascii_lowercase();
            if header.is_empty() {
                break;
            }
            if let Some(value) = header.strip_prefix("content-length:") {
                length = value.trim().parse().ok();
            }
        }
        let Some(length) = length else {
            bail!("an answer without a length");
        };
        let mut body = vec![0; length];
        self.0.read_exact(&mut body)?;
        Ok((status, body))
    }
}
