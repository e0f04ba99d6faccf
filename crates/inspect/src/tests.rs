use serde_json::Value;

use super::*;

#[tokio::test]
async fn the_status_lists_unreadable_manifests() {
    let directory = std::env::temp_dir().join(format!("inspect-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let broken = directory.join("a.yaml");
    std::fs::write(&broken, "kind: [").unwrap();
    let manifests = source::manifests::stream(&directory, "node1").unwrap();
    while manifests.unreadable().now().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let (inspect, _questions) = starting();
    inspect.comes_from(Origin {
        from: "manifests".to_owned(),
        registry: Registry::Manifests(directory.clone()),
        troubles: Troubles::default(),
        unreadable: manifests.unreadable(),
    });
    let (_, status) = asked(&inspect, "GET", "/api/v1/status").await;
    std::fs::remove_dir_all(&directory).unwrap();
    assert_eq!(status["unreadable"][0]["part"], broken.to_str().unwrap());
    let reason = status["unreadable"][0]["reason"].as_str().unwrap();
    assert!(
        reason.contains("nothing is removed until its content is known"),
        "{reason}"
    );
}

/// Health of a daemon that waits for its first lists.
struct Starting;

impl Health for Starting {
    fn is_expecting(&self) -> bool {
        false
    }

    fn awaiting(&self) -> Vec<String> {
        vec!["the first lists of Services".to_owned()]
    }

    fn is_healthy(&self, _now: Instant) -> bool {
        true
    }

    fn updated(&self) -> BTreeMap<IpFamily, Instant> {
        BTreeMap::new()
    }
}

fn starting() -> (Arc<Inspect>, mpsc::Receiver<Question>) {
    let about = About {
        node: "node1".to_owned(),
        started: SystemTime::UNIX_EPOCH,
        version: "0.1.0",
        kubernetes: "v1.37.0".to_owned(),
        modes: &[],
        missing_scheduler: |_| None,
        trim: || {},
        other_daemons: Vec::new,
    };
    Inspect::new(about, Arc::new(Starting), &SeparateReaders::default())
}

/// Sends a request to the API as root. Returns the status code and the body of the response.
async fn asked(inspect: &Arc<Inspect>, method: &str, path: &str) -> (u16, Value) {
    use http_body_util::BodyExt as _;
    let request = http::Request::builder().method(method).uri(path);
    let (head, ()) = request.body(()).unwrap().into_parts();
    let answer = ByRoot(Arc::clone(inspect)).respond(&head).await;
    let code = answer.status().as_u16();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    (code, serde_json::from_slice(&body).unwrap_or_default())
}

#[tokio::test]
async fn the_status_of_a_starting_daemon_lists_the_conditions_that_it_awaits() {
    let (inspect, _questions) = starting();
    inspect.comes_from(Origin {
        from: "manifests in /m".to_owned(),
        registry: Registry::Manifests("/m".into()),
        troubles: Troubles::default(),
        unreadable: UnreadableManifests::default(),
    });
    let (code, status) = asked(&inspect, "GET", "/api/v1/status").await;
    assert_eq!(code, 200);
    assert_eq!(status["node"], "node1");
    assert_eq!(status["ready"], false);
    assert_eq!(status["source"]["from"], "manifests in /m");
    let note = status["notes"][0].as_str().unwrap();
    assert_eq!(note, "awaited: the first lists of Services");
    let (code, refused) = asked(&inspect, "GET", "/api/v1/services").await;
    let why = refused["error"].as_str().unwrap();
    assert_eq!(code, 503);
    assert!(why.contains("awaits the first lists of Services"), "{why}");
}

#[tokio::test]
async fn unknown_paths_and_methods_that_write_are_rejected() {
    let (inspect, _questions) = starting();
    for (method, path, wanted) in [
        ("GET", "/api/v1/nothing", 404),
        ("GET", "/metrics", 404),
        ("POST", "/api/v1/status", 405),
        ("DELETE", "/api/v1/status", 405),
        ("HEAD", "/api/v1/status", 200),
    ] {
        let (code, object) = asked(&inspect, method, path).await;
        assert_eq!(code, wanted, "{method} {path}: {object}");
    }
}

#[test]
fn other_daemons_are_warnings_only_after_drift() {
    let others = || vec!["kube-proxy[9]".to_owned()];
    let mut status = view::Status::default();
    status::add_rivals(&mut status, others);
    assert_eq!(status.warnings, []);
    status.drift.push(view::RepairedEntries::default());
    status::add_rivals(&mut status, others);
    assert_eq!(status.warnings[0].object, "kube-proxy[9]");
}
