//! Options of a Service that annotations set. Kubernetes has no fields for these options.
//!
//! Each option is a row of the table below. A row defines a field of [`ServiceOptions`] with its
//! annotation, allowed values, default and supporting modes.
//!
//! A source passes every annotation with the [`PREFIX`] to [`ServiceOptions::read`]. The model also
//! stores invalid annotations. The daemon reports them in the log, as events and in `kube-proxy
//! services`.
//!
//! To add an option:
//!
//! 1. Add a row, and a type with [`OptionValue`].
//! 2. Add a row to `docs/service-options.md`. A test compares the rows with the document.
//! 3. Read the field in a mode.

mod balancing;

use std::fmt;

pub use balancing::{MaxConnections, SchedulerFlags, SlowStart, Weights};

/// Prefix of the annotations of all options: the program's name. The prefix is not a domain,
/// because the project owns no domain and `kubernetes.io` is reserved.
pub const PREFIX: &str = "kube-proxy-ipvs/";

/// The annotation that names the IPVS scheduler of a Service.
pub const SCHEDULER: &str = "kube-proxy-ipvs/scheduler";

/// The annotation that sets flags of the IPVS scheduler.
pub const SCHEDULER_FLAGS: &str = "kube-proxy-ipvs/scheduler-flags";

/// The annotation that limits the number of connections to each endpoint.
pub const MAX_CONNECTIONS: &str = "kube-proxy-ipvs/max-connections";

/// The annotation that sets weights for endpoints on this node and in its zone.
pub const WEIGHTS: &str = "kube-proxy-ipvs/weights";

/// The annotation that sets the duration of the slow start of new endpoints.
pub const SLOW_START: &str = "kube-proxy-ipvs/slow-start";

/// Largest number of invalid annotations that the model stores for one Service.
const WRONG_MAX: usize = 4;

/// Largest number of characters that the model stores of an invalid annotation's key, and of its
/// value.
const SHOWN_MAX: usize = 100;

/// Description of one option: a row of the table [`ROWS`].
#[derive(Debug)]
pub struct OptionRow {
    /// The annotation's key.
    pub annotation: &'static str,
    /// Returns the allowed values, as text for the user.
    pub allowed: fn() -> String,
    /// Default for Services without the annotation: the flag that sets this default, or a
    /// description.
    pub default: &'static str,
    /// The names of the modes that support the option.
    pub modes: &'static [&'static str],
    /// One sentence that describes the option.
    pub doc: &'static str,
}

/// A type that holds the value of one option.
pub trait OptionValue: Sized {
    /// Parses a value, or returns `None` if the value is not allowed.
    fn parse(text: &str) -> Option<Self>;

    /// Returns the allowed values, as text for the user.
    fn allowed() -> String;

    /// Returns the value in the notation of the annotation.
    fn text(&self) -> String;

    /// Returns the reason why a scheduler ignores the value, or `None` if the scheduler supports
    /// the value.
    fn objection(&self, _scheduler: &str) -> Option<String> {
        None
    }
}

/// Declares options, each as a row `FIELD: TYPE = { annotation, default, modes, doc };`
macro_rules! options {
    ($($field:ident: $type:ty = {
        annotation: $annotation:ident, default: $default:literal, modes: $modes:expr, doc: $doc:literal,
    };)+) => {
        /// All options that a Service can set by annotations.
        pub const ROWS: &[OptionRow] = &[$(OptionRow {
            annotation: $annotation,
            allowed: <$type as OptionValue>::allowed,
            default: $default,
            modes: $modes,
            doc: $doc,
        }),+];

        /// The options that annotations of a Service set. `None` for an option that is not set.
        #[derive(Debug, Clone, Default, PartialEq, Eq)]
        pub struct ServiceOptions {
            $(#[doc = $doc] pub $field: Option<$type>,)+
            /// The first invalid annotations. Each has an unknown option or an invalid value.
            pub wrong: Vec<WrongOption>,
        }

        impl ServiceOptions {
            fn take(&mut self, annotation: &str, value: &str) {
                match annotation {
                    $($annotation => match <$type as OptionValue>::parse(value) {
                        Some(value) => self.$field = Some(value),
                        None => self.note(annotation, value),
                    },)+
                    _ => self.note(annotation, value),
                }
            }

            /// Returns the options of this Service that a scheduler ignores, each with the reason.
            pub(crate) fn objections(
                &self,
                scheduler: &str,
            ) -> impl Iterator<Item = (&'static OptionRow, String)> {
                let objections = [$(
                    self.$field.as_ref().and_then(|value| value.objection(scheduler))
                ),+];
                ROWS.iter().zip(objections).filter_map(|(row, reason)| Some((row, reason?)))
            }

            /// Returns the options that are set, each with its value in the notation of the
            /// annotation.
            pub fn given(&self) -> impl Iterator<Item = (&'static OptionRow, String)> {
                let values = [$(self.$field.as_ref().map(OptionValue::text)),+];
                ROWS.iter().zip(values).filter_map(|(row, value)| Some((row, value?)))
            }
        }
    };
}

options! {
    scheduler: Scheduler = {
        annotation: SCHEDULER,
        default: "--ipvs-scheduler",
        modes: &["ipvs"],
        doc: "The scheduler of the Service's virtual servers, which selects an endpoint for each new connection.",
    };
    scheduler_flags: SchedulerFlags = {
        annotation: SCHEDULER_FLAGS,
        default: "mh-port for mh, none for others",
        modes: &["ipvs"],
        doc: "Flags of the scheduler, as `ipvsadm -b` names them.",
    };
    weights: Weights = {
        annotation: WEIGHTS,
        default: "1 for each endpoint",
        modes: &["ipvs"],
        doc: "Weights of endpoints on this node and in its zone. All other endpoints have weight 1.",
    };
    slow_start: SlowStart = {
        annotation: SLOW_START,
        default: "full weight at once",
        modes: &["ipvs"],
        doc: "The time until an endpoint that joins a serving Service has its full weight.",
    };
    max_connections: MaxConnections = {
        annotation: MAX_CONNECTIONS,
        default: "no limit",
        modes: &["ipvs"],
        doc: "The maximum number of connections from each node to each endpoint.",
    };
}

/// An annotation with the [`PREFIX`] whose option or value is unknown.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct WrongOption {
    /// The annotation's key, truncated.
    pub annotation: Box<str>,
    /// The annotation's value, truncated.
    pub value: Box<str>,
}

impl WrongOption {
    /// Returns advice for the user: the allowed options or values.
    pub fn advice(&self) -> String {
        let unknown = || {
            let names: Vec<&str> = ROWS.iter().map(|row| row.annotation).collect();
            format!("there is no such option, only {}", names.join(", "))
        };
        let allowed = |row: &OptionRow| format!("give {}", (row.allowed)());
        OptionRow::of(&self.annotation).map_or_else(unknown, allowed)
    }
}

impl OptionRow {
    /// Returns the option that an annotation sets, or `None` if no option has this annotation.
    pub fn of(annotation: &str) -> Option<&'static Self> {
        ROWS.iter().find(|row| row.annotation == annotation)
    }

    /// Reports whether a mode supports the option.
    pub fn is_heeded_by(&self, mode: &str) -> bool {
        self.modes.contains(&mode)
    }
}

impl ServiceOptions {
    /// Reads annotations that begin with the [`PREFIX`]. Skips empty values. Returns `None` if
    /// neither an option nor an invalid annotation remains.
    pub fn read<'a>(annotations: impl Iterator<Item = (&'a str, &'a str)>) -> Option<Box<Self>> {
        let mut options: Option<Box<Self>> = None;
        for (annotation, value) in annotations.filter(|(_, value)| !value.is_empty()) {
            options.get_or_insert_default().take(annotation, value);
        }
        options
    }

    fn note(&mut self, annotation: &str, value: &str) {
        let cut = |text: &str| text.chars().take(SHOWN_MAX).collect::<String>().into();
        if self.wrong.len() < WRONG_MAX {
            self.wrong.push(WrongOption {
                annotation: cut(annotation),
                value: cut(value),
            });
        }
    }
}

/// An IPVS scheduler of the kernel. Tenants may name only the kernel's own schedulers, because the
/// kernel would try to load the module `ip_vs_NAME` for any other name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Scheduler(&'static str);

impl Scheduler {
    /// All schedulers in Linux (`net/netfilter/ipvs`).
    pub const ALL: [Self; 14] = [
        Self("rr"),
        Self("wrr"),
        Self("lc"),
        Self("wlc"),
        Self("sh"),
        Self("mh"),
        Self("dh"),
        Self("sed"),
        Self("nq"),
        Self("fo"),
        Self("ovf"),
        Self("lblc"),
        Self("lblcr"),
        Self("twos"),
    ];

    /// The scheduler that chooses by the client's address alone.
    pub const SOURCE_HASH: Self = Self("sh");

    /// Returns the kernel's name of the scheduler.
    pub const fn name(self) -> &'static str {
        self.0
    }
}

impl fmt::Display for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl OptionValue for Scheduler {
    fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.0 == text)
    }

    fn allowed() -> String {
        let names = Self::ALL.map(Self::name);
        format!("one of {}", names.join(", "))
    }

    fn text(&self) -> String {
        self.0.to_owned()
    }
}

/// A value of an option that this node does not support.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnavailableOption {
    /// The option's annotation.
    pub annotation: &'static str,
    /// The value in the notation of the annotation.
    pub value: String,
    /// Reason why the node does not support the value, with advice for the operator.
    pub reason: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Event, Model, NamespacedName, Service};

    fn read(annotations: &[(&str, &str)]) -> Option<Box<ServiceOptions>> {
        ServiceOptions::read(annotations.iter().copied())
    }

    #[test]
    fn a_service_without_options_needs_the_memory_of_one_pointer() {
        assert_eq!(size_of::<Option<Box<ServiceOptions>>>(), size_of::<usize>());
        assert_eq!(read(&[]), None);
        assert_eq!(read(&[("kube-proxy-ipvs/scheduler", "")]), None);
    }

    #[test]
    fn each_scheduler_is_parsed_and_unknown_names_are_invalid() {
        for scheduler in Scheduler::ALL {
            let options = read(&[("kube-proxy-ipvs/scheduler", scheduler.name())]).unwrap();
            assert_eq!(
                (options.scheduler, options.wrong.len()),
                (Some(scheduler), 0)
            );
            let given: Vec<_> = options
                .given()
                .map(|(row, value)| (row.annotation, value))
                .collect();
            assert_eq!(
                given,
                [("kube-proxy-ipvs/scheduler", scheduler.to_string())]
            );
        }
        // `ftp` is not a scheduler, but would make the kernel load the module ip_vs_ftp.
        for value in ["RR", " rr", "ftp", "sh,mh"] {
            let options = read(&[("kube-proxy-ipvs/scheduler", value)]).unwrap();
            assert_eq!(options.scheduler, None);
            assert_eq!(&*options.wrong[0].value, value);
            assert!(options.wrong[0].advice().contains("one of rr, wrr, lc, "));
        }
        let options = read(&[("kube-proxy-ipvs/schedular", "rr")]).unwrap();
        assert_eq!(
            options.wrong[0].advice(),
            format!(
                "there is no such option, only {}",
                ROWS.iter()
                    .map(|row| row.annotation)
                    .collect::<Vec<_>>()
                    .join(", ")
            )
        );
    }

    #[test]
    fn invalid_options_are_kept_up_to_a_limit() {
        let long = "ü".repeat(10_000);
        let many = vec![(&*long, &*long); 100];
        let options = read(&many).unwrap();
        assert_eq!(options.wrong.len(), WRONG_MAX);
        let kept = options
            .wrong
            .iter()
            .map(|one| one.annotation.len() + one.value.len());
        assert_eq!(kept.sum::<usize>(), WRONG_MAX * 2 * SHOWN_MAX * "ü".len());
    }

    #[test]
    fn the_model_lists_the_services_with_options() {
        let mut model = Model::new();
        let name = |name| NamespacedName::new("default", name);
        let give = |model: &mut Model, service, value| {
            model.apply(Event::ServiceApplied(Service {
                options: read(&[("kube-proxy-ipvs/scheduler", value)]),
                ..Service::at(name(service), [[10, 96, 0, 1].into()])
            }));
            let all = model.services_with_options();
            let all = all.map(|(service, _)| service.name.name().to_owned());
            (all.collect::<Vec<_>>(), model.options_version())
        };
        let none: Vec<String> = Vec::new();
        assert_eq!(give(&mut model, "plain", ""), (none.clone(), 0));
        assert_eq!(give(&mut model, "web", "sh"), (vec!["web".to_owned()], 1));
        assert_eq!(give(&mut model, "web", "lc"), (vec!["web".to_owned()], 2));
        assert_eq!(give(&mut model, "web", "lc"), (vec!["web".to_owned()], 2));
        assert_eq!(give(&mut model, "web", ""), (none.clone(), 3));
        assert_eq!(give(&mut model, "web", "none"), (vec!["web".to_owned()], 4));
        model.apply(Event::ServiceDeleted(name("web")));
        assert_eq!(give(&mut model, "plain", ""), (none, 5));
    }

    #[test]
    fn each_service_option_has_a_well_formed_table_row() {
        for row in ROWS {
            let name = row.annotation.strip_prefix(PREFIX).unwrap();
            assert!(!name.is_empty() && name.len() <= 63 && !row.modes.is_empty());
            assert!(row.doc.ends_with('.') && !row.default.is_empty());
        }
    }
}
