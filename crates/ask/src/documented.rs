//! Checks that docs/api.md names exactly the fields of the API objects.
//!
//! The tests build each object with all its fields. If an object gets a new field, the tests do not
//! compile until they set this field.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use view::*;

use super::leftovers::Leftovers;
use super::virtual_servers::VirtualServers;
use super::{Form, Output, Patience};

const DOCUMENT: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/api.md"));

/// Returns the section of docs/api.md below this heading.
fn under(heading: &str) -> &'static str {
    let (_, behind) = DOCUMENT
        .split_once(&format!("\n## {heading}\n"))
        .unwrap_or_else(|| panic!("no heading {heading}"));
    behind.split("\n## ").next().unwrap()
}

/// Returns the texts between pairs of backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Adds the paths of all fields in a JSON value to `all`, such as `ports[].addresses[].at`. `at` is
/// the path of the value.
fn paths(value: &Value, at: &str, all: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, of) in fields {
                let path = if at.is_empty() {
                    name.clone()
                } else {
                    format!("{at}.{name}")
                };
                paths(of, &path, all);
                all.insert(path);
            }
        }
        Value::Array(items) => {
            assert!(!items.is_empty(), "{at} needs an item");
            all.insert(format!("{at}[]"));
            for item in items {
                paths(item, &format!("{at}[]"), all);
            }
        }
        _ => {}
    }
}

/// Formats an object as JSON and as YAML, checks that both are equal, and returns the JSON value.
fn printed(object: &impl Serialize) -> Value {
    let as_output = |output| {
        let form = Form {
            output: Some(output),
            patience: Patience {
                timeout: Duration::ZERO,
            },
        };
        form.of(object).unwrap().unwrap()
    };
    let value: Value = serde_json::from_str(&as_output(Output::Json)).unwrap();
    let yaml: Value = serde_saphyr::from_str(&as_output(Output::Yaml)).unwrap();
    assert_eq!(value, yaml);
    value
}

/// Formats an object as JSON, checks that the text parses into an equal object, and returns the
/// JSON value.
fn read_back<T: Serialize + DeserializeOwned + PartialEq + Debug>(object: &T) -> Value {
    let value = printed(object);
    assert_eq!(*object, serde_json::from_value(value.clone()).unwrap());
    value
}

/// Checks that a section of docs/api.md names every field of an object, and that the section's
/// tables name no other field. The section may omit the fields in `shared`.
fn compare(value: &Value, text: &str, roots: &[&str], shared: &[&str]) {
    let mut told = BTreeSet::new();
    paths(value, "", &mut told);
    let words: BTreeSet<&str> = quoted(text)
        .flat_map(|words| words.split(['.', '[', ']', ' ', ',', ':']))
        .collect();
    for path in &told {
        let name = path.trim_end_matches("[]").rsplit('.').next().unwrap();
        let is_told = words.contains(name) || shared.contains(&name);
        assert!(is_told, "{path} is not in docs/api.md");
    }
    let rows = text.lines().filter(|line| line.starts_with("| `"));
    let first = rows.flat_map(|row| quoted(row.split('|').nth(1).unwrap()));
    for name in first {
        let is_there = roots.iter().any(|root| {
            let path = format!("{root}{name}");
            told.contains(&path) || told.iter().any(|one| one.ends_with(&format!(".{path}")))
        });
        assert!(is_there, "docs/api.md names {name}, which no object has");
    }
}

fn counters() -> Counters {
    Counters {
        connections: 1,
        packets_in: Some(2),
        packets_out: Some(3),
        bytes_in: Some(4),
        bytes_out: Some(5),
        active: Some(6),
        inactive: Some(7),
    }
}

fn name() -> ServiceName {
    ServiceName {
        namespace: "default".to_owned(),
        name: "web".to_owned(),
    }
}

fn text() -> String {
    // YAML output must quote this text. Unquoted, YAML would read it as a value of a different
    // type.
    "yes: \"no\" # 012\n'x'".to_owned()
}

#[test]
fn the_status_api_matches_its_documentation() {
    let status = Status {
        node: text(),
        mode: text(),
        forms: vec![text()],
        version: text(),
        kubernetes: text(),
        started: text(),
        ready: true,
        healthy: true,
        families: vec![Family {
            family: text(),
            state: SyncState::Stuck,
            pending: 1,
            failing: 1,
            lag_seconds: 0.5,
            stuck_seconds: Some(1.0),
            updated_seconds_ago: Some(2.0),
        }],
        source: Source {
            from: text(),
            services: 1,
            endpoint_slices: 1,
            complete: true,
            whole: true,
            node_exists: Some(true),
        },
        errors: vec![RejectedEntry {
            family: text(),
            object: text(),
            service: Some(text()),
            reason: text(),
            seconds: 1.0,
        }],
        warnings: vec![RejectedEntry::default()],
        unreadable: vec![Unreadable {
            family: text(),
            part: text(),
            reason: text(),
        }],
        conflicts: vec![Conflict {
            family: text(),
            address: text(),
            winner: text(),
            loser: text(),
        }],
        drift: vec![RepairedEntries {
            family: text(),
            kind: text(),
            count: 1,
            last: text(),
            names: vec![text()],
        }],
        draining: vec![Draining {
            server: text(),
            endpoint: text(),
            seconds: 1.0,
            connections: Some(1),
        }],
        draining_count: 1,
        limits: vec![Limit {
            of: text(),
            used: 1,
            limit: 1,
            near: true,
        }],
        features: vec![Feature {
            name: text(),
            found: true,
            note: text(),
        }],
        notes: vec![text()],
    };
    compare(&read_back(&status), under("`status`"), &[""], &[]);
}

#[test]
fn the_services_api_matches_its_documentation() {
    let endpoint = Endpoint {
        at: text(),
        pod: Some(text()),
        node: Some(text()),
        zone: Some(text()),
        local: true,
        condition: Condition::Draining,
        ready: true,
        serving: true,
        terminating: true,
        cluster: true,
        local_policy: true,
        why: text(),
        weight: Some(1),
        draining: Some(Drain {
            seconds: Some(1.0),
            open: Some(1),
            ended: Some(1),
            ends_within_seconds: Some(1.0),
        }),
        counters: Some(counters()),
    };
    let port = Port {
        name: text(),
        protocol: text(),
        port: 80,
        node_port: Some(30_080),
        addresses: vec![Address {
            kind: AddressKind::NodePort,
            at: text(),
            scheduler: Some(text()),
            lost_to: Some(text()),
            counters: Some(counters()),
        }],
        endpoint_counts: EndpointCounts {
            total: 1,
            ready: 1,
            local: 1,
            used: 1,
            draining: 1,
        },
        endpoints: vec![endpoint],
        counters: Some(counters()),
    };
    let service = Service {
        name: name(),
        kind: text(),
        internal_traffic_policy: text(),
        external_traffic_policy: text(),
        session_affinity_seconds: Some(1),
        source_ranges: vec![text()],
        health_check_node_port: Some(1),
        options: vec![ServiceOption {
            annotation: text(),
            value: text(),
        }],
        errors: vec![text()],
        ports: vec![port],
        notes: vec![text()],
    };
    read_back(&service);
    let list = ServiceList {
        items: vec![service],
        total: 1,
        next: Some(text()),
        notes: vec![text()],
    };
    let roots = ["", "items[].", "items[].ports[]."];
    compare(&read_back(&list), under("`services`"), &roots, &[]);
    // Checks that the document lists every value of the field `condition`.
    for condition in [
        Condition::Ready,
        Condition::ServingTerminating,
        Condition::Terminating,
        Condition::NotReady,
        Condition::Draining,
        Condition::Left,
    ] {
        let word = serde_json::to_value(condition).unwrap();
        let word = word.as_str().unwrap();
        let is_told = quoted(under("`services`")).any(|quoted| quoted == word);
        assert!(is_told, "{word}");
    }
}

fn step() -> Step {
    Step {
        place: text(),
        entry: text(),
        says: text(),
        origin: text(),
        packets: Some(1),
        bytes: Some(1),
        members: vec![text()],
    }
}

#[test]
fn the_explain_api_matches_its_documentation() {
    let explanation = Explanation {
        to: text(),
        mode: Some(text()),
        journeys: vec![Journey {
            from: text(),
            to: text(),
            protocol: text(),
            of: Some(text()),
            walks: vec![Walk {
                chance: Chance(0.5),
                fate: Fate::Delivered,
                endpoint: Some(text()),
                source: text(),
                seen_as: Some(text()),
                unanswered: Some(text()),
                unsure: Some(text()),
                answer: vec![step()],
                doubts: vec![text()],
                rules_passed: 1,
                steps: vec![step()],
            }],
            verdict: text(),
        }],
        notes: vec![text()],
    };
    compare(&read_back(&explanation), under("`explain`"), &[""], &[]);
}

#[test]
fn the_top_api_matches_its_documentation() {
    let rate = Rate {
        connections: 0.5,
        packets_in: 0.5,
        packets_out: 0.5,
        bytes_in: 0.5,
        bytes_out: 0.5,
    };
    let top = Top {
        seconds: 1.0,
        total: rate,
        ports: vec![TopPort {
            service: name(),
            port_name: text(),
            protocol: text(),
            port: 80,
            rate,
            counters: counters(),
        }],
        endpoints: vec![TopEndpoint {
            service: name(),
            port_name: text(),
            at: text(),
            rate,
            counters: counters(),
        }],
        draining: 1,
        pending: 1,
        failing: 1,
        notes: vec![text()],
    };
    let of_counters = ["active", "inactive"];
    compare(&read_back(&top), under("`top`"), &[""], &of_counters);
}

#[test]
fn output_on_a_node_without_a_daemon_matches_its_documentation() {
    let text = under("Where no daemon answers");
    let (status, services) = text.split_once("| field of `services`").unwrap();
    compare(&printed(&Leftovers::full()), status, &[""], &[]);
    compare(&printed(&VirtualServers::full()), services, &[""], &[]);
}
