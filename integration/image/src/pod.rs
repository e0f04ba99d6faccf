//! Prepares a DaemonSet's pod on one node, as the kubelet would.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::mount::{MountFlags, mount_bind, mount_remount};
use serde_json::Value;

use crate::archive::Image;
use crate::container::{Mount, Spec};

/// Names of the capabilities that containerd grants by default.
const DEFAULT_CAPABILITIES: [&str; 14] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "FSETID",
    "FOWNER",
    "MKNOD",
    "NET_RAW",
    "SETGID",
    "SETUID",
    "SETFCAP",
    "SETPCAP",
    "NET_BIND_SERVICE",
    "SYS_CHROOT",
    "KILL",
    "AUDIT_WRITE",
];
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// CA certificate of the pod's ServiceAccount. The API server fixture speaks plain HTTP, but
/// without this file the daemon would look for the system's CA certificates.
const CA: &str = include_str!("../testdata/ca.crt");

/// A DaemonSet's pod on a node.
#[derive(Debug)]
pub struct Pod {
    spec: Value,
    node: String,
    image: Image,
    volumes: BTreeMap<String, PathBuf>,
    account: PathBuf,
}

impl Pod {
    /// Creates a DaemonSet's pod on the node `node`, with its volumes in `folder`. `configuration`
    /// has the ConfigMap's files by name.
    pub fn new(
        daemon_set: &Value,
        node: &str,
        image: &Image,
        configuration: &BTreeMap<String, String>,
        folder: &Path,
    ) -> Result<Self> {
        let spec = daemon_set
            .pointer("/spec/template/spec")
            .context("no pod template")?
            .clone();
        ensure!(
            text(&spec, "/hostPID").is_empty()
                && spec.pointer("/hostNetwork") == Some(&true.into()),
            "another kind of pod than is made here"
        );
        let account = folder.join("account");
        fs::create_dir_all(&account)?;
        fs::write(account.join("token"), "token-of-the-account")?;
        fs::write(account.join("ca.crt"), CA)?;
        let mut volumes = BTreeMap::new();
        for volume in list(&spec, "/volumes") {
            let name = text(volume, "/name").to_owned();
            let path = text(volume, "/hostPath/path");
            let source = if path == "/lib/modules" {
                modules()?
            } else if !path.is_empty() {
                if text(volume, "/hostPath/type") == "FileOrCreate" {
                    fs::File::options().append(true).create(true).open(path)?;
                }
                path.into()
            } else if volume.pointer("/configMap").is_some() {
                let source = folder.join(&name);
                fs::create_dir_all(&source)?;
                for (name, text) in configuration {
                    fs::write(source.join(name), text)?;
                }
                source
            } else if volume.pointer("/emptyDir").is_some() {
                let source = folder.join(&name);
                // Removes the previous pod's volume, because an emptyDir volume does not outlive
                // its pod.
                drop(fs::remove_dir_all(&source));
                fs::create_dir(&source)?;
                source
            } else {
                bail!("a volume that is not made here: {volume}");
            };
            volumes.insert(name, source);
        }
        Ok(Self {
            spec,
            node: node.to_owned(),
            image: image.clone(),
            volumes,
            account,
        })
    }

    /// Returns the specifications of the init containers, in order.
    pub fn init_containers(&self) -> Result<Vec<Spec>> {
        self.specs("/initContainers")
    }

    /// Returns the specification of the pod's only container.
    pub fn container(&self) -> Result<Spec> {
        let mut specs = self.specs("/containers")?;
        ensure!(specs.len() == 1, "not one container");
        specs.pop().context("no container")
    }

    fn specs(&self, pointer: &str) -> Result<Vec<Spec>> {
        list(&self.spec, pointer)
            .iter()
            .map(|container| self.spec(container))
            .collect()
    }

    fn spec(&self, container: &Value) -> Result<Spec> {
        let name = text(container, "/image");
        ensure!(
            self.image
                .names
                .contains(&format!("docker.io/library/{name}")),
            "the manifest's {name} is not the image, which is {:?}",
            self.image.names
        );
        let mut env: Vec<(String, String)> = self
            .image
            .strings("/config/Env")
            .iter()
            .filter_map(|pair| pair.split_once('='))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        for variable in list(container, "/env") {
            ensure!(
                text(variable, "/valueFrom/fieldRef/fieldPath") == "spec.nodeName",
                "a variable that is not made here: {variable}"
            );
            env.push((text(variable, "/name").to_owned(), self.node.clone()));
        }
        // In a pod, `command` replaces the image's entry point, and `args` replaces the image's
        // command.
        let [command, arguments] = ["/command", "/args"].map(|pointer| strings(container, pointer));
        let mut argv = match (command.is_empty(), arguments.is_empty()) {
            (true, true) => [
                self.image.strings("/config/Entrypoint"),
                self.image.strings("/config/Cmd"),
            ]
            .concat(),
            (true, false) => [self.image.strings("/config/Entrypoint"), arguments].concat(),
            (false, _) => [command, arguments].concat(),
        };
        for (name, value) in &env {
            for argument in &mut argv {
                *argument = argument.replace(&format!("$({name})"), value);
            }
        }
        let mut mounts = vec![Mount {
            source: self.account.clone(),
            target: ACCOUNT.into(),
            read_only: true,
        }];
        for mount in list(container, "/volumeMounts") {
            let volume = text(mount, "/name");
            mounts.push(Mount {
                source: self
                    .volumes
                    .get(volume)
                    .with_context(|| format!("no volume {volume}"))?
                    .clone(),
                target: text(mount, "/mountPath").into(),
                // The kubelet mounts ConfigMap volumes read-only, whatever `readOnly` says.
                read_only: mount.pointer("/readOnly") == Some(&true.into())
                    || volume == "kube-proxy",
            });
        }
        let context = |field: &str| container.pointer(&format!("/securityContext/{field}"));
        let is = |field: &str| context(field) == Some(&true.into());
        let privileged = is("privileged");
        let dropped = strings(container, "/securityContext/capabilities/drop");
        let mut capabilities = strings(container, "/securityContext/capabilities/add");
        if !dropped.contains(&"ALL".to_owned()) {
            let kept = DEFAULT_CAPABILITIES.map(str::to_owned).into_iter();
            capabilities.extend(kept.filter(|one| !dropped.contains(one)));
        }
        let user = context("runAsUser").and_then(Value::as_u64);
        Ok(Spec {
            root: self.image.root.clone(),
            argv,
            env,
            cwd: match text(&self.image.config, "/config/WorkingDir") {
                "" => "/".into(),
                folder => folder.into(),
            },
            mounts,
            privileged,
            read_only_root: is("readOnlyRootFilesystem"),
            capabilities: (!privileged).then_some(capabilities),
            escalation: context("allowPrivilegeEscalation") != Some(&false.into()),
            user: u32::try_from(user.unwrap_or(0))?,
        })
    }
}

/// Returns a directory with read-only mounts of the kernel modules, for the pod's `/lib/modules`.
/// The directory is outside of the test's directory, because a removal of the test's directory
/// would descend into the mounts.
fn modules() -> Result<PathBuf> {
    let folder = std::env::temp_dir().join(format!("modules-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    for entry in fs::read_dir("/lib/modules").into_iter().flatten().flatten() {
        if let Ok(source) = fs::canonicalize(entry.path())
            && source.is_dir()
        {
            let target = folder.join(entry.file_name());
            if !target.exists() {
                fs::create_dir_all(&target)?;
                mount_bind(&source, &target)?;
                let read_only = MountFlags::BIND | MountFlags::RDONLY;
                mount_remount(&target, read_only, "")?;
            }
        }
    }
    Ok(folder)
}

fn list<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    let list = value.pointer(pointer).and_then(Value::as_array);
    list.map(Vec::as_slice).unwrap_or_default()
}

fn strings(value: &Value, pointer: &str) -> Vec<String> {
    list(value, pointer)
        .iter()
        .filter_map(|one| Some(one.as_str()?.to_owned()))
        .collect()
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
}
