//! Addresses of the local socket: a file in a directory that only root and the daemon's user can
//! access, or an abstract name if the file cannot be created.
//!
//! While no daemon has the abstract name, any process of the network namespace can bind it. So a
//! client trusts the process that has the name only if that process runs the client's own program
//! file.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;
use tracing::info;

/// Directory of the socket file. If the container's root file system is read-only, the pod mounts a
/// volume at `/run/kube-proxy`.
const FOLDER: &str = "/run/kube-proxy/inspect";
/// Abstract name of the socket (unix(7)), for a node where the socket file cannot be created.
const NAME: &str = "kube-proxy-ipvs/inspect";
/// File that identifies the network namespace of the calling thread.
const NAMESPACE: &str = "/proc/thread-self/ns/net";

/// Addresses of the local socket in one network namespace: a file, or an abstract name if the file
/// cannot be created.
#[derive(Debug, Clone)]
pub struct SocketLocations {
    folder: PathBuf,
    name: String,
}

impl Default for SocketLocations {
    fn default() -> Self {
        Self {
            folder: PathBuf::from(FOLDER),
            name: NAME.to_owned(),
        }
    }
}

/// A bound local socket, and its file if it has one.
#[derive(Debug)]
pub struct BoundSocket {
    /// Listening socket, which accepts the clients' connections.
    pub listener: UnixListener,
    /// Socket file. `None`: the socket has an abstract name.
    pub file: Option<OwnFile>,
}

/// Socket file that this process has created. Dropping the value removes the file.
#[derive(Debug)]
pub struct OwnFile(PathBuf);

impl Drop for OwnFile {
    fn drop(&mut self) {
        // If the file cannot be removed, the next daemon replaces it.
        let _ = fs::remove_file(&self.0);
    }
}

impl SocketLocations {
    /// Returns the addresses with this directory and this abstract name.
    pub fn of(folder: &Path, name: &str) -> Self {
        Self {
            folder: folder.to_owned(),
            name: name.to_owned(),
        }
    }

    /// Returns the socket file of this network namespace. Daemons of several namespaces may share a
    /// directory.
    pub fn file(&self) -> io::Result<PathBuf> {
        let namespace = fs::metadata(NAMESPACE)?.ino();
        Ok(self.folder.join(format!("{namespace}.sock")))
    }

    fn address(&self) -> io::Result<SocketAddr> {
        SocketAddr::from_abstract_name(&self.name)
    }

    /// Binds the socket file or, if its directory cannot be used, the abstract name.
    ///
    /// # Errors
    ///
    /// Fails if another process has bound the socket. The error names that process.
    pub fn bind(&self) -> io::Result<BoundSocket> {
        let why = match self.own_folder() {
            Ok(()) => return self.bind_file(),
            Err(error) => error,
        };
        let bound = UnixListener::bind_addr(&self.address()?);
        let listener = bound.map_err(|error| self.held(error))?;
        info!(
            "the local socket is the abstract one, @{}, since directory {} cannot be used: {why}; mount a volume there",
            self.name,
            self.folder.display()
        );
        Ok(BoundSocket {
            listener,
            file: None,
        })
    }

    /// Replaces an `AddrInUse` error with an error that names the process that has bound the
    /// abstract name.
    fn held(&self, error: io::Error) -> io::Error {
        if error.kind() != io::ErrorKind::AddrInUse {
            return error;
        }
        let holder = self.address().and_then(|at| UnixStream::connect_addr(&at));
        let holder = holder.ok().and_then(|stream| Holder::of(&stream).ok());
        let holder = holder.map_or_else(|| "another process".to_owned(), |of| of.to_string());
        let text = format!("{holder} holds @{}", self.name);
        io::Error::new(io::ErrorKind::AddrInUse, text)
    }

    /// Creates the socket directory, which only this user and root can access. Fails if another
    /// user owns it, or if it is not writable.
    fn own_folder(&self) -> io::Result<()> {
        if let Some(parent) = self.folder.parent() {
            fs::create_dir_all(parent)?;
        }
        match DirBuilder::new().mode(0o700).create(&self.folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let found = fs::symlink_metadata(&self.folder)?;
        let own = geteuid().as_raw();
        if !found.is_dir() || found.uid() != own {
            let text = if found.is_dir() {
                format!("it is of user {}, not of user {own}", found.uid())
            } else {
                "it is not a directory".to_owned()
            };
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        if found.mode() & 0o077 != 0 {
            fs::set_permissions(&self.folder, Permissions::from_mode(0o700))?;
        }
        // Detects a read-only file system, where the calls above succeed if the directory already
        // exists.
        rustix::fs::access(&self.folder, rustix::fs::Access::WRITE_OK)?;
        Ok(())
    }

    fn bind_file(&self) -> io::Result<BoundSocket> {
        let file = self.file()?;
        let listener = match UnixListener::bind(&file) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                match UnixStream::connect(&file) {
                    Ok(stream) => {
                        let holder = Holder::of(&stream)?;
                        let text = format!("{holder} serves at {}", file.display());
                        return Err(io::Error::new(io::ErrorKind::AddrInUse, text));
                    }
                    // A daemon that was killed left this file. No process listens on the file, so
                    // this process replaces it.
                    Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                        fs::remove_file(&file)?;
                    }
                    Err(error) => return Err(error),
                }
                UnixListener::bind(&file)?
            }
            bound => bound?,
        };
        Ok(BoundSocket {
            listener,
            file: Some(OwnFile(file)),
        })
    }

    /// Connects to the daemon of this network namespace. Returns `None` if no process listens.
    ///
    /// # Errors
    ///
    /// Fails if this process cannot confirm that the listening process is the daemon, or if the
    /// socket cannot be used.
    pub fn connect(&self) -> io::Result<Option<UnixStream>> {
        match self.connect_file() {
            Ok(Some(stream)) => Ok(Some(stream)),
            Ok(None) => self.connect_abstract(),
            // Tries the abstract name, because a daemon would also reject another user's directory
            // and bind the abstract name instead.
            Err(error) if self.own_folder_is_foreign() => match self.connect_abstract()? {
                Some(stream) => Ok(Some(stream)),
                None => Err(error),
            },
            Err(error) => Err(error),
        }
    }

    /// Reports whether a daemon would reject the socket directory: it is not a directory, or its
    /// owner is not trusted.
    fn own_folder_is_foreign(&self) -> bool {
        fs::symlink_metadata(&self.folder)
            .is_ok_and(|found| !found.is_dir() || !is_trusted(found.uid()))
    }

    fn connect_file(&self) -> io::Result<Option<UnixStream>> {
        let found = match fs::symlink_metadata(&self.folder) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let folder = self.folder.display();
        if !(found.is_dir() && is_trusted(found.uid()) && found.mode() & 0o022 == 0) {
            let text = format!(
                "{folder} is of user {}, others may write to it, or it is not a directory: whoever listens there is not asked",
                found.uid()
            );
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        let stream = match UnixStream::connect(self.file()?) {
            Ok(stream) => stream,
            Err(error) => {
                return match error.kind() {
                    io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => Ok(None),
                    io::ErrorKind::PermissionDenied => {
                        let text = format!(
                            "only root, and the user that kube-proxy runs as, may ask in {folder}: ask as root (sudo)"
                        );
                        Err(io::Error::new(error.kind(), text))
                    }
                    _ => Err(error),
                };
            }
        };
        let holder = Holder::of(&stream)?;
        if !is_trusted(holder.user) {
            return Err(holder.is_not_asked(&folder));
        }
        Ok(Some(stream))
    }

    fn connect_abstract(&self) -> io::Result<Option<UnixStream>> {
        let stream = match UnixStream::connect_addr(&self.address()?) {
            Ok(stream) => stream,
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return Ok(None),
            Err(error) => return Err(error),
        };
        let holder = Holder::of(&stream)?;
        if !is_trusted(holder.user) || !holder.runs_this_program() {
            return Err(holder.is_not_asked(&format_args!("@{}", self.name)));
        }
        Ok(Some(stream))
    }
}

impl std::fmt::Display for SocketLocations {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, @{}", self.folder.display(), self.name)
    }
}

/// Reports whether a socket's user is root or the user of this process.
fn is_trusted(user: u32) -> bool {
    user == 0 || user == geteuid().as_raw()
}

/// Process that listens on a socket, as the kernel reports it.
#[derive(Debug)]
struct Holder {
    /// Process ID. `None`: the process is in a PID namespace that this process cannot see.
    process: Option<u32>,
    user: u32,
}

impl Holder {
    fn of(stream: &UnixStream) -> io::Result<Self> {
        let credentials = socket_peercred(stream)?;
        Ok(Self {
            process: u32::try_from(credentials.pid.as_raw_pid())
                .ok()
                .filter(|process| *process > 0),
            user: credentials.uid.as_raw(),
        })
    }

    fn program(&self) -> Option<PathBuf> {
        Some(PathBuf::from(format!("/proc/{}/exe", self.process?)))
    }

    /// Reports whether the process runs the same program file as this process.
    fn runs_this_program(&self) -> bool {
        let file = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino()));
        let own = file(Path::new("/proc/self/exe"));
        let its = self.program().map(|program| file(&program));
        matches!((own, its), (Ok(own), Some(Ok(its))) if own == its)
    }

    fn is_not_asked(&self, place: &dyn std::fmt::Display) -> io::Error {
        let text = format!(
            "{self} listens at {place} and is not known to be the kube-proxy of this node: it is not asked. Ask in the container \
             of kube-proxy (kubectl exec)"
        );
        io::Error::new(io::ErrorKind::PermissionDenied, text)
    }
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.process {
            Some(process) => write!(f, "process {process}")?,
            None => f.write_str("a process of another container")?,
        }
        let program = self.program().and_then(|link| fs::read_link(link).ok());
        if let Some(program) = program {
            write!(f, " ({})", program.display())?;
        }
        write!(f, " of user {}", self.user)
    }
}
