//! Tests the daemon in the environment of a Pod: it uses HTTPS, with the CA and the token that the
//! kubelet mounts and rotates.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use apiserver::{Authority, Tls};
use scenarios::{ApiServer, Cluster, Outcome, Service, stories, tcp, tell};

const MOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Host and port of the API server.
const API: [&str; 2] = ["172.35.0.9", "6443"];

fn main() {
    let stories = stories! {
        a_rotated_token_and_ca_are_used,
        a_vanished_api_server_is_noticed_soon,
    };
    tell(&stories, Duration::from_mins(4))
}

fn web() -> Service {
    Service::new("web", "10.96.0.10 fd96::10")
        .port(tcp(80, 8080).node_port(30080))
        .endpoints("10.244.1.10 10.244.2.10 fd44:1::10")
}

fn shown(authority: &Authority) -> Result<Tls> {
    Ok(Tls {
        identity: authority.server(&[API[0]])?,
        clients: None,
    })
}

/// Files that the kubelet projects into the Pod.
struct ProjectedFiles(PathBuf);

impl ProjectedFiles {
    fn new(c: &Cluster) -> Result<Self> {
        let folder = c.folder().join("serviceaccount");
        fs::create_dir(&folder)?;
        Ok(Self(folder))
    }

    /// Replaces a file by renaming a new file over it, as the kubelet does.
    fn write(&self, name: &str, text: &str) -> Result<()> {
        fs::write(self.0.join("..new"), text)?;
        fs::rename(self.0.join("..new"), self.0.join(name))?;
        Ok(())
    }
}

/// Creates an API server that accepts only `token`. Starts the daemon with a Pod's environment
/// variables and ServiceAccount mount.
fn started_in_a_pod(
    c: &mut Cluster,
    authority: &Authority,
    token: &str,
) -> Result<(ApiServer, ProjectedFiles)> {
    let mut api = c.api_server(true)?;
    api.secure(shown(authority)?, token);
    api.apply(&web())?;
    api.start()?;
    let projected = ProjectedFiles::new(c)?;
    projected.write("ca.crt", &authority.certificate())?;
    projected.write("token", token)?;
    // Mounts a separate file system at /run, because the test must not change the host's files.
    let enter = format!(
        "mount -t tmpfs none /run && mkdir -p {MOUNT} && mount --bind {} {MOUNT} && exec \"$0\" \"$@\"",
        projected.0.display()
    );
    let [host, port] = API;
    c.prefix = [
        "env",
        &format!("KUBERNETES_SERVICE_HOST={host}"),
        &format!("KUBERNETES_SERVICE_PORT={port}"),
        "unshare",
        "-m",
        "sh",
        "-ec",
        &enter,
    ]
    .map(Into::into)
    .to_vec();
    c.launch_with(&[])?;
    c.await_first_sync()?;
    Ok((api, projected))
}

fn a_rotated_token_and_ca_are_used(c: &mut Cluster) -> Outcome {
    c.patience = Duration::from_secs(40);
    let authority = Authority::new("kubernetes")?;
    let (mut api, projected) = started_in_a_pod(c, &authority, "first")?;
    c.until_served(&web())?;
    c.until_answered(&c.client, "10.96.0.10:80")?;

    // The API server already accepts only the second token, which the kubelet has not written yet.
    api.secure(shown(&authority)?, "second");
    api.stop();
    api.start()?;
    let line = c.await_line("(401)")?;
    ensure!(line.contains("https://172.35.0.9:6443"), "{line}");
    let moved = web().endpoints("10.244.2.10");
    api.apply(&moved)?;
    c.until_served(&web())?;
    c.until_answered(&c.client, "10.96.0.10:80")?;
    projected.write("token", "second")?;
    c.until_served(&moved)?;
    c.await_line("all is watched again")?;

    // The server's certificate has another CA's signature, so the daemon must accept no data from
    // this server.
    let before = c.state()?;
    let another = Authority::new("kubernetes")?;
    api.secure(shown(&another)?, "second");
    api.stop();
    api.delete_service("web")?;
    api.start()?;
    let line = c.await_line("not signed by")?;
    ensure!(line.contains(&format!("{MOUNT}/ca.crt")), "{line}");
    ensure!(c.state()? == before, "nothing changes meanwhile");
    ensure!(api.requests().is_empty(), "it is told no token");
    projected.write(
        "ca.crt",
        &(authority.certificate() + &another.certificate()),
    )?;
    c.until_gone("TCP 10.96.0.10:80")?;
    c.stop()
}

fn a_vanished_api_server_is_noticed_soon(c: &mut Cluster) -> Outcome {
    let (_api, _) = started_in_a_pod(c, &Authority::new("kubernetes")?, "first")?;
    let watches = |c: &Cluster| -> Result<Vec<String>> {
        let open = c.sh("ss -Htno state established dst 172.35.0.9")?;
        Ok(open.lines().map(str::to_owned).collect())
    };
    c.until("three watches that ask whether the peer is there", || {
        let open = watches(c)?;
        Ok(open.len() >= 3 && open.iter().all(|one| one.contains("timer:(keepalive")))
    })?;
    // The server neither replies nor closes its connections, as after its machine has lost power.
    let before = watches(c)?;
    c.sh("iptables-$backend -I INPUT -s 172.35.0.9 -j DROP")?;
    let began = Instant::now();
    c.patience = Duration::from_secs(45);
    let ports = |open: &[String]| -> Vec<String> {
        let ports = open.iter().filter_map(|one| one.split_whitespace().nth(2));
        ports.map(str::to_owned).collect()
    };
    let held = ports(&before);
    c.until("the watches are given up", || {
        let open = ports(&watches(c)?);
        Ok(!open.iter().any(|port| held.contains(port)))
    })?;
    println!("    missed after {:.1?}", began.elapsed());
    c.sh("iptables-$backend -D INPUT -s 172.35.0.9 -j DROP")?;
    c.stop().context("it ends as ever")
}
