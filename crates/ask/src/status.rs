//! `kube-proxy status`.

use std::fmt::Write as _;

use clap::Args;
use view::{Family, Feature, OFF, State, Status};

use super::held::Held;
use super::table::{Cell, Table, Tone, age, coloured, shown};
use super::{Failure, Form, NO_DAEMON, Printed, Program, WELL, WRONG, has_colours, socket};

/// Below its help.
pub(super) const HELP: &str = "Examples:
  kube-proxy status
  kube-proxy status -o json | jq .families
  kubectl -n kube-system exec kube-proxy-x7k2p -- kube-proxy status

It asks the daemon of this network namespace by a local socket, as root. Where none answers, it says what the kernel holds of
kube-proxies, and ends with 3.

Exit status: 0, ready, healthy, without errors, and every object could be read; 1, not so; 2, wrong usage, or it cannot be read; 3, no daemon answers.";

/// What may be given.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    form: Form,
}

/// How the daemon stands; without one, what the kernel holds.
pub(super) fn status(arguments: &Arguments, program: &Program) -> Printed {
    let status: Status = match socket::get("/api/v1/status") {
        Ok(status) => status,
        Err(Failure::NoDaemon) => return without_daemon(arguments.form, program),
        Err(failure) => return Err(failure),
    };
    let text = match arguments.form.of(&status)? {
        Some(text) => text,
        None => render(&status, arguments.form.is_wide(), has_colours()),
    };
    Ok((text, if is_well(&status) { WELL } else { WRONG }))
}

fn is_well(status: &Status) -> bool {
    let does_well = |family: &Family| match family.state {
        State::Synced | State::Syncing | State::Starting => family.failing == 0,
        State::Failing | State::Stuck => false,
    };
    status.ready
        && status.healthy
        && status.source.whole
        && status.families.iter().all(does_well)
        && status.errors.is_empty()
        && status.unreadable.is_empty()
}

fn without_daemon(form: Form, program: &Program) -> Printed {
    let held = Held::look(program.modes);
    let text = match form.of(&held)? {
        Some(text) => text,
        None => held.render(),
    };
    Ok((text, NO_DAEMON))
}

fn render(status: &Status, is_wide: bool, has_colours: bool) -> String {
    let mut text = head(status, has_colours);
    let mut families = Table::new([
        "FAMILY", "STATE", "PENDING", "FAILING", "LAG", "STUCK", "SYNCED",
    ]);
    for family in &status.families {
        families.row(of_family(family));
    }
    if !status.families.is_empty() {
        text.push('\n');
        text.push_str(&families.render("", has_colours));
    }
    let mut section = |title: &str, table: &Table, count: usize| {
        if count > 0 {
            let title = coloured(title, Tone::Odd, has_colours);
            // Writing to a String cannot fail.
            let _ = write!(text, "\n{title}\n{}", table.render("  ", has_colours));
        }
    };
    let (errors, count) = errors(status);
    section("Errors", &errors, count);
    let (conflicts, count) = conflicts(status);
    section("Addresses that two Services claim", &conflicts, count);
    let (drains, count) = drains(status);
    let title = format!("Draining ({})", status.draining_count);
    section(&title, &drains, count);
    let (drift, count) = drift(status);
    section("Changed by others, and made right again", &drift, count);
    let (limits, count) = limits(status, is_wide);
    section("Limits", &limits, count);
    let (features, count) = features(status, is_wide);
    section("Kernel", &features, count);
    for note in &status.notes {
        let _ = write!(
            text,
            "\n{} {}\n",
            coloured("Note:", Tone::Odd, has_colours),
            shown(note)
        );
    }
    text
}

fn head(status: &Status, has_colours: bool) -> String {
    let mut table = Table::default();
    let forms = if status.forms.is_empty() {
        String::new()
    } else {
        format!(" ({})", status.forms.join(", "))
    };
    let mode = if status.mode.is_empty() {
        "not known yet".to_owned()
    } else {
        format!("{}{forms}", status.mode)
    };
    let source = &status.source;
    let reach = match (source.complete, source.whole) {
        (false, _) => ", not all listed yet",
        (true, false) => ", some not readable: nothing is removed",
        (true, true) => "",
    };
    table.row(["Node".into(), status.node.as_str().into()]);
    table.row(["Mode".into(), mode.into()]);
    let state = match (status.ready, status.healthy) {
        (true, true) => Cell::of("ready, healthy", Tone::Good),
        (false, true) => Cell::of("not ready", Tone::Odd),
        (true, false) => Cell::of("not healthy", Tone::Bad),
        (false, false) => Cell::of("neither ready nor healthy", Tone::Bad),
    };
    table.row(["State".into(), state]);
    table.row([
        "Version".into(),
        format!(
            "kube-proxy-ipvs {} (Kubernetes {}), since {}",
            status.version, status.kubernetes, status.started
        )
        .into(),
    ]);
    table.row([
        "Source".into(),
        format!(
            "{}: {} Services, {} EndpointSlices{reach}",
            source.from, source.services, source.endpoint_slices
        )
        .into(),
    ]);
    table.render("", has_colours)
}

fn of_family(family: &Family) -> [Cell; 7] {
    let (state, tone) = match family.state {
        State::Starting => ("starting", Tone::Odd),
        State::Synced => ("synced", Tone::Good),
        State::Syncing => ("syncing", Tone::Odd),
        State::Failing => ("failing", Tone::Bad),
        State::Stuck => ("stuck", Tone::Bad),
    };
    let time = |seconds: Option<f64>| seconds.map_or_else(|| "-".to_owned(), age);
    let updated = match family.updated_seconds_ago {
        Some(seconds) => format!("{} ago", age(seconds)),
        None => "never".to_owned(),
    };
    let failing = Tone::Bad.when(family.failing > 0);
    [
        family.family.as_str().into(),
        Cell::of(state, tone),
        family.pending.to_string().into(),
        Cell::of(family.failing.to_string(), failing),
        age(family.lag_seconds).into(),
        time(family.stuck_seconds).into(),
        updated.into(),
    ]
}

fn errors(status: &Status) -> (Table, usize) {
    let mut table = Table::default();
    for error in &status.errors {
        let of = error.service.as_deref().unwrap_or("-");
        let since = if error.seconds > 0.0 {
            format!("for {}", age(error.seconds))
        } else {
            String::new()
        };
        table.row([
            error.family.as_str().into(),
            of.into(),
            Cell::of(format!("cannot {}", error.object), Tone::Bad),
            error.reason.as_str().into(),
            since.into(),
        ]);
    }
    for part in &status.unreadable {
        table.row([
            part.family.as_str().into(),
            "-".into(),
            Cell::of(format!("cannot read {}", part.part), Tone::Bad),
            part.reason.as_str().into(),
        ]);
    }
    (table, status.errors.len() + status.unreadable.len())
}

fn conflicts(status: &Status) -> (Table, usize) {
    let mut table = Table::new(["ADDRESS", "HAS IT", "GOES WITHOUT"]);
    for conflict in &status.conflicts {
        let loser = Cell::of(&*conflict.loser, Tone::Bad);
        table.row([
            (&*conflict.address).into(),
            (&*conflict.winner).into(),
            loser,
        ]);
    }
    (table, status.conflicts.len())
}

fn drains(status: &Status) -> (Table, usize) {
    let mut table = Table::new(["SERVER", "ENDPOINT", "FOR", "CONNECTIONS"]);
    for drain in &status.draining {
        let open = drain.connections.map(|count| count.to_string());
        table.row([
            (&*drain.server).into(),
            (&*drain.endpoint).into(),
            age(drain.seconds).into(),
            open.unwrap_or_else(|| "-".to_owned()).into(),
        ]);
    }
    (table, status.draining.len())
}

fn drift(status: &Status) -> (Table, usize) {
    let mut table = Table::new(["FAMILY", "KIND", "COUNT", "LAST", "NAMES"]);
    for drift in &status.drift {
        table.row([
            (&*drift.family).into(),
            (&*drift.kind).into(),
            drift.count.to_string().into(),
            (&*drift.last).into(),
            drift.names.join(", ").into(),
        ]);
    }
    (table, status.drift.len())
}

/// Those that are near; all, where more is asked for.
fn limits(status: &Status, is_wide: bool) -> (Table, usize) {
    let mut table = Table::new(["OF", "USED", "LIMIT"]);
    let shown = status.limits.iter().filter(|limit| is_wide || limit.near);
    let mut count = 0;
    for limit in shown {
        count += 1;
        let used = Cell::of(limit.used.to_string(), Tone::Bad.when(limit.near));
        table.row([(&*limit.of).into(), used, limit.limit.to_string().into()]);
    }
    (table, count)
}

/// Those that are missing; all, where more is asked for. What is there and switched off is not
/// missing.
fn features(status: &Status, is_wide: bool) -> (Table, usize) {
    let mut table = Table::new(["FEATURE", "FOUND", "NOTE"]);
    let features = status.features.iter();
    let is_missing = |feature: &Feature| !feature.found && !feature.note.starts_with(OFF);
    let shown = features.filter(|feature| is_wide || is_missing(feature));
    let mut count = 0;
    for feature in shown {
        count += 1;
        let found = if feature.found {
            Cell::of("yes", Tone::Good)
        } else {
            Cell::of("no", Tone::Odd)
        };
        table.row([(&*feature.name).into(), found, (&*feature.note).into()]);
    }
    (table, count)
}

#[cfg(test)]
mod tests;
