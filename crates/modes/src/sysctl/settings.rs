//! Kernel settings for which flags give the values.

use std::time::Duration;

use flags::Flags;
use flags::unusable_flag::UnusableFlag;

/// Kernel settings for which flags give the values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Settings {
    /// Settings of connection tracking, from the flags `--conntrack-*`.
    pub conntrack: Conntrack,
    /// True to set `arp_ignore` and `arp_announce`, which only IPVS mode does
    /// (`--ipvs-strict-arp`).
    pub strict_arp: bool,
}

/// Settings of connection tracking, from flags. Zero keeps the kernel's value. A timeout is at
/// least one second, the kernel's unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Conntrack {
    /// Maximum number of conntrack entries for each CPU (`--conntrack-max-per-core`).
    pub max_per_core: u32,
    /// Minimum of the computed `nf_conntrack_max` (`--conntrack-min`). Ignored if `max_per_core` is
    /// zero.
    pub min: u32,
    /// Timeout of idle TCP connections in the state `ESTABLISHED`.
    pub tcp_established: Duration,
    /// Timeout of TCP connections in `CLOSE_WAIT`.
    pub tcp_close_wait: Duration,
    /// True if connection tracking accepts TCP segments outside of the window.
    pub tcp_be_liberal: bool,
    /// Timeout of UDP flows without a reply.
    pub udp: Duration,
    /// Timeout of UDP flows with replies.
    pub udp_stream: Duration,
}

impl Settings {
    /// Reads the settings from flags.
    ///
    /// # Errors
    ///
    /// Fails if a number is negative, or if a timeout is longer than zero but shorter than a
    /// second.
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
