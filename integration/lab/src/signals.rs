//! Receives the signals that end a run (SIGINT, SIGTERM, SIGHUP) through a file descriptor. The
//! runner must then kill the VM and remove the work dir, which a signal handler could not do
//! safely.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd as _, OwnedFd};

/// File descriptor (signalfd) for SIGINT, SIGTERM and SIGHUP. The thread that created this value
/// blocks these signals as long as the value exists.
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

    /// Returns the number of the next signal, or `None` if no signal has arrived.
    pub(crate) fn next(&self) -> Option<u8> {
        let mut event = [0u8; size_of::<libc::signalfd_siginfo>()];
        let length = rustix::io::read(&self.fd, &mut event).ok()?;
        // The structure's first field is the signal's number (`ssi_signo`, a u32).
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
        // SAFETY: pthread_sigmask filled in `before` when this value was created.
        unsafe {
            libc::pthread_sigmask(
                libc::SIG_SETMASK,
                &raw const self.before,
                std::ptr::null_mut(),
            );
        }
    }
}

/// Unblocks all signals in a child process, for `pre_exec`. Otherwise the child would inherit the
/// blocked signals, because a signal mask survives fork and exec.
pub(crate) fn unblock_all() {
    let mut none = MaybeUninit::<libc::sigset_t>::uninit();
    #[allow(unsafe_code, reason = "std leaves the signal mask of a child as it is")]
    // SAFETY: both calls are async-signal-safe. The first call initialises the set.
    unsafe {
        libc::sigemptyset(none.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut());
    }
}

/// Sends SIGKILL to every process except the caller. Only for PID 1 of a PID namespace or a VM:
/// elsewhere it would kill the host's processes.
pub(crate) fn kill_all_others() {
    #[allow(unsafe_code, reason = "rustix cannot name the process id -1")]
    // SAFETY: kill takes two integers and accesses no memory.
    unsafe {
        libc::kill(-1, libc::SIGKILL);
    }
}
