//! Tests the daemon with an API server as its source: lists, watches, an unreachable server, and
//! invalid responses.

use std::time::Duration;

use scenarios::{Cluster, Outcome, Service, at, tcp};

/// Timeout for the daemon to reconnect. After several failures, its next attempt is some seconds
/// away.
const BACK_OFF: Duration = Duration::from_secs(40);

fn web() -> Service {
    Service::new("web", "10.96.0.10 fd96::10")
        .port(tcp(80, 8080).node_port(30080))
        .endpoints("10.244.1.10 10.244.2.10 fd44:1::10")
}

fn dns() -> Service {
    Service::new("dns", "10.96.0.53")
        .port(tcp(53, 8080))
        .endpoints("10.244.1.10")
}

pub(crate) fn services_from_streamed_lists_are_served(c: &mut Cluster) -> Outcome {
    let queries = served_from_an_api_server(c, &["--feature-gates=WatchListClient=true"])?;
    assert!(
        queries
            .iter()
            .any(|query| query.contains("sendInitialEvents=true")),
        "{queries:#?}"
    );
    Ok(())
}

pub(crate) fn services_from_cached_lists_are_served(c: &mut Cluster) -> Outcome {
    let queries = served_from_an_api_server(c, &[])?;
    assert!(
        queries
            .iter()
            .any(|query| query.contains("resourceVersion=0")),
        "{queries:#?}"
    );
    Ok(())
}

/// Runs the daemon with an API server through changes of Services. Returns the requests that the
/// server received.
fn served_from_an_api_server(c: &mut Cluster, flags: &[&str]) -> anyhow::Result<Vec<String>> {
    let mut api = c.api_server(true)?;
    api.apply(&web())?;
    api.start()?;
    c.launch_on(&api, &[&["--nodeport-addresses=primary"], flags].concat())?;
    c.await_first_sync()?;
    c.until_served(&web())?;
    c.until_answered(&c.outside, "172.35.0.100:30080")?;
    assert!(
        !c.servers()?.contains_key("TCP 10.244.1.1:30080"),
        "only the Node's own addresses serve NodePorts"
    );

    api.apply(&dns())?;
    c.until_served(&dns())?;
    let moved = dns().endpoints("10.244.2.10");
    api.apply(&moved)?;
    c.until_served(&moved)?;
    assert_eq!(
        c.client.ask_tcp(at("10.96.0.53:53"), scenarios::SOON)?.who,
        "far"
    );
    api.delete_slice("dns-ipv4")?;
    c.until_served(&moved.endpoints(""))?;
    api.delete_service("dns")?;
    c.until_gone("TCP 10.96.0.53:53")?;
    c.refuses(&c.client, "10.96.0.53:53")?;
    c.until_served(&web())?;
    Ok(api
        .requests()
        .into_iter()
        .map(|request| request.query)
        .collect())
}

pub(crate) fn an_api_server_that_starts_later_is_awaited(c: &mut Cluster) -> Outcome {
    c.patience = BACK_OFF;
    let mut api = c.api_server(true)?;
    api.apply(&web())?;
    c.launch_on(&api, &[])?;
    let line = c.await_line("refused")?;
    assert!(line.contains("172.35.0.9:6443"), "{line}");
    assert!(c.servers()?.is_empty());
    api.start()?;
    c.await_first_sync()?;
    c.until_served(&web())?;

    // Restarts the daemon while the API server is down. This must change nothing in the kernel.
    let before = c.state()?;
    c.stop()?;
    api.stop();
    c.launch_on(&api, &[])?;
    c.await_line("172.35.0.9:6443")?;
    assert_eq!(c.state()?, before);
    c.until_answered(&c.client, "10.96.0.10:80")?;
    api.apply(&web().endpoints("10.244.2.10"))?;
    api.start()?;
    c.await_first_sync()?;
    c.until_served(&web().endpoints("10.244.2.10")).map(drop)
}

pub(crate) fn services_stay_while_the_api_server_is_unreachable(c: &mut Cluster) -> Outcome {
    c.patience = BACK_OFF;
    let mut api = c.api_server(true)?;
    api.apply(&web())?;
    api.apply(&dns())?;
    api.start()?;
    c.launch_on(&api, &[])?;
    c.await_first_sync()?;
    let mut kept = c.client.open_tcp(at("10.96.0.10:80"), scenarios::SOON)?;
    kept.ask()?;

    api.stop();
    c.await_line("172.35.0.9:6443")?;
    let moved = web().endpoints("10.244.2.10");
    api.apply(&moved)?;
    api.delete_service("dns")?;
    // Because of the compaction, the daemon cannot resume its watch when it reconnects. It must
    // find the deletions in a new list.
    api.compact();
    c.until_served(&web())?;
    c.until_served(&dns())?;
    c.until_answered(&c.client, "10.96.0.10:80")?;

    api.start()?;
    c.until_gone("TCP 10.96.0.53:53")?;
    c.until_served(&moved)?;
    kept.ask()?;
    Ok(())
}

pub(crate) fn invalid_responses_keep_all_services(c: &mut Cluster) -> Outcome {
    c.patience = BACK_OFF;
    let mut api = c.api_server(true)?;
    api.apply(&web())?;
    api.start()?;
    c.launch_on(&api, &[])?;
    c.await_first_sync()?;
    c.until_served(&web())?;
    let before = c.state()?;
    api.stop();
    let nonsense = api.nonsense(&[
        "<html>It works!</html>",
        "{\"kind\": \"ServiceList\", \"items\": 7}",
        "null",
    ])?;
    c.until("each kind was answered", || Ok(nonsense.answers() >= 6))?;
    let said = c.said();
    let line = said.lines().find(|line| line.contains("answers nonsense"));
    let line = line.unwrap_or_default();
    assert!(
        line.contains("172.35.0.9:6443") && line.contains("check"),
        "{said}"
    );
    assert_eq!(c.state()?, before);
    c.until_answered(&c.client, "10.96.0.10:80")?;

    drop(nonsense);
    api.apply(&dns())?;
    api.start()?;
    c.until_served(&dns()).map(drop)
}
