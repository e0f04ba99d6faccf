use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream as Plain;

use http::StatusCode;
use http::request::Parts;

use super::*;
use crate::http_server::text;

/// A name that no other test has.
fn name(of: &str) -> &'static str {
    format!("kube-proxy-ipvs/test-{}-{of}", std::process::id()).leak()
}

fn echo(head: &Parts) -> http_server::Answer {
    text(StatusCode::OK, head.uri.path().to_owned())
}

/// The whole answer, asked for by blocking.
async fn ask(name: &'static str, path: &str) -> io::Result<String> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    let asked = tokio::task::spawn_blocking(move || {
        let mut stream = Plain::connect_addr(&address(name)?)?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        stream.write_all(request.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    });
    asked.await.unwrap()
}

#[tokio::test]
async fn who_runs_the_daemon_is_answered() {
    let name = name("answered");
    let _server = start(name, echo);
    let answer = ask(name, "/a").await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    assert!(answer.ends_with("\r\n\r\n/a"), "{answer}");
}

#[tokio::test]
async fn whoever_else_is_told_so() {
    let name = name("refused");
    // As if the daemon ran as a user who is neither root nor who asks.
    let mut local = listen(name).unwrap();
    local.own = geteuid().as_raw().wrapping_add(1);
    assert_eq!(refusal(Some(0), 7), None);
    assert_eq!(refusal(Some(7), 7), None);
    assert!(refusal(None, 7).is_some());
    let why = refusal(Some(8), 7).unwrap();
    assert!(why.contains("user 8 may not ask"), "{why}");
    if geteuid().is_root() {
        // Root may always ask: as if another had connected.
        struct Other(Local);
        impl Listen for Other {
            type Stream = UnixStream;
            async fn accept(&self) -> io::Result<Accepted<UnixStream>> {
                let Accepted { stream, .. } = self.0.accept().await?;
                Ok(accepted(stream, Some(1000), self.0.own))
            }
        }
        tokio::spawn(http_server::serve(Other(local), "tests", Arc::new(echo)));
    } else {
        tokio::spawn(http_server::serve(local, "tests", Arc::new(echo)));
    }
    let answer = ask(name, "/a").await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 403 Forbidden"), "{answer}");
    assert!(answer.contains("may not ask: only root"), "{answer}");
}

#[tokio::test]
async fn of_two_daemons_the_second_answers_once_the_first_has_ended() {
    let name = name("two");
    let answers = |what: &'static str| move |_: &Parts| text(StatusCode::OK, what);
    let first = start(name, answers("first"));
    let _second = start(name, answers("second"));
    assert!(ask(name, "/").await.unwrap().ends_with("first"));
    drop(first);
    let deadline = std::time::Instant::now() + Duration::from_secs(5);
    loop {
        match ask(name, "/").await {
            Ok(answer) if answer.ends_with("second") => break,
            other => assert!(std::time::Instant::now() < deadline, "{other:?}"),
        }
        sleep(RETRY_PERIOD).await;
    }
}
