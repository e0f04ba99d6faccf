//! Services from a folder of manifests: `--manifests DIR`.
//!
//! The files are ordinary Kubernetes YAML or JSON: Services, EndpointSlices, ServiceCIDRs and this
//! node's own Node, one or many to a file, also as a `List`; other kinds are left out. The folder is watched
//! by inotify and never polled; it may be a mounted ConfigMap, files may be written in place or
//! renamed into it.
//!
//! ```text
//!   inotify ─▶ Watch: waits until writers are done ─▶ Folder::look ─▶ events
//! ```
//!
//! All of it runs on a thread of its own: reading and parsing files blocks.
//!
//! What it will not do: look into sub-folders, allocate addresses, or find pods. EndpointSlices are
//! written by whoever writes the Services.

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
use folder::{Folder, Touched};

/// Quiet time after the last change before the folder is read: one save is several changes.
const DEBOUNCE: Duration = Duration::from_millis(20);
/// The same while some writer has not closed its file: half a file may look like a whole one with
/// fewer objects.
const UNFINISHED: Duration = Duration::from_secs(1);
/// The same after the folder itself changed: whoever made it anew may still be filling it.
const REFILLED: Duration = Duration::from_secs(1);
/// The longest that changes may hold up reading.
const LONGEST: Duration = Duration::from_secs(3);
/// The symbolic link behind which a mounted ConfigMap changes all of its files at once.
const CONFIG_MAP_DATA: &str = "..data";
/// Looks whose events are on their way to whoever reads the stream.
const IN_FLIGHT: usize = 1;

/// Watches the manifests in `folder`. `node` is this node's name.
///
/// The stream never ends. It begins with one list of each kind; a list is not whole while some file
/// cannot be read and was never read before.
///
/// # Errors
///
/// [`StartError::Manifests`]: the folder cannot be watched.
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
                "if the limits of inotify are reached, raise sysctl fs.inotify.max_user_watches and max_user_instances"
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

/// The stream's end of the thread.
///
/// All that one look has found is there at once, so that a reader which takes what is there never
/// sees a part of it: a Service that becomes two would be neither for a moment.
struct Manifests {
    looks: channel::Receiver<Vec<Event>>,
    /// Rest of the last look.
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
        // The thread may have ended by itself; then there is nobody to tell.
        let _ = self.changes.send(Change::Stop);
    }
}

/// What wakes the thread.
enum Change {
    Watched(notify::Result<notify::Event>),
    Stop,
}

/// The thread: looks at the folder, then again after each change, until nobody listens.
fn follow(
    mut watch: Watch,
    mut folder: Folder,
    changed: &mpsc::Receiver<Change>,
    looks: &channel::Sender<Vec<Event>>,
) {
    let mut touched = Touched {
        is_all: true,
        ..Touched::default()
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
                    "{}: {error}; what the folder held stays until it is there again: restore it",
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

/// The watches on the folder, and on the nearest folder above it that exists: what is removed and
/// made again, or is a symbolic link that changes its target, shows there.
struct Watch {
    folder: PathBuf,
    watcher: RecommendedWatcher,
    watched: Vec<PathBuf>,
}

impl Watch {
    fn new(folder: PathBuf, changes: &mpsc::Sender<Change>) -> io::Result<Self> {
        let changes = changes.clone();
        let watcher = notify::recommended_watcher(move |event| {
            // Fails when the thread has ended, and then nobody wants to know.
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

    /// Watches what now exists. To be followed by a look: what happened before is not told.
    fn renew(&mut self) -> io::Result<()> {
        for path in self.watched.drain(..) {
            // The kernel drops the watches of what was removed by itself.
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

    /// Waits for changes, and then until they have come to rest. `None` if nobody listens any more.
    fn next_batch(&mut self, changed: &mpsc::Receiver<Change>) -> Option<Touched> {
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
                        "{}: cannot be watched: {error}; changes are not seen until the next one to the folder itself",
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

/// Changes that are looked at together.
#[derive(Debug, Default)]
struct Batch {
    touched: Touched,
    /// Files that were written to and not closed yet.
    unfinished: HashSet<OsString>,
    /// The folder itself, or one above it, changed.
    is_folder: bool,
    was_folder: bool,
}

impl Batch {
    /// Notes an event; false if it says nothing about manifests.
    fn note(&mut self, folder: &Path, event: notify::Event) -> bool {
        if event.need_rescan() {
            self.touched.is_all = true;
            return true;
        }
        if let EventKind::Access(access) = event.kind
            && access != AccessKind::Close(AccessMode::Write)
        {
            // Reading, which this process does itself.
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

/// Reads a file's bytes.
pub(crate) fn read_as_file(bytes: &[u8]) {
    if let Ok(objects) = document::read(bytes) {
        for located in objects {
            drop(located.object);
        }
    }
}

#[cfg(test)]
mod tests;
