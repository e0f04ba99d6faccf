use serde_json::Value;

use super::*;

/// Status and object of an answer.
async fn asked(inspect: &Arc<Inspect>, method: &str, path: &str) -> (u16, Value) {
    use http_body_util::BodyExt as _;
    let request = http::Request::builder().method(method).uri(path);
    let (head, ()) = request.body(()).unwrap().into_parts();
    let answer = Respond::respond(inspect, &head).await;
    let code = answer.status().as_u16();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    (code, serde_json::from_slice(&body).unwrap_or_default())
}

#[tokio::test]
async fn while_it_starts_the_status_says_what_is_awaited() {
    let (inspect, _questions) = Inspect::unasked("node1");
    inspect.comes_from(Origin {
        from: "manifests in /m".to_owned(),
        registry: Registry::Manifests("/m".into()),
        troubles: Troubles::default(),
    });
    let (code, status) = asked(&inspect, "GET", "/api/v1/status").await;
    assert_eq!(code, 200);
    assert_eq!(status["node"], "node1");
    assert_eq!(status["ready"], false);
    assert_eq!(status["source"]["from"], "manifests in /m");
    let note = status["notes"][0].as_str().unwrap();
    assert_eq!(
        note,
        "awaited: the first lists of Services and EndpointSlices, and the own Node, for 0 s now"
    );
    let (code, refused) = asked(&inspect, "GET", "/api/v1/services").await;
    let why = refused["error"].as_str().unwrap();
    assert_eq!(code, 503);
    assert!(why.contains("awaits the first lists of Services"), "{why}");
}

#[tokio::test]
async fn only_what_is_there_is_answered_and_nothing_is_taken() {
    let (inspect, _questions) = Inspect::unasked("node1");
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
