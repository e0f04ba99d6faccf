//! Which settings of the kernel the flags ask for by name.

use std::time::Duration;

use flags::Flags;
use flags::unusable::UnusableFlag;

/// Settings of the kernel that flags ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Settings {
    /// Those of connection tracking.
    pub conntrack: Conntrack,
    /// Whether `arp_ignore` and `arp_announce` are set, in a mode that needs it.
    pub strict_arp: bool,
}

/// Settings of connection tracking; zero leaves the kernel's. Times are not shorter than a second,
/// in which the kernel counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Conntrack {
    /// Entries for each CPU.
    pub max_per_core: u32,
    /// Entries at least, if `max_per_core` is not zero.
    pub min: u32,
    /// Idle established TCP connections.
    pub tcp_established: Duration,
    /// TCP connections in `CLOSE_WAIT`.
    pub tcp_close_wait: Duration,
    /// Whether TCP segments outside of the window are valid.
    pub tcp_be_liberal: bool,
    /// UDP flows without an answer.
    pub udp: Duration,
    /// UDP flows with answers.
    pub udp_stream: Duration,
}

impl Settings {
    /// Reads the flags.
    ///
    /// # Errors
    ///
    /// The kernel cannot count one.
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
