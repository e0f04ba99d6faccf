//! Raises the limit of open files of this process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::debug;

/// Raises the soft limit of open files to the hard limit, as every Go program does at its start.
/// Containers often have a soft limit of 1024, for old programs that use `select`. Each
/// health-check node port needs one file per IP family.
pub fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        // No supported kernel refuses the call. If a kernel did, the daemon would continue with the
        // old limit.
        debug!(%error, ?limit, "the limit of open files stays");
    }
}

/// Adds the next step to an error about too many open files. Returns any other error unchanged.
pub fn with_next_step(error: String) -> String {
    // Searches the error's text for the error number, because some errors contain the number only
    // in their text.
    let is_errno = |errno: i32| error.contains(&format!("(os error {errno})"));
    if is_errno(libc::EMFILE) {
        format!(
            "{error}; this process may have too few files open: raise its limit (`ulimit -n`, \
             LimitNOFILE= of systemd, the \
             container runtime's nofile), 1024 are enough but for very many health-check node ports"
        )
    } else if is_errno(libc::ENFILE) {
        format!(
            "{error}; the node has too many files open: raise sysctl fs.file-max, and find the \
             processes (`lsof`)"
        )
    } else {
        error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_for_lack_of_file_descriptors_has_a_next_step() {
        let told = |errno: i32| {
            let error = std::io::Error::from_raw_os_error(errno);
            with_next_step(format!("cannot subscribe to address changes: {error}"))
        };
        assert!(told(libc::EMFILE).contains("ulimit -n"));
        assert!(told(libc::ENFILE).contains("fs.file-max"));
        assert!(told(libc::EPERM).ends_with("(os error 1)"));
    }

    #[test]
    fn the_soft_file_limit_is_raised_to_the_hard_limit() {
        let limit = getrlimit(Resource::Nofile);
        let lower = limit.current.map(|current| current - 1);
        let current = lower;
        setrlimit(Resource::Nofile, Rlimit { current, ..limit }).unwrap();
        raise_limit();
        assert_eq!(getrlimit(Resource::Nofile).current, limit.maximum);
    }
}
