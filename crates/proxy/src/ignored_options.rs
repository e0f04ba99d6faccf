//! Service options (annotations) that this node ignores, with the reasons.

use std::sync::Arc;

use crate::model::Model;
use crate::names::NamespacedName;
use crate::options::{OptionRow, SCHEDULER, ServiceOptions, UnavailableOption};

/// An option of a Service that this node ignores.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct IgnoredOption {
    annotation: Box<str>,
    value: Box<str>,
    /// Reason why the node ignores the option, with advice for the operator.
    pub(crate) reason: String,
    /// True if the reason is specific to this node, such as its kernel.
    pub(crate) is_of_this_node: bool,
}

impl IgnoredOption {
    /// Describes the ignored option for a line of a plan, such as `apply annotation
    /// kube-proxy-ipvs/scheduler "best"`.
    pub(crate) fn object(&self) -> String {
        format!(
            "apply annotation {} {:?}",
            self.annotation.escape_debug(),
            self.value
        )
    }
}

/// Options that this node supports: the options of its mode, except for the values that the kernel
/// does not support.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OptionSupport {
    /// Name of the node's mode.
    pub mode: &'static str,
    /// Default scheduler of this node (`--ipvs-scheduler`), for Services whose options name no
    /// scheduler.
    pub scheduler: Arc<str>,
    /// Option values that this node's kernel does not support.
    pub unavailable: Vec<UnavailableOption>,
}

impl OptionSupport {
    /// Returns all ignored options, each with its Service. Costs O(Services with options).
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
                        Some(row) => until_then(&one.advice(), row),
                        None => format!("{}; correct or remove it", one.advice()),
                    },
                    is_of_this_node: false,
                });
                let given = options.given();
                let refused = given.filter_map(|(row, value)| self.judge(row, value));
                let ignored = self.ignored_by_scheduler(options);
                let all = wrong.chain(refused).chain(ignored);
                all.map(|one| (&service.name, one))
            })
    }

    /// Returns the options that have no effect with the Service's scheduler.
    fn ignored_by_scheduler<'a>(
        &'a self,
        options: &'a ServiceOptions,
    ) -> impl Iterator<Item = IgnoredOption> + 'a {
        let is_lacking = |name: &str| {
            let mut lacking = self.unavailable.iter();
            lacking.any(|one| one.annotation == SCHEDULER && one.value == name)
        };
        let own = options.scheduler.as_ref().map(|own| own.name());
        let own = own.filter(|own| !is_lacking(own));
        let objections = options.objections(own.unwrap_or(&self.scheduler));
        let heeded = objections.filter(|(row, _)| row.is_heeded_by(self.mode));
        heeded.map(move |(row, reason)| {
            let mut given = options.given();
            let value =
                given.find_map(|(of, value)| (of.annotation == row.annotation).then_some(value));
            IgnoredOption {
                annotation: row.annotation.into(),
                value: value.unwrap_or_default().into(),
                reason: until_then(&reason, row),
                is_of_this_node: own.is_none(),
            }
        })
    }

    fn judge(&self, row: &OptionRow, value: String) -> Option<IgnoredOption> {
        let is_it =
            |one: &&UnavailableOption| one.annotation == row.annotation && one.value == value;
        let reason = if row.is_heeded_by(self.mode) {
            let lack = self.unavailable.iter().find(is_it)?;
            until_then(&lack.reason, row)
        } else {
            let modes = row.modes.join(", ");
            format!("it has no effect in {} mode, only in: {modes}", self.mode)
        };
        Some(IgnoredOption {
            annotation: row.annotation.into(),
            value: value.into(),
            reason,
            is_of_this_node: row.is_heeded_by(self.mode),
        })
    }
}

/// Appends the option's default, which applies instead, to the reason why the option is ignored.
fn until_then(reason: &str, row: &OptionRow) -> String {
    format!("{reason}; the default applies until then: {}", row.default)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::SCHEDULER_FLAGS;
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
            let heeding = OptionSupport {
                mode,
                scheduler: "rr".into(),
                unavailable,
            };
            let told = heeding.unheeded(&model);
            let mut told: Vec<String> = told
                .map(|(of, one)| format!("{of}: {}: {}", one.object(), one.reason))
                .collect();
            told.sort();
            told
        };
        let wrong = [
            "default/wrong: apply annotation kube-proxy-ipvs/scheduler \"be\\\"st\": give one of rr, wrr, lc, wlc, sh, mh, dh, sed, nq, \
             fo, ovf, lblc, lblcr, twos; the default applies until then: --ipvs-scheduler",
            "default/wrong: apply annotation kube-proxy-ipvs/weight \"3\": there is no such option, only kube-proxy-ipvs/scheduler, \
             kube-proxy-ipvs/scheduler-flags, kube-proxy-ipvs/weights, kube-proxy-ipvs/slow-start, kube-proxy-ipvs/max-connections; correct or remove it",
        ];
        let lacking = "default/lacking: apply annotation kube-proxy-ipvs/scheduler \"lblc\": run `modprobe ip_vs_lblc`; \
                       the default applies until then: --ipvs-scheduler";
        assert_eq!(told("ipvs"), [&[lacking], &wrong[..]].concat());
        let here = [("lacking", "lblc"), ("right", "sh")].map(|(name, value)| {
            format!(
                "default/{name}: apply annotation kube-proxy-ipvs/scheduler \"{value}\": it has no effect in iptables mode, only in: \
                 ipvs"
            )
        });
        let here: Vec<&str> = here.iter().map(String::as_str).collect();
        assert_eq!(told("iptables"), [&here[..], &wrong[..]].concat());
    }

    #[test]
    fn an_option_that_the_scheduler_ignores_is_reported_with_the_scheduler() {
        let mut model = Model::new();
        for (name, scheduler, flags) in [
            ("heeded", "sh", "sh-port"),
            ("other", "sh", "mh-port"),
            ("of-node", "", "mh-port"),
            ("lacking", "mh", "mh-port"),
        ] {
            let options = [(SCHEDULER, scheduler), (SCHEDULER_FLAGS, flags)];
            model.apply(Event::ServiceApplied(Service {
                options: ServiceOptions::read(options.into_iter()),
                ..Service::at(
                    NamespacedName::new("default", name),
                    [[10, 96, 0, 1].into()],
                )
            }));
        }
        let support = OptionSupport {
            mode: "ipvs",
            scheduler: "rr".into(),
            unavailable: vec![UnavailableOption {
                annotation: SCHEDULER,
                value: "mh".to_owned(),
                reason: "run `modprobe ip_vs_mh`".to_owned(),
            }],
        };
        let told = support.unheeded(&model);
        let mut told: Vec<_> = told
            .filter(|(_, one)| &*one.annotation == SCHEDULER_FLAGS)
            .map(|(of, one)| (of.name().to_owned(), one.reason, one.is_of_this_node))
            .collect();
        told.sort();
        let default = "the default applies until then: mh-port for mh, none for others";
        let of = |name: &str, scheduler: &str, is_of_this_node| {
            let reason = format!("scheduler {scheduler} has no such flag, only mh has; {default}");
            (name.to_owned(), reason, is_of_this_node)
        };
        assert_eq!(
            told,
            [
                of("lacking", "rr", true),
                of("of-node", "rr", true),
                of("other", "sh", false)
            ]
        );
    }
}
