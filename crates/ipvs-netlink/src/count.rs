//! Counts virtual servers with a single system call. Only the old control interface (`getsockopt`)
//! reports this number. Generic netlink does not report it.
//!
//! Source: `include/uapi/linux/ip_vs.h`, `net/netfilter/ipvs/ip_vs_ctl.c` (`do_ip_vs_get_ctl`).

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// Socket option that reads the number of virtual servers (`IP_VS_SO_GET_INFO`).
const GET_INFO: libc::c_int = 64 + 1024 + 64 + 1;
/// Size in bytes of `struct ip_vs_getinfo`: version, size of the connection table, number of
/// virtual servers.
const INFO: usize = 12;

/// A socket that reads the number of virtual servers. It works in the network namespace of the
/// thread that opened it.
#[derive(Debug)]
pub struct ServiceCounter(OwnedFd);

impl ServiceCounter {
    /// Opens a socket for reading the number of virtual servers.
    ///
    /// # Errors
    ///
    /// Returns the system call's error.
    pub fn open() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?;
        Ok(Self(socket))
    }

    /// Returns the number of IPv4 virtual servers, including those for a firewall mark. IPv6
    /// virtual servers do not count. Needs `CAP_NET_ADMIN`.
    ///
    /// # Errors
    ///
    /// Returns `EPERM` without `CAP_NET_ADMIN`, and `ENOPROTOOPT` if `ip_vs` is not loaded.
    #[allow(unsafe_code, reason = "no crate offers this socket option")]
    pub fn count(&self) -> io::Result<u32> {
        let mut info = [0_u8; INFO];
        let mut length = libc::socklen_t::try_from(INFO).map_err(io::Error::other)?;
        // SAFETY: the descriptor is open. The kernel writes at most `length` bytes to `info`, which
        // has `length` bytes.
        let result = unsafe {
            libc::getsockopt(
                self.0.as_raw_fd(),
                libc::IPPROTO_IP,
                GET_INFO,
                info.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        let [.., a, b, c, d] = info;
        Ok(u32::from_ne_bytes([a, b, c, d]))
    }
}
