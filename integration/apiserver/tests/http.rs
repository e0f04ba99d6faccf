//! Tests the API server fixture over HTTP.
#![allow(clippy::restriction, reason = "a test stops at the first surprise")]
#![allow(
    clippy::needless_pass_by_value,
    reason = "json!() stands where it is used"
)]

mod client;

use std::io::Read as _;
use std::time::{Duration, Instant};

use apiserver::{Cluster, Kind, Options, Server, WatchCache};
use client::{Client, connect, json as answer, names, request, version};
use http_body_util::BodyExt;
use serde_json::{Value, json};

const SERVICES: &str = "/api/v1/services";

async fn serve(options: Options) -> (Server, Client) {
    let server = Server::start(options).await.unwrap();
    let client = Client {
        address: server.address(),
    };
    (server, client)
}

async fn with_services(all: &[&str]) -> (Server, Client) {
    let (server, client) = serve(Options::default()).await;
    for name in all {
        server.apply(service(name, json!({}))).unwrap();
    }
    (server, client)
}

fn service(name: &str, labels: Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": name, "labels": labels },
        "spec": { "ports": [{ "port": 80 }] },
    })
}

fn watch(query: &str) -> String {
    format!("{SERVICES}?watch=true&{query}")
}

mod list {
    use super::*;

    #[tokio::test]
    async fn all_pages_of_a_list_are_from_one_snapshot() {
        let (server, client) = with_services(&["a", "b", "c", "d", "e"]).await;
        let first = client.get(&format!("{SERVICES}?limit=2")).await;
        assert_eq!(
            (&first["kind"], &first["apiVersion"]),
            (&"ServiceList".into(), &"v1".into())
        );
        assert_eq!(names(&first), ["a", "b"]);
        assert_eq!(first["metadata"]["remainingItemCount"], 3);
        assert_eq!(
            first["items"][0].get("kind"),
            None,
            "items of a list have no kind"
        );

        server.apply(service("c", json!({ "new": "yes" }))).unwrap();
        server.apply(service("bb", json!({}))).unwrap();
        server.delete(Kind::Service, "default", "d").unwrap();

        let on = |page: &Value| {
            format!(
                "{SERVICES}?limit=2&continue={}",
                page["metadata"]["continue"].as_str().unwrap()
            )
        };
        let second = client.get(&on(&first)).await;
        assert_eq!(names(&second), ["c", "d"]);
        assert_eq!(
            second["items"][0]["metadata"].get("labels"),
            Some(&json!({}))
        );
        assert_eq!(version(&second), version(&first));
        let third = client.get(&on(&second)).await;
        assert_eq!(names(&third), ["e"]);
        assert_eq!(
            (
                third["metadata"].get("continue"),
                third["metadata"].get("remainingItemCount")
            ),
            (None, None)
        );

        let now = client.get(SERVICES).await;
        assert_eq!(names(&now), ["a", "b", "bb", "c", "e"]);
        assert_eq!(version(&now), version(&first) + 3);
    }

    #[tokio::test]
    async fn pages_with_a_selector_omit_the_remaining_count() {
        let (server, client) = with_services(&["a", "b", "c"]).await;
        server.apply(service("b", json!({ "tier": "x" }))).unwrap();
        let first = client
            .get(&format!("{SERVICES}?limit=1&labelSelector=tier%3Dx"))
            .await;
        assert_eq!(names(&first), ["b"]);
        assert_eq!(first["metadata"].get("remainingItemCount"), None);
        // Objects remain after this page. The server has not compared them with the selector yet,
        // so the page has a `continue` token.
        let token = first["metadata"]["continue"].as_str().unwrap();
        let last = client
            .get(&format!(
                "{SERVICES}?limit=1&labelSelector=tier%3Dx&continue={token}"
            ))
            .await;
        assert_eq!(
            (names(&last).len(), last["metadata"].get("continue")),
            (0, None)
        );
    }

    #[tokio::test]
    async fn an_expired_list_can_be_continued_without_consistency() {
        let (server, client) = with_services(&["a", "b", "c"]).await;
        let first = client.get(&format!("{SERVICES}?limit=1")).await;
        server.delete(Kind::Service, "default", "b").unwrap();
        server.compact();
        let token = first["metadata"]["continue"].as_str().unwrap();
        let (code, status) = client
            .send(
                "GET",
                &format!("{SERVICES}?limit=1&continue={token}"),
                &[],
                b"",
            )
            .await;
        assert_eq!((code, &status["reason"]), (410, &"Expired".into()));
        let token = status["metadata"]["continue"].as_str().unwrap();
        let rest = client
            .get(&format!("{SERVICES}?limit=1&continue={token}"))
            .await;
        assert_eq!(names(&rest), ["c"]);
        assert_eq!(version(&rest), server.version());
    }

    #[tokio::test]
    async fn lists_honour_the_requested_resource_version() {
        let (server, client) = with_services(&["a", "b"]).await;
        let (then, path) = (server.version(), |query: String| {
            format!("{SERVICES}?{query}")
        });
        server.apply(service("c", json!({}))).unwrap();

        let any = client.get(&path("resourceVersion=0&limit=1".into())).await;
        assert_eq!(names(&any), ["a", "b", "c"], "the watch cache has no pages");
        for exactly in ["&resourceVersionMatch=Exact", "&limit=5"] {
            let list = client
                .get(&path(format!("resourceVersion={then}{exactly}")))
                .await;
            assert_eq!((names(&list), version(&list)), (vec!["a", "b"], then));
        }
        for newer in ["", "&resourceVersionMatch=NotOlderThan"] {
            let list = client
                .get(&path(format!("resourceVersion={then}{newer}")))
                .await;
            assert_eq!(
                (names(&list), version(&list)),
                (vec!["a", "b", "c"], then + 1)
            );
        }
        for future in ["", "&resourceVersionMatch=Exact"] {
            let asked = path(format!("resourceVersion={}{future}", then + 9));
            let (code, status) = client.send("GET", &asked, &[], b"").await;
            assert_eq!((code, &status["reason"]), (504, &"Timeout".into()));
            assert_eq!(
                status["details"]["causes"][0]["reason"],
                "ResourceVersionTooLarge"
            );
        }
        let one = format!(
            "/api/v1/namespaces/default/services/a?resourceVersion={}",
            then + 9
        );
        assert_eq!(client.refused(&one).await.0, 504);
        for contradiction in [
            "resourceVersionMatch=Exact",
            "resourceVersionMatch=Exact&resourceVersion=0",
            "resourceVersionMatch=Newest&resourceVersion=1",
            "resourceVersionMatch=NotOlderThan&resourceVersion=1&continue=1/a/b",
            "sendInitialEvents=true",
        ] {
            assert_eq!(
                client.refused(&path(contradiction.into())).await,
                (422, "Invalid".into()),
                "{contradiction}"
            );
        }
        for nonsense in [
            "resourceVersion=x",
            "limit=x",
            "continue=x",
            "continue=1/a/b&resourceVersion=5",
        ] {
            assert_eq!(
                client.refused(&path(nonsense.into())).await.0,
                400,
                "{nonsense}"
            );
        }
        server.compact();
        let old = path(format!("resourceVersion={then}&resourceVersionMatch=Exact"));
        assert_eq!(client.refused(&old).await, (410, "Expired".into()));
    }

    #[tokio::test]
    async fn lists_are_limited_by_selectors_and_namespaces() {
        let (server, client) = serve(Options::default()).await;
        assert_eq!(
            server.apply_yaml(include_str!("data/shop.yaml")).unwrap(),
            7
        );
        for (query, wanted) in [
            ("labelSelector=tier", vec!["cart", "front", "headless"]),
            (
                "labelSelector=tier%3Dback,!service.kubernetes.io/service-proxy-name",
                vec!["cart"],
            ),
            (
                "labelSelector=tier!%3Dback",
                vec!["front", "outside", "vip"],
            ),
            (
                "fieldSelector=spec.clusterIP!%3DNone",
                vec!["cart", "front", "outside", "vip"],
            ),
            ("fieldSelector=metadata.name%3Dcart", vec!["cart"]),
            ("fieldSelector=metadata.namespace%3Dother", vec!["headless"]),
        ] {
            assert_eq!(
                names(&client.get(&format!("{SERVICES}?{query}")).await),
                wanted,
                "{query}"
            );
        }
        assert_eq!(
            names(&client.get("/api/v1/namespaces/other/services").await),
            ["headless"]
        );
        let slices = "/apis/discovery.k8s.io/v1/endpointslices?labelSelector=kubernetes.io/service-name%3Dcart";
        assert_eq!(names(&client.get(slices).await), ["cart-1"]);
        for broken in ["labelSelector=a%20b", "fieldSelector=spec.ports%3D1"] {
            assert_eq!(
                client.refused(&format!("{SERVICES}?{broken}")).await,
                (400, "BadRequest".into())
            );
        }
    }

    #[tokio::test]
    async fn a_long_list_is_sent_in_chunks() {
        let (server, client) = serve(Options::default()).await;
        let all: Vec<String> = (0..1000)
            .map(|number| format!("service-{number:04}"))
            .collect();
        for name in &all {
            server.apply(service(name, json!({}))).unwrap();
        }
        let mut connection = connect(client.address).await;
        let response = connection
            .send_request(request("GET", SERVICES, &[], Vec::new()))
            .await
            .unwrap();
        assert_eq!(response.headers()["transfer-encoding"], "chunked");
        let (code, list) = answer(response).await;
        assert_eq!(
            (code, names(&list)),
            (200, all.iter().map(String::as_str).collect())
        );
    }
}

mod watching {
    use super::*;

    #[tokio::test]
    async fn the_send_time_of_an_event_is_reported_once() {
        let (server, client) = serve(Options {
            notes_sent: true,
            ..Options::default()
        })
        .await;
        let now = || {
            let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC);
            u64::try_from(Duration::from(time.unwrap()).as_nanos()).unwrap()
        };
        let then = server.version();
        let scope = format!("resourceVersion={then}&labelSelector=tier%3Dx");
        let mut events = client.watch(&watch(&scope)).await;
        let before = now();
        server.apply(service("other", json!({}))).unwrap();
        server.apply(service("a", json!({ "tier": "x" }))).unwrap();
        assert_eq!(events.short().await, "ADDED a");
        let after = now();
        let sent = client.get("/fixture/sent").await;
        let at = sent[(then + 2).to_string()].as_u64().unwrap();
        assert!((before..after).contains(&at), "{before} {at} {after}");
        assert_eq!(sent.as_object().unwrap().len(), 1, "{sent}");
        assert_eq!(client.get("/fixture/sent").await, json!({}));

        let (_server, client) = serve(Options::default()).await;
        assert_eq!(client.refused("/fixture/sent").await.0, 404);
    }

    #[tokio::test]
    async fn a_watch_resumes_from_a_resource_version() {
        let (server, client) = with_services(&["a"]).await;
        let then = server.version();
        server.apply(service("b", json!({}))).unwrap();
        let mut events = client
            .watch(&watch(&format!("resourceVersion={then}")))
            .await;
        server.apply(service("a", json!({ "new": "yes" }))).unwrap();
        server.apply(service("a", json!({ "new": "yes" }))).unwrap();
        server.delete(Kind::Service, "default", "b").unwrap();

        for (number, (what, name)) in [("ADDED", "b"), ("MODIFIED", "a"), ("DELETED", "b")]
            .into_iter()
            .enumerate()
        {
            let event = events.next().await.unwrap();
            let object = &event["object"];
            assert_eq!(
                (&event["type"], &object["metadata"]["name"]),
                (&what.into(), &name.into())
            );
            assert_eq!(
                (&object["kind"], &object["apiVersion"]),
                (&"Service".into(), &"v1".into())
            );
            assert_eq!(
                version(object),
                then + 1 + number as u64,
                "a change that changes nothing is none"
            );
        }
    }

    #[tokio::test]
    async fn a_watch_reports_objects_that_start_or_stop_matching_its_selector() {
        let (server, client) = with_services(&[]).await;
        let then = server.version();
        let mut events = client
            .watch(&watch(&format!(
                "resourceVersion={then}&labelSelector=tier%3Dx"
            )))
            .await;
        for labels in [
            json!({}),
            json!({ "tier": "x" }),
            json!({ "tier": "x", "more": "" }),
            json!({ "tier": "y" }),
        ] {
            server.apply(service("a", labels)).unwrap();
        }
        server.delete(Kind::Service, "default", "a").unwrap();
        server.apply(service("b", json!({ "tier": "x" }))).unwrap();
        server.delete(Kind::Service, "default", "b").unwrap();

        assert_eq!(events.short().await, "ADDED a");
        assert_eq!(events.short().await, "MODIFIED a");
        let left = events.next().await.unwrap();
        assert_eq!(left["type"], "DELETED");
        assert_eq!(
            left["object"]["metadata"]["labels"],
            json!({ "tier": "x", "more": "" }),
            "as it last was in scope"
        );
        assert_eq!(
            version(&left["object"]),
            then + 4,
            "at the version at which it left"
        );
        assert_eq!(events.short().await, "ADDED b");
        assert_eq!(events.short().await, "DELETED b");
    }

    #[tokio::test]
    async fn a_watch_without_a_version_starts_with_existing_objects() {
        let (server, client) = with_services(&["a"]).await;
        server.apply_yaml("{apiVersion: v1, kind: Service, metadata: {name: x, namespace: other}, spec: {ports: [{port: 1}]}}").unwrap();
        for version in ["", "resourceVersion=0"] {
            let path = format!("/api/v1/namespaces/default/services?watch=1&{version}");
            let mut events = client.watch(&path).await;
            assert_eq!(events.short().await, "ADDED a");
            let name = format!("b{}", version.len());
            server.apply(service(&name, json!({}))).unwrap();
            assert_eq!(events.short().await, format!("ADDED {name}"));
            server.delete(Kind::Service, "default", &name).unwrap();
        }
    }

    #[tokio::test]
    async fn a_bookmark_has_the_latest_version_of_all_kinds() {
        let options = Options {
            bookmark_interval: Duration::from_millis(50),
            ..Options::default()
        };
        let (server, client) = serve(options).await;
        let then = server.version();
        let mut events = client
            .watch(&watch(&format!(
                "resourceVersion={then}&allowWatchBookmarks=true"
            )))
            .await;
        server
            .apply_yaml("{apiVersion: v1, kind: Node, metadata: {name: node1}}")
            .unwrap();
        let bookmark = loop {
            let event = events.next().await.unwrap();
            assert_eq!(event["type"], "BOOKMARK");
            if version(&event["object"]) > then {
                break event;
            }
        };
        assert_eq!(
            (
                &bookmark["object"]["kind"],
                &bookmark["object"]["apiVersion"]
            ),
            (&"Service".into(), &"v1".into())
        );
        assert_eq!(version(&bookmark["object"]), server.version());

        let mut plain = client
            .watch(&watch(&format!("resourceVersion={then}&timeoutSeconds=1")))
            .await;
        assert_eq!(
            plain.next().await,
            None,
            "who does not ask gets no bookmarks"
        );
    }

    #[tokio::test]
    async fn a_watch_ends_cleanly_at_its_timeout() {
        let (server, client) = with_services(&[]).await;
        let begin = Instant::now();
        let mut events = client
            .watch(&watch(&format!(
                "resourceVersion={}&timeoutSeconds=1",
                server.version()
            )))
            .await;
        assert_eq!(events.next().await, None);
        assert!((1.0..5.0).contains(&begin.elapsed().as_secs_f32()));
    }

    #[tokio::test]
    async fn a_streamed_list_has_a_marked_end() {
        let (server, client) = with_services(&["a", "b"]).await;
        let streamed =
            "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
        let mut events = client
            .watch(&watch(&format!("{streamed}&labelSelector=!none")))
            .await;
        assert_eq!(events.short().await, "ADDED a");
        assert_eq!(events.short().await, "ADDED b");
        let end = events.next().await.unwrap();
        assert_eq!(end["type"], "BOOKMARK");
        assert_eq!(
            end["object"]["metadata"]["annotations"],
            json!({ "k8s.io/initial-events-end": "true" })
        );
        assert_eq!(version(&end["object"]), server.version());
        server.apply(service("c", json!({}))).unwrap();
        assert_eq!(events.short().await, "ADDED c");

        let mut none = client
            .watch(&watch(
                "sendInitialEvents=false&resourceVersionMatch=NotOlderThan",
            ))
            .await;
        server.apply(service("d", json!({}))).unwrap();
        assert_eq!(none.short().await, "ADDED d");
        for contradiction in [
            "sendInitialEvents=true",
            "resourceVersionMatch=NotOlderThan",
            "continue=1/a/b",
        ] {
            assert_eq!(
                client.refused(&watch(contradiction)).await,
                (422, "Invalid".into()),
                "{contradiction}"
            );
        }
        let future = format!("{streamed}&resourceVersion={}", server.version() + 1);
        assert_eq!(
            client.refused(&watch(&future)).await,
            (504, "Timeout".into())
        );
    }

    #[tokio::test]
    async fn streamed_lists_are_rejected_if_they_are_disabled() {
        let (_server, client) = serve(Options {
            watch_list: false,
            ..Options::default()
        })
        .await;
        let streamed = watch("sendInitialEvents=true&resourceVersionMatch=NotOlderThan");
        assert_eq!(client.refused(&streamed).await, (422, "Invalid".into()));
    }

    async fn expired(client: &Client, version: u64) {
        let mut events = client
            .watch(&watch(&format!("resourceVersion={version}")))
            .await;
        let event = events.next().await.unwrap();
        assert_eq!(
            (&event["type"], &event["object"]["code"]),
            (&"ERROR".into(), &410.into())
        );
        assert_eq!(event["object"]["reason"], "Expired");
        assert_eq!(events.next().await, None);
    }

    #[tokio::test]
    async fn a_watch_from_a_compacted_version_is_rejected() {
        let (server, client) = serve(Options {
            history: 2,
            ..Options::default()
        })
        .await;
        let then = server.version();
        for name in ["a", "b", "c"] {
            server.apply(service(name, json!({}))).unwrap();
        }
        expired(&client, then).await;
        let mut events = client
            .watch(&watch(&format!("resourceVersion={}", then + 1)))
            .await;
        assert_eq!(events.short().await, "ADDED b");
        assert_eq!(events.short().await, "ADDED c");

        server.compact();
        expired(&client, then + 1).await;
        server.apply(service("d", json!({}))).unwrap();
        assert_eq!(
            events.short().await,
            "ADDED d",
            "a watch under way lives through a compaction"
        );
    }

    #[tokio::test]
    async fn a_burst_of_events_arrives_complete_and_in_order() {
        let (server, client) = with_services(&[]).await;
        let mut events = client
            .watch(&watch(&format!("resourceVersion={}", server.version())))
            .await;
        for number in 0..1000 {
            server
                .apply(service(&format!("s{number}"), json!({})))
                .unwrap();
        }
        for number in 0..1000 {
            assert_eq!(events.short().await, format!("ADDED s{number}"));
        }
    }
}

mod writing {
    use super::*;

    const WEB: &str = "/api/v1/namespaces/default/services/web";
    const DEFAULT: &str = "/api/v1/namespaces/default/services";

    #[tokio::test]
    async fn objects_are_created_read_replaced_and_deleted() {
        let (server, client) = with_services(&[]).await;
        let before = server.version();
        let (code, created) = client
            .write("POST", DEFAULT, &service("web", json!({})))
            .await;
        assert_eq!(code, 201);
        assert_eq!(version(&created), before + 1);
        assert_eq!(created["metadata"]["namespace"], "default");
        assert_eq!(created["metadata"]["uid"].as_str().unwrap().len(), 36);
        assert!(
            created["metadata"]["creationTimestamp"]
                .as_str()
                .unwrap()
                .ends_with('Z')
        );
        assert_eq!(client.get(WEB).await, created);

        let (code, again) = client
            .write("POST", DEFAULT, &service("web", json!({})))
            .await;
        assert_eq!((code, &again["reason"]), (409, &"AlreadyExists".into()));
        let (code, same) = client.write("PUT", WEB, &created).await;
        assert_eq!((code, &same), (200, &created));
        let (_, changed) = client
            .write("PUT", WEB, &service("web", json!({ "a": "1", "b": "2" })))
            .await;
        assert_eq!(version(&changed), before + 2);
        for kept in [
            "/metadata/uid",
            "/metadata/creationTimestamp",
            "/spec/clusterIP",
        ] {
            assert_eq!(changed.pointer(kept), created.pointer(kept), "{kept}");
        }
        let (code, conflict) = client.write("PUT", WEB, &created).await;
        assert_eq!((code, &conflict["reason"]), (409, &"Conflict".into()));

        let (code, gone) = client.write("DELETE", WEB, &json!({})).await;
        assert_eq!((code, &gone["status"]), (200, &"Success".into()));
        assert_eq!(client.refused(WEB).await, (404, "NotFound".into()));
        for method in ["PUT", "DELETE"] {
            assert_eq!(
                client
                    .write(method, WEB, &service("web", json!({})))
                    .await
                    .0,
                404
            );
        }
    }

    #[tokio::test]
    async fn endpoint_slice_generations_increase_with_changes() {
        let (server, client) = serve(Options::default()).await;
        server.apply_yaml(include_str!("data/shop.yaml")).unwrap();
        let path = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/cart-1";
        for (place, value, generation) in [
            ("/metadata/annotations", json!({ "a": "b" }), 1),
            ("/metadata/labels", json!({ "a": "b" }), 2),
            ("/endpoints", json!([]), 3),
        ] {
            let mut slice = client.get(path).await;
            let (parent, field) = place.rsplit_once('/').unwrap();
            slice.pointer_mut(parent).unwrap()[field] = value;
            let (_, slice) = client.write("PUT", path, &slice).await;
            assert_eq!(slice["metadata"]["generation"], generation, "{place}");
        }
    }

    #[tokio::test]
    async fn missing_fields_get_server_defaults() {
        let (server, client) = serve(Options {
            kubernetes_service: true,
            ..Options::default()
        })
        .await;
        server.apply_yaml(include_str!("data/shop.yaml")).unwrap();
        let spec = async |namespace: &str, name: &str| {
            client
                .get(&format!("/api/v1/namespaces/{namespace}/services/{name}"))
                .await["spec"]
                .clone()
        };
        assert_eq!(
            spec("default", "cart").await,
            json!({
                "type": "ClusterIP", "selector": { "app": "cart" }, "sessionAffinity": "None",
                "clusterIP": "10.96.1.0", "clusterIPs": ["10.96.1.0", "fd96::1"],
                "ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "RequireDualStack", "internalTrafficPolicy": "Cluster",
                "ports": [{ "port": 80, "protocol": "TCP", "targetPort": 80 }],
            }),
        );
        assert_eq!(
            spec("default", "front").await,
            json!({
                "type": "LoadBalancer", "selector": { "app": "front" }, "sessionAffinity": "ClientIP",
                "sessionAffinityConfig": { "clientIP": { "timeoutSeconds": 10800 } },
                "clusterIP": "10.96.10.10", "clusterIPs": ["10.96.10.10"],
                "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack",
                "internalTrafficPolicy": "Cluster", "externalTrafficPolicy": "Local",
                "allocateLoadBalancerNodePorts": true,
                "ports": [
                    { "name": "http", "port": 80, "protocol": "TCP", "targetPort": "web" },
                    { "name": "dns", "port": 53, "protocol": "UDP", "targetPort": 53, "nodePort": 30053 },
                ],
            }),
        );
        let front = client
            .get("/api/v1/namespaces/default/services/front")
            .await;
        let ingress =
            json!([{ "ip": "203.0.113.10", "ipMode": "VIP" }, { "hostname": "front.example" }]);
        assert_eq!(
            front["status"]["loadBalancer"]["ingress"], ingress,
            "what is applied in-process keeps its status"
        );
        let headless = spec("other", "headless").await;
        assert_eq!(headless["clusterIPs"], json!(["None"]));
        assert_eq!(
            (&headless["ipFamilies"], &headless["ipFamilyPolicy"]),
            (&json!(["IPv4"]), &"SingleStack".into())
        );
        assert_eq!(
            spec("default", "outside").await,
            json!({ "type": "ExternalName", "externalName": "example.com", "sessionAffinity": "None" }),
        );
        assert_eq!(
            spec("default", "vip").await["externalTrafficPolicy"],
            "Cluster"
        );
        assert_eq!(
            spec("default", "kubernetes").await["clusterIP"],
            "10.96.0.1"
        );
        assert_eq!(
            spec("default", "kubernetes").await["ports"][0]["name"],
            "https"
        );

        let slice = client
            .get("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/cart-1")
            .await;
        assert_eq!(
            slice["ports"],
            json!([{ "name": "", "port": 8080, "protocol": "TCP" }])
        );
        assert_eq!(
            slice["endpoints"],
            json!([{ "addresses": ["10.244.1.5"], "nodeName": "node1" }])
        );
        let node = client.get("/api/v1/nodes/node1").await;
        assert_eq!(node["spec"]["podCIDRs"], json!(["10.244.1.0/24"]));
        assert_eq!(
            node["metadata"]["labels"]["topology.kubernetes.io/zone"], "on",
            "quoted is a string"
        );
        let cidrs = client.get("/apis/networking.k8s.io/v1/servicecidrs").await;
        assert_eq!(
            cidrs["items"][0]["spec"]["cidrs"],
            json!(["10.96.0.0/12", "fd00:96::/112"])
        );
    }

    #[tokio::test]
    async fn invalid_requests_get_the_matching_error() {
        let (_server, client) = with_services(&["web"]).await;
        let mut versioned = service("v", json!({}));
        versioned["metadata"]["resourceVersion"] = "5".into();
        let slice = json!({ "kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1", "metadata": { "name": "a" } });
        let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
        for (method, path, body, code, word) in [
            (
                "POST",
                DEFAULT,
                service("", json!({})),
                422,
                "metadata.name",
            ),
            (
                "POST",
                DEFAULT,
                json!({ "metadata": { "name": false } }),
                400,
                "metadata.name",
            ),
            (
                "POST",
                DEFAULT,
                service("A_b", json!({})),
                422,
                "metadata.name",
            ),
            (
                "POST",
                DEFAULT,
                service("a", json!({ "x": 1 })),
                400,
                "metadata.labels",
            ),
            ("POST", DEFAULT, versioned, 400, "metadata.resourceVersion"),
            (
                "POST",
                DEFAULT,
                json!({ "kind": "Pod", "apiVersion": "v1" }),
                400,
                "Pod",
            ),
            (
                "POST",
                DEFAULT,
                json!({ "kind": "Node", "apiVersion": "v1" }),
                400,
                "kind",
            ),
            ("POST", DEFAULT, json!([]), 400, "object"),
            ("POST", slices, slice, 422, "addressType"),
            ("POST", SERVICES, service("a", json!({})), 405, "POST"),
            (
                "PUT",
                WEB,
                service("other", json!({})),
                400,
                "metadata.name",
            ),
            ("DELETE", DEFAULT, json!({}), 405, "DELETE"),
            ("POST", "/api/v1/pods", json!({}), 404, "/api/v1/pods"),
        ] {
            let (got, status) = client.write(method, path, &body).await;
            assert_eq!(got, code, "{method} {path} {body}: {status}");
            assert!(
                status["message"].as_str().unwrap().contains(word),
                "{status}"
            );
        }
        assert_eq!(client.send("POST", DEFAULT, &[], b"{").await.0, 400);
        assert_eq!(
            client
                .send("POST", DEFAULT, &[("content-type", "text/plain")], b"{}")
                .await
                .0,
            415
        );
        assert_eq!(
            client
                .send("POST", DEFAULT, &[], &vec![b' '; (3 << 20) + 1])
                .await
                .0,
            413
        );
    }
}

mod encodings {
    use super::*;

    const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

    /// Returns the content of each occurrence of the length-delimited field with number `wanted`.
    fn fields(mut message: &[u8], wanted: u64) -> Vec<&[u8]> {
        fn varint(bytes: &mut &[u8]) -> u64 {
            let (mut value, mut shift) = (0, 0);
            loop {
                let byte = bytes[0];
                *bytes = &bytes[1..];
                value |= u64::from(byte & 0x7f) << shift;
                shift += 7;
                if byte < 0x80 {
                    return value;
                }
            }
        }
        let mut found = Vec::new();
        while !message.is_empty() {
            let tag = varint(&mut message);
            let value = varint(&mut message);
            if tag & 7 == 2 {
                let (bytes, rest) = message.split_at(usize::try_from(value).unwrap());
                message = rest;
                if tag >> 3 == wanted {
                    found.push(bytes);
                }
            }
        }
        found
    }

    fn text(bytes: &[u8]) -> &str {
        std::str::from_utf8(bytes).unwrap()
    }

    /// Returns the kind and the encoded object of a protobuf envelope.
    fn opened(bytes: &[u8]) -> (&str, &[u8]) {
        let envelope = bytes.strip_prefix(b"k8s\0").unwrap();
        let types = fields(envelope, 1)[0];
        (text(fields(types, 2)[0]), fields(envelope, 2)[0])
    }

    /// Returns `metadata.name` of a protobuf-encoded object.
    fn name(message: &[u8]) -> &str {
        text(fields(fields(message, 1)[0], 1)[0])
    }

    async fn get(client: &Client, path: &str, headers: &[(&str, &str)]) -> Response {
        let sent =
            connect(client.address)
                .await
                .send_request(request("GET", path, headers, Vec::new()));
        let (head, body) = sent.await.unwrap().into_parts();
        let header = |name: &str| {
            let value = head.headers.get(name);
            value.map_or("", |value| value.to_str().unwrap()).to_owned()
        };
        Response {
            code: head.status.as_u16(),
            content: header("content-type"),
            encoding: header("content-encoding"),
            retry_after: header("retry-after"),
            body: body.collect().await.unwrap().to_bytes().to_vec(),
        }
    }

    struct Response {
        code: u16,
        content: String,
        encoding: String,
        retry_after: String,
        body: Vec<u8>,
    }

    #[tokio::test]
    async fn lists_and_objects_are_sent_as_protobuf() {
        let (server, client) = serve(Options::default()).await;
        server.apply_yaml(include_str!("data/shop.yaml")).unwrap();
        for (path, kind, wanted) in [
            (SERVICES, "ServiceList", "cart"),
            ("/api/v1/nodes", "NodeList", "node1"),
            (
                "/apis/discovery.k8s.io/v1/endpointslices",
                "EndpointSliceList",
                "cart-1",
            ),
            (
                "/apis/networking.k8s.io/v1/servicecidrs",
                "ServiceCIDRList",
                "kubernetes",
            ),
        ] {
            let accept = "application/vnd.kubernetes.protobuf,application/json";
            let list = get(&client, path, &[("accept", accept)]).await;
            assert_eq!((list.code, &*list.content), (200, PROTOBUF));
            let (given, message) = opened(&list.body);
            assert_eq!(given, kind);
            let items = fields(message, 2);
            assert_eq!(name(items[0]), wanted);
            let meta = fields(message, 1)[0];
            assert_eq!(text(fields(meta, 2)[0]), server.version().to_string());
            let json = client.get(path).await;
            assert_eq!(items.len(), json["items"].as_array().unwrap().len());
        }
        let path = "/api/v1/namespaces/default/services/cart";
        let one = get(&client, path, &[("accept", PROTOBUF)]).await;
        let (kind, message) = opened(&one.body);
        assert_eq!((kind, name(message)), ("Service", "cart"));
        let page = format!("{SERVICES}?limit=1");
        let page = get(&client, &page, &[("accept", PROTOBUF)]).await;
        let meta = fields(opened(&page.body).1, 1)[0];
        assert!(text(fields(meta, 3)[0]).contains("cart"));
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
        let json = get(&client, SERVICES, &[("accept", table)]).await;
        assert_eq!(json.content, "application/json");
    }

    #[tokio::test]
    async fn error_statuses_are_sent_as_protobuf() {
        let (_server, client) = with_services(&["a"]).await;
        let path = format!("{SERVICES}?resourceVersion=100");
        let refused = get(&client, &path, &[("accept", PROTOBUF)]).await;
        assert_eq!((refused.code, &*refused.content), (504, PROTOBUF));
        assert_eq!(refused.retry_after, "1");
        let (kind, message) = opened(&refused.body);
        assert_eq!((kind, text(fields(message, 4)[0])), ("Status", "Timeout"));
        let cause = fields(fields(message, 5)[0], 4)[0];
        assert_eq!(text(fields(cause, 1)[0]), "ResourceVersionTooLarge");
        let refused = get(&client, SERVICES, &[("accept", "application/cbor")]).await;
        assert_eq!((refused.code, &*refused.content), (406, "application/json"));
    }

    #[tokio::test]
    async fn watch_events_are_sent_as_protobuf() {
        let (server, client) = with_services(&["a"]).await;
        let path = watch(
            "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=1",
        );
        let accept = "application/vnd.kubernetes.protobuf;stream=watch,application/json";
        let changes = async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            server.apply(service("b", json!({}))).unwrap();
            server.delete(Kind::Service, "default", "a").unwrap();
        };
        let headers = [("accept", accept), ("accept-encoding", "gzip")];
        let (watched, ()) = tokio::join!(get(&client, &path, &headers), changes);
        assert_eq!(
            (&*watched.content, &*watched.encoding),
            ("application/vnd.kubernetes.protobuf;stream=watch", "")
        );
        let (mut rest, mut seen) = (&*watched.body, Vec::new());
        while let Some((length, behind)) = rest.split_first_chunk::<4>() {
            let (event, behind) = behind.split_at(u32::from_be_bytes(*length) as usize);
            rest = behind;
            let (kind, message) = opened(fields(fields(event, 2)[0], 1)[0]);
            assert_eq!(kind, "Service");
            seen.push(format!("{} {}", text(fields(event, 1)[0]), name(message)));
        }
        assert_eq!(seen, ["ADDED a", "BOOKMARK ", "ADDED b", "DELETED a"]);

        server.compact();
        let gone = watch("resourceVersion=1");
        let gone = get(&client, &gone, &[("accept", accept)]).await;
        let object = fields(fields(&gone.body[4..], 2)[0], 1)[0];
        let (kind, status) = opened(object);
        assert_eq!((kind, text(fields(status, 4)[0])), ("Status", "Expired"));
    }

    #[tokio::test]
    async fn long_responses_are_compressed_on_request() {
        let (server, client) = serve(Options::default()).await;
        let gzip = ("accept-encoding", "deflate, gzip");
        for number in 0..1000 {
            let name = format!("service-{number:04}");
            server.apply(service(&name, json!({}))).unwrap();
        }
        for accept in ["application/json", PROTOBUF] {
            let accept = ("accept", accept);
            let plain = get(&client, SERVICES, &[accept]).await;
            let packed = get(&client, SERVICES, &[accept, gzip]).await;
            assert_eq!((&*plain.encoding, &*packed.encoding), ("", "gzip"));
            let mut unpacked = Vec::new();
            flate2::read::GzDecoder::new(&*packed.body)
                .read_to_end(&mut unpacked)
                .unwrap();
            assert!(unpacked == plain.body && packed.body.len() * 5 < plain.body.len());
            let few = format!("{SERVICES}?limit=100");
            assert_eq!(get(&client, &few, &[accept, gzip]).await.encoding, "");
        }
        let [json, json_packed, _, _, protobuf_packed, _] = &server.requests()[..] else {
            panic!("{:?}", server.requests());
        };
        assert_eq!(json.answer.as_ref().unwrap().content_encoding, "");
        let answer = protobuf_packed.answer.as_ref().unwrap();
        assert_eq!(
            (
                answer.code,
                &*answer.content_type,
                &*answer.content_encoding
            ),
            (200, PROTOBUF, "gzip")
        );
        assert_eq!(json_packed.accept_encoding, "deflate, gzip");
        assert!(json.sent_bytes > 5 * json_packed.sent_bytes);
        assert!(json_packed.sent_bytes > protobuf_packed.sent_bytes);
    }
}

mod watch_cache {
    use super::*;

    #[tokio::test]
    async fn a_list_waits_for_a_version_that_appears_soon() {
        let (server, client) = with_services(&["a"]).await;
        let next = server.version() + 1;
        let one = format!("/api/v1/namespaces/default/services/a?resourceVersion={next}");
        let all = format!("{SERVICES}?resourceVersion={next}");
        let change = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            server.apply(service("b", json!({}))).unwrap();
        };
        let (all, _, ()) = tokio::join!(client.get(&all), client.get(&one), change);
        assert_eq!((names(&all), version(&all)), (vec!["a", "b"], next));

        let begin = Instant::now();
        let never = format!("{SERVICES}?resourceVersion={}", next + 1);
        assert_eq!(client.refused(&never).await, (504, "Timeout".into()));
        assert!((3.0..6.0).contains(&begin.elapsed().as_secs_f32()));
    }

    #[tokio::test]
    async fn a_server_without_watch_cache_pages_each_list() {
        let (server, client) = serve(Options {
            watch_cache: WatchCache::Absent,
            ..Options::default()
        })
        .await;
        for name in ["a", "b", "c"] {
            server.apply(service(name, json!({}))).unwrap();
        }
        let first = client
            .get(&format!("{SERVICES}?resourceVersion=0&limit=2"))
            .await;
        assert_eq!(names(&first), ["a", "b"]);
        let token = first["metadata"]["continue"].as_str().unwrap();
        let rest = client
            .get(&format!("{SERVICES}?limit=2&continue={token}"))
            .await;
        assert_eq!(names(&rest), ["c"]);
        let begin = Instant::now();
        let never = format!("{SERVICES}?resourceVersion={}", server.version() + 1);
        assert_eq!(client.refused(&never).await, (504, "Timeout".into()));
        assert!(begin.elapsed() < Duration::from_secs(2));
    }
}

mod about_the_fixture {
    use super::*;

    #[tokio::test]
    async fn faults_are_set_and_requests_are_logged_over_http() {
        let (server, client) = with_services(&["a"]).await;
        let rules = json!([
            { "fault": { "refuse": { "code": 503, "retry_after": 7 } }, "on": "list", "of": "Service", "times": 1 },
            { "fault": "timeout", "of": "Node" },
            { "fault": "no-watch-list", "on": "streamed-list" },
        ]);
        let (code, _) = client.write("PUT", "/fixture/faults", &rules).await;
        assert_eq!(code, 200);
        let mut connection = connect(client.address).await;
        let refused = connection
            .send_request(request("GET", SERVICES, &[], Vec::new()))
            .await
            .unwrap();
        assert_eq!(refused.status(), 503);
        assert_eq!(refused.headers()["retry-after"], "7");
        assert_eq!(names(&client.get(SERVICES).await), ["a"]);
        assert_eq!(
            client.refused("/api/v1/nodes").await,
            (504, "Timeout".into())
        );
        let mut events = client.watch("/api/v1/nodes?watch=true").await;
        let event = events.next().await.unwrap();
        assert_eq!(
            (&event["type"], &event["object"]["code"]),
            (&"ERROR".into(), &504.into())
        );
        assert_eq!(event["object"].get("details"), None, "no cause is told");
        let streamed = watch("sendInitialEvents=true&resourceVersionMatch=NotOlderThan");
        assert_eq!(client.refused(&streamed).await, (422, "Invalid".into()));
        client.write("PUT", "/fixture/faults", &json!([])).await;
        client.get("/api/v1/nodes").await;
        let wrong = json!([{ "fault": "none" }]);
        let (code, status) = client.write("PUT", "/fixture/faults", &wrong).await;
        assert_eq!(code, 400, "{status}");

        let told = client.get("/fixture/requests").await;
        let (requests, all) = (&told["requests"], server.requests());
        assert_eq!(told["count"], all.len());
        let sent: u64 = all.iter().map(|request| request.sent_bytes).sum();
        assert_eq!(told["sentBytes"], sent);
        let late = format!("/fixture/requests?from={}&without=x", all.len() - 1);
        let late = client.get(&late).await;
        assert_eq!(late["requests"].as_array().unwrap().len(), 1);
        let asked = |index: usize| {
            let one: &Value = &requests[index];
            (&one["asked"], &one["kind"], &one["code"])
        };
        assert_eq!(asked(0), (&"list".into(), &"Service".into(), &503.into()));
        assert_eq!(asked(3), (&"watch".into(), &"Node".into(), &200.into()));
        assert!(requests[1]["sentBytes"].as_u64().unwrap() > 300);
    }

    #[tokio::test]
    async fn a_fault_cuts_open_watches() {
        let (server, client) = with_services(&[]).await;
        let path = watch(&format!("resourceVersion={}", server.version()));
        let events = client.watch(&path).await;
        client.write("POST", "/fixture/cut", &json!({})).await;
        assert!(events.broken().await);
    }
}

const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/default/events";

#[tokio::test]
async fn posted_events_are_stored() {
    let (server, client) = serve(Options::default()).await;
    let posted = json!({ "metadata": { "name": "node1.1" }, "reason": "Starting", "regarding": { "name": "node1" } });
    let (code, event) = client.write("POST", EVENTS, &posted).await;
    assert_eq!((code, &event["metadata"]["name"]), (201, &"node1.1".into()));

    // Event{metadata: {name: e1, namespace: default}, reason: Synced}, in client-go's envelope.
    let protobuf = b"k8s\0\x0a\x19\x0a\x10events.k8s.io/v1\x12\x05Event\x12\x19\x0a\x0d\x0a\x02e1\x1a\x07default\x3a\x06Synced\x42\0\x1a\0\x22\0";
    let headers = [
        ("content-type", "application/vnd.kubernetes.protobuf"),
        ("accept", "application/json"),
    ];
    let (code, event) = client.send("POST", EVENTS, &headers, protobuf).await;
    assert_eq!(
        (code, &event["reason"], &event["kind"]),
        (201, &"Synced".into(), &"Event".into()),
        "{event}"
    );
    let reasons: Vec<_> = server
        .events()
        .iter()
        .map(|event| event["reason"].clone())
        .collect();
    assert_eq!(reasons, ["Synced", "Starting"]);
    let selected = client
        .get("/apis/events.k8s.io/v1/events?fieldSelector=regarding.name%3Dnode1,reason%3DStarting")
        .await;
    assert_eq!(names(&selected).len(), 1);
    assert_eq!(
        names(&client.get("/apis/events.k8s.io/v1/events").await),
        ["e1", "node1.1"]
    );
}

#[tokio::test]
async fn requests_on_a_kept_alive_connection_are_logged() {
    let (server, client) = with_services(&["a"]).await;
    let mut connection = connect(client.address).await;
    for path in ["/api/v1/nodes", "/api/v1/services?limit=1"] {
        let response = connection
            .send_request(request(
                "GET",
                path,
                &[("user-agent", "test/1")],
                Vec::new(),
            ))
            .await
            .unwrap();
        assert_eq!(answer(response).await.0, 200);
        connection.ready().await.unwrap();
    }
    let requests = server.requests();
    assert_eq!(requests.len(), 2);
    assert_eq!(
        (requests[1].method.as_str(), requests[1].path.as_str()),
        ("GET", SERVICES)
    );
    assert_eq!(
        (requests[1].query.as_str(), requests[1].user_agent.as_str()),
        ("limit=1", "test/1")
    );
}

#[tokio::test]
async fn a_cluster_outlives_its_server() {
    let (server, client) = with_services(&["a"]).await;
    let then = server.version();
    let events = client
        .watch(&watch(&format!("resourceVersion={then}")))
        .await;
    let cluster: Cluster = server.cluster().clone();
    let address = server.address();
    server.stop().await;
    assert!(events.broken().await);
    assert!(tokio::net::TcpStream::connect(address).await.is_err());

    cluster.apply(service("b", json!({}))).unwrap();
    let _server = Server::start_on(
        cluster,
        Options {
            address,
            ..Options::default()
        },
    )
    .await
    .unwrap();
    let mut events = client
        .watch(&watch(&format!("resourceVersion={then}")))
        .await;
    assert_eq!(events.short().await, "ADDED b");
}

#[test]
fn a_server_listens_on_a_socket_from_its_options() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = Server::spawn(Options {
        listener: Some(listener),
        ..Options::default()
    })
    .unwrap();
    assert_eq!(server.address(), address);
    server.apply(service("a", json!({}))).unwrap();
    let client = Client { address };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        assert_eq!(names(&client.get(SERVICES).await), ["a"]);
        let mut events = client
            .watch(&watch(&format!("resourceVersion={}", server.version())))
            .await;
        server.apply(service("b", json!({}))).unwrap();
        assert_eq!(
            events.short().await,
            "ADDED b",
            "an edit from another thread wakes the watch"
        );
        drop(server);
        assert!(events.broken().await);
    });
    assert!(std::net::TcpStream::connect(address).is_err());
}

#[test]
fn yaml_documents_and_lists_are_stored() {
    let cluster = Cluster::new(&Options::default());
    assert_eq!(
        cluster.apply_yaml(include_str!("data/list.yaml")).unwrap(),
        3
    );
    assert_eq!(cluster.list(Kind::Service).len(), 2);
    assert_eq!(cluster.apply_yaml("").unwrap(), 0);
    assert!(cluster.get(Kind::Service, "shop", "b").is_some());

    let text = "{apiVersion: v1, kind: Node, metadata: {name: node1, labels: {zone: off}}}";
    let refused = cluster
        .apply_yaml(&format!("{}\n---\n{text}", text.replace("off", "'off'")))
        .unwrap_err();
    assert_eq!(
        refused.to_string(),
        "document 2 (Node node1) is refused",
        "off is a boolean, as for kubectl"
    );
    assert_eq!(
        cluster.get(Kind::Node, "", "node1").unwrap()["metadata"]["labels"]["zone"],
        "off"
    );
    assert!(matches!(
        cluster.apply_yaml("a: [").unwrap_err(),
        apiserver::ApplyError::Yaml(_)
    ));
    assert_eq!(
        cluster
            .apply(json!({ "kind": "Service" }))
            .unwrap_err()
            .code,
        400
    );
    assert_eq!(
        cluster
            .delete(Kind::Service, "shop", "zzz")
            .unwrap_err()
            .reason,
        "NotFound"
    );
}
