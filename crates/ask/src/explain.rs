//! The command `kube-proxy explain`, which traces packets to a Service or an address.

use ::explain::{Objects, Quotes, Style, TraceDestination, TraceRequest, exit_status, render};
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use footprint::Footprints;
use view::Explanation;

use super::names::{not_found, without_kind};
use super::{Failure, Form, Printed, Program, has_colours, socket};

/// Examples and exit statuses, printed below the help of `explain`.
pub(super) const HELP: &str = "Examples:
  kube-proxy explain default/web
  kube-proxy explain svc/web -n shop --from pod -v
  kube-proxy explain 10.96.0.10:53/UDP --from 10.244.1.5
  kube-proxy explain default/web:http --from external -o json | jq '.journeys[].verdict'

It follows the first packet of a connection, and the answer, through the rules
that the kernel holds now. The daemon adds the names of objects; without a
daemon, an ADDRESS:PORT is followed without names.

Exit status: 0, every packet reaches an endpoint or a listening process, and is
answered as far as this node knows; 1, one does not; 2, undetermined, wrong
usage, or no such Service; 3, no daemon answers, and a Service was asked for.";

/// Arguments of `explain`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Service as NAMESPACE/NAME[:PORT] or svc/NAME[:PORT], or ADDRESS:PORT[/PROTOCOL]
    to: String,
    #[arg(
        short,
        long,
        help = "Namespace of a Service that is named without one [default: default]"
    )]
    namespace: Option<String>,
    /// Senders, separated by commas: pod, node, external, or an IP address; by default all that
    /// apply
    #[arg(long, value_name = "SENDERS", value_parser = NonEmptyStringValueParser::new())]
    from: Option<String>,
    /// Show each step in the kernel; -o wide also shows the rules
    #[arg(short, long)]
    verbose: bool,
    #[command(flatten)]
    form: Form,
}

/// Traces packets through the kernel's rules, and renders their paths.
pub(super) fn explain(arguments: &Arguments, program: &Program) -> Printed {
    let Arguments {
        to,
        namespace,
        from,
        verbose,
        form,
    } = arguments;
    let to = without_kind(to);
    let timeout = form.patience.timeout;
    let from = from.as_deref().unwrap_or_default();
    let given = namespace.as_deref();
    let asked = TraceRequest::parse(to, from, given.unwrap_or("default"));
    let asked = asked.map_err(|error| Failure::Unreadable(error.to_string()))?;
    if let (TraceDestination::Service(service, _), Some(given)) = (&asked.to, given)
        && service.namespace != given
    {
        let why = format!("{to} is not in the namespace of -n; give one of them");
        return Err(Failure::Unreadable(why));
    }
    let query = asked.query(from);
    let explanation: Explanation = match socket::get(&format!("/api/v1/explain?{query}"), timeout) {
        Err(Failure::NoDaemon) => without_daemon(&asked, program.modes)?,
        // Converts `NotFound` to an error with exit status 2. In `explain`, exit status 1 means
        // that a packet is lost.
        Err(Failure::NotFound(why)) => {
            let why = match &asked.to {
                TraceDestination::Service(service, _) if !to.contains('/') => {
                    not_found(&why, &service.name, timeout).to_string()
                }
                _ => why,
            };
            return Err(Failure::Unreadable(why));
        }
        answer => answer?,
    };
    let text = match form.of(&explanation)? {
        Some(text) => text,
        None => render(
            &explanation,
            Style {
                is_brief: !verbose && !form.is_wide(),
                is_wide: form.is_wide(),
                has_colours: has_colours(),
            },
        ),
    };
    Ok((text, exit_status(&explanation)))
}

/// Traces packets to an address from the kernel's state alone. Fails for a Service, because only
/// the daemon knows Services.
fn without_daemon(asked: &TraceRequest, modes: Footprints) -> Result<Explanation, Failure> {
    if let TraceDestination::Service(..) = asked.to {
        return Err(Failure::NoDaemon);
    }
    let explanation = ::explain::answer(
        asked,
        &Objects::default(),
        &|_, _, _| None,
        Quotes::All,
        modes,
    );
    let mut explanation = explanation.map_err(Failure::Unreadable)?;
    explanation.notes.insert(
        0,
        "no kube-proxy answers: the kernel's entries are shown without names of objects".to_owned(),
    );
    Ok(explanation)
}
