//! The command `kube-proxy status`, which shows the state of the daemon on this node.

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write as _};
use std::thread::sleep;
use std::time::Duration;

use clap::Args;
use view::{Family, Feature, OFF, RejectedEntry, Status, SyncState};

use super::leftovers::Leftovers;
use super::table::{Cell, TextTable, Tone, age, coloured, shown};
use super::{
    EXIT_NO_DAEMON, EXIT_WELL, EXIT_WRONG, Failure, Form, Printed, Program, has_colours, socket,
};

/// Path of the status in the daemon's API.
const PATH: &str = "/api/v1/status";
/// Time between two requests to the daemon with `--watch`.
const WATCH_INTERVAL: Duration = Duration::from_secs(2);
/// Escape sequence that moves the terminal's cursor to the top and clears the screen.
const CLEAR: &str = "\x1b[H\x1b[J";
/// Examples and exit statuses, printed below the help of `status`.
pub(super) const HELP: &str = "Examples:
  kube-proxy status
  kube-proxy status -w
  kube-proxy status -o json | jq .families
  kubectl -n kube-system exec kube-proxy-x7k2p -- kube-proxy status

It asks the daemon of this network namespace, as root. Without a daemon it lists
the entries of kube-proxy in the kernel, and exits with 3.

Exit status: 0, ready, healthy, without errors, and all objects readable; 1, not
so; 2, wrong usage, or unreadable; 3, no daemon answers.";

/// Arguments of `status`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Look every 2 s and print each change, until Ctrl-C; a terminal shows the latest state
    #[arg(short, long)]
    watch: bool,
    #[command(flatten)]
    form: Form,
}

/// Renders the state of the daemon. If no daemon runs, lists the entries that kube-proxies left in
/// the kernel.
pub(super) fn status(arguments: &Arguments, program: &Program) -> Printed {
    let form = arguments.form;
    if arguments.watch {
        return watch(form);
    }
    let status: Status = match socket::get(PATH, form.patience.timeout) {
        Ok(status) => status,
        Err(Failure::NoDaemon) => return without_daemon(form, program),
        Err(failure) => return Err(failure),
    };
    Ok((text(&status, form)?, exit_status(&status)))
}

fn text(status: &Status, form: Form) -> Result<String, Failure> {
    Ok(match form.of(status)? {
        Some(text) => text,
        None => render(status, form.is_wide(), has_colours()),
    })
}

fn exit_status(status: &Status) -> u8 {
    if is_well(status) {
        EXIT_WELL
    } else {
        EXIT_WRONG
    }
}

/// Prints the daemon's state, and again after each change, until standard output is closed. A
/// missing response counts as a state, because the daemon may be restarting.
fn watch(form: Form) -> Printed {
    let is_screen = form.is_table() && io::stdout().is_terminal();
    let mut last: Option<Result<Status, String>> = None;
    loop {
        let state = match socket::get::<Status>(PATH, form.patience.timeout) {
            Ok(status) => Ok(status),
            Err(failure @ Failure::NoDaemon) => Err(failure.to_string()),
            Err(failure) if last.is_none() => return Err(failure),
            Err(failure) => Err(failure.to_string()),
        };
        let text = match &state {
            Ok(status) => text(status, form)?,
            Err(failure) => format!("kube-proxy: {}\n", shown(failure)),
        };
        let steady = state.as_ref().map(without_times).map_err(Clone::clone);
        let has_changed = last.as_ref() != Some(&steady);
        let printed = if is_screen {
            format!("{CLEAR}{text}")
        } else if !has_changed {
            String::new()
        } else if last.is_some() && form.is_table() {
            format!("\n{text}")
        } else {
            text
        };
        last = Some(steady);
        let mut out = io::stdout();
        if out
            .write_all(printed.as_bytes())
            .and_then(|()| out.flush())
            .is_err()
        {
            let is_well = matches!(&state, Ok(status) if is_well(status));
            return Ok((String::new(), if is_well { EXIT_WELL } else { EXIT_WRONG }));
        }
        sleep(WATCH_INTERVAL);
    }
}

/// Returns a copy of the status without ages, and without the usage of limits that are not near.
/// Both change all the time, so `watch` must not treat them as a change.
fn without_times(status: &Status) -> Status {
    let mut status = status.clone();
    for family in &mut status.families {
        family.lag_seconds = 0.0;
        family.updated_seconds_ago = family.updated_seconds_ago.map(|_| 0.0);
        family.stuck_seconds = family.stuck_seconds.map(|_| 0.0);
    }
    for error in status.errors.iter_mut().chain(&mut status.warnings) {
        error.seconds = 0.0;
    }
    for drain in &mut status.draining {
        drain.seconds = 0.0;
    }
    for limit in status.limits.iter_mut().filter(|limit| !limit.near) {
        limit.used = 0;
    }
    status
}

fn is_well(status: &Status) -> bool {
    let does_well = |family: &Family| match family.state {
        SyncState::Synced | SyncState::Syncing | SyncState::Starting => family.failing == 0,
        SyncState::Failing | SyncState::Stuck => false,
    };
    status.ready
        && status.healthy
        && status.source.whole
        && status.families.iter().all(does_well)
        && status.errors.is_empty()
        && status.unreadable.is_empty()
}

fn without_daemon(form: Form, program: &Program) -> Printed {
    let leftovers = Leftovers::look(program.modes);
    let text = match form.of(&leftovers)? {
        Some(text) => text,
        None => leftovers.render(),
    };
    Ok((text, EXIT_NO_DAEMON))
}

fn render(status: &Status, is_wide: bool, has_colours: bool) -> String {
    let mut text = head(status, has_colours);
    let mut families = TextTable::new([
        "FAMILY", "STATE", "PENDING", "FAILING", "LAG", "STUCK", "SYNCED",
    ]);
    for family in &status.families {
        families.row(of_family(family));
    }
    if !status.families.is_empty() {
        text.push('\n');
        text.push_str(&families.render("", has_colours));
    }
    let mut section = |title: &str, table: &TextTable, count: usize| {
        if count > 0 {
            let title = coloured(title, Tone::Odd, has_colours);
            // Ignores the result, because a write to a String cannot fail.
            let _ = write!(text, "\n{title}\n{}", table.render("  ", has_colours));
        }
    };
    let (errors, count) = errors(status);
    section("Errors", &errors, count);
    let (warnings, count) = warnings(status);
    section("Warnings", &warnings, count);
    let (conflicts, count) = conflicts(status);
    section("Conflicts: addresses of two Services", &conflicts, count);
    let (drains, count) = drains(status);
    let title = format!("Draining ({})", status.draining_count);
    section(&title, &drains, count);
    let (drift, count) = drift(status);
    section(
        "Drift: changed by other programs, and corrected",
        &drift,
        count,
    );
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
    let mut table = TextTable::default();
    let forms = if status.forms.is_empty() {
        String::new()
    } else {
        format!(" ({})", status.forms.join(", "))
    };
    let mode = if status.mode.is_empty() {
        "unknown yet".to_owned()
    } else {
        format!("{}{forms}", status.mode)
    };
    let source = &status.source;
    let reach = match (source.complete, source.whole) {
        (false, _) => ", first lists incomplete",
        (true, false) => ", some unreadable: nothing is removed",
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
        SyncState::Starting => ("starting", Tone::Odd),
        SyncState::Synced => ("synced", Tone::Good),
        SyncState::Syncing => ("syncing", Tone::Odd),
        SyncState::Failing => ("failing", Tone::Bad),
        SyncState::Stuck => ("stuck", Tone::Bad),
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

fn errors(status: &Status) -> (TextTable, usize) {
    let mut table = TextTable::default();
    for error in &status.errors {
        let of = error.service.as_deref().unwrap_or("-");
        table.row([
            error.family.as_str().into(),
            of.into(),
            Cell::of(format!("cannot {}", error.object), Tone::Bad),
            error.reason.as_str().into(),
            since(error).into(),
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

/// Returns the time for which an error has lasted, or an empty text if it is unknown.
fn since(error: &RejectedEntry) -> String {
    if error.seconds > 0.0 {
        format!("for {}", age(error.seconds))
    } else {
        String::new()
    }
}

fn warnings(status: &Status) -> (TextTable, usize) {
    let mut table = TextTable::default();
    for warning in &status.warnings {
        table.row([
            warning.family.as_str().into(),
            warning.service.as_deref().unwrap_or("-").into(),
            Cell::of(warning.object.replacen("serve", "serves", 1), Tone::Odd),
            warning.reason.as_str().into(),
            since(warning).into(),
        ]);
    }
    (table, status.warnings.len())
}

fn conflicts(status: &Status) -> (TextTable, usize) {
    let mut table = TextTable::new(["ADDRESS", "SERVED FOR", "NOT SERVED FOR"]);
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

fn drains(status: &Status) -> (TextTable, usize) {
    let mut table = TextTable::new(["SERVER", "ENDPOINT", "FOR", "CONNECTIONS"]);
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

fn drift(status: &Status) -> (TextTable, usize) {
    let mut table = TextTable::new(["FAMILY", "KIND", "COUNT", "LAST", "NAMES"]);
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

/// Lists the limits that are nearly reached, or all limits if `is_wide`. Also returns the number of
/// rows.
fn limits(status: &Status, is_wide: bool) -> (TextTable, usize) {
    let mut table = TextTable::new(["OF", "USED", "LIMIT"]);
    let shown = status.limits.iter().filter(|limit| is_wide || limit.near);
    let mut count = 0;
    for limit in shown {
        count += 1;
        let used = Cell::of(limit.used.to_string(), Tone::Bad.when(limit.near));
        table.row([(&*limit.of).into(), used, limit.limit.to_string().into()]);
    }
    (table, count)
}

/// Lists the missing features, or all features if `is_wide`. A feature that the operator disabled
/// does not count as missing.
fn features(status: &Status, is_wide: bool) -> (TextTable, usize) {
    let mut table = TextTable::new(["FEATURE", "FOUND", "NOTE"]);
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
