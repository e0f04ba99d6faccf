//! Runs the minimal mode of the engine's tests with every command that reads or removes a mode's
//! entries: `status`, `diff`, `explain` and `--cleanup`. This shows that none of these commands
//! needs code for a particular mode.

#[path = "../../../../../engine/tests/small/mode.rs"]
mod mode;

use std::process::Command;

use engine::{Engine, Lanes};
use explain::{Objects, Quotes, TraceRequest};
use footprint::origin::{ADDRESSES, Origin, Space};
use footprint::{Footprint, ServedBy};
use modes::definition::Start;
use modes::preview::{Change, PlanPreview, Preview};
use namespace::in_namespace;
use proxy::NodeFacts;

use super::*;
use crate::check;
use mode::{Kernel, NoFlags, Plan, Userspace};

/// Footprint (names in the kernel) of the minimal mode. If the mode crashes, it leaves a table
/// whose rules redirect packets to the mode's sockets.
const FOOTPRINT: Footprint = Footprint {
    nft_tables: &["small"],
    served_by: ServedBy::Process,
    origins: &[Origin::of(Space::Nftables("small"), "services", ADDRESSES)],
    ..Footprint::none("small")
};

fn small(kernel: &Kernel) -> Engine<Userspace, Kernel> {
    let node = NodeFacts::new(IpFamily::V4, "node1");
    let kernel = Arc::clone(kernel);
    let lanes = Lanes::inline(move || Arc::clone(&kernel));
    Engine::new(NoFlags, node, lanes, Instant::now())
}

/// Fills a model with the Service `default/web` at 10.96.0.1:80.
fn fill(model: &mut Model) {
    let kinds = [Kind::Service, Kind::EndpointSlice, Kind::Node];
    for kind in kinds {
        model.apply(Event::ListStarted(kind));
    }
    let port = ServicePort {
        name: "http".into(),
        protocol: Protocol::Tcp,
        port: 80,
        node_port: None,
    };
    model.apply(Event::ServiceApplied(Service {
        ports: [port].into_iter().collect(),
        ..Service::at(
            NamespacedName::new("default", "web"),
            [[10, 96, 0, 1].into()],
        )
    }));
    for kind in kinds {
        let is_whole = true;
        model.apply(Event::ListComplete { kind, is_whole });
    }
}

/// Returns the output of `kube-proxy diff` in the minimal mode.
async fn diff(kernel: &Kernel) -> String {
    let (options, mut model) = (options(&[]), Model::new());
    fill(&mut model);
    let changes = model.take_changes();
    let start = Start {
        settings: &options.modes,
        node: "node1",
        model: &model,
        now: Instant::now(),
    };
    let show = |family: IpFamily, _: &_, plan: &Plan| {
        let line = |(at, opens): (&_, &bool)| {
            let verb = if *opens { "add" } else { "remove" };
            Change::told(family, "sockets", "sockets", format!("{verb} {at}"))
        };
        PlanPreview {
            writes: plan.len(),
            changes: plan.iter().map(line).collect(),
        }
    };
    let mut preview = Preview::default();
    let added = preview.add(vec![small(kernel)], &start, &changes, show);
    added.await.unwrap();
    check::tests::diff(preview.changes)
}

#[tokio::test]
async fn a_minimal_mode_supports_status_and_diff() {
    let kernel = Kernel::default();
    assert_eq!(diff(&kernel).await, "IPv4 sockets\n+ 10.96.0.1:80\n");
    assert!(kernel.lock().unwrap().open.is_empty());

    let mut daemon = daemon_of(options(&[]), vec![Box::new(small(&kernel))]);
    let inspect = Arc::clone(&daemon.observed.inspect);
    fill(&mut daemon.model);
    for _ in 0..2 {
        daemon.turn(Instant::now()).await.unwrap();
    }
    let family = first_family(&mut daemon, &inspect).await;
    assert_eq!(family["state"], "synced", "{family}");
    let open = kernel.lock().unwrap().open.clone();
    assert_eq!(open, [([10, 96, 0, 1], 80).into()].into());
}

#[test]
fn a_minimal_mode_supports_explain_and_cleanup() {
    let explained = || {
        let asked = TraceRequest::parse("10.96.0.1:80/tcp", "node", "default").unwrap();
        let objects = Objects::default();
        let nobody = |_, _, _| None;
        let explanation =
            explain::answer(&asked, &objects, &nobody, Quotes::All, &[&FOOTPRINT]).unwrap();
        serde_json::to_string(&explanation).unwrap()
    };
    in_namespace(|| {
        if !nft("add table ip small") {
            eprintln!("this kernel has no nftables for IP");
            return;
        }
        for line in [
            "add table ip other",
            "add chain ip small services { type nat hook output priority -100; }",
            "add rule ip small services ip daddr 10.96.0.1 tcp dport 80 redirect to :8080",
        ] {
            assert!(nft(line), "{line}");
        }
        for line in [
            "link set lo up",
            "address add 192.0.2.1/32 dev lo",
            "route add 10.96.0.0/12 dev lo",
        ] {
            assert!(run("ip", line), "{line}");
        }
        assert!(explained().contains(ADDRESSES), "{}", explained());
        let cleanup = cleanup::clean_up(&[&FOOTPRINT], &[]);
        let removed = |line: &String| line.contains("small");
        assert!(cleanup.removed.iter().any(removed), "{cleanup:?}");
        assert!(!nft("list table ip small") && nft("list table ip other"));
        assert!(!explained().contains(ADDRESSES));
    });
}

fn nft(line: &str) -> bool {
    run("nft", line)
}

/// Runs a program. Returns true if it succeeds.
fn run(program: &str, line: &str) -> bool {
    let output = Command::new(program).args(line.split(' ')).output();
    output.is_ok_and(|output| output.status.success())
}
