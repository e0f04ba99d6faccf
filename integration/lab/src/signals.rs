//! The three signals that end a run early, as a file descriptor for poll. After such a signal, the
//! runner must kill the VM and remove the work dir. A signal handler cannot do this.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd as _, OwnedFd};

/// Descriptor for SIGINT, SIGTERM and SIGHUP. While this value exists, its thread blocks these
/// signals.
pub(crate) struct Signals {
    fd: OwnedFd,
    before: libc::sigset_t,
}

impl Signals {
    pub(crate) fn catch() -> io::Result<Self> {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        let mut before = MaybeUninit::<libc::sigset_t>::uninit();
        #[allow(unsafe_code, reason = "neither std nor rustix has signalfd")]
        // SAFETY: sigemptyset initialises `set`, and pthread_sigmask (given valid sets) initialises
        // `before`. signalfd returns -1, which is checked, or a descriptor that only this code
        // owns.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
                libc::sigaddset(set.as_mut_ptr(), signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), before.as_mut_ptr());
            let before = before.assume_init();
            match libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
                -1 => Err(io::Error::last_os_error()),
                fd => Ok(Self {
                    fd: OwnedFd::from_raw_fd(fd),
                    before,
                }),
            }
        }
    }

    /// Returns the signal that arrived, if any.
    pub(crate) fn next(&self) -> Option<u8> {
        let mut event = [0u8; size_of::<libc::signalfd_siginfo>()];
        let length = rustix::io::read(&self.fd, &mut event).ok()?;
        // The first field of the structure is ssi_signo, a u32.
        let number = u32::from_ne_bytes([event[0], event[1], event[2], event[3]]);
        if length == event.len() {
            number.try_into().ok()
        } else {
            None
        }
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        #[allow(unsafe_code, reason = "puts back the mask that catch() found")]
        // SAFETY: pthread_sigmask has filled in `before`.
        unsafe {
            libc::pthread_sigmask(
                libc::SIG_SETMASK,
                &raw const self.before,
                std::ptr::null_mut(),
            );
        }
    }
}

/// Unblocks every signal in a child process, for `pre_exec`. Without this, the child would inherit
/// the blocked signals, because signal masks survive fork and exec.
pub(crate) fn unblock_all() {
    let mut none = MaybeUninit::<libc::sigset_t>::uninit();
    #[allow(unsafe_code, reason = "std leaves the signal mask of a child as it is")]
    // SAFETY: both calls are async-signal-safe. The first call initialises the set.
    unsafe {
        libc::sigemptyset(none.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut());
    }
}

/// Sends SIGKILL to every process except the caller. Only for PID 1 of a separate PID namespace or
/// VM.
pub(crate) fn kill_all_others() {
    #[allow(unsafe_code, reason = "rustix cannot name the process id -1")]
    // SAFETY: kill takes two integers and accesses no memory.
    unsafe {
        libc::kill(-1, libc::SIGKILL);
    }
}
