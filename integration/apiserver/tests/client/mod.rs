//! A minimal HTTP client for tests: opens one connection per request, exchanges JSON, and reads
//! watches line by line.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Timeout of each step, far longer than a correct server takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) struct Client {
    pub(crate) address: SocketAddr,
}

/// An open watch, which returns one event after another.
pub(crate) struct Events {
    body: Incoming,
    rest: Vec<u8>,
    lines: VecDeque<Value>,
}

/// Opens an HTTP connection for any number of requests.
pub(crate) async fn connect(address: SocketAddr) -> SendRequest<Full<Bytes>> {
    let stream = TcpStream::connect(address).await.unwrap();
    let (sender, connection) = handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

pub(crate) fn request(
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: Vec<u8>,
) -> Request<Full<Bytes>> {
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", "fixture");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Full::from(body)).unwrap()
}

pub(crate) async fn json(response: Response<Incoming>) -> (u16, Value) {
    let code = response.status().as_u16();
    assert_eq!(response.headers()["content-type"], "application/json");
    let body = timeout(PATIENCE, response.into_body().collect())
        .await
        .unwrap()
        .unwrap()
        .to_bytes();
    (code, serde_json::from_slice(&body).unwrap())
}

impl Client {
    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> (u16, Value) {
        let request = request(method, path, headers, body.to_vec());
        json(
            timeout(PATIENCE, connect(self.address).await.send_request(request))
                .await
                .unwrap()
                .unwrap(),
        )
        .await
    }

    /// Sends a GET request, and returns the body of the response. Panics if its status is not 200.
    pub(crate) async fn get(&self, path: &str) -> Value {
        let (code, body) = self.send("GET", path, &[], b"").await;
        assert_eq!(code, 200, "{path}: {body}");
        body
    }

    /// Sends a GET request, and returns status and body of the response. Panics after a response
    /// with status 200.
    pub(crate) async fn refused(&self, path: &str) -> (u16, String) {
        let (code, body) = self.send("GET", path, &[], b"").await;
        assert_eq!(
            (&body["kind"], &body["status"]),
            (&"Status".into(), &"Failure".into()),
            "{path}"
        );
        assert_eq!(body["code"], code);
        (code, body["reason"].as_str().unwrap().to_owned())
    }

    pub(crate) async fn write(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        self.send(
            method,
            path,
            &[("content-type", "application/json")],
            body.to_string().as_bytes(),
        )
        .await
    }

    pub(crate) async fn watch(&self, path: &str) -> Events {
        let request = request("GET", path, &[], Vec::new());
        let response = timeout(PATIENCE, connect(self.address).await.send_request(request))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(response.status(), 200);
        Events {
            body: response.into_body(),
            rest: Vec::new(),
            lines: VecDeque::new(),
        }
    }
}

impl Events {
    /// Returns the next event of the watch, or `None` after its regular end.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        while self.lines.is_empty() {
            let frame = timeout(PATIENCE, self.body.frame())
                .await
                .expect("an event or the end")?;
            self.rest
                .extend_from_slice(&frame.expect("no broken connection").into_data().unwrap());
            while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                self.lines.push_back(serde_json::from_slice(&line).unwrap());
            }
        }
        self.lines.pop_front()
    }

    /// Returns the next event in short form: type and name of the object, such as `ADDED web`.
    pub(crate) async fn short(&mut self) -> String {
        let event = self.next().await.expect("an event");
        let name = event["object"]["metadata"]["name"].as_str().unwrap_or("-");
        format!("{} {name}", event["type"].as_str().unwrap())
    }

    /// Reads to the end of the watch. Returns true if the connection breaks before that.
    pub(crate) async fn broken(mut self) -> bool {
        loop {
            match timeout(PATIENCE, self.body.frame())
                .await
                .expect("an event or the end")
            {
                Some(Ok(_)) => {}
                Some(Err(_)) => return true,
                None => return false,
            }
        }
    }
}

pub(crate) fn version(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap()
}

pub(crate) fn names(list: &Value) -> Vec<&str> {
    list["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["metadata"]["name"].as_str().unwrap())
        .collect()
}
