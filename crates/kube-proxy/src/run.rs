//! The start of the daemon up to its loop: opens the source, the kernel and the servers.
//!
//! ```text
//!   source ─▶ gather: the first lists ──────┐
//!   open the kernel, sysctls, servers ──────┴─▶ Daemon: its loop ─▶ end
//! ```

mod answers;
mod api_server;
pub mod cleanup;
mod daemon;
mod end;
pub(crate) mod first_lists;
mod identity;
mod observed;
mod renew;
mod renewal;
mod stop;

use std::panic::resume_unwind;
use std::time::Instant;

use anyhow::{Context as _, Result};
use futures::future::{FutureExt as _, try_join};
use futures::stream::select_all;
use inspect::Origin;
use modes::definition::Start;
use modes::families::{log_skipped_families, require};
use modes::node_ports;
use modes::open::{open, prepare, primary, used};
use proxy::Model;
use tokio::sync::{mpsc, oneshot};
use tracing::{info, warn};

use crate::config::command_line;
use crate::config::follow::problem::FileProblem;
use crate::config::options::Options;
use crate::config::options::object_source::OwnNode;
use crate::events::{Event, Recorder};
use crate::metrics::rest_client::CountRequests;
use crate::node::addresses::AddressChanges;
use crate::node::kernel_settings::{Step, settle};
use crate::node::{one_family, unfit_settings};
use crate::process::capabilities::may_administer_network;
use crate::run::first_lists::gather;
use api_server::Clearing;
use daemon::{Daemon, LeftRules};
use observed::Observed;
pub use stop::Stop;

/// Serves until `stop` is requested. At the end, entries stay in the kernel, so that a restart
/// interrupts no connection.
///
/// - `changed`: options that replace the current options. They may differ only in settings that
///   need no restart ([`Change::Live`](crate::config::Change)).
/// - `problem`: difference of the configuration file from these options, for the status.
/// - `recording`: channel on which this function sends the event recorder to the caller, so that
///   the caller can record events, too.
///
/// # Errors
///
/// Fails if the start fails, the source ends, or a worker thread (kernel I/O) ends.
pub async fn run(
    options: Options,
    stop: Stop,
    changed: mpsc::Receiver<Options>,
    problem: FileProblem,
    recording: oneshot::Sender<Recorder>,
) -> Result<()> {
    // Spawns a task, because waking a task needs no system call. Waking the future on which the
    // runtime blocks needs two system calls.
    match tokio::spawn(live(options, stop, changed, problem, recording)).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            Err(error) => Err(error.into()),
        },
    }
}

async fn live(
    options: Options,
    mut stop: Stop,
    mut changed: mpsc::Receiver<Options>,
    problem: FileProblem,
    recording: oneshot::Sender<Recorder>,
) -> Result<()> {
    let observed = Observed::new(&options)?;
    let flags = command_line::values(std::env::args_os());
    let node = options.process.node_name.clone();
    let count = |host: &str| CountRequests::new(observed.metrics.clone(), host);
    let excluded = options.modes.shared.exclude_cidrs.clone();
    let clearing = Clearing::new(options.address_rules(), excluded);
    let source = source::connect(&options.source, &node, count, clearing.way()).await;
    let source = source.inspect_err(|_| identity::tell(&options, None, None))?;
    let (mut events, client) = (source.events, source.client);
    let from = source.from.clone();
    observed.inspect.comes_from(Origin {
        from: source.from,
        registry: source.registry,
        troubles: source.troubles,
        unreadable: source.unreadable,
    });
    let recorder = client.map_or_else(Recorder::off, |client| Recorder::start(client, &node));
    // Ignores a dropped receiver, because the caller may not need the recorder.
    drop(recording.send(recorder.clone()));
    // Copy from which `settle` removes the options that this node cannot apply.
    let mut settled = options.clone();
    let prepared = async {
        let opened = match may_administer_network() {
            Ok(()) => open(&options.modes).await,
            Err(error) => Err(error.into()),
        };
        let uses = opened.as_ref().ok();
        let uses = uses.map(|opened| used(&**opened, &options.modes));
        identity::tell(&options, Some(&from), uses.as_ref());
        clearing.speak();
        let opened = opened?;
        log_skipped_families(opened.left_out());
        settle(&mut settled, Step::Start)?;
        let servers = observed.serve(&options, flags, &recorder).await?;
        // Subscribes to address changes before the first read of addresses, so that no change is
        // missed.
        let addresses = AddressChanges::subscribe()
            .context("cannot subscribe to address changes (rtnetlink)")?;
        anyhow::Ok((opened, servers, addresses))
    };
    let mut model = Model::of_node(&node)
        .with_external_ips(options.external_ips())
        .with_address_rules(options.address_rules());
    let seen = |model: &Model| observed.status.note_lists(model);
    let gathered = gather(&mut events, &mut model, &options.source, seen).map(anyhow::Ok);
    let (opened, servers, addresses) = tokio::select! {
        ready = try_join(prepared, gathered) => ready?.0,
        () = stop.requested() => return Ok(()),
        () = observed.health.pulse().answer_all() => return Ok(()),
    };
    require(opened.left_out(), primary(&options.modes, &model))?;
    clearing.end().await;
    let options = settled;
    let predecessor = opened.predecessor(&options.modes);
    let ending = opened.ending();
    let notices = opened.notices()?;
    observed.counters.set([(); 4].map(|()| opened.counters()));
    let uses = used(&*opened, &options.modes);
    let now = Instant::now();
    let start = Start {
        settings: &options.modes,
        node: &node,
        model: &model,
        now,
    };
    let modes = opened.into_modes(&start)?;
    let node_ports_at = node_ports::addresses(&start);
    model.serve_node_ports_at(&node_ports_at);
    observed.status.note_node(&model);
    if let Some(hint) = one_family::hint(&options.modes) {
        info!("{hint}");
    }
    // With an API server, the start has already reported a missing Node.
    if OwnNode::of(&options.source) == OwnNode::Optional
        && let Some(warning) = unfit_settings::unknown_name(&options, &model)
    {
        warn!("{}", warning.message);
    }
    recorder.record(Event::starting(&node, options.modes.chosen.name()));
    if let Some(note) = &options.said.no_mode {
        recorder.record(Event::mode_not_set(&node, note.clone()));
    }
    let mut daemon = Daemon::new(
        options, events, addresses, model, modes, &recorder, observed, now,
    )?;
    let (servers, _local_socket) = servers;
    daemon.servers = servers;
    daemon.file_problem = problem;
    daemon.predecessor = predecessor;
    daemon.ended = LeftRules::Armed;
    daemon.ending = ending;
    daemon.uses = uses;
    daemon.rulesets = select_all(notices);
    let result = daemon.serve(stop, &mut changed).await;
    daemon.observed.health.pulse().end();
    daemon.end().await;
    result
}

/// Does the work that needs privileges (`--init-only`): prepares the mode and writes the sysctls.
/// Creates no rules in the kernel.
///
/// # Errors
///
/// Fails if this node cannot run the mode, or if a kernel setting cannot be written.
pub async fn init(options: &Options) -> Result<()> {
    may_administer_network()?;
    prepare(&options.modes).await?;
    Ok(settle(&mut options.clone(), Step::Prepare)?)
}

#[cfg(test)]
mod tests;
