//! The life of the process: read the command line, serve, say why it ended.

use std::process::ExitCode;

use anyhow::anyhow;
use kube_proxy::config::Change;
use kube_proxy::flags::{self, Command, CommandLineError, Options};
use kube_proxy::{capabilities, check, cleanup, config, iptables, logging, memory, run};
use tokio::sync::mpsc;
use tracing::{error, info, warn};

/// Exit status of `kube-proxy check`: neither 0, nothing would change, nor 1, something would.
const CANNOT_SAY: u8 = 2;

fn main() -> ExitCode {
    if let Err(error) = iptables::stand_in(std::env::args_os()) {
        eprintln!("kube-proxy: {}", told(&error));
        return ExitCode::FAILURE;
    }
    memory::start();
    match flags::parse(std::env::args_os()) {
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
            info!("FLAG: {line}");
        }
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
    let result = runtime
        .map_err(anyhow::Error::from)
        .and_then(|runtime| runtime.block_on(life));
    result.unwrap_or_else(|error| {
        error!("{}", told(&error));
        failed
    })
}

/// Runs, and goes on with what the configuration file says anew, unless that takes a new start.
async fn follow(options: &Options) -> anyhow::Result<ExitCode> {
    if options.init_only {
        run::init(options).await?;
        return Ok(ExitCode::SUCCESS);
    }
    set_oom_score(options.oom_score_adj);
    let (changed, changes) = mpsc::channel(1);
    tokio::select! {
        result = run::run(options.clone(), changes) => result.map(|()| ExitCode::SUCCESS),
        outdated = reload(options.clone(), changed) => Err(outdated),
    }
}

/// Sends on what the configuration file says anew; returns when it says what takes a new start.
async fn reload(mut used: Options, changed: mpsc::Sender<Options>) -> anyhow::Error {
    let Some(file) = used.configuration_file.clone() else {
        return std::future::pending().await;
    };
    loop {
        let options = config::changed(&file, &used.configuration, reread).await;
        let fields = used.configuration.differences(&options.configuration);
        let restart = |field: &&String| config::change_of(field) == Change::Restart;
        let lasting: Vec<&str> = fields.iter().filter(restart).map(String::as_str).collect();
        let file = file.display();
        if !lasting.is_empty() {
            return anyhow!(
                "the configuration file {file} has changed in {}: exiting, to be started again with it; everything programmed stays in the kernel",
                lasting.join(", ")
            );
        }
        info!(
            "the configuration file {file} has changed in {}: applied without a new start",
            fields.join(", ")
        );
        for warning in &options.warnings {
            if !used.warnings.contains(warning) {
                warn!("{warning}");
            }
        }
        if options.oom_score_adj != used.oom_score_adj {
            set_oom_score(options.oom_score_adj);
        }
        logging::set_verbosity(&options);
        used = options.clone();
        if changed.send(options).await.is_err() {
            return std::future::pending().await;
        }
    }
}

/// The options as the same command line has them now.
fn reread() -> Result<Options, CommandLineError> {
    match flags::parse(std::env::args_os())? {
        Command::Run(options) | Command::Check(options, _) | Command::Cleanup(options) => {
            Ok(*options)
        }
        Command::Print(_) | Command::Write(..) => {
            unreachable!("the command line was one to run with, and has not changed")
        }
    }
}

/// Says how unwilling the kernel is to kill this process when memory is short.
fn set_oom_score(wanted: i16) {
    const FILE: &str = "/proc/self/oom_score_adj";
    let wanted = wanted.to_string();
    if std::fs::read_to_string(FILE).is_ok_and(|found| found.trim() == wanted) {
        return;
    }
    if let Err(error) = std::fs::write(FILE, &wanted) {
        warn!(
            "cannot set {FILE} to {wanted}: {error}; allow CAP_SYS_RESOURCE, or give --oom-score-adj (oomScoreAdj) what it is"
        );
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
