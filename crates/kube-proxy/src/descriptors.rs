//! How many files this process may have open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::debug;

/// Raises the soft limit of open files to the hard one, as a Go program does when it starts: the
/// soft one is 1024 in many containers, for the sake of programs that use `select`, and here each
/// health-check node port is an open file of each family.
pub fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        // None of the kernels that this runs on refuses it; and it goes on with what it has.
        debug!(%error, ?limit, "the limit of open files stays");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_becomes_the_hard_one() {
        let limit = getrlimit(Resource::Nofile);
        let lower = limit.current.map(|current| current - 1);
        let current = lower;
        setrlimit(Resource::Nofile, Rlimit { current, ..limit }).unwrap();
        raise_limit();
        assert_eq!(getrlimit(Resource::Nofile).current, limit.maximum);
    }
}
