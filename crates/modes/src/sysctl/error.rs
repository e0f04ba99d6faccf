//! Errors of kernel settings, with the next step for the operator.

use std::fmt;
use std::io;

use super::row::SysctlRow;

/// Failures to set single kernel settings. All other settings have their wanted values.
#[derive(Debug, thiserror::Error)]
pub struct SysctlErrors(pub Vec<SysctlError>);

/// Failure to read or write a kernel setting.
#[derive(Debug)]
pub struct SysctlError {
    /// Properties of the setting that could not be read or written.
    pub row: &'static SysctlRow,
    /// Value that the daemon wanted to write.
    pub(super) value: u64,
    pub(super) found: String,
    pub(super) source: io::Error,
}

/// Lists the settings by reason, with advice for each reason.
impl fmt::Display for SysctlErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut reasons: Vec<(String, Vec<&SysctlError>)> = Vec::new();
        for error in &self.0 {
            let reason = error.source.to_string();
            match reasons.iter_mut().find(|(known, _)| *known == reason) {
                Some((_, errors)) => errors.push(error),
                None => reasons.push((reason, vec![error])),
            }
        }
        for (number, (reason, errors)) in reasons.iter().enumerate() {
            let settings: Vec<String> = errors.iter().map(ToString::to_string).collect();
            let advice = errors.first().map_or("", |error| error.advice());
            let between = if number == 0 { "" } else { ". And " };
            write!(
                f,
                "{between}cannot set {}: {reason}; {advice}",
                settings.join(", ")
            )?;
        }
        Ok(())
    }
}

/// Names the setting, its wanted and current value, and the flag that leaves it unchanged.
impl fmt::Display for SysctlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            row, value, found, ..
        } = self;
        write!(f, "{} to {value} (it is {found}", row.name())?;
        match row.off {
            Some(off) => write!(f, "; {off} leaves it so)"),
            None => f.write_str(")"),
        }
    }
}

impl SysctlError {
    fn advice(&self) -> &'static str {
        match self.source.kind() {
            io::ErrorKind::NotFound => {
                "the kernel lacks it: are ip_vs and nf_conntrack loaded (modprobe ip_vs)?"
            }
            io::ErrorKind::InvalidInput => "the kernel does not take this value here",
            _ => {
                "set it on the node itself, or let this process, or one before it with --init-only, \
                 write /proc/sys and /sys (where an init container does, \
                 `kubectl -n kube-system rollout restart daemonset NAME` runs it)"
            }
        }
    }
}
