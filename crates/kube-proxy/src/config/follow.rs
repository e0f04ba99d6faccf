//! Follows the configuration file while the process runs, and reports changes that need a restart.

pub mod problem;
pub mod watch;

use std::convert::Infallible;
use std::future::pending;
use std::path::Path;

use tokio::sync::{mpsc, oneshot};
use tracing::{info, warn};

use crate::config::command_line::{self, Command, CommandLineError};
use crate::config::options::Options;
use crate::config::{self, Waiting};
use crate::events::{Event, Recorder};
use problem::FileProblem;

/// Watches the configuration file, sends changed options to the daemon, and reports changes that
/// need a restart. `problem` shows whether the file differs from the configuration in use.
pub async fn follow(
    mut used: Options,
    changed: mpsc::Sender<Options>,
    recording: oneshot::Receiver<Recorder>,
    problem: FileProblem,
) -> Infallible {
    let Some(file) = used.process.configuration_file.clone() else {
        return pending().await;
    };
    let mut awaited = PendingRestart::new(recording, problem.clone());
    let mut said = used.said.configuration.clone();
    loop {
        let asked = watch::changed(&file, &said, &problem, || reread(&[])).await;
        said = asked.said.configuration.clone();
        let waiting = used.said.configuration.waits(&said);
        awaited.tell(&file, &waiting, &used.process.node_name).await;
        let options = if waiting.is_empty() {
            asked
        } else {
            match reread(&waiting) {
                Ok(options) => options,
                Err(error) => {
                    warn!("{error}; going on with the configuration in use");
                    problem.set_unusable(Some(error.to_string()));
                    continue;
                }
            }
        };
        let fields = used
            .said
            .configuration
            .differences(&options.said.configuration);
        if fields.is_empty() {
            continue;
        }
        info!(
            "the configuration file {} has changed in {}, which needs no restart",
            file.display(),
            fields.join(", ")
        );
        for warning in &options.said.warnings {
            if !used.said.warnings.contains(warning) {
                warn!("{warning}");
            }
        }
        used = options.clone();
        if changed.send(options).await.is_err() {
            return pending().await;
        }
    }
}

/// Changes of the configuration file that need a restart and that the log already reports.
struct PendingRestart {
    told: Vec<Waiting>,
    /// Channel that delivers the daemon's event recorder, or `None` after the recorder has arrived.
    recording: Option<oneshot::Receiver<Recorder>>,
    recorder: Recorder,
    problem: FileProblem,
}

impl PendingRestart {
    fn new(recording: oneshot::Receiver<Recorder>, problem: FileProblem) -> Self {
        Self {
            told: Vec::new(),
            recording: Some(recording),
            recorder: Recorder::off(),
            problem,
        }
    }

    /// Reports changes that need a restart, each change only once. Also reports when no such change
    /// remains.
    async fn tell(&mut self, file: &Path, waiting: &[Waiting], node: &str) {
        if self.told == waiting {
            return;
        }
        self.told = waiting.to_vec();
        let file = file.display();
        if waiting.is_empty() {
            self.problem.set_waiting(None);
            info!(
                "the configuration file {file} matches the settings in use again: no restart is \
                 needed"
            );
            return;
        }
        let fields: Vec<String> = waiting.iter().map(ToString::to_string).collect();
        let note = format!(
            "the configuration file {file} has changes that need a restart of kube-proxy and are \
             not in effect: {}; to apply them, restart kube-proxy, in a cluster node by node: \
             `kubectl -n kube-system rollout restart daemonset NAME` (kubeadm: kube-proxy; this \
             project's manifests and chart: kube-proxy-ipvs)",
            fields.join(", ")
        );
        warn!("{note}");
        self.problem.set_waiting(Some(note.clone()));
        if let Some(recording) = self.recording.take() {
            self.recorder = recording.await.unwrap_or_else(|_| Recorder::off());
        }
        self.recorder.record(Event::restart_required(node, note));
    }
}

/// Returns the file that stores the prepared configuration, or `None` if this process follows no
/// configuration file.
pub fn keeps_prepared(options: &Options) -> Option<&Path> {
    options.process.configuration_file.as_ref()?;
    options.process.prepared_configuration.as_deref()
}

/// Stores the configuration of this start in the file of `--prepared-config`, unless an init
/// container has already done so.
pub fn keep_prepared(options: &Options) {
    let Some(file) = keeps_prepared(options) else {
        return;
    };
    if let Ok(None) = config::prepared(file)
        && let Err(error) = config::record(file, &options.said.configuration)
    {
        warn!("{error}; a restart of this container uses the --config file of that time");
    }
}

/// Reads the command line and the configuration file again. Settings that need a restart keep their
/// current values.
fn reread(waiting: &[Waiting]) -> Result<Options, CommandLineError> {
    match command_line::parse_keeping(std::env::args_os(), waiting)? {
        Command::Run(options) | Command::Check(options, _) | Command::Cleanup(options) => {
            Ok(*options)
        }
        Command::Print(_) | Command::Write(..) => {
            unreachable!("the command line was one to run with, and has not changed")
        }
    }
}
