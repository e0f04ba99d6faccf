use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures::stream::BoxStream;
use futures::{FutureExt as _, StreamExt};
use proxy::{Event, Kind};

use super::folder::{self, ChangedFiles, Folder, FolderUpdate};
use super::stream;

/// Directory that is deleted at the end of the test.
struct Temporary(PathBuf);

impl Temporary {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let path = std::env::temp_dir().join(format!(
            "manifests-{}-{}",
            std::process::id(),
            NUMBER.fetch_add(1, Ordering::Relaxed)
        ));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.0.join(name), text).unwrap();
    }

    fn remove(&self, name: &str) {
        fs::remove_file(self.0.join(name)).unwrap();
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn service(name: &str, ip: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec: {{clusterIP: {ip}, ports: [{{port: 80}}]}}\n---\n"
    )
}

/// Describes events, each in a few words.
fn words(events: &[Event]) -> Vec<String> {
    events
        .iter()
        .map(|event| match event {
            Event::ListStarted(kind) => format!("{kind:?} list"),
            Event::ListComplete { kind, is_whole } => {
                format!("{kind:?} {}", if *is_whole { "whole" } else { "complete" })
            }
            Event::ServiceApplied(service) => {
                format!("{} {}", service.name.name(), service.cluster_ips[0])
            }
            Event::ServiceDeleted(name) => format!("no {}", name.name()),
            Event::SliceApplied(slice) => {
                format!("slice {} {}", slice.name.name(), slice.endpoints.len())
            }
            Event::SliceDeleted(name) => format!("no slice {}", name.name()),
            Event::NodeApplied(node) => format!("node {}", node.name),
            Event::NodeDeleted(name) => format!("no node {name}"),
            Event::ServiceCidrApplied(cidr) => format!("cidr {}", cidr.name),
            Event::ServiceCidrDeleted(name) => format!("no cidr {name}"),
            Event::Unreadable(_, name) => format!("{} unreadable", name.name()),
            Event::ApiServerAt(_) => "an API server".to_owned(),
        })
        .collect()
}

/// Returns the events of a first read, without the events that begin and end lists. Also returns
/// true if all lists are whole.
fn listed(events: &[Event]) -> (Vec<String>, bool) {
    let mut all = words(events);
    let of_all = |what| Kind::ALL.map(|kind| format!("{kind:?} {what}"));
    let starts: Vec<_> = all.drain(..Kind::ALL.len()).collect();
    assert_eq!(starts, of_all("list"));
    let ends = all.split_off(all.len() - Kind::ALL.len());
    let is_whole = ends == of_all("whole");
    assert!(is_whole || ends == of_all("complete"), "{ends:?}");
    (all, is_whole)
}

/// Reads the directory as if all files had changed. So the read also detects a second write within
/// one tick of the file system's clock.
fn look(folder: &mut Folder) -> FolderUpdate {
    let touched = ChangedFiles {
        is_all: true,
        ..ChangedFiles::default()
    };
    folder.look(&touched).unwrap()
}

#[test]
fn added_edited_and_deleted_manifests_cause_events() {
    let dir = Temporary::new();
    dir.write(
        "a.yaml",
        &(service("a", "10.96.0.1") + &service("b", "10.96.0.2")),
    );
    let mut folder = Folder::new(&dir.0, "node1");
    assert_eq!(
        listed(&look(&mut folder).events),
        (vec!["a 10.96.0.1".into(), "b 10.96.0.2".into()], true)
    );
    dir.write("c.yml", &service("c", "10.96.0.3"));
    assert_eq!(words(&look(&mut folder).events), ["c 10.96.0.3"]);
    assert_eq!(
        look(&mut folder),
        FolderUpdate::default(),
        "nothing changed"
    );
    dir.write(
        "a.yaml",
        &(service("a", "10.96.0.9") + &service("d", "10.96.0.4")),
    );
    assert_eq!(
        words(&look(&mut folder).events),
        ["a 10.96.0.9", "no b", "d 10.96.0.4"]
    );
    dir.remove("a.yaml");
    assert_eq!(words(&look(&mut folder).events), ["no a", "no d"]);
    dir.write("c.yml", "");
    assert_eq!(words(&look(&mut folder).events), ["no c"]);
}

#[test]
fn manifests_of_unrelated_kinds_and_other_nodes_are_ignored() {
    let dir = Temporary::new();
    dir.write(
        "a.json",
        r#"{"apiVersion": "v1", "kind": "List", "items": [
            {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node1"}},
            {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node2"}},
            {"apiVersion": "v1", "kind": "Secret", "data": 5},
            {"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": "more"},
             "spec": {"cidrs": ["10.128.0.0/16"]}},
            {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
             "metadata": {"name": "a", "labels": {"kubernetes.io/service-name": "a"}},
             "endpoints": [{"addresses": ["10.0.0.1"]}, {"addresses": ["web"]}]}]}"#,
    );
    let mut folder = Folder::new(&dir.0, "node1");
    let seen = look(&mut folder);
    assert_eq!(
        listed(&seen.events),
        (
            ["node node2", "slice a 1", "node node1", "cidr more"]
                .map(String::from)
                .to_vec(),
            true
        )
    );
    let place = dir.0.join("a.json");
    assert_eq!(seen.warnings.len(), 1);
    assert!(
        seen.warnings[0].starts_with(&format!(
            r#"{}:1: EndpointSlice default/a: endpoints[1].addresses[0] is "web""#,
            place.display()
        )),
        "{:?}",
        seen.warnings
    );
    assert_eq!(look(&mut folder).warnings, [""; 0], "said once");
    dir.remove("a.json");
    assert_eq!(
        words(&look(&mut folder).events),
        ["no slice a", "no node node1", "no cidr more"]
    );
}

#[test]
fn an_invalid_manifest_is_reported_and_keeps_its_previous_objects() {
    let dir = Temporary::new();
    dir.write("a.yaml", &service("a", "10.96.0.1"));
    let mut folder = Folder::new(&dir.0, "node1");
    look(&mut folder);
    let broken = service("b", "10.96.0.2")
        + "apiVersion: v1\nkind: Service\nspec:\n  ports:\n  - port: http\n";
    dir.write("a.yaml", &broken);
    let seen = look(&mut folder);
    assert_eq!(seen.events, []);
    let wanted = format!("{}:10:11: ", dir.0.join("a.yaml").display());
    assert!(
        seen.warnings[0].starts_with(&wanted)
            && seen.warnings[0].contains("its previous objects stay"),
        "{:?}",
        seen.warnings
    );
    assert_eq!(
        folder.look(&ChangedFiles::default()).unwrap(),
        FolderUpdate::default(),
        "said once"
    );
    dir.write("a.yaml", &service("b", "10.96.0.2"));
    assert_eq!(words(&look(&mut folder).events), ["no a", "b 10.96.0.2"]);
}

#[test]
fn an_invalid_manifest_at_start_marks_the_initial_lists_as_partial() {
    for heal in [true, false] {
        let dir = Temporary::new();
        dir.write("a.yaml", &service("a", "10.96.0.1"));
        dir.write("b.yaml", "kind: [\n");
        dir.write("c.yaml", "\u{0}");
        let mut folder = Folder::new(&dir.0, "node1");
        let seen = look(&mut folder);
        assert_eq!(listed(&seen.events), (vec!["a 10.96.0.1".into()], false));
        assert!(seen.warnings[0].contains("nothing is removed until its content is known"));
        dir.remove("c.yaml");
        assert_eq!(
            words(&look(&mut folder).events),
            [""; 0],
            "b.yaml is still unknown"
        );
        let whole = Kind::ALL.map(|kind| format!("{kind:?} whole"));
        if heal {
            dir.write("b.yaml", &service("b", "10.96.0.2"));
            let events = words(&look(&mut folder).events);
            assert_eq!(events[0], "b 10.96.0.2");
            assert_eq!(events[1..], whole);
        } else {
            dir.remove("b.yaml");
            assert_eq!(words(&look(&mut folder).events), whole);
        }
        dir.write("d.yaml", "kind: [\n");
        assert_eq!(
            words(&look(&mut folder).events),
            [""; 0],
            "a new file was never served"
        );
    }
}

#[test]
fn an_invalid_object_in_a_manifest_keeps_its_previous_state() {
    let dir = Temporary::new();
    dir.write(
        "a.yaml",
        &(service("a", "10.96.0.1") + &service("b", "10.96.0.2")),
    );
    let mut folder = Folder::new(&dir.0, "node1");
    look(&mut folder);
    dir.write(
        "a.yaml",
        &(service("a", "web") + &service("b", "10.96.0.9")),
    );
    let seen = look(&mut folder);
    assert_eq!(words(&seen.events), ["b 10.96.0.9"]);
    assert!(seen.warnings[0].contains(r#"Service default/a: spec.clusterIPs[0] is "web""#));
    dir.write("c.yaml", &service("c", "web"));
    assert_eq!(words(&look(&mut folder).events), ["c unreadable"]);
    dir.remove("c.yaml");
    assert_eq!(words(&look(&mut folder).events), ["no c"]);
}

#[test]
fn the_first_of_two_manifests_of_an_object_is_used() {
    let dir = Temporary::new();
    dir.write("b.yaml", &service("a", "10.96.0.2"));
    let mut folder = Folder::new(&dir.0, "node1");
    look(&mut folder);
    dir.write("c.yaml", &service("a", "10.96.0.3"));
    let seen = look(&mut folder);
    assert_eq!(seen.events, []);
    assert!(
        seen.warnings[0].contains("Service default/a is in b.yaml and c.yaml; b.yaml is used"),
        "{:?}",
        seen.warnings
    );
    dir.write("a.yaml", &service("a", "10.96.0.1"));
    assert_eq!(words(&look(&mut folder).events), ["a 10.96.0.1"]);
    dir.remove("a.yaml");
    assert_eq!(words(&look(&mut folder).events), ["a 10.96.0.2"]);
    // An object that only moves to another file causes no event.
    dir.remove("b.yaml");
    dir.write("c.yaml", "");
    dir.write("d.yaml", &service("a", "10.96.0.2"));
    assert_eq!(look(&mut folder).events, []);
    dir.write(
        "d.yaml",
        &(service("a", "10.96.0.4") + &service("a", "10.96.0.5")),
    );
    let seen = look(&mut folder);
    assert_eq!(words(&seen.events), ["a 10.96.0.4"]);
    assert!(seen.warnings[0].contains("is in this file twice"));
}

#[test]
fn files_that_are_not_manifests_are_ignored() {
    let dir = Temporary::new();
    for name in [
        ".hidden.yaml",
        ".a.yaml.swp",
        "a.yaml~",
        "#a.yaml#",
        ".#a.yaml",
        "a.txt",
        "4913",
    ] {
        dir.write(name, &service("a", "10.96.0.1"));
    }
    fs::create_dir(dir.0.join("b.yaml")).unwrap();
    symlink("nowhere", dir.0.join("c.yaml")).unwrap();
    let mut folder = Folder::new(&dir.0, "node1");
    let seen = look(&mut folder);
    assert_eq!(
        listed(&seen.events),
        (vec![], false),
        "a link to nowhere is unknown"
    );
    let [directory, link] = &seen.warnings[..] else {
        panic!("{:?}", seen.warnings);
    };
    assert!(directory.contains("b.yaml: this is not a regular file, and is ignored"));
    assert!(link.contains("c.yaml: No such file"), "{link}");
    fs::write(dir.0.join("b.yaml/a"), "").unwrap();
    dir.remove("c.yaml");
    assert_eq!(look(&mut folder).warnings, [""; 0], "said once");
}

#[test]
fn only_regular_files_of_a_limited_size_are_read() {
    let dir = Temporary::new();
    dir.write("a.yaml", "");
    let read = |path: &Path| folder::content(path, &fs::metadata(path).unwrap());
    let file = dir.0.join("a.yaml");
    assert_eq!(read(&file).unwrap(), Some(Vec::new()));
    for path in [Path::new("/dev/null"), &dir.0] {
        assert_eq!(read(path).unwrap(), None, "{}", path.display());
    }
    let larger = fs::File::options().write(true).open(&file).unwrap();
    larger.set_len((1 << 30) + 1).unwrap();
    let error = read(&file).unwrap_err().to_string();
    assert_eq!(error, "larger than 1 GiB: split it");
}

#[test]
fn a_directory_without_manifests_is_reported_whenever_it_becomes_empty() {
    let dir = Temporary::new();
    dir.write("a.txt", "");
    let mut folder = Folder::new(&dir.0, "node1");
    let warning = format!(
        "{}: the directory has no manifest (*.yaml, *.yml or *.json), so no Service is served: check --manifests",
        dir.0.display()
    );
    assert_eq!(look(&mut folder).warnings, [&*warning]);
    assert_eq!(look(&mut folder).warnings, [""; 0], "said once");
    dir.write("a.yaml", &service("a", "10.96.0.1"));
    assert_eq!(look(&mut folder).warnings, [""; 0]);
    dir.remove("a.yaml");
    assert_eq!(look(&mut folder).warnings, [&*warning]);
}

#[test]
fn unreadable_manifests_are_listed_until_they_are_corrected() {
    let dir = Temporary::new();
    dir.write("a.yaml", &service("a", "10.96.0.1"));
    let mut folder = Folder::new(&dir.0, "node1");
    let listed = |folder: &mut Folder| -> Vec<String> {
        look(folder);
        let all = folder.unreadable();
        let all = all.map(|one| format!("{}: {}", one.place, one.reason));
        let start = format!("{}/", dir.0.display());
        all.map(|text| text.replace(&start, "")).collect()
    };
    assert_eq!(listed(&mut folder), [""; 0]);
    dir.write("a.yaml", "kind: [\n");
    dir.write("b.yaml", &service("b", "web"));
    let all = listed(&mut folder);
    let [file, object] = &all[..] else {
        panic!("{all:?}");
    };
    assert!(
        file.starts_with("a.yaml: 1:7: ") && file.contains("its previous objects stay"),
        "{file}"
    );
    assert!(
        object.starts_with(r#"b.yaml:1: Service default/b: spec.clusterIPs[0] is "web""#),
        "{object}"
    );
    dir.write("a.yaml", "");
    dir.remove("b.yaml");
    assert_eq!(listed(&mut folder), [""; 0]);
}

#[test]
fn a_manifest_directory_that_cannot_be_watched_is_an_error() {
    let dir = Temporary::new();
    dir.write("file", "");
    for (path, advice) in [
        (
            dir.0.join("none"),
            "create the directory, or correct --manifests",
        ),
        (dir.0.join("file"), "--manifests takes a directory"),
    ] {
        let error = stream(&path, "node1").map(drop).unwrap_err().to_string();
        assert!(
            error.contains(advice) && error.contains(path.to_str().unwrap()),
            "{error}"
        );
    }
}

/// Event stream of a directory, with a timeout for each event.
struct Watched(BoxStream<'static, Event>);

impl Watched {
    async fn new(path: &Path) -> Self {
        let mut watched = Self(stream(path, "node1").unwrap().boxed());
        while watched.next().await != "ServiceCidr whole" {}
        watched
    }

    async fn next(&mut self) -> String {
        let event = tokio::time::timeout(Duration::from_secs(20), self.0.next());
        words(&[event.await.expect("an event in time").expect("no end")]).remove(0)
    }

    async fn is_quiet(&mut self) -> bool {
        let event = tokio::time::timeout(Duration::from_millis(300), self.0.next());
        event.await.is_err()
    }
}

#[tokio::test]
async fn changes_of_manifests_are_noticed() {
    let dir = Temporary::new();
    dir.write("a.yaml", &service("a", "10.96.0.1"));
    let mut watched = Watched::new(&dir.0).await;
    assert!(watched.is_quiet().await);
    // Writes the file in place.
    dir.write("a.yaml", &service("a", "10.96.0.2"));
    assert_eq!(watched.next().await, "a 10.96.0.2");
    // Replaces the file by a rename, as editors and kubectl do.
    dir.write(".a.tmp", &service("a", "10.96.0.3"));
    fs::rename(dir.0.join(".a.tmp"), dir.0.join("a.yaml")).unwrap();
    assert_eq!(watched.next().await, "a 10.96.0.3");
    // Adds a manifest that is a symbolic link to another file.
    dir.write("b.txt", &service("b", "10.96.0.4"));
    symlink(dir.0.join("b.txt"), dir.0.join("b.yaml")).unwrap();
    assert_eq!(watched.next().await, "b 10.96.0.4");
    // Deletes the file.
    dir.remove("a.yaml");
    assert_eq!(watched.next().await, "no a");
    assert!(watched.is_quiet().await);
}

/// Replaces 3,000 Services of one file with 3,000 other Services. All events must arrive together,
/// so that no consumer sees a part of the change.
#[tokio::test]
async fn all_events_of_a_manifest_change_arrive_together() {
    let folder = Temporary::new();
    let file = |names: &str| -> String {
        let one = |number| service(&format!("{names}-{number}"), "10.96.0.1");
        (0..3_000).map(one).collect()
    };
    folder.write("all.yaml", &file("before"));
    let mut stream = stream(&folder.0, "node1").unwrap().boxed();
    while !matches!(
        stream.next().await,
        Some(Event::ListComplete {
            kind: Kind::ServiceCidr,
            ..
        })
    ) {}
    while stream.next().now_or_never().is_some() {}
    folder.write("all.yaml", &file("after"));
    let mut count = usize::from(stream.next().await.is_some());
    while stream.next().now_or_never().is_some() {
        count += 1;
    }
    assert_eq!(count, 2 * 3_000, "deleted, and added");
}

#[tokio::test]
async fn a_config_map_update_replaces_the_mounted_manifests() {
    let dir = Temporary::new();
    for (version, ip) in [("..1", "10.96.0.1"), ("..2", "10.96.0.2")] {
        fs::create_dir(dir.0.join(version)).unwrap();
        dir.write(&format!("{version}/a.yaml"), &service("a", ip));
    }
    symlink("..1", dir.0.join("..data")).unwrap();
    symlink("..data/a.yaml", dir.0.join("a.yaml")).unwrap();
    let mut watched = Watched::new(&dir.0).await;
    symlink("..2", dir.0.join("..data_tmp")).unwrap();
    fs::rename(dir.0.join("..data_tmp"), dir.0.join("..data")).unwrap();
    assert_eq!(watched.next().await, "a 10.96.0.2");
}

#[tokio::test]
async fn a_partly_written_manifest_is_not_read() {
    use std::io::Write;
    let dir = Temporary::new();
    dir.write(
        "a.yaml",
        &(service("a", "10.96.0.1") + &service("b", "10.96.0.2")),
    );
    let mut watched = Watched::new(&dir.0).await;
    let mut file = fs::File::create(dir.0.join("a.yaml")).unwrap();
    file.write_all(service("a", "10.96.0.9").as_bytes())
        .unwrap();
    assert!(watched.is_quiet().await, "the writer is not done");
    file.write_all(service("b", "10.96.0.2").as_bytes())
        .unwrap();
    drop(file);
    assert_eq!(watched.next().await, "a 10.96.0.9");
    assert!(watched.is_quiet().await, "b was there all the time");
}

#[tokio::test]
async fn a_removed_manifest_directory_keeps_its_objects_until_recreated() {
    let outer = Temporary::new();
    let dir = outer.0.join("x/manifests");
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("a.yaml"), service("a", "10.96.0.1")).unwrap();
    let mut watched = Watched::new(&dir).await;
    fs::rename(outer.0.join("x"), outer.0.join("y")).unwrap();
    tokio::time::sleep(Duration::from_millis(1300)).await;
    assert!(watched.is_quiet().await);
    // Creates the directory again and fills it slowly. The source must ignore the directory while
    // it is still empty.
    fs::create_dir_all(&dir).unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    fs::write(dir.join("a.yaml"), service("a", "10.96.0.2")).unwrap();
    assert_eq!(watched.next().await, "a 10.96.0.2");
    fs::write(dir.join("b.yaml"), service("b", "10.96.0.3")).unwrap();
    assert_eq!(watched.next().await, "b 10.96.0.3");
}

#[test]
fn the_model_keeps_objects_that_an_invalid_manifest_may_contain() {
    let dir = Temporary::new();
    dir.write("a.yaml", &service("a", "10.96.0.1"));
    dir.write("b.yaml", "kind: [\n");
    let mut folder = Folder::new(&dir.0, "node1");
    let mut model = proxy::Model::new();
    for event in look(&mut folder).events {
        model.apply(event);
    }
    assert!(model.is_complete() && !model.is_whole());
    dir.remove("b.yaml");
    let events = look(&mut folder).events;
    assert!(events.iter().all(|event| matches!(
        event,
        Event::ListComplete {
            kind: Kind::Service | Kind::EndpointSlice | Kind::Node | Kind::ServiceCidr,
            is_whole: true
        }
    )));
    for event in events {
        model.apply(event);
    }
    assert!(model.is_whole());
    assert_eq!(model.service_names().count(), 1);
}
