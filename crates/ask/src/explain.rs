//! `kube-proxy explain`.

use ::explain::{Asked, Objects, Quotes, Style, To, exit_status, render};
use clap::Args;
use footprint::Footprints;
use view::Explanation;

use super::{Failure, Form, Printed, Program, has_colours, socket};

/// Below its help.
pub(super) const HELP: &str = "Examples:
  kube-proxy explain default/web
  kube-proxy explain web -n default --from pod
  kube-proxy explain 10.96.0.10:53/UDP --from 10.244.1.5
  kube-proxy explain default/web:http --from external -o json | jq '.journeys[].verdict'

What packets do, and the answers to them, is read from the kernel, rule by rule, as it is now. The daemon of this network namespace is asked by a local
socket, and puts the names of objects to it; where none answers, an ADDRESS:PORT is followed all the same, without them.

Exit status: 0, all journeys end at an endpoint, or at a process of this node that listens, and as far as this node knows are
answered; 1, one is not; 2, it cannot be said, or wrong usage; 3, no daemon answers, and a Service was asked for.";

/// What may be given.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// NAMESPACE/NAME[:PORT] of a Service, or ADDRESS:PORT[/PROTOCOL]
    to: String,
    /// The namespace of a Service that is named without one
    #[arg(short, long, default_value = "default")]
    namespace: String,
    /// Who sends: pod, node, external, or an IP address; several with commas between. By default all that make sense
    #[arg(
        long,
        value_name = "SENDERS",
        default_value = "",
        hide_default_value = true
    )]
    from: String,
    #[command(flatten)]
    form: Form,
}

/// The ways of packets.
pub(super) fn explain(arguments: &Arguments, program: &Program) -> Printed {
    let Arguments {
        to,
        namespace,
        from,
        form,
    } = arguments;
    let asked = Asked::parse(to, from, namespace);
    let asked = asked.map_err(|error| Failure::Unreadable(error.to_string()))?;
    let query = asked.query(from);
    let explanation: Explanation = match socket::get(&format!("/api/v1/explain?{query}")) {
        Err(Failure::NoDaemon) => without_daemon(&asked, program.modes)?,
        // It is no journey that fails.
        Err(Failure::NotFound(why)) => return Err(Failure::Unreadable(why)),
        answer => answer?,
    };
    let text = match form.of(&explanation)? {
        Some(text) => text,
        None => render(
            &explanation,
            Style {
                is_wide: form.is_wide(),
                has_colours: has_colours(),
            },
        ),
    };
    Ok((text, exit_status(&explanation)))
}

/// What the kernel alone says.
fn without_daemon(asked: &Asked, modes: Footprints) -> Result<Explanation, Failure> {
    if let To::Service(..) = asked.to {
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
        "no kube-proxy answers: this is what the kernel holds, without the names of objects"
            .to_owned(),
    );
    Ok(explanation)
}
