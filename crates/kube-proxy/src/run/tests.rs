use std::io::{Read as _, Write as _};
use std::time::{Duration, Instant};

use futures::stream::{BoxStream, StreamExt as _, poll_fn};
use proxy::{EndpointSlice, Event, IpFamily, Kind, Mode, Model, NamespacedName};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::daemon::Daemon;
use super::end::END_PATIENCE;
use super::observed::Observed;
use super::renewal::{Modes, Prepared};
use crate::config::options::Options;
use crate::config::options::object_source::OwnNode;
use crate::events::{self, Recorder};
use crate::health::healthz;
use crate::node::addresses::AddressChanges;
use crate::run::first_lists::{WAITING_NOTICE, drain, gather_within};
use crate::serve::pages;
use crate::tests::options;
use crate::tests::scripted::Scripted;

fn stream(mut received: mpsc::Receiver<Event>) -> BoxStream<'static, Event> {
    poll_fn(move |context| received.poll_recv(context)).boxed()
}

fn slice(number: usize) -> Event {
    let name = |name: &str| NamespacedName::new("default", name);
    Event::SliceApplied(EndpointSlice {
        name: name(&format!("web-{number}")),
        service: name(&format!("web{number}")),
        family: IpFamily::V4,
        ports: [].into_iter().collect(),
        endpoints: Vec::new().into(),
        change_trigger: None,
    })
}

#[tokio::test]
async fn a_start_continues_without_a_readable_node_object() {
    let (told, received) = mpsc::channel(10);
    for kind in [Kind::Service, Kind::EndpointSlice] {
        let complete = Event::ListComplete {
            kind,
            is_whole: true,
        };
        told.send(complete).await.unwrap();
    }
    let (mut events, mut model) = (stream(received), Model::new());
    let patience = Duration::from_millis(20);
    let gathered = gather_within(&mut events, &mut model, OwnNode::Needed, patience, |_| ());
    timeout(WAITING_NOTICE / 2, gathered).await.unwrap();
    assert!(model.is_complete());
}

/// Returns a daemon whose source sends no events.
pub(super) fn daemon_of(options: Options, modes: Vec<Box<dyn Mode>>) -> Daemon {
    let (_, received) = mpsc::channel(1);
    let observed = Observed::new(&options).unwrap();
    let daemon = Daemon::new(
        options,
        stream(received),
        AddressChanges::subscribe().unwrap(),
        Model::new(),
        modes,
        &Recorder::off(),
        observed,
        Instant::now(),
    );
    daemon.unwrap()
}

#[tokio::test]
async fn a_panicked_worker_thread_stops_the_daemon() {
    let (mode, script) = Scripted::mode(IpFamily::V6);
    let mut daemon = daemon_of(options(&[]), vec![mode]);
    daemon.turn(Instant::now()).await.unwrap();
    script.finish(proxy::Report {
        gone: Some("its thread has panicked".to_owned()),
        ..proxy::Report::default()
    });
    let error = daemon.turn(Instant::now()).await.unwrap_err();
    assert_eq!(error.to_string(), "IPv6: its thread has panicked");
}

/// A short write may end in the same turn of the daemon's loop in which it began. The metric and
/// the log line must include the time of this write.
#[tokio::test]
async fn the_sync_duration_covers_writes_within_one_turn() {
    let (mode, script) = Scripted::mode(IpFamily::V4);
    let mut daemon = daemon_of(options(&[]), vec![mode]);
    daemon.turn(Instant::now()).await.unwrap();
    let time = Duration::from_millis(20);
    script.state().writes_for = Some(time);
    daemon.turn(Instant::now()).await.unwrap();
    let text = daemon.observed.metrics.classic();
    let sample = |name: &str| {
        let start =
            format!("kubeproxy_sync_proxy_rules_duration_seconds_{name}{{ip_family=\"IPv4\"}} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&start));
        line.unwrap().parse::<f64>().unwrap()
    };
    assert!((sample("count") - 1.0).abs() < f64::EPSILON);
    assert!(sample("sum") >= time.as_secs_f64(), "{}", sample("sum"));
}

#[tokio::test(start_paused = true)]
async fn shutdown_waits_a_limited_time_for_running_writes() {
    let (mode, script) = Scripted::mode(IpFamily::V4);
    let daemon = daemon_of(options(&[]), vec![mode]);
    let began = tokio::time::Instant::now();
    daemon.end().await;
    assert_eq!(began.elapsed(), Duration::ZERO);
    drop(script);
    let (mode, script) = Scripted::mode(IpFamily::V4);
    script.set_idle(false);
    daemon_of(options(&[]), vec![mode]).end().await;
    assert!(began.elapsed() < END_PATIENCE + Duration::from_millis(10));
}

#[tokio::test]
async fn requests_are_answered_while_the_main_loop_computes() {
    let (mode, script) = Scripted::mode(IpFamily::V4);
    let computes_for = Duration::from_secs(2);
    script.state().computes_for = computes_for;
    let mut options = options(&[]);
    let any = Some("127.0.0.1:0".parse().unwrap());
    (options.serve.healthz_address, options.serve.metrics_address) = (any, any);
    let mut daemon = daemon_of(options.clone(), vec![mode]);
    let observed = &daemon.observed;
    let served = observed.serve(&options, Vec::new(), &Recorder::off()).await;
    let (servers, _local) = served.unwrap();
    let asked = servers.iter().zip(["/livez", "/metrics"]);
    let asked: Vec<_> = asked
        .map(|(server, path)| {
            let at = *server.address.as_ref().unwrap();
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(100));
                let mut stream = std::net::TcpStream::connect(at).unwrap();
                stream.set_read_timeout(Some(computes_for / 2)).unwrap();
                let request =
                    format!("GET {path} HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n");
                stream.write_all(request.as_bytes()).unwrap();
                let mut answer = String::new();
                stream.read_to_string(&mut answer).unwrap();
                assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
            })
        })
        .collect();
    let began = Instant::now();
    daemon.turn(began).await.unwrap();
    assert!(began.elapsed() >= computes_for);
    for one in asked {
        one.join().expect("no answer while the loop computes");
    }
}

#[tokio::test]
async fn changes_in_ipv4_do_not_wait_for_a_busy_ipv6() {
    let ((four, of_four), (six, of_six)) =
        (Scripted::mode(IpFamily::V4), Scripted::mode(IpFamily::V6));
    let mut daemon = daemon_of(options(&["--ipvs-min-sync-period=0s"]), vec![four, six]);
    daemon.model.apply(slice(1));
    daemon.turn(Instant::now()).await.unwrap();
    assert_eq!((of_four.updates(), of_six.updates()), (1, 1), "the first");
    of_six.set_ready(false);
    for number in 2..5 {
        daemon.model.apply(slice(number));
        daemon.turn(Instant::now()).await.unwrap();
    }
    assert_eq!((of_four.updates(), of_six.updates()), (4, 1));
    of_six.set_ready(true);
    daemon.turn(Instant::now()).await.unwrap();
    assert_eq!((of_four.updates(), of_six.updates()), (4, 2), "all at once");
    assert_eq!(of_six.last_update().services.len(), 3);
}

#[tokio::test]
async fn a_busy_ip_family_later_gets_all_changes() {
    let ((four, of_four), (six, of_six)) =
        (Scripted::mode(IpFamily::V4), Scripted::mode(IpFamily::V6));
    let mut daemon = daemon_of(options(&["--ipvs-min-sync-period=10s"]), vec![four, six]);
    let start = Instant::now();
    let later = |seconds| start + Duration::from_secs(seconds);
    daemon.model.apply(slice(1));
    daemon.turn(start).await.unwrap();
    of_six.set_ready(false);
    daemon.model.apply(slice(2));
    daemon.turn(later(10)).await.unwrap();
    assert_eq!((of_four.updates(), of_six.updates()), (2, 1));
    // The IPv6 mode must receive both changes together, because an address may move from the
    // second Service to the third Service.
    daemon.model.apply(slice(3));
    daemon.turn(later(11)).await.unwrap();
    assert_eq!((of_four.updates(), of_six.updates()), (2, 1));
    of_six.set_ready(true);
    daemon.turn(later(12)).await.unwrap();
    assert_eq!(of_six.last_update().services.len(), 2);
    assert_eq!((of_four.updates(), of_six.updates()), (3, 2));
}

#[tokio::test]
async fn changes_do_not_wake_the_main_loop_until_an_ip_family_is_ready() {
    let (mode, script) = Scripted::mode(IpFamily::V4);
    let mut daemon = daemon_of(options(&["--ipvs-min-sync-period=0s"]), vec![mode]);
    daemon.turn(Instant::now()).await.unwrap();
    script.set_ready(false);
    daemon.model.apply(slice(1));
    let now = Instant::now();
    daemon.turn(now).await.unwrap();
    assert_eq!(daemon.next_due(now), daemon.next_tick);
    assert!(daemon.model.has_changes(), "they are gathered");
}

#[tokio::test]
async fn changes_wait_for_the_minimum_sync_period() {
    let (mode, script) = Scripted::mode(IpFamily::V4);
    let mut daemon = daemon_of(options(&["--ipvs-min-sync-period=10s"]), vec![mode]);
    let start = Instant::now();
    daemon.model.apply(slice(1));
    daemon.turn(start).await.unwrap();
    daemon.model.apply(slice(2));
    let later = |seconds| start + Duration::from_secs(seconds);
    daemon.turn(later(9)).await.unwrap();
    assert_eq!(script.updates(), 1);
    assert_eq!(daemon.next_due(later(9)), later(10));
    daemon.turn(later(10)).await.unwrap();
    assert_eq!(script.updates(), 2);
}

#[tokio::test]
async fn a_failed_change_of_options_keeps_the_reported_options() {
    let (mode, _) = Scripted::mode(IpFamily::V4);
    let mut daemon = daemon_of(options(&["--ipvs-scheduler=rr"]), vec![mode]);
    let other = options(&["--ipvs-scheduler=wrr", "--ipvs-sync-period=7s"]);
    daemon.renewal.want(other.clone(), Modes::AsSettingsSay);
    daemon.renew(Err(anyhow::anyhow!("on purpose")));
    assert_eq!(daemon.options.modes.ipvs.scheduler, "rr");
    assert!(daemon.renewal.next_due().is_some(), "it is tried again");
    daemon.renew(Ok(Prepared {
        options: Box::new(other),
        opened: None,
    }));
    assert_eq!(daemon.options.modes.ipvs.scheduler, "wrr");
    assert_eq!(
        daemon.options.modes.shared.sync_period,
        Duration::from_secs(7)
    );
    assert!(daemon.renewal.next_due().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_cannot_listen_causes_an_event() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = taken.local_addr().unwrap();
    let healthz = (
        healthz::PURPOSE,
        format!("--healthz-bind-address={at}"),
        "--metrics-bind-address=",
    );
    let metrics = (
        pages::PURPOSE,
        format!("--metrics-bind-address={at}"),
        "--healthz-bind-address=",
    );
    for (purpose, taken, off) in [healthz, metrics] {
        for is_fatal in [false, true] {
            let is_fatal_flag = format!("--bind-address-hard-fail={is_fatal}");
            let options = options(&[&taken, off, &is_fatal_flag]);
            let (recorder, mut recorded) = Recorder::queued();
            let observed = Observed::new(&options).unwrap();
            let served = observed.serve(&options, Vec::new(), &recorder).await;
            assert_eq!(served.is_err(), is_fatal);
            let event = recorded.recv().await.unwrap().event;
            let error = match served {
                Ok((servers, _)) => servers[0].address.as_ref().unwrap_err().to_string(),
                Err(error) => error.to_string(),
            };
            let wanted = events::Event::listen_failed("node1", purpose.event, error);
            assert_eq!(event, wanted);
            assert!(recorded.try_recv().is_err());
        }
    }
}

#[tokio::test]
async fn events_that_arrive_together_become_few_updates() {
    let (told, received) = mpsc::channel(300);
    tokio::spawn(async move {
        for number in 0..1000 {
            told.send(slice(number)).await.unwrap();
        }
        std::future::pending::<()>().await;
    });
    let (mut events, mut model) = (stream(received), Model::new());
    let (mut services, mut updates) = (0, 0);
    while services < 1000 {
        let first = events.next().await.unwrap();
        drain(&mut events, &mut model, first).await;
        services += model.take_changes().services.len();
        updates += 1;
    }
    // Normally, the daemon makes one update. The limit is higher, because other processes may stop
    // this test for longer than the time limit of a drain.
    assert!(updates <= 10, "{updates}");
}
