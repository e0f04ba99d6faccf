//! Tests that no output of the daemon reveals its credentials.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::ensure;
use scenarios::{Cluster, HEALTH, METRICS, Outcome, Service, ask, get, tcp};

/// Text that every secret in these tests contains.
const SECRET: &str = "s3cr3t";

/// Time limit of the wait for the daemon's first sync. It is short, because the daemon cannot start
/// with some of the credentials.
const SPOKEN_WITHIN: Duration = Duration::from_secs(2);

pub(crate) fn secrets_are_never_displayed(c: &mut Cluster) -> Outcome {
    let mut api = c.api_server(true)?;
    let web = Service::new("web", "10.96.0.10")
        .port(tcp(80, 8080))
        .endpoints("10.244.1.10");
    api.apply(&web)?;
    api.start()?;
    let token = c.folder().join("token");
    fs::write(&token, "s3cr3t-of-the-file")?;
    // Each kubeconfig user has another kind of credential.
    let users = [
        "{token: s3cr3t-token}".to_owned(),
        "{username: somebody, password: s3cr3t-password}".to_owned(),
        format!("{{tokenFile: '{}'}}", token.display()),
        // This client certificate is invalid. The error must not quote it.
        "{client-certificate-data: czNjcjN0LWNlcnRpZmljYXRl, client-key-data: czNjcjN0LWtleQ==}"
            .to_owned(),
        "{client-key-data: 's3cr3t !', token: [s3cr3t]}".to_owned(),
    ];
    for server in [
        "http://172.35.0.9:6443",
        "http://somebody:s3cr3t-password@172.35.0.9:6443",
        "http://somebody:s3cr3t-password@172.35.0.9:9",
        "https://172.35.0.9:6443",
    ] {
        // The test uses all users' credentials at the first server, and the first user's
        // credentials at each other server.
        let count = if server == "http://172.35.0.9:6443" {
            users.len()
        } else {
            1
        };
        for user in users.iter().take(count) {
            let path = c.folder().join("kubeconfig");
            fs::write(
                &path,
                format!(
                    "{{apiVersion: v1, kind: Config, current-context: lab, clusters: [{{name: lab, cluster: {{server: '{server}'}}}}], \
                     contexts: [{{name: lab, context: {{cluster: lab, user: lab}}}}], users: [{{name: lab, user: {user}}}]}}"
                ),
            )?;
            let kubeconfig = format!("--kubeconfig={}", path.display());
            c.launch_with(&[&kubeconfig, "--v=10"])?;
            // With some kubeconfigs, the daemon cannot start. The wait for its first sync is
            // therefore limited.
            let began = Instant::now();
            while began.elapsed() < SPOKEN_WITHIN {
                let said = c.said();
                let last = said.rsplit("-- it ended").next().unwrap_or_default();
                if last.contains("first sync done") {
                    break;
                }
                sleep(Duration::from_millis(50));
            }
            let mut shown = String::new();
            for (place, path) in [
                (METRICS, "/metrics"),
                (METRICS, "/configz"),
                (METRICS, "/flagz"),
                (METRICS, "/statusz"),
                (HEALTH, "/readyz"),
            ] {
                if let Ok((_, body)) = get(&c.node1, place, path) {
                    shown += &body;
                }
            }
            for asked in ["status", "services"] {
                shown += &ask(c, &[asked])?.1;
            }
            shown += &c.sh(&format!(
                "tr '\\0' ' ' </proc/{}/cmdline || true",
                c.daemon_id()?
            ))?;
            if c.stop().is_err() {
                // Ignores a failed stop, because the daemon may already have ended.
            }
            let said = c.said();
            for (what, text) in [("the log", &said), ("a page", &shown)] {
                for secret in [SECRET, "czNjcjN0"] {
                    let line = text.lines().find(|line| line.contains(secret));
                    ensure!(line.is_none(), "{what}, {server}, {user}: {line:?}");
                }
            }
        }
    }
    Ok(())
}
