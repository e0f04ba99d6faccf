//! Objects in a directory of manifests, and the changes since the last read. Reads files, but does
//! not watch them.
//!
//! ```text
//!   files:   web.yaml ─▶ { Service default/web: content, … }
//!   claims:  Service default/web ─▶ { web.yaml, web2.yaml }
//! ```
//!
//! - If several files contain the same object, the first file by name wins.
//! - A file that becomes unreadable keeps its last objects.
//! - A file that has never been readable may contain any object. Until the file is readable or
//!   deleted, the lists end with `is_whole` false.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use proxy::{Event, Kind};

use super::document::{self, LocatedObject};
use super::unreadable::UnreadableManifest;
use crate::complaints::Complaints;
use crate::decode::{self, Content, Key};

/// Maximum size of a manifest that the source reads, in bytes.
const LARGEST: u64 = 1 << 30;

/// State of a directory of manifests at the last read.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    /// Name of this node. Of Nodes with other names, only the existence of one is reported.
    node: Box<str>,
    files: BTreeMap<OsString, File>,
    claims: HashMap<Key, BTreeSet<OsString>>,
    complaints: Complaints,
    progress: Progress,
    /// True if the directory had no manifest at the last read.
    is_empty: bool,
}

/// Progress of the initial lists, one for each kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// No list has been sent yet.
    New,
    /// Lists have been sent, but without the objects of an unreadable file.
    Complete,
    /// Lists of all objects have been sent.
    Whole,
}

#[derive(Debug, Default)]
struct File {
    stamp: Option<Stamp>,
    objects: HashMap<Key, Content>,
    /// True if the file has been unreadable since the start.
    is_unknown: bool,
    /// True for an entry that is not a regular file.
    is_ignored: bool,
    /// Reason why the file is unreadable, with its effect, or `None` if the file is readable.
    error: Option<String>,
    /// Objects of the file that are unusable.
    unusable: Vec<UnreadableManifest>,
}

/// Metadata of a file. If the metadata differ, the file has changed. If they are equal, the file
/// may still have changed, because the kernel's clock for file times ticks only some hundred times
/// a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn new(metadata: &fs::Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// Files that inotify reported as changed.
#[derive(Debug, Default)]
pub(super) struct ChangedFiles {
    pub(super) names: HashSet<OsString>,
    pub(super) is_all: bool,
}

impl ChangedFiles {
    fn contains(&self, name: &OsStr) -> bool {
        self.is_all || self.names.contains(name)
    }
}

/// Events and warnings that result from one read of the directory.
#[derive(Debug, Default, PartialEq)]
pub(super) struct FolderUpdate {
    pub(super) events: Vec<Event>,
    /// Warnings about files and objects, for the log.
    pub(super) warnings: Vec<String>,
}

impl Folder {
    pub(super) fn new(path: &Path, node: &str) -> Self {
        Self {
            path: path.to_owned(),
            node: node.into(),
            files: BTreeMap::new(),
            claims: HashMap::new(),
            complaints: Complaints::default(),
            progress: Progress::New,
            is_empty: false,
        }
    }

    /// Returns the files that are unreadable, and the unusable objects of other files.
    pub(super) fn unreadable(&self) -> impl Iterator<Item = UnreadableManifest> {
        self.files.iter().flat_map(|(name, file)| {
            let error = file.error.as_ref().map(|reason| UnreadableManifest {
                place: self.path.join(name).display().to_string(),
                reason: reason.clone(),
            });
            error.into_iter().chain(file.unusable.iter().cloned())
        })
    }

    /// Reads the changed files, and returns the resulting events. If the directory is missing or
    /// cannot be listed, fails and changes nothing.
    pub(super) fn look(&mut self, touched: &ChangedFiles) -> io::Result<FolderUpdate> {
        let present = names(&self.path)?;
        let mut look = FolderRead::default();
        if present.is_empty() && !self.is_empty {
            look.warnings.push(format!(
                "{}: the directory has no manifest (*.yaml, *.yml or *.json), so no Service is \
                 served: check --manifests",
                self.path.display()
            ));
        }
        self.is_empty = present.is_empty();
        let gone: Vec<OsString> = self
            .files
            .keys()
            .filter(|name| !present.contains(*name))
            .cloned()
            .collect();
        for name in gone {
            self.remove(&mut look, &name);
        }
        for name in present {
            self.read(&mut look, &name, touched);
        }
        Ok(self.conclude(look))
    }

    /// Reads the file `name` if its metadata have changed, or if `touched` contains it.
    fn read(&mut self, look: &mut FolderRead, name: &OsStr, touched: &ChangedFiles) {
        let path = self.path.join(name);
        let metadata = fs::metadata(&path);
        let stamp = metadata.as_ref().ok().map(Stamp::new);
        let known = self.files.get(name);
        if !touched.contains(name) && known.is_some_and(|file| file.stamp == stamp) {
            return;
        }
        let is_unknown = known.map_or(self.progress == Progress::New, |file| file.is_unknown);
        let shown = path.display();
        let fate = match known {
            _ if is_unknown => "nothing is removed until its content is known: correct it",
            None => "nothing of it is served until it is corrected",
            Some(_) => "its previous objects stay until it is corrected",
        };
        let was_ignored = known.is_some_and(|file| file.is_ignored);
        let found = metadata.and_then(|metadata| content(&path, &metadata));
        let (separator, reason) = match found {
            Ok(Some(bytes)) => match document::read(&bytes) {
                Ok(located) => {
                    self.take(look, name, located);
                    let file = self.files.entry(name.to_owned()).or_default();
                    file.stamp = stamp;
                    file.is_unknown = false;
                    file.is_ignored = false;
                    file.error = None;
                    return;
                }
                Err(broken) => ("", broken.to_string()),
            },
            Ok(None) => {
                if !was_ignored {
                    look.warnings.push(format!(
                        "{shown}: this is not a regular file, and is ignored: replace it with a \
                         file, or rename it"
                    ));
                }
                self.remove(look, name);
                let file = self.files.entry(name.to_owned()).or_default();
                file.stamp = stamp;
                file.is_ignored = true;
                return;
            }
            // The file was deleted after the directory was listed. (The directory would still list
            // a dangling symbolic link.)
            Err(error)
                if error.kind() == io::ErrorKind::NotFound
                    && fs::symlink_metadata(&path).is_err() =>
            {
                return self.remove(look, name);
            }
            Err(error) => (" ", error.to_string()),
        };
        let reason = format!("{reason}; {fate}");
        look.warnings.push(format!("{shown}:{separator}{reason}"));
        let file = self.files.entry(name.to_owned()).or_default();
        file.stamp = stamp;
        file.is_unknown = is_unknown;
        file.error = Some(reason);
    }

    /// Stores the objects of the file `name`. An unusable object keeps its previous content.
    fn take(&mut self, look: &mut FolderRead, name: &OsStr, located: Vec<LocatedObject>) {
        let shown = self.path.join(name);
        let (mut objects, mut unusable) = (HashMap::new(), Vec::new());
        for LocatedObject { line, object } in located {
            let place = format!("{}:{line}", shown.display());
            let decoded = match object {
                Ok(decoded) => decoded,
                Err(unnamed) => {
                    look.warnings.push(format!("{place}: {unnamed}"));
                    continue;
                }
            };
            if decoded.key.kind == Kind::Node && decoded.key.name.name() != &*self.node {
                if matches!(decoded.content, Content::Proxied(_)) {
                    let event = || decoded.content.into_event(decoded.key);
                    look.other_node.get_or_insert_with(event);
                }
                continue;
            }
            let complaints = self.complaints.of(&decoded.key, &decoded.problems);
            look.warnings
                .extend(complaints.iter().map(|said| format!("{place}: {said}")));
            let known = self
                .files
                .get(name)
                .and_then(|file| file.objects.get(&decoded.key));
            if let (Content::Unusable, [first, ..]) = (&decoded.content, &decoded.problems[..]) {
                let (place, reason) = (place.clone(), first.to_string());
                unusable.push(UnreadableManifest { place, reason });
            }
            let content = match (decoded.content, known) {
                (Content::Unusable, Some(known)) => known.clone(),
                (content, _) => content,
            };
            match objects.entry(decoded.key) {
                Entry::Vacant(entry) => {
                    entry.insert(content);
                }
                Entry::Occupied(entry) => look.warnings.push(format!(
                    "{place}: {} is in this file twice; the first is used: remove one",
                    entry.key()
                )),
            }
        }
        self.replace(look, name, objects);
        let file = self.files.entry(name.to_owned()).or_default();
        file.unusable = unusable;
    }

    fn remove(&mut self, look: &mut FolderRead, name: &OsStr) {
        self.replace(look, name, HashMap::new());
        self.files.remove(name);
    }

    /// Replaces the objects that the file `name` claims with `objects`.
    fn replace(&mut self, look: &mut FolderRead, name: &OsStr, objects: HashMap<Key, Content>) {
        let before = self
            .files
            .get_mut(name)
            .map(|file| std::mem::take(&mut file.objects))
            .unwrap_or_default();
        for key in before.keys().chain(objects.keys()) {
            if !look.before.contains_key(key) {
                // At this point, `self.files` lacks the objects of this file. If this file provides
                // the object, its former content is in `before`.
                let content = self.winner(key).and_then(|winner| {
                    if winner == name {
                        before.get(key)
                    } else {
                        self.files.get(winner)?.objects.get(key)
                    }
                });
                look.before.insert(key.clone(), content.cloned());
            }
        }
        for key in before.keys().filter(|key| !objects.contains_key(*key)) {
            if let Some(files) = self.claims.get_mut(key) {
                files.remove(name);
                if files.is_empty() {
                    self.claims.remove(key);
                    self.complaints.forget(key);
                }
            }
        }
        for key in objects.keys() {
            let files = self.claims.entry(key.clone()).or_default();
            if files.insert(name.to_owned()) && files.len() > 1 {
                look.contested.push(key.clone());
            }
        }
        self.files.entry(name.to_owned()).or_default().objects = objects;
    }

    /// Returns the file that provides this object: the first file by name that contains it.
    fn winner(&self, key: &Key) -> Option<&OsStr> {
        Some(self.claims.get(key)?.first()?)
    }

    fn content(&self, key: &Key) -> Option<&Content> {
        self.files.get(self.winner(key)?)?.objects.get(key)
    }

    /// Compares the objects before and after the read. Returns an event for each difference.
    fn conclude(&mut self, look: FolderRead) -> FolderUpdate {
        let mut events = Vec::new();
        if self.progress == Progress::New {
            events.extend(Kind::ALL.map(Event::ListStarted));
        }
        events.extend(look.other_node);
        let mut changed: Vec<(Key, Option<Content>)> = look.before.into_iter().collect();
        changed.sort_by_cached_key(|(key, _)| (decode::kind_name(key.kind), key.name.clone()));
        let is_told = |content: &Option<Content>| {
            matches!(content, Some(Content::Proxied(_) | Content::Unusable))
        };
        for (key, before) in changed {
            let now = self.content(&key).cloned();
            if now != before && (is_told(&now) || is_told(&before)) {
                events.push(match now {
                    Some(content) => content.into_event(key),
                    None => key.into_deletion(),
                });
            }
        }
        let progress = if self.files.values().any(|file| file.is_unknown) {
            Progress::Complete
        } else {
            Progress::Whole
        };
        if progress != self.progress && self.progress != Progress::Whole {
            let is_whole = progress == Progress::Whole;
            events.extend(Kind::ALL.map(|kind| Event::ListComplete { kind, is_whole }));
            self.progress = progress;
        }
        let mut warnings = look.warnings;
        for key in look.contested {
            let files: Vec<_> = self.claims.get(&key).into_iter().flatten().collect();
            let names: Vec<_> = files.iter().map(|name| name.to_string_lossy()).collect();
            if let [first, ..] = &names[..] {
                warnings.push(format!(
                    "{}: {key} is in {}; {first} is used, as its name sorts first: leave it in \
                     one of them",
                    self.path.display(),
                    names.join(" and ")
                ));
            }
        }
        FolderUpdate { events, warnings }
    }
}

/// Data that one read of the directory collects.
#[derive(Debug, Default)]
struct FolderRead {
    /// Content before the read, for each object in the old or new version of a changed file.
    /// `None`: no file contained the object.
    before: HashMap<Key, Option<Content>>,
    contested: Vec<Key>,
    warnings: Vec<String>,
    /// Event about the first Node of another name, if there is one.
    other_node: Option<Event>,
}

/// Returns the names of the manifests in a directory.
pub(super) fn names(directory: &Path) -> io::Result<BTreeSet<OsString>> {
    let names = fs::read_dir(directory)?.map(|entry| Ok(entry?.file_name()));
    names
        .filter(|name| name.as_ref().map_or(true, |name| is_manifest(name)))
        .collect()
}

/// Reads a manifest. Returns `None` for a directory, a FIFO or a device: reading one could fail,
/// block or never end.
pub(super) fn content(path: &Path, metadata: &fs::Metadata) -> io::Result<Option<Vec<u8>>> {
    if !metadata.is_file() {
        return Ok(None);
    }
    if metadata.len() > LARGEST {
        let reason = "larger than 1 GiB: split it";
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, reason));
    }
    fs::read(path).map(Some)
}

/// Reports whether the source reads a file with this name: `*.yaml`, `*.yml` and `*.json`, except
/// hidden files. Hidden files are `..data` of a mounted ConfigMap, and temporary files of editors.
pub(super) fn is_manifest(name: &OsStr) -> bool {
    !name.as_bytes().starts_with(b".")
        && Path::new(name).extension().is_some_and(|extension| {
            ["yaml", "yml", "json"]
                .iter()
                .any(|known| extension == *known)
        })
}
