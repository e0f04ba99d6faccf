//! Reads Services from a directory of manifests (`--manifests DIR`).
//!
//! ```text
//!   inotify ─▶ Watch: waits until writers are done ─▶ Folder::look ─▶ events
//! ```
//!
//! - **Files**: ordinary Kubernetes YAML or JSON. A file may contain several objects, also as a
//!   `List`.
//! - **Kinds**: Services, EndpointSlices, ServiceCIDRs and this node's own Node. Other kinds are
//!   ignored.
//! - **Changes**: inotify watches the directory, without polling. The directory may be a mounted
//!   ConfigMap. Programs may write files in place, or rename them into the directory.
//! - **Thread**: a separate thread watches and reads, because reading and parsing files blocks.
//!
//! The thread does not read subdirectories, allocate addresses, or find pods. The author of the
//! Services also writes the EndpointSlices.

mod document;
mod folder;
mod kinds;
mod unreadable;

pub(crate) use document::of as documents_of;
pub use unreadable::{UnreadableManifest, UnreadableManifests};

use std::collections::HashSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use std::{fs, io, thread, vec};

use futures::Stream;
use notify::event::{AccessKind, AccessMode, EventKind, ModifyKind};
use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use proxy::Event;
use tokio::sync::mpsc as channel;
use tracing::{info, warn};

use crate::error::StartError;
use folder::{ChangedFiles, Folder};

/// Pause without changes before the directory is read, because saving a file causes several inotify
/// events.
const DEBOUNCE: Duration = Duration::from_millis(20);
/// Longer pause while a program has a manifest open for writing, because a half-written file may
/// look like a complete file with fewer objects.
const UNFINISHED: Duration = Duration::from_secs(1);
/// Longer pause after the directory itself was replaced, because its creator may still be adding
/// files.
const REFILLED: Duration = Duration::from_secs(1);
/// Longest delay of a read of the directory while changes keep arriving.
const LONGEST: Duration = Duration::from_secs(3);
/// Symbolic link that a mounted ConfigMap replaces to change all its files together.
const CONFIG_MAP_DATA: &str = "..data";
/// Capacity of the channel to the stream, in batches. A batch has all events of one read of the
/// directory.
const IN_FLIGHT: usize = 1;

/// Watches the manifests in `folder`. `node` is this node's name.
///
/// The stream never ends. It begins with one list of each kind. Until every file has been readable
/// once, the lists end with `is_whole` false, because objects may be missing.
///
/// # Errors
///
/// Returns [`StartError::Manifests`] if the directory cannot be watched.
pub fn stream(folder: &Path, node: &str) -> Result<Manifests, StartError> {
    let inotify = "if the limits of inotify are reached, raise sysctl \
                   fs.inotify.max_user_watches and max_user_instances";
    let failed = |source: io::Error, otherwise| StartError::Manifests {
        folder: folder.to_owned(),
        advice: match source.kind() {
            io::ErrorKind::NotFound => "create the directory, or correct --manifests",
            io::ErrorKind::NotADirectory => "--manifests takes a directory, not a file",
            io::ErrorKind::PermissionDenied => "allow this process to read the directory",
            _ => otherwise,
        },
        source,
    };
    let unusable = |source| failed(source, "correct --manifests");
    let path = std::path::absolute(folder).map_err(unusable)?;
    fs::read_dir(&path).map_err(unusable)?;
    let (changes, changed) = mpsc::channel();
    let watch = Watch::new(path.clone(), &changes).map_err(|source| failed(source, inotify))?;
    let (events, received) = channel::channel(IN_FLIGHT);
    let folder = Folder::new(&path, node);
    let unreadable = UnreadableManifests::default();
    let told = unreadable.clone();
    thread::Builder::new()
        .name("manifests".to_owned())
        .spawn(move || follow(watch, folder, &changed, &events, &told))
        .map_err(|source| failed(source, "free some memory or threads"))?;
    Ok(Manifests {
        unreadable,
        looks: received,
        events: Vec::new().into_iter(),
        changes,
    })
}

fn into_io(error: notify::Error) -> io::Error {
    match error.kind {
        notify::ErrorKind::Io(error) => error,
        notify::ErrorKind::PathNotFound => io::ErrorKind::NotFound.into(),
        _ => io::Error::other(error),
    }
}

/// Stream of events from the thread that reads the manifests.
///
/// All events of one read arrive together, so that a consumer never sees a part of a change. For
/// example, a renamed Service is never missing.
pub struct Manifests {
    unreadable: UnreadableManifests,
    looks: channel::Receiver<Vec<Event>>,
    /// Events of the last batch that have not been sent yet.
    events: vec::IntoIter<Event>,
    changes: mpsc::Sender<Change>,
}

impl Manifests {
    /// Returns a shared list of the manifests that cannot be read at the moment.
    pub fn unreadable(&self) -> UnreadableManifests {
        self.unreadable.clone()
    }
}

impl Stream for Manifests {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Event>> {
        loop {
            if let Some(event) = self.events.next() {
                return Poll::Ready(Some(event));
            }
            match ready!(self.looks.poll_recv(context)) {
                Some(look) => self.events = look.into_iter(),
                None => return Poll::Ready(None),
            }
        }
    }
}

impl Drop for Manifests {
    fn drop(&mut self) {
        // Ignores the error: the thread has already ended.
        let _ = self.changes.send(Change::Stop);
    }
}

/// Event that wakes the thread that reads the directory.
enum Change {
    Watched(notify::Result<notify::Event>),
    Stop,
}

/// Reads the directory now and after each change, until the stream is dropped. Runs on the thread
/// `manifests`.
fn follow(
    mut watch: Watch,
    mut folder: Folder,
    changed: &mpsc::Receiver<Change>,
    looks: &channel::Sender<Vec<Event>>,
    unreadable: &UnreadableManifests,
) {
    let mut touched = ChangedFiles {
        is_all: true,
        ..ChangedFiles::default()
    };
    let mut is_missing = false;
    loop {
        match folder.look(&touched) {
            Ok(seen) => {
                if is_missing {
                    info!("{}: the directory is there again", watch.folder.display());
                }
                is_missing = false;
                unreadable.set(folder.unreadable());
                for warning in seen.warnings {
                    warn!("{warning}");
                }
                if !seen.events.is_empty() && looks.blocking_send(seen.events).is_err() {
                    return;
                }
            }
            Err(error) if !is_missing => {
                is_missing = true;
                let place = watch.folder.display().to_string();
                let reason = format!(
                    "{error}; its objects stay until the directory exists again: restore it"
                );
                warn!("{place}: {reason}");
                unreadable.set([UnreadableManifest { place, reason }]);
            }
            Err(_) => {}
        }
        match watch.next_batch(changed) {
            Some(batch) => touched = batch,
            None => return,
        }
    }
}

/// Inotify watches on the directory, and on the nearest existing directory above it. The watch on
/// the directory above reports when the directory is replaced, or when a symbolic link changes its
/// target.
struct Watch {
    folder: PathBuf,
    watcher: RecommendedWatcher,
    watched: Vec<PathBuf>,
}

impl Watch {
    fn new(folder: PathBuf, changes: &mpsc::Sender<Change>) -> io::Result<Self> {
        let changes = changes.clone();
        let watcher = notify::recommended_watcher(move |event| {
            // Ignores the error: the thread has already ended.
            let _ = changes.send(Change::Watched(event));
        });
        let mut watch = Self {
            folder,
            watcher: watcher.map_err(into_io)?,
            watched: Vec::new(),
        };
        watch.renew()?;
        Ok(watch)
    }

    /// Replaces the inotify watches with watches on the paths that exist now. They do not report
    /// changes before this call, so the caller must read the directory afterwards.
    fn renew(&mut self) -> io::Result<()> {
        for path in self.watched.drain(..) {
            // Ignores the error: the kernel has already dropped the watches of removed paths.
            let _ = self.watcher.unwatch(&path);
        }
        let folder = self.folder.clone();
        for path in folder.ancestors().skip(1) {
            if self.add(path).is_ok() {
                break;
            }
        }
        match self.add(&folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn add(&mut self, path: &Path) -> io::Result<()> {
        self.watcher
            .watch(path, RecursiveMode::NonRecursive)
            .map_err(into_io)?;
        self.watched.push(path.to_owned());
        Ok(())
    }

    /// Waits for a change, and then for a pause between changes. Returns the changed files, or
    /// `None` if the stream was dropped.
    fn next_batch(&mut self, changed: &mpsc::Receiver<Change>) -> Option<ChangedFiles> {
        let mut batch = Batch::default();
        let mut deadlines: Option<(Instant, Instant)> = None;
        loop {
            let change = match deadlines {
                None => changed.recv().ok()?,
                Some((quiet, latest)) => {
                    match changed
                        .recv_timeout(quiet.min(latest).saturating_duration_since(Instant::now()))
                    {
                        Ok(change) => change,
                        Err(RecvTimeoutError::Timeout) => return Some(batch.touched),
                        Err(RecvTimeoutError::Disconnected) => return None,
                    }
                }
            };
            let is_relevant = match change {
                Change::Stop => return None,
                Change::Watched(Ok(event)) => batch.note(&self.folder, event),
                Change::Watched(Err(error)) => {
                    warn!(
                        "{}: watching it: {error}; reading all of it again",
                        self.folder.display()
                    );
                    batch.touched.is_all = true;
                    true
                }
            };
            if !is_relevant {
                continue;
            }
            if std::mem::take(&mut batch.is_folder) {
                if let Err(error) = self.renew() {
                    warn!(
                        "{}: cannot be watched: {error}; changes are not seen until the next one \
                         to the directory itself",
                        self.folder.display()
                    );
                }
                batch.was_folder = true;
            }
            let now = Instant::now();
            let rest = if batch.was_folder {
                REFILLED
            } else if batch.unfinished.is_empty() {
                DEBOUNCE
            } else {
                UNFINISHED
            };
            let latest = deadlines.map_or(now + LONGEST, |(_, latest)| latest);
            deadlines = Some((now + rest, latest));
        }
    }
}

/// Changes in the directory that the next read covers.
#[derive(Debug, Default)]
struct Batch {
    touched: ChangedFiles,
    /// Files that were written and are not closed yet.
    unfinished: HashSet<OsString>,
    /// True if the directory itself, or a directory above it, changed.
    is_folder: bool,
    was_folder: bool,
}

impl Batch {
    /// Records an inotify event. Returns false if the event does not concern manifests.
    fn note(&mut self, folder: &Path, event: notify::Event) -> bool {
        if event.need_rescan() {
            self.touched.is_all = true;
            return true;
        }
        if let EventKind::Access(access) = event.kind
            && access != AccessKind::Close(AccessMode::Write)
        {
            // Ignores reads of files, because this process itself reads the files.
            return false;
        }
        let mut is_relevant = false;
        for path in event.paths {
            if folder.starts_with(&path) {
                self.is_folder = true;
                is_relevant = true;
            } else if path.parent() == Some(folder)
                && let Some(name) = path.file_name()
                && (folder::is_manifest(name) || name == CONFIG_MAP_DATA)
            {
                if let EventKind::Modify(ModifyKind::Data(_)) = event.kind {
                    self.unfinished.insert(name.to_owned());
                } else if !matches!(event.kind, EventKind::Modify(ModifyKind::Metadata(_))) {
                    self.unfinished.remove(name);
                }
                self.touched.names.insert(name.to_owned());
                is_relevant = true;
            }
        }
        is_relevant
    }
}

/// Returns the texts of all manifests in a directory. Skips files that are not text, or that were
/// just deleted.
pub(crate) fn texts(directory: &Path) -> io::Result<impl Iterator<Item = String>> {
    let paths = folder::names(directory)?.into_iter();
    let paths = paths.map(|name| directory.join(name));
    Ok(paths.filter_map(|path| {
        let bytes = folder::content(&path, &fs::metadata(&path).ok()?).ok()??;
        String::from_utf8(bytes).ok()
    }))
}

/// Decodes the fuzzer's bytes as the content of a manifest file.
pub(crate) fn read_as_file(bytes: &[u8]) {
    if let Ok(objects) = document::read(bytes) {
        for located in objects {
            drop(located.object);
        }
    }
}

#[cfg(test)]
mod tests;
