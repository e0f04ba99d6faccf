//! Kernel settings that flags request by name.

use std::time::Duration;

use flags::Flags;
use flags::unusable_flag::UnusableFlag;

/// Kernel settings for which flags give the values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Settings {
    /// Requested settings of connection tracking.
    pub conntrack: Conntrack,
    /// True to set `arp_ignore` and `arp_announce`, if the mode needs them.
    pub strict_arp: bool,
}

/// Requested settings of connection tracking. Zero keeps the kernel's value. A time is at least one
/// second, the kernel's unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Conntrack {
    /// Largest number of conntrack entries for each CPU.
    pub max_per_core: u32,
    /// Lower bound for the maximum number of conntrack entries, if `max_per_core` is not zero.
    pub min: u32,
    /// Timeout of idle TCP connections that are established.
    pub tcp_established: Duration,
    /// Timeout of TCP connections in `CLOSE_WAIT`.
    pub tcp_close_wait: Duration,
    /// True to treat TCP segments outside of the window as valid.
    pub tcp_be_liberal: bool,
    /// Timeout of UDP flows that have no reply.
    pub udp: Duration,
    /// Timeout of UDP flows that have replies.
    pub udp_stream: Duration,
}

impl Settings {
    /// Reads the settings from flags.
    ///
    /// # Errors
    ///
    /// Fails if a time is too long for the kernel.
    pub fn read(flags: &Flags) -> Result<Self, UnusableFlag> {
        Ok(Self {
            conntrack: Conntrack::read(flags)?,
            strict_arp: flags.ipvs_strict_arp,
        })
    }
}

impl Conntrack {
    fn read(flags: &Flags) -> Result<Self, UnusableFlag> {
        let count = |flag, count: i32| {
            u32::try_from(count).map_err(|_| {
                UnusableFlag::new(flag, &count.to_string(), "give a number of entries, or 0")
            })
        };
        let timeout = |flag, timeout: Duration| {
            if timeout.is_zero() || timeout >= Duration::from_secs(1) {
                return Ok(timeout);
            }
            Err(UnusableFlag::new(
                flag,
                &format!("{timeout:?}"),
                "the kernel counts whole seconds: give 1s or more, or 0 to leave the kernel's",
            ))
        };
        Ok(Self {
            max_per_core: count("conntrack-max-per-core", flags.conntrack_max_per_core)?,
            min: count("conntrack-min", flags.conntrack_min)?,
            tcp_established: timeout(
                "conntrack-tcp-timeout-established",
                flags.conntrack_tcp_timeout_established,
            )?,
            tcp_close_wait: timeout(
                "conntrack-tcp-timeout-close-wait",
                flags.conntrack_tcp_timeout_close_wait,
            )?,
            tcp_be_liberal: flags.conntrack_tcp_be_liberal,
            udp: timeout("conntrack-udp-timeout", flags.conntrack_udp_timeout)?,
            udp_stream: timeout(
                "conntrack-udp-timeout-stream",
                flags.conntrack_udp_timeout_stream,
            )?,
        })
    }
}
