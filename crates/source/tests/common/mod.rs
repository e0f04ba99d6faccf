//! Helpers for tests of sources: a stream with a timeout, a directory with a kubeconfig, the log,
//! and a scripted server.

pub(crate) mod scripted;

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::stream::BoxStream;
use proxy::{Event, Model, NamespacedName};
use serde_json::{Value, json};
use source::api::Server;
use source::{Api, Lists, StartError};
use tracing::subscriber::DefaultGuard;

/// Model built from a source's events, as in the daemon, with a log of these events.
pub(crate) struct ReceivedState {
    events: BoxStream<'static, Event>,
    pub(crate) model: Model,
    /// All received events about objects.
    pub(crate) log: Vec<Event>,
}

impl ReceivedState {
    pub(crate) async fn by(url: impl fmt::Display, node: &str) -> Self {
        Self::with(url, node, Api::default()).await
    }

    /// Starts a source that requests streamed lists from a server.
    pub(crate) async fn streamed_by(url: impl fmt::Display, node: &str) -> Self {
        let settings = Api {
            lists: Lists::Streamed,
            ..Api::default()
        };
        Self::with(url, node, settings).await
    }

    pub(crate) async fn with(url: impl fmt::Display, node: &str, settings: Api) -> Self {
        let settings = Api {
            master: Some(url.to_string()),
            ..settings
        };
        let server = Server::new(&settings, source::uncounted).await.unwrap();
        Self::of(&server, node)
    }

    pub(crate) fn of(server: &Server, node: &str) -> Self {
        Self {
            events: server.stream(node).boxed(),
            model: Model::new(),
            log: Vec::new(),
        }
    }

    /// Receives events until the model fulfils `is_so`. Panics after two minutes.
    pub(crate) async fn until(&mut self, what: &str, is_so: impl Fn(&Model) -> bool) {
        let limit = Duration::from_mins(2);
        let waited = tokio::time::timeout(limit, async {
            while !is_so(&self.model) {
                let event = self.events.next().await.expect("a stream without an end");
                if !matches!(event, Event::ApiServerAt(_)) {
                    self.log.push(event.clone());
                }
                self.model.apply(event);
            }
        });
        let is_in_time = waited.await.is_ok();
        assert!(
            is_in_time,
            "{what}: not so after {limit:?}; told: {:#?}",
            self.log
        );
    }

    pub(crate) async fn until_listed(&mut self) {
        self.until("everything is listed", |model| {
            model.is_complete() && model.is_node_listed()
        })
        .await;
    }

    /// Waits until all objects are listed, and each kind is watched.
    pub(crate) async fn until_watched(&mut self, server: &apiserver::Server) {
        self.until_watched_after(server, 0).await;
    }

    /// Waits like `until_watched`, for a server that has already received `before` requests.
    pub(crate) async fn until_watched_after(&mut self, server: &apiserver::Server, before: usize) {
        let is_watch = |one: &&apiserver::Request| one.query.contains("watch=true");
        let watches = || {
            server
                .requests()
                .iter()
                .skip(before)
                .filter(is_watch)
                .count()
        };
        self.until_listed().await;
        while watches() < 3 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub(crate) async fn until_services(&mut self, names: &[&str]) {
        let wanted: BTreeSet<_> = names.iter().copied().collect();
        self.until(&format!("the Services are {names:?}"), |model| {
            services(model) == wanted
        })
        .await;
    }

    /// Receives the events that arrive within 1.5 s.
    pub(crate) async fn for_a_moment(&mut self) {
        let _ =
            tokio::time::timeout(Duration::from_millis(1500), self.until("never", |_| false)).await;
    }
}

/// Creates an API server source with these settings.
pub(crate) async fn server(
    kubeconfig: Option<&Path>,
    master: Option<&str>,
) -> Result<Server, StartError> {
    let settings = Api {
        kubeconfig: kubeconfig.map(Path::to_owned),
        master: master.map(str::to_owned),
        ..Api::default()
    };
    Server::new(&settings, source::uncounted).await
}

pub(crate) fn services(model: &Model) -> BTreeSet<&str> {
    model.service_names().map(NamespacedName::name).collect()
}

pub(crate) fn name(name: &str) -> NamespacedName {
    NamespacedName::new("default", name)
}

/// Directory that is deleted at the end of the test.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("kube-proxy-test-{}-{count}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    /// Writes a file by renaming a complete temporary file, as the kubelet does.
    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        fs::write(self.0.join("..new"), text).unwrap();
        fs::rename(self.0.join("..new"), self.0.join(name)).unwrap();
        self.0.join(name)
    }

    /// Writes a kubeconfig (JSON is YAML) for `url`.
    pub(crate) fn kubeconfig(&self, url: &str, mut cluster: Value, user: &Value) -> PathBuf {
        if let Some(cluster) = cluster.as_object_mut() {
            cluster.insert("server".to_owned(), json!(url));
        }
        let text = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "default",
            "clusters": [{"name": "default", "cluster": cluster}],
            "contexts": [{"name": "default", "context": {"cluster": "default", "user": "default"}}],
            "users": [{"name": "default", "user": user}],
        });
        self.write("kubeconfig", &text.to_string())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.0);
    }
}

/// Captured log lines of this thread.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    pub(crate) fn start() -> (Self, DefaultGuard) {
        let log = Self::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(move || writer.clone());
        let guard = tracing::subscriber::set_default(subscriber.finish());
        (log, guard)
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Waits until a line of the log contains `part`, and returns the line.
pub(crate) async fn until_said(told: &mut ReceivedState, log: &Log, part: &str) -> String {
    let began = Instant::now();
    loop {
        let text = log.text();
        if let Some(line) = text.lines().find(|line| line.contains(part)) {
            return line.to_owned();
        }
        let is_late = began.elapsed() > Duration::from_secs(20);
        assert!(!is_late, "{part:?} is not said in {text}");
        let soon = Duration::from_millis(50);
        _ = tokio::time::timeout(soon, told.until("never", |_| false)).await;
    }
}
