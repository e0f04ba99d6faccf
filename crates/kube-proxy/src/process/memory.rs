//! What the system is told of this process's memory; above all, it is given back what the allocator
//! keeps after much was freed at once.
//!
//! A first sync, and each check for drift, hold tens of megabytes for a second: writes and their
//! answers, or all that the kernel holds. glibc's allocator keeps freed memory below the last piece
//! in use, in an arena for each thread, until it is asked. It is told once to use one arena, as
//! threads here hardly ever allocate at the same time, and to keep what a first sync frees for what
//! it takes next: fresh pages cost more than most of what is done with them. Other C libraries are
//! left as they are.

use tracing::warn;

/// Sets the allocator up; before a thread starts.
pub fn start() {
    #[cfg(target_env = "gnu")]
    for (option, value) in [
        (libc::M_ARENA_MAX, 1),
        // To set these is what keeps them from growing with what is freed.
        (libc::M_MMAP_THRESHOLD, LARGE_BYTES),
        (libc::M_TRIM_THRESHOLD, LARGE_BYTES),
    ] {
        #[allow(unsafe_code, reason = "there is no safe call")]
        // SAFETY: mallopt takes and returns numbers; it is called before any other thread starts,
        // with options of malloc.h.
        unsafe {
            // What an allocator does not know it leaves.
            libc::mallopt(option, value);
        }
    }
}

/// From so many bytes on, an allocation is a mapping of its own, and free memory at the end of the
/// heap is given back unasked. No single piece that 10,000 Services need is larger.
#[cfg(target_env = "gnu")]
const LARGE_BYTES: libc::c_int = 8 * 1024 * 1024;

/// Gives back all whole pages that are free. Takes milliseconds where tens of megabytes are in use.
pub(crate) fn trim() {
    #[cfg(target_env = "gnu")]
    {
        #[allow(unsafe_code, reason = "there is no safe call")]
        // SAFETY: malloc_trim takes a number, locks each arena, and touches only memory that nobody
        // has.
        unsafe {
            libc::malloc_trim(0);
        }
    }
}

/// Says how unwilling the kernel is to kill this process when memory is short.
pub fn set_oom_score(wanted: i16) {
    const FILE: &str = "/proc/self/oom_score_adj";
    let wanted = wanted.to_string();
    if std::fs::read_to_string(FILE).is_ok_and(|found| found.trim() == wanted) {
        return;
    }
    if let Err(error) = std::fs::write(FILE, &wanted) {
        warn!(
            "cannot set {FILE} to {wanted}: {error}; allow CAP_SYS_RESOURCE, or give --oom-score-adj (oomScoreAdj) what it is"
        );
    }
}
