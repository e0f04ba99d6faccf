//! The life of the process: read the command line, serve, say why it ended.

use std::process::ExitCode;

use kube_proxy::flags::{self, Command, CommandLineError, Options};
use kube_proxy::{config, logging, run};
use tracing::{error, warn};

fn main() -> ExitCode {
    match flags::parse(std::env::args_os()) {
        Ok(Command::Run(options)) => serve(*options),
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
            ExitCode::FAILURE
        }
    }
}

fn serve(options: Options) -> ExitCode {
    if let Err(error) = logging::start(options.verbosity, options.log_format) {
        eprintln!("kube-proxy: cannot start logging: {error}");
        return ExitCode::FAILURE;
    }
    for warning in &options.warnings {
        warn!("{warning}");
    }
    set_oom_score(options.oom_score_adj);
    // One thread for everything that waits; what blocks, the netlink sockets, has threads of its own.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let result = runtime
        .map_err(anyhow::Error::from)
        .and_then(|runtime| runtime.block_on(follow(options)));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error!("{}", told(&error));
            ExitCode::FAILURE
        }
    }
}

/// Runs as long as the configuration file says what it said: what it says anew takes a new start.
async fn follow(options: Options) -> anyhow::Result<()> {
    if options.init_only {
        return run::init(&options).await;
    }
    let Some(file) = options.configuration_file.clone() else {
        return run::run(options).await;
    };
    let used = options.configuration.clone();
    let reread = || match flags::parse(std::env::args_os())? {
        Command::Run(options) => Ok(options.configuration),
        Command::Print(_) | Command::Write(..) => Ok::<_, CommandLineError>(used.clone()),
    };
    tokio::select! {
        result = run::run(options) => result,
        () = config::changed(&file, &used, reread) => anyhow::bail!(
            "the configuration file {} has changed: exiting, to be started again with it; everything programmed stays in the kernel",
            file.display()
        ),
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
