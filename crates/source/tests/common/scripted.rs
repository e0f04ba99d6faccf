//! An HTTP server whose responses a test scripts.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// A response: status and body. The body of a watch stays open after the server has written it.
pub(crate) type Answer = (u16, String);

/// An HTTP server with a scripted response for each path and query.
pub(crate) struct Scripted {
    pub(crate) address: SocketAddr,
    /// Paths and queries of the requests so far.
    pub(crate) requests: Arc<Mutex<Vec<String>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Scripted {
    pub(crate) async fn new(
        answer: impl Fn(&str) -> Answer + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let requests = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&requests);
        let answer = Arc::new(answer);
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((connection, _)) = listener.accept().await {
                let (answer, log) = (Arc::clone(&answer), Arc::clone(&log));
                connections.spawn(async move {
                    // Ignores the error of a client that disconnects.
                    let _ = serve(connection, &*answer, &log).await;
                });
            }
        });
        Ok(Self {
            address,
            requests,
            task,
        })
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn asked(&self, part: &str) -> usize {
        let requests = self.requests.lock().unwrap();
        requests.iter().filter(|asked| asked.contains(part)).count()
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(
    connection: TcpStream,
    answer: &(impl Fn(&str) -> Answer + ?Sized),
    log: &Mutex<Vec<String>>,
) -> io::Result<()> {
    let mut connection = BufReader::new(connection);
    let mut request = String::new();
    connection.read_line(&mut request).await?;
    let (mut header, mut length) = (String::new(), 0);
    while connection.read_line(&mut header).await? > 2 {
        if let Some(value) = header.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
        header.clear();
    }
    // Reads the request's body. If the server closed the connection with unread bytes, the client
    // might lose the response.
    connection.read_exact(&mut vec![0; length]).await?;
    let target = request.split(' ').nth(1).unwrap_or_default().to_owned();
    log.lock().unwrap().push(target.clone());
    let (status, body) = answer(&target);
    let head = format!(
        "HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
    );
    connection.write_all(head.as_bytes()).await?;
    connection.write_all(body.as_bytes()).await?;
    connection.flush().await?;
    if target.contains("watch=true") && status == 200 && body.ends_with('\n') {
        std::future::pending::<()>().await;
    }
    connection.shutdown().await
}
