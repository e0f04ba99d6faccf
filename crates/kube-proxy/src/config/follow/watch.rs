//! Watches the configuration file.
//!
//! The watch covers the file's whole directory, because programs may replace the file itself. The
//! kubelet changes a mounted ConfigMap by a symbolic link beside the file. Editors rename files.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use notify::{RecursiveMode, Watcher};
use tokio::sync::Notify;
use tracing::{info, warn};

use super::problem::FileProblem;
use crate::config::Configuration;
use crate::config::options::Options;

/// Delay between a change and the read of the file, because one save causes several notifications.
const SETTLE_TIME: Duration = Duration::from_millis(200);

/// Waits until `file` differs from `used`, and returns the new options.
///
/// - If the file is unreadable or invalid, logs a warning, sets `problem` and continues with `used`.
/// - If the file cannot be watched, logs a warning and never returns.
///
/// `reread` must read the file in the same way in which `used` was read.
pub async fn changed<E: Display>(
    file: &Path,
    used: &Configuration,
    problem: &FileProblem,
    reread: impl Fn() -> Result<Options, E>,
) -> Options {
    let changes = Arc::new(Notify::new());
    let watcher = watch(file, Arc::clone(&changes));
    if let Err(error) = &watcher {
        warn!(file = %file.display(), %error, "the configuration file cannot be watched; restart after changing it");
        return std::future::pending().await;
    }
    // Reads the file once more: it may have changed after the first read and before the watch
    // began.
    changes.notify_one();
    let mut complaint = String::new();
    loop {
        changes.notified().await;
        tokio::time::sleep(SETTLE_TIME).await;
        let read = reread();
        problem.set_unusable(read.as_ref().err().map(ToString::to_string));
        match read {
            Ok(options) if options.said.configuration == *used => complaint.clear(),
            Ok(options) => return options,
            Err(error) => {
                let text = error.to_string();
                if text != complaint {
                    warn!("{text}; going on with the configuration in use");
                    complaint = text;
                }
            }
        }
    }
}

fn watch(file: &Path, changes: Arc<Notify>) -> notify::Result<notify::RecommendedWatcher> {
    let file = std::path::absolute(file)?;
    let folder = file
        .parent()
        .map_or_else(|| PathBuf::from("/"), Path::to_path_buf);
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        // Ignores access events, which a read of the file also causes.
        if !event.is_ok_and(|event| event.kind.is_access() && !is_written(event.kind)) {
            changes.notify_one();
        }
    })?;
    watcher.watch(&folder, RecursiveMode::NonRecursive)?;
    info!(file = %file.display(), "the configuration file is followed");
    Ok(watcher)
}

/// Reports whether the event is the close of a file that was open for writing.
fn is_written(kind: notify::EventKind) -> bool {
    use notify::event::{AccessKind, AccessMode, EventKind};
    kind == EventKind::Access(AccessKind::Close(AccessMode::Write))
}
