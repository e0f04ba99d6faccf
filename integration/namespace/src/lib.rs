//! Network namespaces for single threads, for kernel tests that need at most one node.
//!
//! Only the calling thread, with the programs that it starts, moves into the new namespace. Other
//! threads stay in their namespace. For nodes with pods and external hosts, see `lab::world`.

use std::process::Command;
use std::{io, panic, thread};

use rustix::thread::{
    CapabilitySet, CapabilitySets, UnshareFlags, set_capabilities, unshare_unsafe,
};

/// Runs a test on a new thread in a new network namespace, and waits for the test. The kernel
/// removes the namespace when its last thread, program and socket are gone.
///
/// # Panics
///
/// Panics if the test panics, or if no namespace can be created (see [`enter`]).
pub fn in_namespace<T: Send>(story: impl FnOnce() -> T + Send) -> T {
    let story = || {
        #[allow(clippy::panic, reason = "a test stops at the first surprise")]
        enter().unwrap_or_else(|error| panic!("{error}"));
        story()
    };
    let told = thread::scope(|scope| scope.spawn(story).join());
    told.unwrap_or_else(|panic| panic::resume_unwind(panic))
}

/// Moves the calling thread into a new network namespace. The thread stays there until it ends.
/// Threads that it starts later are in the same namespace.
///
/// # Errors
///
/// Fails if the thread lacks `CAP_SYS_ADMIN`, or if the kernel's limit of namespaces is reached.
/// The thread then stays in its old namespace. The error names the failed operation.
pub fn enter() -> io::Result<()> {
    #[allow(
        unsafe_code,
        reason = "rustix marks every unshare unsafe because of CLONE_FILES"
    )]
    // SAFETY: the call changes only the calling thread's network namespace, on which no memory
    // safety depends. Without CLONE_FILES, the table of file descriptors stays shared.
    let unshared = unsafe { unshare_unsafe(UnshareFlags::NEWNET) };
    unshared.map_err(|errno| {
        let error = io::Error::from(errno);
        let text = format!("no new network namespace, which takes root (CAP_SYS_ADMIN): {error}");
        io::Error::new(error.kind(), text)
    })
}

/// Runs an example program of the workspace in the calling thread's network namespace, and returns
/// its output lines. The example must already be built.
///
/// # Panics
///
/// Panics if the example is not built, or if it fails.
#[allow(clippy::panic, reason = "a test stops at the first surprise")]
pub fn example(name: &str, arguments: &[&str]) -> Vec<String> {
    // The test binary is in target/PROFILE/deps, the example in target/PROFILE/examples.
    let test = std::env::current_exe().unwrap_or_default();
    let file = test
        .ancestors()
        .nth(2)
        .map(|target| target.join("examples").join(name));
    let file = file.unwrap_or_default();
    let output = Command::new(&file)
        .args(arguments)
        .output()
        .unwrap_or_else(|error| {
            panic!(
                "{}, which `cargo build --examples` makes: {error}",
                file.display()
            )
        });
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{name}: {}", text(&output.stderr));
    text(&output.stdout)
        .lines()
        .map(|line| line.trim_end().to_owned())
        .collect()
}

/// Drops all capabilities of the calling thread. Other threads keep their capabilities.
///
/// # Panics
///
/// Panics if the kernel refuses the change.
#[allow(clippy::expect_used, reason = "a test stops at the first surprise")]
pub fn drop_rights() {
    let none = CapabilitySet::empty();
    let none = CapabilitySets {
        effective: none,
        permitted: none,
        inheritable: none,
    };
    set_capabilities(None, none).expect("a thread may give up what it has");
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use std::collections::BTreeSet;
    use std::path::PathBuf;
    use std::process::Command;
    use std::{fs, panic};

    use super::{drop_rights, enter, in_namespace};

    /// Returns the link target that identifies the calling thread's network namespace.
    fn here() -> PathBuf {
        fs::read_link("/proc/thread-self/ns/net").unwrap()
    }

    /// Runs `ip` with these arguments, separated by blanks. The command must succeed.
    fn ip(arguments: &str) {
        let status = Command::new("ip").args(arguments.split(' ')).status();
        assert!(status.unwrap().success(), "ip {arguments}");
    }

    /// Returns the names of the links in the calling thread's network namespace.
    fn links() -> BTreeSet<String> {
        let table = fs::read_to_string("/proc/thread-self/net/dev").unwrap();
        let names = table.lines().filter_map(|line| line.split_once(':'));
        names.map(|(name, _)| name.trim().to_owned()).collect()
    }

    #[test]
    #[ignore = "needs root and a network namespace: run by make test in the lab"]
    fn links_in_a_namespace_are_invisible_outside() {
        let (outside, before) = (here(), links());
        let (first, within) = in_namespace(|| {
            ip("link add within type bridge");
            (here(), links())
        });
        assert!(within.contains("within") && within.contains("lo"));
        assert_eq!((here(), links()), (outside.clone(), before));
        let (second, anew) = in_namespace(|| (here(), links()));
        assert!(second != outside && first != outside);
        assert!(!anew.contains("within"), "{anew:?}");
    }

    #[test]
    #[ignore = "needs root and a network namespace: run by make test in the lab"]
    fn threads_inherit_the_namespace_of_their_parent() {
        let (outer, inner, child) = in_namespace(|| {
            let outer = here();
            enter().unwrap();
            let child = std::thread::spawn(here).join().unwrap();
            (outer, here(), child)
        });
        assert_ne!(outer, inner);
        assert_eq!(inner, child);
    }

    #[test]
    #[ignore = "needs root and a network namespace: run by make test in the lab"]
    fn a_panic_in_a_namespace_is_propagated() {
        let told = panic::catch_unwind(|| in_namespace(|| panic::panic_any(7_u8)));
        assert_eq!(*told.unwrap_err().downcast::<u8>().unwrap(), 7);
    }

    #[test]
    fn the_namespace_error_names_the_missing_capability() {
        let (told, is_moved) = std::thread::spawn(|| {
            let before = here();
            drop_rights();
            (enter().unwrap_err(), here() != before)
        })
        .join()
        .unwrap();
        assert!(told.to_string().contains("takes root (CAP_SYS_ADMIN)"));
        assert_eq!(told.kind(), std::io::ErrorKind::PermissionDenied);
        assert!(!is_moved);
    }
}
