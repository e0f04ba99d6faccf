//! Memory settings of this process. Returns memory to the system that the allocator keeps after
//! large pieces of work.
//!
//! A first sync and each check for drift use tens of megabytes for a second: writes with their
//! replies, or a dump of the kernel. glibc's allocator has an arena for each thread. It keeps freed
//! memory below an arena's last allocation until `malloc_trim` is called.
//!
//! At its start, this process configures a single arena, because its threads rarely allocate in
//! parallel. It also makes the allocator keep the memory that a first sync frees. Later allocations
//! reuse that memory, because fresh pages cost more than most work on them. Other C libraries are
//! not configured.

use tracing::warn;

/// Sets up the allocator. Must be called before a thread starts.
pub fn start() {
    #[cfg(target_env = "gnu")]
    for (option, value) in [
        (libc::M_ARENA_MAX, 1),
        // Setting a threshold keeps the allocator from raising it.
        (libc::M_MMAP_THRESHOLD, LARGE_BYTES),
        (libc::M_TRIM_THRESHOLD, LARGE_BYTES),
    ] {
        #[allow(unsafe_code, reason = "there is no safe call")]
        // SAFETY: mallopt takes and returns numbers. It is called before any other thread starts,
        // with options of malloc.h.
        unsafe {
            // An allocator ignores options that it does not know.
            libc::mallopt(option, value);
        }
    }
}

/// Size from which the allocator maps an allocation separately. It is also the size from which free
/// memory at the end of the heap is returned automatically. No single allocation for 10,000
/// Services is larger.
#[cfg(target_env = "gnu")]
const LARGE_BYTES: libc::c_int = 8 * 1024 * 1024;

/// Returns all free whole pages to the system. Takes milliseconds if tens of megabytes are in use.
pub(crate) fn trim() {
    #[cfg(target_env = "gnu")]
    {
        #[allow(unsafe_code, reason = "there is no safe call")]
        // SAFETY: malloc_trim takes a number, locks each arena, and touches only free memory.
        unsafe {
            libc::malloc_trim(0);
        }
    }
}

/// Sets the OOM score of this process. A lower score makes the kernel less likely to kill the
/// process when memory is short.
pub fn set_oom_score(wanted: i16) {
    const FILE: &str = "/proc/self/oom_score_adj";
    let wanted = wanted.to_string();
    if std::fs::read_to_string(FILE).is_ok_and(|found| found.trim() == wanted) {
        return;
    }
    if let Err(error) = std::fs::write(FILE, &wanted) {
        warn!(
            "cannot set {FILE} to {wanted}: {error}; allow CAP_SYS_RESOURCE, or set \
             --oom-score-adj (oomScoreAdj) to the current value"
        );
    }
}
