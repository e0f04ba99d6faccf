//! Options of Services that this node ignores, and the reasons.

use crate::model::Model;
use crate::names::NamespacedName;
use crate::options::{OptionRow, UnavailableOption};

/// An option of a Service that is ignored.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct IgnoredOption {
    annotation: Box<str>,
    value: Box<str>,
    /// The reason, and the advice.
    pub(crate) reason: String,
    /// True if the reason depends on this node.
    pub(crate) is_of_this_node: bool,
}

impl IgnoredOption {
    /// Describes the refused action: `heed annotation kube-proxy-ipvs/scheduler "best"`.
    pub(crate) fn object(&self) -> String {
        format!(
            "heed annotation {} {:?}",
            self.annotation.escape_debug(),
            self.value
        )
    }
}

/// Options that this node supports: the mode's options, without the values that the kernel lacks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OptionSupport {
    /// The mode's name.
    pub mode: &'static str,
    /// Values that the kernel does not support.
    pub unavailable: Vec<UnavailableOption>,
}

impl OptionSupport {
    /// Returns the ignored options with their Services. O(Services with options).
    pub fn unheeded<'a>(
        &'a self,
        model: &'a Model,
    ) -> impl Iterator<Item = (&'a NamespacedName, IgnoredOption)> {
        model
            .services_with_options()
            .flat_map(move |(service, options)| {
                let wrong = options.wrong.iter().map(|one| IgnoredOption {
                    annotation: one.annotation.clone(),
                    value: one.value.clone(),
                    reason: match OptionRow::of(&one.annotation) {
                        Some(row) => format!("{}; {} holds until then", one.advice(), row.default),
                        None => format!("{}; correct it, or take it away", one.advice()),
                    },
                    is_of_this_node: false,
                });
                let given = options.given();
                let refused = given.filter_map(|(row, value)| self.judge(row, value));
                wrong.chain(refused).map(|one| (&service.name, one))
            })
    }

    fn judge(&self, row: &OptionRow, value: String) -> Option<IgnoredOption> {
        let is_it =
            |one: &&UnavailableOption| one.annotation == row.annotation && one.value == value;
        let reason = if row.is_heeded_by(self.mode) {
            let lack = self.unavailable.iter().find(is_it)?;
            format!("{}; {} holds until then", lack.reason, row.default)
        } else {
            let modes = row.modes.join(", ");
            format!("it means nothing in {} mode, only in: {modes}", self.mode)
        };
        Some(IgnoredOption {
            annotation: row.annotation.into(),
            value: value.into(),
            reason,
            is_of_this_node: row.is_heeded_by(self.mode),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{SCHEDULER, ServiceOptions};
    use crate::{Event, Service};

    #[test]
    fn each_ignored_option_is_reported_with_its_allowed_values() {
        let mut model = Model::new();
        let given = [
            ("plain", vec![]),
            ("right", vec![(SCHEDULER, "sh")]),
            ("lacking", vec![(SCHEDULER, "lblc")]),
            (
                "wrong",
                vec![(SCHEDULER, "be\"st"), ("kube-proxy-ipvs/weight", "3")],
            ),
        ];
        for (name, annotations) in given {
            model.apply(Event::ServiceApplied(Service {
                options: ServiceOptions::read(annotations.into_iter()),
                ..Service::at(
                    NamespacedName::new("default", name),
                    [[10, 96, 0, 1].into()],
                )
            }));
        }
        let told = |mode| {
            let unavailable = vec![UnavailableOption {
                annotation: SCHEDULER,
                value: "lblc".to_owned(),
                reason: "run `modprobe ip_vs_lblc`".to_owned(),
            }];
            let heeding = OptionSupport { mode, unavailable };
            let told = heeding.unheeded(&model);
            let mut told: Vec<String> = told
                .map(|(of, one)| format!("{of}: {}: {}", one.object(), one.reason))
                .collect();
            told.sort();
            told
        };
        let wrong = [
            "default/wrong: heed annotation kube-proxy-ipvs/scheduler \"be\\\"st\": give one of rr, wrr, lc, wlc, sh, mh, dh, sed, nq, \
             fo, ovf, lblc, lblcr, twos; --ipvs-scheduler holds until then",
            "default/wrong: heed annotation kube-proxy-ipvs/weight \"3\": there is no such option, only kube-proxy-ipvs/scheduler; \
             correct it, or take it away",
        ];
        let lacking = "default/lacking: heed annotation kube-proxy-ipvs/scheduler \"lblc\": run `modprobe ip_vs_lblc`; \
                       --ipvs-scheduler holds until then";
        assert_eq!(told("ipvs"), [&[lacking], &wrong[..]].concat());
        let here = [("lacking", "lblc"), ("right", "sh")].map(|(name, value)| {
            format!(
                "default/{name}: heed annotation kube-proxy-ipvs/scheduler \"{value}\": it means nothing in iptables mode, only in: \
                 ipvs"
            )
        });
        let here: Vec<&str> = here.iter().map(String::as_str).collect();
        assert_eq!(told("iptables"), [&here[..], &wrong[..]].concat());
    }
}
