//! Runs the daemon from the image according to the manifests, with real packets. Tests kubeadm's
//! DaemonSet with our image, and the least-privilege manifests with exactly their capabilities.

#![allow(clippy::indexing_slicing, reason = "a story with a slip in it")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context as _, Result};
use image::{Container, Flavour, Image, Pod, Spec, archive, maybe_container};
use lab::{Output, Transport};
use manifests_check::{build, merge, read};
use scenarios::{ApiServer, Cluster, Outcome, SOON, Service, at, stories, tally, tcp, tell};
use serde_json::{Value, json};

/// Names of the capabilities that the least-privilege manifests grant.
const RIGHTS: [&str; 2] = ["NET_ADMIN", "NET_RAW"];
const SERVER: &str = "http://172.35.0.9:6443";

fn main() {
    maybe_container();
    let stories = stories! {
        kubeadms_pod_works_with_our_image,
        kubeadms_pod_works_with_our_image_in_ipvs_mode,
        the_least_privilege_pod_works_with_legacy_iptables,
        the_least_privilege_pod_works_with_nft_iptables if has_nft(),
        an_edited_mode_is_used_by_the_next_pod,
        legacy_iptables_without_net_raw_is_reported,
        the_image_contains_only_the_daemon if has_nft(),
        a_non_root_daemon_passes_file_capabilities_to_its_programs if has_nft(),
    };
    tell(&stories, Duration::from_mins(4))
}

/// Returns true if the kernel has nf_tables. Of the lab's VM kernels, only that of lane B has
/// nf_tables. The host's kernel may have nf_tables.
fn has_nft() -> bool {
    lab::iptables_backend() == "nft"
}

fn manifests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../manifests")
}

fn of_kind(objects: &[Value], kind: &str) -> Result<Value> {
    let object = objects.iter().find(|object| object["kind"] == kind);
    object.cloned().with_context(|| format!("no {kind}"))
}

/// Returns the objects that kubeadm creates, with our patch applied to the DaemonSet.
fn kubeadm() -> Result<Vec<Value>> {
    let mut objects =
        read(&manifests().join("../integration/manifests-check/testdata/kubeadm.yaml"))?;
    let patch = read(&manifests().join("kubeadm-patch/kubeproxydaemonset.yaml"))?;
    for object in objects
        .iter_mut()
        .filter(|object| object["kind"] == "DaemonSet")
    {
        merge(object, &patch[0]);
    }
    Ok(objects)
}

/// Sets the proxy mode in kubeadm's ConfigMap, whose default mode is empty.
fn with_mode(mut objects: Vec<Value>, mode: &str) -> Result<Vec<Value>> {
    for object in &mut objects {
        if let Some(Value::String(text)) = object.pointer_mut("/data/config.conf") {
            assert!(text.contains("mode: \"\"\n"), "{text}");
            *text = text.replace("mode: \"\"\n", &format!("mode: {mode}\n"));
            return Ok(objects);
        }
    }
    anyhow::bail!("no config.conf")
}

/// Returns the files of the ConfigMap, with values for this test's cluster.
fn configuration(objects: &[Value], folder: &Path) -> Result<BTreeMap<String, String>> {
    let config_map = of_kind(objects, "ConfigMap")?;
    let files = config_map["data"].as_object().context("no data")?;
    let mut found = BTreeMap::new();
    for (name, text) in files {
        let file = folder.join("text");
        fs::write(&file, text.as_str().context("no text")?)?;
        let mut documents = read(&file)?;
        let document = &mut documents[0];
        if name == "kubeconfig.conf" {
            document["clusters"][0]["cluster"]["server"] = json!(SERVER);
        } else {
            document["clusterCIDR"] = json!("10.244.0.0/16,fd44::/16");
            // Only a process in the initial network namespace may set the size of the conntrack
            // table. The daemon runs in another namespace.
            document["conntrack"]["maxPerCore"] = json!(0);
        }
        found.insert(name.clone(), document.to_string());
    }
    Ok(found)
}

/// Returns the unpacked image. Unpacks the image only once, because unpacking takes longer than
/// most tests.
fn image() -> Result<&'static Image> {
    static IMAGE: OnceLock<Image> = OnceLock::new();
    if let Some(image) = IMAGE.get() {
        return Ok(image);
    }
    let folder = std::env::temp_dir().join(format!("image-{}", std::process::id()));
    let image = Image::unpack(&archive(Flavour::Debian)?, &folder)?;
    Ok(IMAGE.get_or_init(|| image))
}

/// The cluster's API server, and the DaemonSet's pod on node1.
struct Deployed {
    api: ApiServer,
    pod: Pod,
    objects: Vec<Value>,
}

impl Deployed {
    fn new(c: &Cluster, objects: &[Value]) -> Result<Self> {
        Self::of(c, objects, image()?)
    }

    fn of(c: &Cluster, objects: &[Value], image: &Image) -> Result<Self> {
        let files = configuration(objects, c.folder())?;
        let daemon_set = of_kind(objects, "DaemonSet")?;
        let pod = Pod::new(&daemon_set, "node1", image, &files, c.folder())?;
        let mut api = c.api_server(true)?;
        api.apply(&web("10.244.1.10"))?;
        api.start()?;
        let objects = objects.to_vec();
        Ok(Self { api, pod, objects })
    }

    /// Changes `config.conf`, both in the ConfigMap object and in the pod's mounted volume.
    fn edit(&mut self, c: &Cluster, change: impl Fn(&mut Value)) -> Outcome {
        let map = self.objects.iter_mut();
        let map = map.filter(|object| object["kind"] == "ConfigMap");
        for object in map {
            let text = object["data"]["config.conf"].as_str().context("no text")?;
            let file = c.folder().join("text");
            fs::write(&file, text)?;
            let mut documents = read(&file)?;
            change(&mut documents[0]);
            object["data"]["config.conf"] = json!(documents[0].to_string());
        }
        let files = configuration(&self.objects, c.folder())?;
        // Writes the file in the pod's volume, which the kubelet would update.
        fs::write(
            c.folder().join("kube-proxy/config.conf"),
            &files["config.conf"],
        )?;
        Ok(())
    }

    /// Replaces the pod, which must have ended, with a new pod from the present objects.
    fn roll(&mut self, c: &Cluster) -> Outcome {
        let files = configuration(&self.objects, c.folder())?;
        let daemon_set = of_kind(&self.objects, "DaemonSet")?;
        self.pod = Pod::new(&daemon_set, "node1", image()?, &files, c.folder())?;
        Ok(())
    }

    /// Runs the pod's init containers, which must succeed, and starts its container from `spec`.
    fn start(&self, c: &Cluster, spec: &Spec) -> Result<Container> {
        for init in self.pod.init_containers()? {
            run(c, &init, None)?;
        }
        Container::start(&c.node1, c.folder(), spec)
    }
}

fn web(endpoint: &str) -> Service {
    Service::new("web", "10.96.0.10")
        .port(tcp(80, 8080).node_port(30080))
        .endpoints(endpoint)
}

/// Runs a container until it exits successfully. `argv`, if given, replaces its command line.
fn run(c: &Cluster, spec: &Spec, argv: Option<&[&str]>) -> Result<Output> {
    let output = attempt(c, spec, argv)?;
    assert!(output.status.success(), "{spec:?}: {output:?}");
    Ok(output)
}

fn attempt(c: &Cluster, spec: &Spec, argv: Option<&[&str]>) -> Result<Output> {
    let mut spec = spec.clone();
    if let Some(argv) = argv {
        spec.argv = argv.iter().map(|&one| one.to_owned()).collect();
    }
    Container::start(&c.node1, c.folder(), &spec)?.wait(SOON)
}

/// Checks that a ClusterIP and a NodePort follow a changed endpoint, and that the daemon uses its
/// ServiceAccount's token.
fn carries(c: &Cluster, deployed: &Deployed, container: &Container) -> Outcome {
    let served = || -> Outcome {
        is_served(c, "10.244.1.10")?;
        deployed.api.apply(&web("10.244.2.10"))?;
        is_served(c, "10.244.2.10")?;
        for (from, to) in [
            (&c.client, "10.96.0.10:80"),
            (&c.outside, "172.35.0.100:30080"),
        ] {
            let tally = tally(from, Transport::Tcp, at(to), 3)?;
            assert!(
                tally.keys().all(|who| who.starts_with("far")),
                "{to}: {tally:?}"
            );
        }
        let ready =
            c.sh("curl -sS -o /dev/null -w '%{http_code}' http://127.0.0.1:10256/readyz")?;
        assert_eq!(ready, "200");
        Ok(())
    };
    served().with_context(|| format!("the container said:\n{}", container.said()))?;
    let requests = deployed.api.requests();
    assert!(
        requests
            .iter()
            .all(|request| request.authorization.reveal() == "Bearer token-of-the-account"),
        "{requests:?}"
    );
    Ok(())
}

/// Makes the checks of [`carries`], and checks that a program with the pod's rights can list the
/// NAT rules.
fn serves(c: &Cluster, deployed: &Deployed, spec: &Spec, container: &Container) -> Outcome {
    carries(c, deployed, container)?;
    for tool in ["iptables-save", "ip6tables-save"] {
        let rules = run(c, spec, Some(&[&format!("/usr/sbin/{tool}"), "-t", "nat"]))?.stdout;
        assert!(rules.contains(":KUBE-SERVICES "), "{tool}: {rules}");
    }
    let listed = run(
        c,
        spec,
        Some(&["/usr/sbin/iptables", "-t", "nat", "-S", "KUBE-SERVICES"]),
    )?;
    assert!(listed.stdout.contains("-N KUBE-SERVICES"), "{listed:?}");
    Ok(())
}

fn ends(mut container: Container) -> Outcome {
    let output = container.stop(SOON)?;
    assert!(output.status.success(), "{output:?}");
    Ok(())
}

/// With kubeadm's unchanged ConfigMap, the daemon must run the mode that upstream would run.
fn kubeadms_pod_works_with_our_image(c: &mut Cluster) -> Outcome {
    kubeadms_pod_serves(c, &kubeadm()?, "iptables")
}

fn kubeadms_pod_works_with_our_image_in_ipvs_mode(c: &mut Cluster) -> Outcome {
    kubeadms_pod_serves(c, &with_mode(kubeadm()?, "ipvs")?, "ipvs")
}

/// Starts kubeadm's pod as kops starts its static pod: through `/go-runner`, which keeps the log in
/// a file.
fn kubeadms_pod_serves(c: &Cluster, objects: &[Value], mode: &str) -> Outcome {
    let deployed = Deployed::new(c, objects)?;
    let spec = deployed.pod.container()?;
    assert!(spec.privileged);
    let log = "/kube-proxy.log";
    let runner = ["/go-runner".to_owned(), format!("--log-file={log}")];
    let runner = runner.into_iter().chain(["--also-stdout".to_owned()]);
    let mut started = spec.clone();
    started.argv = runner.chain(started.argv).collect();
    let log = spec.root.join(log.trim_start_matches('/'));
    drop(fs::remove_file(&log));
    let container = deployed.start(c, &started)?;
    serves(c, &deployed, &spec, &container)?;
    assert_eq!(c.sh("curl -sS http://127.0.0.1:10249/proxyMode")?, mode);
    let has_servers = c.servers()?.contains_key("TCP 10.96.0.10:80");
    assert_eq!(has_servers, mode == "ipvs");
    let rights = container.credentials()?;
    assert!(
        rights
            .capabilities("CapEff")?
            .contains(&"SYS_ADMIN".to_owned())
    );
    // Checks that the image has `modprobe`, with which the daemon loads modules that the kernel
    // does not load on demand.
    run(c, &spec, Some(&["/sbin/modprobe", "--version"]))?;
    // SIGTERM must reach the daemon, and the daemon's last log line must be in the file.
    let said = container.said();
    ends(container)?;
    let log = fs::read_to_string(log)?;
    for text in [&said, &log] {
        assert!(text.contains("first sync done"), "{text}");
    }
    let last = log.lines().last().unwrap_or_default();
    assert!(last.contains("stopping"), "{log}");
    Ok(())
}

fn the_least_privilege_pod_works_with_legacy_iptables(c: &mut Cluster) -> Outcome {
    with_the_least_privilege(c, "legacy")
}

fn the_least_privilege_pod_works_with_nft_iptables(c: &mut Cluster) -> Outcome {
    with_the_least_privilege(c, "nft")
}

fn with_the_least_privilege(c: &Cluster, variant: &str) -> Outcome {
    let deployed = Deployed::new(
        c,
        &build(&manifests().join("least-privilege").join(variant))?,
    )?;
    let spec = deployed.pod.container()?;
    let container = deployed.start(c, &spec)?;
    serves(c, &deployed, &spec, &container)?;

    let rights = container.credentials()?;
    for (set, expected) in [
        ("CapEff", &RIGHTS[..]),
        ("CapPrm", &RIGHTS),
        ("CapBnd", &RIGHTS),
        ("CapInh", &[]),
        ("CapAmb", &[]),
    ] {
        assert_eq!(rights.capabilities(set)?, expected, "{set}");
    }
    assert_eq!(rights.field("NoNewPrivs"), "1");
    assert_eq!(rights.field("Uid"), "0 0 0 0");
    let write = [
        "/usr/local/bin/kube-proxy",
        "--write-config-to=/config.yaml",
    ];
    let refused = attempt(c, &spec, Some(&write))?;
    assert!(
        refused.stderr.contains("Read-only file system"),
        "{refused:?}"
    );

    let rules = c.sh(&format!("iptables-{variant}-save"))?;
    assert!(rules.contains(":KUBE-SERVICES "), "{rules}");
    println!(
        "    {variant}: CapEff {} ({})",
        rights.field("CapEff"),
        RIGHTS.join(", ")
    );
    ends(container)
}

/// In the least-privilege pod, only the init container can write kernel settings. An edited mode
/// therefore does not affect the running pod, even after a crash. In the next pod, the init
/// container prepares the new mode, and the daemon runs it.
fn an_edited_mode_is_used_by_the_next_pod(c: &mut Cluster) -> Outcome {
    // The node's own packets to a Service need a route, because iptables mode makes no Service
    // address local.
    c.node1
        .read(["ip", "route", "replace", "default", "via", "172.35.0.9"])?;
    let backend = lab::iptables_backend();
    let folder = Path::new("least-privilege").join(backend);
    let mut deployed = Deployed::new(c, &build(&manifests().join(folder))?)?;
    let spec = deployed.pod.container()?;
    let container = deployed.start(c, &spec)?;
    let is_ipvs = |endpoint: &str, container: &Container| -> Outcome {
        is_served(c, endpoint)
            .and_then(|()| c.until_served(&web(endpoint)).map(drop))
            .with_context(|| format!("the container said:\n{}", container.said()))
    };
    is_ipvs("10.244.1.10", &container)?;
    deployed.edit(c, |file| file["mode"] = json!("iptables"))?;
    let waits = |container: &Container| {
        c.until("it waits", || {
            Ok(container.said().contains("mode: iptables (in use: ipvs)"))
        })
        .with_context(|| container.said())
    };
    waits(&container)?;
    // Runs an operator's commands in the running pod, before the next pod starts.
    let check = [
        "/usr/local/bin/kube-proxy",
        "check",
        "--config=/var/lib/kube-proxy/config.conf",
        "--hostname-override=node1",
        &format!("--iptables-backend={backend}"),
    ];
    let answer = attempt(c, &spec, Some(&check))?;
    assert_eq!(answer.status.code(), Some(1), "{answer:?}");
    assert!(
        answer
            .stdout
            .contains("set net.ipv4.conf.all.route_localnet to 1 (it is 0)"),
        "{answer:?}"
    );

    drop(container);
    let container = Container::start(&c.node1, c.folder(), &spec)?;
    waits(&container)?;
    deployed.api.apply(&web("10.244.2.10"))?;
    is_ipvs("10.244.2.10", &container)?;
    ends(container)?;

    deployed.roll(c)?;
    let container = deployed.start(c, &deployed.pod.container()?)?;
    is_served(c, "10.244.2.10").with_context(|| container.said())?;
    c.until_answered(&c.node1, "127.0.0.1:30080")
        .with_context(|| container.said())?;
    let said = container.said();
    assert!(said.lines().all(|line| !line.starts_with('E')), "{said}");
    ends(container)
}

/// Waits until `endpoint` replies at the Service's ClusterIP and NodePort.
fn is_served(c: &Cluster, endpoint: &str) -> Outcome {
    let who = if endpoint.starts_with("10.244.1.") {
        "near"
    } else {
        "far"
    };
    for (from, to) in [
        (&c.client, "10.96.0.10:80"),
        (&c.outside, "172.35.0.100:30080"),
    ] {
        c.until(&format!("{who} to answer at {to}"), || {
            Ok(from
                .ask_tcp(at(to), SOON)
                .is_ok_and(|answer| answer.who == who))
        })?;
    }
    Ok(())
}

fn legacy_iptables_without_net_raw_is_reported(c: &mut Cluster) -> Outcome {
    let folder = Path::new("least-privilege").join(lab::iptables_backend());
    let deployed = Deployed::new(c, &build(&manifests().join(folder))?)?;
    let mut spec = deployed.pod.container()?;
    spec.capabilities = Some(vec!["NET_ADMIN".into()]);
    let container = deployed.start(c, &spec)?;
    c.until("it is told", || {
        let said = container.said();
        Ok(said
            .lines()
            .any(|line| line.starts_with('E') && line.contains("CAP_NET_RAW")))
    })
    .with_context(|| container.said())?;
    Ok(())
}

/// This image contains only a static binary and a link to it. With only the capability `NET_ADMIN`,
/// the daemon must run nftables mode, and IPVS mode with the nftables shim (the only possible
/// shim).
fn the_image_contains_only_the_daemon(c: &mut Cluster) -> Outcome {
    // The node's own packets to a Service need a route, because nftables mode makes no Service
    // address local.
    c.node1
        .read(["ip", "route", "replace", "default", "via", "172.35.0.9"])?;
    let folder = c.folder().join("image");
    let image = Image::unpack(&archive(Flavour::Nftables)?, &folder)?;
    let list = "find . ! -type d -printf '%p %l\\n' | sort";
    let files = c.sh(&format!("cd {} && {list}", image.root.display()))?;
    assert_eq!(
        files,
        "./go-runner usr/local/bin/kube-proxy\n./usr/local/bin/kube-proxy \n"
    );
    let objects = build(&manifests().join("least-privilege/nftables"))?;
    for mode in ["ipvs", "nftables"] {
        let mut deployed = Deployed::of(c, &objects, &image)?;
        deployed.edit(c, |file| file["mode"] = json!(mode))?;
        let spec = deployed.pod.container()?;
        let container = deployed.start(c, &spec)?;
        carries(c, &deployed, &container).with_context(|| container.said())?;
        assert_eq!(c.sh("curl -sS http://127.0.0.1:10249/proxyMode")?, mode);
        let rights = container.credentials()?;
        assert_eq!(rights.capabilities("CapEff")?, ["NET_ADMIN"]);
        let rules = c.sh("iptables-nft-save; ipset list -name")?;
        assert!(!rules.contains("KUBE-"), "{rules}");
        let said = container.said();
        assert!(said.lines().all(|line| !line.starts_with('E')), "{said}");
        ends(container)?;
        // Stops the API server, because the next mode's API server listens on the same address.
        drop(deployed);
    }
    Ok(())
}

/// In a setup that the manifests do not use, the binary has file capabilities, and a non-root user
/// runs it.
fn a_non_root_daemon_passes_file_capabilities_to_its_programs(c: &mut Cluster) -> Outcome {
    let deployed = Deployed::new(c, &build(&manifests().join("least-privilege/nft"))?)?;
    let mut spec = deployed.pod.container()?;
    let program = spec.root.join("usr/local/bin/kube-proxy");
    c.sh(&format!(
        "setcap cap_net_admin,cap_net_raw+p {}",
        program.display()
    ))?;
    spec.user = 65532;
    spec.escalation = true;
    let container = deployed.start(c, &spec)?;
    serves(c, &deployed, &spec, &container)?;
    let rights = container.credentials()?;
    for set in ["CapEff", "CapPrm", "CapAmb"] {
        assert_eq!(rights.capabilities(set)?, RIGHTS, "{set}");
    }
    assert_eq!(rights.field("Uid"), "65532 65532 65532 65532");
    ends(container)
}
