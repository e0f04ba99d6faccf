//! A network namespace for a test of its own.

use std::thread;

use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Runs a story on a thread of its own, in a network namespace of its own. Needs root: the lab.
pub(crate) fn in_namespace(story: impl FnOnce() + Send + 'static) {
    let story = move || {
        #[allow(unsafe_code, reason = "there is no safe call")]
        // SAFETY: only the calling thread's network namespace changes, on which no memory safety
        // depends.
        let unshared = unsafe { unshare_unsafe(UnshareFlags::NEWNET) };
        unshared.expect("this test makes a network namespace: run it in the lab, or as root");
        story();
    };
    if let Err(panic) = thread::spawn(story).join() {
        std::panic::resume_unwind(panic);
    }
}
