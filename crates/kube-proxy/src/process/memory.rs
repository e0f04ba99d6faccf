//! Configures the allocator of this process, and returns memory to the system after kernel work
//! that used much memory.
//!
//! A first sync and each drift check use tens of megabytes for about a second. They need this
//! memory for writes with their replies, or for a dump of kernel entries. glibc's allocator has a
//! separate arena for each thread. In each arena, it keeps freed memory below the last allocation
//! until `malloc_trim` is called. So:
//!
//! - This process uses a single arena, because its threads rarely allocate in parallel.
//! - The allocator keeps the memory that a first sync frees, because later work reuses it. Fresh
//!   pages would cost more than most of that work.
//! - A second after work that used much memory, the daemon calls `trim`, which returns the unused
//!   memory to the system.
//!
//! Other C libraries are not configured.

use tracing::warn;

/// Sets up the allocator. Must be called before a thread starts.
pub fn start() {
    #[cfg(target_env = "gnu")]
    for (option, value) in [
        (libc::M_ARENA_MAX, 1),
        // Sets the mmap threshold explicitly, because glibc otherwise raises it by itself.
        (libc::M_MMAP_THRESHOLD, LARGE_BYTES),
        (libc::M_TRIM_THRESHOLD, LARGE_BYTES),
    ] {
        #[allow(unsafe_code, reason = "there is no safe call")]
        // SAFETY: mallopt takes and returns numbers. This process calls it before it starts another
        // thread, with options from malloc.h.
        unsafe {
            // Ignores the result: an allocator may not know an option.
            libc::mallopt(option, value);
        }
    }
}

/// Size in bytes from which the allocator maps an allocation separately. Free memory of this size
/// at the end of the heap returns to the system at once. No single allocation for 10,000 Services
/// is larger.
#[cfg(target_env = "gnu")]
const LARGE_BYTES: libc::c_int = 8 * 1024 * 1024;

/// Returns all unused whole pages to the system. Takes milliseconds for tens of megabytes.
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

/// Sets the OOM score adjustment of this process. With a lower score, the kernel is less likely to
/// kill the process when memory is short.
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
