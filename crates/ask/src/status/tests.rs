use view::{Conflict, Draining, Feature, Limit, RejectedEntry, RepairedEntries, Source};

use super::*;

fn status() -> Status {
    Status {
        node: "node1".to_owned(),
        mode: "ipvs".to_owned(),
        forms: vec!["scheduler rr".to_owned()],
        version: "0.1.0".to_owned(),
        kubernetes: "v1.37.0".to_owned(),
        started: "2026-01-01T00:00:00Z".to_owned(),
        ready: true,
        healthy: true,
        families: vec![Family {
            family: "IPv4".to_owned(),
            state: SyncState::Synced,
            updated_seconds_ago: Some(2.0),
            ..Family::default()
        }],
        source: Source {
            from: "manifests in /m".to_owned(),
            services: 2,
            endpoint_slices: 3,
            complete: true,
            whole: true,
            node_exists: None,
        },
        ..Status::default()
    }
}

#[test]
fn the_status_of_a_healthy_node_has_only_a_few_lines() {
    assert_eq!(
        render(&status(), false, false),
        "Node      node1\n\
         Mode      ipvs (scheduler rr)\n\
         State     ready, healthy\n\
         Version   kube-proxy-ipvs 0.1.0 (Kubernetes v1.37.0), since 2026-01-01T00:00:00Z\n\
         Source    manifests in /m: 2 Services, 3 EndpointSlices\n\
         \n\
         FAMILY   STATE    PENDING   FAILING   LAG   STUCK   SYNCED\n\
         IPv4     synced   0         0         0s    -       2s ago\n"
    );
}

#[test]
fn each_problem_in_the_status_is_shown_with_its_object() {
    let mut status = status();
    status.ready = false;
    status.source.whole = false;
    status.errors.push(RejectedEntry {
        family: "IPv4".to_owned(),
        object: "add virtual server 10.0.0.1:80/TCP".to_owned(),
        service: Some("default/web:http".to_owned()),
        reason: "no memory".to_owned(),
        seconds: 61.0,
    });
    status.conflicts.push(Conflict {
        address: "192.0.2.20:80/TCP".to_owned(),
        winner: "default/old".to_owned(),
        loser: "default/new".to_owned(),
        ..Conflict::default()
    });
    status.draining_count = 7;
    status.draining.push(Draining {
        server: "10.96.0.1:80/TCP".to_owned(),
        endpoint: "10.244.1.5:8080".to_owned(),
        seconds: 300.0,
        connections: Some(3),
    });
    status.drift.push(RepairedEntries {
        kind: "set member".to_owned(),
        count: 4,
        ..RepairedEntries::default()
    });
    let limit = |of: &str, near| Limit {
        of: of.to_owned(),
        used: 95,
        limit: 100,
        near,
    };
    status.limits = vec![
        limit("open files", false),
        limit("set KUBE-CLUSTER-IP (IPv4)", true),
    ];
    status.features = vec![
        Feature {
            name: "IPVS".to_owned(),
            found: true,
            note: String::new(),
        },
        Feature {
            name: "scheduler mh".to_owned(),
            note: "no module".to_owned(),
            found: false,
        },
    ];
    status.notes = vec!["look".to_owned()];
    let text = render(&status, false, false);
    for part in [
        "State     not ready\n",
        ", some unreadable: nothing is removed\n",
        "  IPv4   default/web:http   cannot add virtual server 10.0.0.1:80/TCP   no memory   for 61s\n",
        "  192.0.2.20:80/TCP   default/old   default/new\n",
        "Draining (7)\n",
        "  10.96.0.1:80/TCP   10.244.1.5:8080   5m    3\n",
        "set member   4",
        "  set KUBE-CLUSTER-IP (IPv4)   95     100\n",
        "  scheduler mh   no      no module\n",
        "Note: look\n",
    ] {
        assert!(text.contains(part), "{part:?} in\n{text}");
    }
    assert!(
        !text.contains("open files") && !text.contains("IPVS "),
        "{text}"
    );
    let wide = render(&status, true, false);
    assert!(
        wide.contains("open files") && wide.contains("IPVS "),
        "{wide}"
    );
}

#[test]
fn a_problem_in_the_status_causes_exit_status_1() {
    assert!(is_well(&status()));
    let spoilt: [fn(&mut Status); 7] = [
        |status| status.ready = false,
        |status| status.healthy = false,
        |status| status.source.whole = false,
        |status| status.families[0].state = SyncState::Failing,
        |status| status.families[0].state = SyncState::Stuck,
        |status| status.families[0].failing = 1,
        |status| status.errors.push(RejectedEntry::default()),
    ];
    for (number, spoil) in spoilt.into_iter().enumerate() {
        let mut status = status();
        spoil(&mut status);
        assert!(!is_well(&status), "{number}");
    }
    let mut syncing = status();
    (syncing.families[0].state, syncing.families[0].pending) = (SyncState::Syncing, 3);
    assert!(is_well(&syncing), "syncing is no problem");
}

#[test]
fn a_watched_status_is_not_printed_again_if_only_ages_changed() {
    let mut later = status();
    later.families[0].updated_seconds_ago = Some(30.0);
    later.families[0].lag_seconds = 0.2;
    assert_ne!(status(), later);
    assert_eq!(without_times(&status()), without_times(&later));
    later.families[0].pending = 1;
    assert_ne!(without_times(&status()), without_times(&later));
}
