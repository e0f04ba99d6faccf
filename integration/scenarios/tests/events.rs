//! Kubernetes events that the daemon posts, with what they are about: as whoever runs `kubectl
//! describe` sees it.

use std::time::Duration;

use anyhow::{Context as _, Result};
use lab::Transport;
use scenarios::{ApiServer, Cluster, Outcome, Service, Story, at, tally, tcp, tell};

const CLAIMED: &str = "192.0.2.20:80";
const HEALTH_CHECK: &str = "FailedToStartServiceHealthcheck";

fn main() {
    let story = |name, tell| Story {
        name,
        tell,
        is_possible: || true,
    };
    let stories = [
        story(
            "the_loser_of_an_address_is_told_and_takes_over",
            the_loser_of_an_address_is_told_and_takes_over,
        ),
        story(
            "a_taken_health_check_port_is_told",
            a_taken_health_check_port_is_told,
        ),
        story(
            "an_api_server_that_is_away_holds_up_nothing",
            an_api_server_that_is_away_holds_up_nothing,
        ),
    ];
    tell(&stories, Duration::from_mins(3))
}

/// The events of a reason, each as `TYPE KIND NAME UID NOTE`.
fn events(api: &ApiServer, reason: &str) -> Vec<String> {
    let text = |event: &serde_json::Value, path: &str| {
        let text = event.pointer(path).and_then(serde_json::Value::as_str);
        text.unwrap_or_default().to_owned()
    };
    let all = api.events();
    let of_reason = all.iter().filter(|event| text(event, "/reason") == reason);
    let fields = [
        "/type",
        "/regarding/kind",
        "/regarding/name",
        "/regarding/uid",
        "/note",
    ];
    of_reason
        .map(|event| fields.map(|path| text(event, path)).join(" "))
        .collect()
}

fn uid(api: &ApiServer, service: &str) -> Result<String> {
    let service = api.service(service).context("no such Service")?;
    let uid = service
        .pointer("/metadata/uid")
        .and_then(|uid| uid.as_str());
    Ok(uid.context("without a uid")?.to_owned())
}

fn claim(name: &str, ip: &str, endpoint: &str) -> Service {
    Service::new(name, ip)
        .port(tcp(80, 8080))
        .external("192.0.2.20")
        .endpoints(endpoint)
}

/// `who`, and nobody else, answers the outside host at the claimed address.
fn answers(who: &str, c: &Cluster) -> Outcome {
    let tally = tally(&c.outside, Transport::Tcp, at(CLAIMED), 4)?;
    assert!(
        tally.keys().all(|answer| answer.starts_with(who)),
        "{who} is to answer: {tally:?}"
    );
    Ok(())
}

fn the_loser_of_an_address_is_told_and_takes_over(c: &mut Cluster) -> Outcome {
    let mut api = c.api_server(true)?;
    let (winner, loser) = (
        claim("alpha", "10.96.0.10", "10.244.1.10"),
        claim("beta", "10.96.0.11", "10.244.2.10"),
    );
    api.apply(&winner)?;
    api.apply(&loser)?;
    api.start()?;
    c.launch_on(&api, &[])?;
    c.until_served(&winner)?;
    answers("near", c)?;
    c.until("the loser is told", || {
        Ok(!events(&api, "AddressConflict").is_empty())
    })?;
    let about = format!("Warning Service beta {} {CLAIMED}/TCP", uid(&api, "beta")?);
    let told = events(&api, "AddressConflict");
    assert!(
        matches!(&told[..], [one] if one.starts_with(&about) && one.contains("default/alpha")),
        "{told:?}"
    );
    assert_eq!(
        events(&api, "Starting"),
        ["Normal Node node1 node1 kube-proxy starts to carry Services in ipvs mode"]
    );

    // Neither what else happens nor another start tells it again.
    let other = Service::new("other", "10.96.0.12").port(tcp(80, 8080));
    api.apply(&other)?;
    c.until_served(&other)?;
    c.stop()?;
    c.launch_on(&api, &[])?;
    c.until("it has started again", || {
        Ok(events(&api, "Starting").len() == 2)
    })?;
    c.await_first_sync()?;
    assert_eq!(events(&api, "AddressConflict"), told);
    answers("near", c)?;

    api.delete_service("alpha")?;
    c.until_served(&loser)?;
    answers("far", c)?;
    assert_eq!(events(&api, "AddressConflict"), told);
    Ok(())
}

/// A Service whose health checks every node is to answer.
fn web() -> Service {
    Service::new("web", "10.96.0.10")
        .port(tcp(80, 8080))
        .ingress("192.0.2.10")
        .spec("externalTrafficPolicy: Local, healthCheckNodePort: 30999")
        .endpoints("10.244.1.10")
}

fn a_taken_health_check_port_is_told(c: &mut Cluster) -> Outcome {
    c.node1.serve_tcp(30999)?;
    let mut api = c.api_server(true)?;
    api.apply(&web())?;
    api.start()?;
    c.launch_on(&api, &[])?;
    c.until("it is told", || Ok(!events(&api, HEALTH_CHECK).is_empty()))?;
    c.until_answered(&c.client, "10.96.0.10:80")?;
    let about = format!("Warning Service web {} node node1", uid(&api, "web")?);
    let told = events(&api, HEALTH_CHECK);
    assert!(
        matches!(&told[..], [one] if one.starts_with(&about) && one.contains(":30999")),
        "{told:?}"
    );
    Ok(())
}

/// What the daemon has to say waits; what it has to do does not.
fn an_api_server_that_is_away_holds_up_nothing(c: &mut Cluster) -> Outcome {
    let web = web();
    c.node1.serve_tcp(30999)?;
    let mut api = c.api_server(true)?;
    api.apply(&web)?;
    api.start()?;
    c.launch_on(&api, &["--nodeport-addresses=198.51.100.0/24"])?;
    c.until("the start is told", || {
        Ok(!events(&api, "Starting").is_empty())
    })?;
    c.until_answered(&c.client, "10.96.0.10:80")?;
    assert_eq!(events(&api, HEALTH_CHECK), [""; 0], "no address yet");

    api.stop();
    c.sh("ip address add 198.51.100.1/24 dev lo")?;
    c.await_line("cannot listen for the health checks")?;
    c.sh("ip link delete kube-ipvs0")?;
    c.until("the damage is repaired", || {
        Ok(c.addresses()?.contains("kube-ipvs0 10.96.0.10/32"))
    })?;
    c.until_answered(&c.client, "10.96.0.10:80")?;

    api.start()?;
    c.until("it is told", || Ok(!events(&api, HEALTH_CHECK).is_empty()))?;
    let told = events(&api, HEALTH_CHECK);
    assert!(
        matches!(&told[..], [one] if one.contains("198.51.100.1:30999")),
        "{told:?}"
    );
    Ok(())
}
