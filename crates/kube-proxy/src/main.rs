//! The life of the process: read the command line, serve, say why it ended.

use std::convert::Infallible;
use std::ffi::OsString;
use std::future::pending;
use std::path::Path;
use std::process::ExitCode;

use kube_proxy::config::Waiting;
use kube_proxy::events::{Event, Recorder};
use kube_proxy::flags::{self, Command, CommandLineError, Options};
use kube_proxy::{capabilities, check, cleanup, config, iptables, logging, memory, panics, run};
use tokio::sync::{mpsc, oneshot};
use tracing::{error, info, warn};

/// Exit status of `kube-proxy check`: neither 0, nothing would change, nor 1, something would.
const CANNOT_SAY: u8 = 2;

fn main() -> ExitCode {
    if let Err(error) = iptables::stand_in(std::env::args_os()) {
        eprintln!("kube-proxy: {}", told(&error));
        return ExitCode::FAILURE;
    }
    panics::end_the_process();
    memory::start();
    let arguments: Vec<OsString> = std::env::args_os().collect();
    match flags::parse_prepared(&arguments) {
        Ok(Command::Run(options)) => live(&options, ExitCode::FAILURE, follow(&options)),
        Ok(Command::Check(options, output)) => live(
            &options,
            ExitCode::from(CANNOT_SAY),
            check::check((*options).clone(), output),
        ),
        Ok(Command::Cleanup(options)) => {
            live(&options, ExitCode::FAILURE, cleanup::cleanup(&options))
        }
        Ok(Command::Print(text)) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Ok(Command::Write(file, text)) => match std::fs::write(&file, text) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("kube-proxy: cannot write {}: {error}", file.display());
                ExitCode::FAILURE
            }
        },
        Err(error) => {
            eprintln!("kube-proxy: {error}");
            let is_check = std::env::args_os()
                .nth(1)
                .is_some_and(|first| first == "check");
            ExitCode::from(if is_check { CANNOT_SAY } else { 1 })
        }
    }
}

/// Starts what every life needs, and lives it; `failed` is the exit status if it ends in an error.
fn live(
    options: &Options,
    failed: ExitCode,
    life: impl Future<Output = anyhow::Result<ExitCode>>,
) -> ExitCode {
    if let Err(error) = logging::start(options) {
        eprintln!("kube-proxy: cannot start logging: {error}");
        return failed;
    }
    if options.verbosity >= 1 {
        for line in flags::as_typed(std::env::args_os()) {
            info!(target: logging::UNSTRUCTURED, "FLAG: {line}");
        }
    }
    for note in &options.notes {
        info!("{note}");
    }
    for warning in &options.warnings {
        warn!("{warning}");
    }
    if let Err(error) = capabilities::pass_on() {
        warn!("capabilities cannot be passed on to iptables: {error}");
    }
    // One thread for everything that waits; what blocks, the netlink sockets, has threads of its own.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let result = runtime.map_err(anyhow::Error::from).and_then(|runtime| {
        let result = runtime.block_on(life);
        // What still blocks, on a program that hangs, is not waited for.
        runtime.shutdown_background();
        result
    });
    result.unwrap_or_else(|error| {
        error!("{}", told(&error));
        failed
    })
}

/// Runs, and goes on with what the configuration file says anew, unless that waits for a new start.
async fn follow(options: &Options) -> anyhow::Result<ExitCode> {
    if options.init_only {
        run::init(options).await?;
        if let Some(file) = keeps_prepared(options) {
            config::record(file, &options.configuration)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    memory::set_oom_score(options.oom_score_adj);
    kube_proxy::descriptors::raise_limit();
    keep_prepared(options);
    let (changed, changes) = mpsc::channel(1);
    let (recorder, recording) = oneshot::channel();
    tokio::select! {
        result = run::run(options.clone(), changes, recorder) => result.map(|()| ExitCode::SUCCESS),
        never = reload(options.clone(), changed, recording) => match never {},
    }
}

/// Sends on what the configuration file says anew, and says what of it waits for a new start.
async fn reload(
    mut used: Options,
    changed: mpsc::Sender<Options>,
    recording: oneshot::Receiver<Recorder>,
) -> Infallible {
    let Some(file) = used.configuration_file.clone() else {
        return pending().await;
    };
    let mut awaited = Awaited::new(recording);
    let mut said = used.configuration.clone();
    loop {
        let asked = config::changed(&file, &said, || reread(&[])).await;
        said = asked.configuration.clone();
        let waiting = used.configuration.waits(&said);
        awaited.tell(&file, &waiting, &used.node_name).await;
        let options = if waiting.is_empty() {
            asked
        } else {
            match reread(&waiting) {
                Ok(options) => options,
                Err(error) => {
                    warn!("{error}; going on with the configuration in use");
                    continue;
                }
            }
        };
        let fields = used.configuration.differences(&options.configuration);
        if fields.is_empty() {
            continue;
        }
        info!(
            "the configuration file {} has changed in {}, which takes no new start",
            file.display(),
            fields.join(", ")
        );
        for warning in &options.warnings {
            if !used.warnings.contains(warning) {
                warn!("{warning}");
            }
        }
        used = options.clone();
        if changed.send(options).await.is_err() {
            return pending().await;
        }
    }
}

/// What waits for a new start, as far as it has been said.
struct Awaited {
    told: Vec<Waiting>,
    /// Comes when the daemon has one.
    recording: Option<oneshot::Receiver<Recorder>>,
    recorder: Recorder,
}

impl Awaited {
    fn new(recording: oneshot::Receiver<Recorder>) -> Self {
        Self {
            told: Vec::new(),
            recording: Some(recording),
            recorder: Recorder::off(),
        }
    }

    /// Says once what waits, and when nothing does any more.
    async fn tell(&mut self, file: &Path, waiting: &[Waiting], node: &str) {
        if self.told == waiting {
            return;
        }
        self.told = waiting.to_vec();
        let file = file.display();
        if waiting.is_empty() {
            info!(
                "the configuration file {file} says what is in use again: nothing waits for a new start"
            );
            return;
        }
        let fields: Vec<String> = waiting.iter().map(ToString::to_string).collect();
        let note = format!(
            "the configuration file {file} says what takes a new start of kube-proxy, and is not in effect: {}; to bring it into effect, \
             restart kube-proxy, in a cluster node by node: `kubectl -n kube-system rollout restart daemonset kube-proxy`",
            fields.join(", ")
        );
        warn!("{note}");
        if let Some(recording) = self.recording.take() {
            self.recorder = recording.await.unwrap_or_else(|_| Recorder::off());
        }
        self.recorder.record(Event::restart_required(node, note));
    }
}

/// Where what this pod is prepared for is kept, if anything could change it.
fn keeps_prepared(options: &Options) -> Option<&Path> {
    options.configuration_file.as_ref()?;
    options.prepared_configuration.as_deref()
}

/// Keeps what this pod starts with, if nothing was kept yet: no init container has.
fn keep_prepared(options: &Options) {
    let Some(file) = keeps_prepared(options) else {
        return;
    };
    if let Ok(None) = config::prepared(file)
        && let Err(error) = config::record(file, &options.configuration)
    {
        warn!(
            "{error}; should this container be started again, it takes up what --config says by then"
        );
    }
}

/// The options as the same command line has them now, with what waits as it is in use.
fn reread(waiting: &[Waiting]) -> Result<Options, CommandLineError> {
    match flags::parse_keeping(std::env::args_os(), waiting)? {
        Command::Run(options) | Command::Check(options, _) | Command::Cleanup(options) => {
            Ok(*options)
        }
        Command::Print(_) | Command::Write(..) => {
            unreachable!("the command line was one to run with, and has not changed")
        }
    }
}

/// An error with its causes, none of them twice: most of our errors tell theirs themselves.
fn told(error: &anyhow::Error) -> String {
    error
        .chain()
        .skip(1)
        .map(ToString::to_string)
        .fold(error.to_string(), |text, cause| {
            if text.contains(&cause) {
                text
            } else {
                format!("{text}: {cause}")
            }
        })
}
