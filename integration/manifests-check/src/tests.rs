use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use kube_proxy::config::command_line::{self, Command};
use kube_proxy::config::options::Options;
use serde_json::{Value, json};

use crate::{build, check, differences, merge, read};

const CONTAINER: &str = "/spec/template/spec/containers/0";
const INIT_CONTAINER: &str = "/spec/template/spec/initContainers/0";
const FOLDERS: [&str; 4] = [
    "daemonset",
    "least-privilege/nft",
    "least-privilege/legacy",
    "least-privilege/nftables",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn manifests() -> PathBuf {
    root().join("manifests")
}

fn of_kind(objects: &[Value], kind: &str) -> Value {
    let mut found = objects.iter().filter(|object| object["kind"] == kind);
    let object = found.next().unwrap().clone();
    assert!(found.next().is_none(), "two of {kind}");
    object
}

pub(crate) fn daemon_set(folder: &str) -> Value {
    of_kind(&build(&manifests().join(folder)).unwrap(), "DaemonSet")
}

fn kubeadm() -> Vec<Value> {
    read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/kubeadm.yaml")).unwrap()
}

pub(crate) fn kubeadms_daemon_set() -> Value {
    of_kind(&kubeadm(), "DaemonSet")
}

/// Creates a temporary directory for one test.
fn scratch(name: &str) -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    // Makes the name unique, because tests run in parallel, and two tests may use the same `name`.
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let process = std::process::id();
    let folder = std::env::temp_dir().join(format!("manifests-check-{name}-{process}-{number}"));
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// Returns kubeadm's DaemonSet after our patch. A copy of the patch directory contains the
/// DaemonSet as kubectl would write it.
fn patched_kubeadm() -> Value {
    let folder = scratch("patch");
    for entry in fs::read_dir(manifests().join("kubeadm-patch")).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, folder.join(path.file_name().unwrap())).unwrap();
    }
    let live = of_kind(&kubeadm(), "DaemonSet");
    fs::write(folder.join("kube-proxy.yaml"), live.to_string()).unwrap();
    let objects = build(&folder).unwrap();
    fs::remove_dir_all(folder).unwrap();
    of_kind(&objects, "DaemonSet")
}

#[test]
fn each_manifest_object_matches_its_schema() {
    for folder in FOLDERS {
        let objects = build(&manifests().join(folder)).unwrap();
        assert_eq!(objects.len(), 4, "{folder}");
        for object in &objects {
            check(object).unwrap_or_else(|error| panic!("{folder}: {error}"));
        }
    }
    for object in kubeadm().iter().chain([&patched_kubeadm()]) {
        check(object).unwrap();
    }
}

#[test]
fn unknown_fields_and_wrong_types_in_manifests_are_errors() {
    let good = daemon_set("daemonset");
    for (path, name, value, said) in [
        (
            "/spec/template/spec",
            "hostNetwrok",
            json!(true),
            "spec.template.spec.hostNetwrok",
        ),
        (
            CONTAINER,
            "volumeMount",
            json!([]),
            "containers.0.volumeMount",
        ),
        (
            "/spec/template/spec",
            "hostNetwork",
            json!("yes"),
            "expected a boolean",
        ),
        (
            "",
            "apiVersion",
            json!("apps/v1beta2"),
            "no schema for apps/v1beta2 DaemonSet",
        ),
    ] {
        let mut bad = good.clone();
        bad.pointer_mut(path).unwrap()[name] = value;
        let error = check(&bad).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
}

/// A patch merges fields. `null` removes a field, and `$patch: delete` removes a list element.
#[test]
fn patches_are_applied_as_strategic_merge_patches() {
    let mut object = json!({
        "a": 1, "b": 2, "command": ["x", "y"],
        "containers": [{"name": "one", "image": "old", "volumeMounts": [{"mountPath": "/a"}, {"mountPath": "/b"}]}],
    });
    let patch = json!({
        "b": null, "c": 3, "command": ["z"],
        "containers": [
            {"name": "one", "image": "new", "volumeMounts": [{"mountPath": "/a", "$patch": "delete"}]},
            {"name": "two"},
        ],
    });
    merge(&mut object, &patch);
    let expected = json!({
        "a": 1, "c": 3, "command": ["z"],
        "containers": [{"name": "one", "image": "new", "volumeMounts": [{"mountPath": "/b"}]}, {"name": "two"}],
    });
    assert_eq!(object, expected);
}

#[test]
fn the_kubeadm_patch_changes_only_the_image_and_probe() {
    let (before, after) = (of_kind(&kubeadm(), "DaemonSet"), patched_kubeadm());
    let mut paths = differences(&before, &after);
    paths.sort();
    assert_eq!(
        paths,
        [
            "spec.template.spec.containers.0.image",
            "spec.template.spec.containers.0.livenessProbe"
        ]
    );
    assert_eq!(
        after.pointer(&format!("{CONTAINER}/image")),
        daemon_set("daemonset").pointer(&format!("{CONTAINER}/image"))
    );
}

/// The patch directory contains no DaemonSet, so the patch has no target.
#[test]
fn a_patch_without_its_target_is_an_error() {
    let folder = scratch("target");
    let patches = manifests().join("kubeadm-patch");
    for name in ["kustomization.yaml", "kubeproxydaemonset.yaml"] {
        fs::copy(patches.join(name), folder.join(name)).unwrap();
    }
    fs::write(
        folder.join("kube-proxy.yaml"),
        of_kind(&kubeadm(), "ConfigMap").to_string(),
    )
    .unwrap();
    let error = build(&folder).unwrap_err().to_string();
    assert!(
        error.contains("kubeproxydaemonset.yaml patches apps/v1 DaemonSet kube-system kube-proxy"),
        "{error}"
    );
    fs::remove_dir_all(folder).unwrap();
}

/// Returns the objects of the chart for a value of `rights`, from the files that
/// `integration/chart` rendered.
fn chart(rights: &str) -> Vec<Value> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/chart");
    read(&folder.join(format!("{rights}.yaml"))).unwrap()
}

/// Parses the files in a ConfigMap. A comparison then ignores comments in the files and the order
/// of their fields.
fn parse_files(object: &mut Value) {
    if object["kind"] == "ConfigMap" {
        for text in object["data"].as_object_mut().unwrap().values_mut() {
            *text = serde_saphyr::from_str(text.as_str().unwrap()).unwrap();
        }
    }
}

/// The chart renders the same objects as the base manifests. In addition, the chart has a test, and
/// a checksum that restarts the pods if the configuration changes.
#[test]
fn the_chart_renders_the_objects_of_the_base_manifests() {
    for folder in FOLDERS {
        let rights = folder.strip_prefix("least-privilege/");
        let rights = rights.unwrap_or("privileged");
        let mut ours = build(&manifests().join(folder)).unwrap();
        let mut chart = chart(rights);
        for object in &chart {
            check(object).unwrap_or_else(|error| panic!("{rights}: {error}"));
        }
        let is_test = |object: &Value| object["metadata"]["annotations"]["helm.sh/hook"] == "test";
        assert_eq!(
            chart.iter().filter(|one| is_test(one)).count(),
            1,
            "{rights}"
        );
        chart.retain(|object| !is_test(object));
        let key = |object: &Value| object["kind"].to_string();
        for objects in [&mut ours, &mut chart] {
            objects.sort_by_key(key);
            objects.iter_mut().for_each(parse_files);
        }
        let annotations = "spec.template.metadata.annotations";
        let differing: Vec<String> = ours
            .iter()
            .zip(&chart)
            .flat_map(|(ours, chart)| differences(ours, chart))
            .collect();
        assert_eq!(differing, [annotations], "{rights}");
        assert_eq!(ours.len(), chart.len(), "{rights}");
    }
    for object in chart("all-values") {
        assert!(
            object["kind"] == "PodMonitor" || check(&object).is_ok(),
            "{object}"
        );
    }
}

/// The chart has the version of the workspace and the architectures of the image.
#[test]
fn the_chart_has_the_version_of_the_workspace() {
    let folder = root().join("charts/kube-proxy-ipvs");
    let [chart, values] =
        ["Chart.yaml", "values.yaml"].map(|name| read(&folder.join(name)).unwrap());
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(chart[0]["version"], version);
    assert_eq!(chart[0]["appVersion"], format!("v{version}"));
    let file = fs::read_to_string(root().join("image/architectures")).unwrap();
    let built: Vec<&str> = file.split_whitespace().collect();
    assert_eq!(values[0]["architectures"], json!(built));
}

/// Our DaemonSet must equal kubeadm's DaemonSet except for the fields that this test lists.
#[test]
fn our_daemon_set_equals_kubeadms_except_for_listed_fields() {
    let mut merged = kubeadms_daemon_set();
    let before = merged.clone();
    let mut ours = daemon_set("daemonset");
    // The names differ on purpose; see `the_base_manifests_share_no_object_with_kubeadm`.
    for path in [
        "/metadata",
        "/spec/selector",
        "/spec/template/metadata",
        "/spec/template/spec/serviceAccountName",
        "/spec/template/spec/volumes/0/configMap",
    ] {
        let theirs = before.pointer(path).unwrap().clone();
        *ours.pointer_mut(path).unwrap() = theirs;
    }
    merge(&mut merged, &ours);
    let mut paths = differences(&before, &merged);
    paths.sort();
    let container = "spec.template.spec.containers.0";
    assert_eq!(
        paths,
        [
            "spec.template.spec.affinity".to_owned(),
            format!("{container}.command"),
            format!("{container}.image"),
            format!("{container}.livenessProbe"),
            format!("{container}.readinessProbe"),
            format!("{container}.volumeMounts"),
            "spec.template.spec.volumes".to_owned(),
        ]
    );

    let theirs = of_kind(&kubeadm(), "ConfigMap");
    let ours = of_kind(&build(&manifests().join("daemonset")).unwrap(), "ConfigMap");
    for (key, expected) in [
        ("kubeconfig.conf", vec!["clusters.0.cluster.server"]),
        ("config.conf", vec!["mode", "oomScoreAdj"]),
    ] {
        let [theirs, ours] = [&theirs, &ours].map(|map| {
            serde_saphyr::from_str::<Value>(map["data"][key].as_str().unwrap()).unwrap()
        });
        assert_eq!(differences(&theirs, &ours), expected, "{key}");
    }
}

/// `kubectl apply -k` must overwrite no object of kubeadm. Therefore all names differ, and so do
/// the selectors of the DaemonSets.
#[test]
fn the_base_manifests_share_no_object_with_kubeadm() {
    let identity = |object: &Value| {
        let name = &object["metadata"]["name"];
        (object["kind"].clone(), name.as_str().unwrap().to_owned())
    };
    // kubeadm also writes a ServiceAccount and a ClusterRoleBinding.
    let mut theirs: Vec<_> = kubeadm().iter().map(identity).collect();
    theirs.push((json!("ServiceAccount"), "kube-proxy".to_owned()));
    theirs.push((
        json!("ClusterRoleBinding"),
        "kubeadm:node-proxier".to_owned(),
    ));
    for folder in FOLDERS {
        for object in build(&manifests().join(folder)).unwrap() {
            assert!(!theirs.contains(&identity(&object)), "{folder}: {object}");
        }
        let (ours, theirs) = (daemon_set(folder), kubeadms_daemon_set());
        let selector = |daemon_set: &Value| daemon_set["spec"]["selector"]["matchLabels"].clone();
        assert_ne!(selector(&ours), selector(&theirs), "{folder}");
        let pod = &ours["spec"]["template"]["spec"];
        for volume in pod["volumes"].as_array().unwrap() {
            if let Some(map) = volume.get("configMap") {
                assert_eq!(map["name"], ours["metadata"]["name"], "{folder}");
            }
        }
    }
}

/// The DaemonSet must not run on nodes of other architectures, where the program cannot start.
#[test]
fn the_daemon_set_selects_the_architectures_of_the_image() {
    let file = fs::read_to_string(root().join("image/architectures")).unwrap();
    let built: Vec<&str> = file.split_whitespace().collect();
    for folder in FOLDERS {
        let pod = &daemon_set(folder)["spec"]["template"]["spec"];
        assert_eq!(pod["nodeSelector"], json!({"kubernetes.io/os": "linux"}));
        let terms = "/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution";
        let terms = pod.pointer(&format!("{terms}/nodeSelectorTerms")).unwrap();
        let expected = json!({"key": "kubernetes.io/arch", "operator": "In", "values": built});
        assert_eq!(
            *terms,
            json!([{"matchExpressions": [expected]}]),
            "{folder}"
        );
    }
}

/// If the ConfigMap still contains the placeholder address, the daemon exits immediately. The error
/// names the next step.
#[tokio::test]
async fn the_daemon_exits_if_the_api_server_is_still_the_placeholder() {
    let objects = build(&manifests().join("daemonset")).unwrap();
    let map = of_kind(&objects, "ConfigMap");
    let text = map["data"]["kubeconfig.conf"].as_str().unwrap();
    let folder = scratch("placeholder");
    let file = folder.join("kubeconfig.conf");
    let account = root().join("integration/image/testdata");
    let error = |text: String| {
        // Path at which the kubelet mounts the files of the ServiceAccount.
        let mount = "/var/run/secrets/kubernetes.io/serviceaccount";
        fs::write(&file, text.replace(mount, account.to_str().unwrap())).unwrap();
        let api = source::Api {
            kubeconfig: Some(file.clone()),
            ..source::Api::default()
        };
        async move {
            let server = source::api::Server::new(&api, source::uncounted).await;
            server.err().map(|error| error.to_string())
        }
    };
    let said = error(text.to_owned()).await.unwrap();
    for part in [
        "API server https://control-plane.example:6443",
        "placeholder",
        "kubectl -n kube-system edit configmap kube-proxy-ipvs",
    ] {
        assert!(said.contains(part), "{said}");
    }
    let completed = text.replace("control-plane.example", "10.0.0.1");
    assert_eq!(error(completed).await, None);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn the_service_account_has_only_kube_proxys_role() {
    let objects = build(&manifests().join("daemonset")).unwrap();
    let binding = of_kind(&objects, "ClusterRoleBinding");
    let account = of_kind(&objects, "ServiceAccount");
    assert_eq!(binding["roleRef"]["name"], "system:node-proxier");
    let subject = json!({
        "kind": "ServiceAccount",
        "name": account["metadata"]["name"],
        "namespace": account["metadata"]["namespace"],
    });
    assert_eq!(binding["subjects"], json!([subject]));
    let pod = &daemon_set("daemonset")["spec"]["template"]["spec"];
    assert_eq!(pod["serviceAccountName"], account["metadata"]["name"]);
}

/// Maximum time of a start with 50,000 Services on a slow machine, in seconds: several times the
/// start time in the README.
const LONGEST_START: u64 = 180;

/// The liveness probe must restart a hanging process, but never a slow process. A process is slow
/// in three cases:
///
/// - Its health server does not listen yet.
/// - Its first sync is overdue by less than two sync periods.
/// - The thread that must answer the probe is busy.
#[test]
fn liveness_probes_do_not_restart_a_slow_daemon() {
    let ours = FOLDERS.map(|folder| (folder, daemon_set(folder)));
    for (folder, daemon_set) in ours.iter().chain([&("kubeadm-patch", patched_kubeadm())]) {
        let container = daemon_set.pointer(CONTAINER).unwrap();
        let probe = &container["livenessProbe"];
        assert_eq!(
            probe["httpGet"],
            json!({"path": "/livez", "port": 10256}),
            "{folder}"
        );
        let seconds = |name: &str| probe[name].as_u64().unwrap();
        let patience = seconds("periodSeconds") * (seconds("failureThreshold") - 1);
        assert!(patience >= LONGEST_START, "{folder}: {patience}");
        assert!(seconds("timeoutSeconds") >= 10, "{folder}");
        assert!(seconds("initialDelaySeconds") >= 60, "{folder}");
        // The kubeadm patch has no readiness probe. Users may roll back to upstream's image, which
        // lacks the endpoint `/readyz`.
        let readiness = container.pointer("/readinessProbe/httpGet/path");
        let wanted = (*folder != "kubeadm-patch").then_some(json!("/readyz"));
        assert_eq!(readiness, wanted.as_ref(), "{folder}");
    }
}

/// The init container prepares its pod for a mode, and records the mode in a file. A restarted
/// container must run the recorded mode. Both containers therefore mount the volume with this file,
/// and Kubernetes removes the volume with the pod.
#[test]
fn the_prepared_mode_is_stored_in_a_pod_volume() {
    for folder in FOLDERS {
        let daemon_set = daemon_set(folder);
        let volumes = daemon_set.pointer("/spec/template/spec/volumes").unwrap();
        let volumes = volumes.as_array().unwrap();
        let volume = volumes.iter().find(|volume| volume["name"] == "prepared");
        assert!(volume.unwrap()["emptyDir"].is_object(), "{folder}");
        let containers = [CONTAINER, INIT_CONTAINER].map(|path| daemon_set.pointer(path));
        for container in containers.into_iter().flatten() {
            let command: Vec<String> =
                serde_json::from_value(container["command"].clone()).unwrap();
            let flag = "--prepared-config=/run/kube-proxy/config.conf".to_owned();
            assert!(command.contains(&flag), "{folder}: {command:?}");
            let mount = json!({"name": "prepared", "mountPath": "/run/kube-proxy"});
            let mounts = container["volumeMounts"].as_array().unwrap();
            assert!(mounts.contains(&mount), "{folder}: {mounts:?}");
        }
    }
}

/// Checks rules of the API server beyond the schema: every mount has a volume, and the selector
/// matches the pods.
#[test]
fn references_within_a_daemon_set_are_valid() {
    for folder in FOLDERS {
        let daemon_set = daemon_set(folder);
        let pod = &daemon_set["spec"]["template"]["spec"];
        let list = |value: &Value, name: &str| value[name].as_array().cloned().unwrap_or_default();
        let volumes: Vec<Value> = list(pod, "volumes")
            .iter()
            .map(|volume| volume["name"].clone())
            .collect();
        let mut images = Vec::new();
        for container in [list(pod, "initContainers"), list(pod, "containers")].concat() {
            images.push(container["image"].clone());
            for mount in list(&container, "volumeMounts") {
                assert!(volumes.contains(&mount["name"]), "{folder}: {mount}");
            }
        }
        images.dedup();
        assert_eq!(images.len(), 1, "{folder}: {images:?}");
        let template = &daemon_set["spec"]["template"];
        assert_eq!(
            daemon_set["spec"]["selector"]["matchLabels"],
            template["metadata"]["labels"]
        );
    }
}

#[test]
fn least_privilege_manifests_grant_only_the_documented_rights() {
    for (folder, capabilities) in [
        ("least-privilege/nft", json!(["NET_ADMIN", "NET_RAW"])),
        ("least-privilege/legacy", json!(["NET_ADMIN", "NET_RAW"])),
        ("least-privilege/nftables", json!(["NET_ADMIN"])),
    ] {
        let daemon_set = daemon_set(folder);
        let container = daemon_set.pointer(CONTAINER).unwrap();
        let expected = json!({
            "privileged": false,
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "runAsUser": 0,
            "runAsGroup": 0,
            "capabilities": {"drop": ["ALL"], "add": capabilities},
            "seccompProfile": {"type": "RuntimeDefault"},
        });
        assert_eq!(container["securityContext"], expected, "{folder}");
        let lock = json!({"name": "xtables-lock", "mountPath": "/run/xtables.lock"});
        let mounts = container["volumeMounts"].as_array().unwrap();
        let has_iptables = folder != "least-privilege/nftables";
        assert_eq!(mounts.contains(&lock), has_iptables, "{folder}: {mounts:?}");
        assert!(
            !mounts
                .iter()
                .any(|mount| mount["mountPath"] == "/lib/modules"),
            "{folder}"
        );
        assert_eq!(
            daemon_set["spec"]["template"]["spec"]["initContainers"]
                .as_array()
                .unwrap()
                .len(),
            1
        );
    }
}

/// Checks that the daemon accepts the command lines of the manifests. The ConfigMap is at the
/// mounted path.
#[test]
fn the_daemon_accepts_the_command_lines_of_the_manifests() {
    let options = |folder: &str, container: &str| -> Options {
        let objects = build(&manifests().join(folder)).unwrap();
        let files = scratch(&format!("{}-{}", folder.replace('/', "-"), container.len()));
        for (name, text) in of_kind(&objects, "ConfigMap")["data"].as_object().unwrap() {
            fs::write(files.join(name), text.as_str().unwrap()).unwrap();
        }
        let daemon_set = of_kind(&objects, "DaemonSet");
        let command = daemon_set.pointer(container).unwrap()["command"].clone();
        let arguments: Vec<String> = serde_json::from_value(command).unwrap();
        assert_eq!(arguments[0], "/usr/local/bin/kube-proxy");
        let parsed = command_line::parse(arguments.iter().map(|argument| {
            argument
                .replace("/var/lib/kube-proxy", files.to_str().unwrap())
                .replace("$(NODE_NAME)", "node-1")
        }));
        fs::remove_dir_all(files).unwrap();
        match parsed.unwrap() {
            Command::Run(options) => *options,
            other => panic!("{folder}: {other:?}"),
        }
    };
    for (folder, container, is_init, backend) in [
        ("daemonset", CONTAINER, false, "Auto"),
        ("least-privilege/nft", INIT_CONTAINER, true, "Nft"),
        ("least-privilege/nft", CONTAINER, false, "Nft"),
        ("least-privilege/legacy", INIT_CONTAINER, true, "Legacy"),
        ("least-privilege/legacy", CONTAINER, false, "Legacy"),
        ("least-privilege/nftables", INIT_CONTAINER, true, "Auto"),
        ("least-privilege/nftables", CONTAINER, false, "Auto"),
    ] {
        let options = options(folder, container);
        assert_eq!(options.said.warnings, Vec::<String>::new(), "{folder}");
        assert_eq!(options.process.init_only, is_init, "{folder}");
        let prepared = options.process.prepared_configuration.unwrap();
        assert_eq!(prepared, Path::new("/run/kube-proxy/config.conf"));
        assert_eq!(
            format!("{:?}", options.modes.shared.iptables_backend),
            backend,
            "{folder}"
        );
        assert_eq!(options.process.node_name, "node-1");
        assert_eq!(options.process.oom_score_adj, -997);
    }
}

/// The systemd unit in the Debian package passes the packaged configuration file to the daemon.
#[test]
fn the_daemon_accepts_the_command_line_of_the_systemd_unit() {
    let folder = manifests().join("systemd");
    let unit = fs::read_to_string(folder.join("kube-proxy.service")).unwrap();
    let line = |name: &str| {
        unit.lines()
            .find_map(|line| line.strip_prefix(name))
            .unwrap()
    };
    let command = line("ExecStart=").replace("/etc/kube-proxy", folder.to_str().unwrap());
    let arguments = command
        .split_whitespace()
        .filter(|word| *word != "$KUBE_PROXY_FLAGS");
    let Command::Run(options) = command_line::parse(arguments.map(str::to_owned)).unwrap() else {
        panic!("{command}")
    };
    assert_eq!(options.said.warnings, Vec::<String>::new());
    let configuration = fs::read_to_string(folder.join("config.conf")).unwrap();
    let kubeconfig = line("ConditionPathExists=");
    assert!(configuration.contains(&format!("kubeconfig: {kubeconfig}\n")));
    // systemd sets this value before it starts the daemon. The daemon therefore does not need
    // CAP_SYS_RESOURCE.
    assert_eq!(
        line("OOMScoreAdjust="),
        options.process.oom_score_adj.to_string()
    );
}
