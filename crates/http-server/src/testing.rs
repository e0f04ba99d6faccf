//! HTTP client for the tests of crates that run a server.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::Server;

/// Sends a request to a server of this process. Returns the head and the body of the response.
/// Panics if there is no response.
pub async fn get(server: &Server, request: &str) -> (String, String) {
    let address = *server.address.as_ref().expect("it listens");
    let at = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), address.port());
    let mut stream = TcpStream::connect(at).await.expect("it answers");
    let (line, headers) = request.split_once('\n').unwrap_or((request, ""));
    let headers = headers.replace('\n', "\r\n");
    let head = format!("{line} HTTP/1.1\r\nHost: node1\r\nConnection: close\r\n{headers}\r\n");
    stream.write_all(head.as_bytes()).await.expect("it answers");
    let mut answer = String::new();
    stream
        .read_to_string(&mut answer)
        .await
        .expect("it answers");
    let (head, body) = answer.split_once("\r\n\r\n").expect("it answers");
    (head.replace('\r', ""), body.to_owned())
}
