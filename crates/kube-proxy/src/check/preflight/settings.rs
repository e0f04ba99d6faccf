//! Checks each kernel setting: its value, the value that the mode needs, and the permission to
//! write the setting.

use modes::sysctl::row::Need;
use modes::sysctl::setting::Setting;

use crate::check::finding::{Finding, some};

const NAME: &str = "settings";

/// A kernel setting that does not have the value that the mode needs.
#[derive(Debug)]
pub(super) struct PendingSetting {
    pub(super) setting: Setting,
    pub(super) need: Need,
    /// True if this process may write the setting.
    pub(super) is_writable: bool,
}

/// Returns findings about kernel settings. `has_served` is true if this mode has already served on
/// this node. Wrong settings then cause only warnings, because the mode would serve in any case.
pub(super) fn judge(pending: &[PendingSetting], has_served: bool) -> Vec<Finding> {
    if pending.is_empty() {
        return vec![Finding::ok(NAME, "all have their wanted values")];
    }
    let of = |is_writable| {
        let some = pending
            .iter()
            .filter(move |one| one.is_writable == is_writable);
        some.map(|PendingSetting { setting, .. }| {
            let Setting {
                name,
                found,
                wanted,
            } = setting;
            format!("{name}={wanted} (it is {found})")
        })
        .collect::<Vec<_>>()
    };
    let mut findings = Vec::new();
    let (set, stuck) = (of(true), of(false));
    if !set.is_empty() {
        findings.push(Finding::ok(NAME, format!("to be set: {}", some(&set))));
    }
    if !stuck.is_empty() {
        let message = format!(
            "cannot be set from here: {}; set them on the node with `sysctl -w`, or have --init-only do it in a \
             privileged init container",
            some(&stuck)
        );
        let mut refused = pending.iter().filter(|one| !one.is_writable);
        let is_needed = refused.any(|one| one.need == Need::Mode);
        findings.push(if is_needed && !has_served {
            Finding::fail(NAME, message)
        } else {
            Finding::warn(NAME, message)
        });
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::finding::Status;

    fn pending(need: Need, is_writable: bool) -> PendingSetting {
        PendingSetting {
            setting: Setting {
                name: "net.ipv4.ip_forward".to_owned(),
                found: "0".to_owned(),
                wanted: "1".to_owned(),
            },
            need,
            is_writable,
        }
    }

    #[test]
    fn a_start_fails_only_for_settings_that_the_mode_requires() {
        let statuses = |pending: &[PendingSetting], has_served| {
            let findings = judge(pending, has_served).into_iter();
            findings.map(|finding| finding.status).collect::<Vec<_>>()
        };
        assert_eq!(statuses(&[], false), [Status::Ok]);
        assert_eq!(statuses(&[pending(Need::Mode, true)], false), [Status::Ok]);
        assert_eq!(
            statuses(&[pending(Need::Mode, false)], false),
            [Status::Fail]
        );
        assert_eq!(
            statuses(&[pending(Need::Mode, false)], true),
            [Status::Warn]
        );
        let both = [pending(Need::Mode, true), pending(Need::Comfort, false)];
        assert_eq!(statuses(&both, false), [Status::Ok, Status::Warn]);
        let told = &judge(&both, false)[0].message;
        assert_eq!(told, "to be set: net.ipv4.ip_forward=1 (it is 0)");
    }
}
