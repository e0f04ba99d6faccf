//! Services from a folder of manifests: `--manifests DIR`.
//!
//! The files are ordinary Kubernetes YAML or JSON: Services, EndpointSlices, ServiceCIDRs and this
//! node's own Node. A file may contain several objects, also as a `List`. Other kinds are ignored.
//! inotify watches the folder, without polling. The folder may be a mounted ConfigMap, and files
//! may be written in place or renamed into it.
//!
//! ```text
//!   inotify ─▶ Watch: waits until writers are done ─▶ Folder::look ─▶ events
//! ```
//!
//! A separate thread watches and reads, since reading and parsing files blocks.
//!
//! The thread does not read sub-folders, allocate addresses, or find pods. The author of the
//! Services also writes the EndpointSlices.

mod document;
mod folder;
mod kinds;

pub(crate) use document::of as documents_of;

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

/// Quiet time after the last change before the folder is read, since one save causes several
/// events.
const DEBOUNCE: Duration = Duration::from_millis(20);
/// Quiet time while a writer has not closed its file. Half a file may look like a complete file
/// with fewer objects.
const UNFINISHED: Duration = Duration::from_secs(1);
/// Quiet time after the folder itself was replaced, since its creator may still be filling it.
const REFILLED: Duration = Duration::from_secs(1);
/// Longest time that a series of changes delays reading.
const LONGEST: Duration = Duration::from_secs(3);
/// The symbolic link by which a mounted ConfigMap changes all its files in one step.
const CONFIG_MAP_DATA: &str = "..data";
/// Number of buffered event batches for the reader of the stream.
const IN_FLIGHT: usize = 1;

/// Watches the manifests in `folder`. `node` is this node's name.
///
/// The stream never ends. It begins with one list of each kind. A list is not whole while a file
/// exists that was never readable.
///
/// # Errors
///
/// Returns [`StartError::Manifests`] if the folder cannot be watched.
pub fn stream(
    folder: &Path,
    node: &str,
) -> Result<impl Stream<Item = Event> + Send + use<>, StartError> {
    let failed = |source: io::Error| StartError::Manifests {
        folder: folder.to_owned(),
        advice: match source.kind() {
            io::ErrorKind::NotFound => "create the folder, or correct --manifests",
            io::ErrorKind::NotADirectory => "--manifests takes a folder, not a file",
            io::ErrorKind::PermissionDenied => "allow this process to read the folder",
            _ => {
                "if the limits of inotify are reached, raise sysctl fs.inotify.max_user_watches \
                 and max_user_instances"
            }
        },
        source,
    };
    let path = std::path::absolute(folder).map_err(failed)?;
    fs::read_dir(&path).map_err(failed)?;
    let (changes, changed) = mpsc::channel();
    let watch = Watch::new(path.clone(), &changes).map_err(failed)?;
    let (events, received) = channel::channel(IN_FLIGHT);
    let folder = Folder::new(&path, node);
    thread::Builder::new()
        .name("manifests".to_owned())
        .spawn(move || follow(watch, folder, &changed, &events))
        .map_err(failed)?;
    Ok(Manifests {
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

/// The stream of events from the thread.
///
/// All events of one read arrive together, so a reader never sees half a change. Otherwise, a
/// renamed Service would be missing for a moment.
struct Manifests {
    looks: channel::Receiver<Vec<Event>>,
    /// The rest of the last batch.
    events: vec::IntoIter<Event>,
    changes: mpsc::Sender<Change>,
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
        // Fails if the thread has ended already.
        let _ = self.changes.send(Change::Stop);
    }
}

/// An event that wakes the thread.
enum Change {
    Watched(notify::Result<notify::Event>),
    Stop,
}

/// Runs the thread. It reads the folder now and after each change, until the stream is dropped.
fn follow(
    mut watch: Watch,
    mut folder: Folder,
    changed: &mpsc::Receiver<Change>,
    looks: &channel::Sender<Vec<Event>>,
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
                    info!("{}: the folder is there again", watch.folder.display());
                }
                is_missing = false;
                for warning in seen.warnings {
                    warn!("{warning}");
                }
                if !seen.events.is_empty() && looks.blocking_send(seen.events).is_err() {
                    return;
                }
            }
            Err(error) if !is_missing => {
                is_missing = true;
                warn!(
                    "{}: {error}; its objects stay until the folder exists again: restore it",
                    watch.folder.display()
                );
            }
            Err(_) => {}
        }
        match watch.next_batch(changed) {
            Some(batch) => touched = batch,
            None => return,
        }
    }
}

/// The watches on the folder, and on the nearest existing folder above it. The upper watch notices
/// when the folder is replaced, or a symbolic link changes its target.
struct Watch {
    folder: PathBuf,
    watcher: RecommendedWatcher,
    watched: Vec<PathBuf>,
}

impl Watch {
    fn new(folder: PathBuf, changes: &mpsc::Sender<Change>) -> io::Result<Self> {
        let changes = changes.clone();
        let watcher = notify::recommended_watcher(move |event| {
            // Fails if the thread has ended.
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

    /// Watches the paths that exist now. The watches missed earlier changes, so a read of the
    /// folder must follow.
    fn renew(&mut self) -> io::Result<()> {
        for path in self.watched.drain(..) {
            // The kernel has already dropped the watches of removed paths.
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

    /// Waits for changes, and then until no more changes arrive. Returns `None` if the stream was
    /// dropped.
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
                         to the folder itself",
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

/// Changes that are handled together.
#[derive(Debug, Default)]
struct Batch {
    touched: ChangedFiles,
    /// Files that were written to and are not closed yet.
    unfinished: HashSet<OsString>,
    /// True if the folder itself, or a folder above it, changed.
    is_folder: bool,
    was_folder: bool,
}

impl Batch {
    /// Records an event. Returns false if the event does not concern manifests.
    fn note(&mut self, folder: &Path, event: notify::Event) -> bool {
        if event.need_rescan() {
            self.touched.is_all = true;
            return true;
        }
        if let EventKind::Access(access) = event.kind
            && access != AccessKind::Close(AccessMode::Write)
        {
            // A read access, such as by this process itself.
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

/// Reads bytes like a file, for the fuzzer.
pub(crate) fn read_as_file(bytes: &[u8]) {
    if let Ok(objects) = document::read(bytes) {
        for located in objects {
            drop(located.object);
        }
    }
}

#[cfg(test)]
mod tests;
