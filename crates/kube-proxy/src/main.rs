//! Entry point of the process. Reads the command line, runs the daemon or a subcommand, and
//! prints or logs the reason if the process fails.

#![warn(clippy::print_stdout, clippy::print_stderr)]

use std::ffi::OsString;
use std::process::ExitCode;

use flags::usage::EXIT_USAGE;
use kube_proxy::check::CANNOT_SAY;
use kube_proxy::config::command_line::{self, Command, CompletedArguments};
use kube_proxy::config::follow;
use kube_proxy::config::follow::problem::FileProblem;
use kube_proxy::config::follow::{keep_prepared, keeps_prepared};
use kube_proxy::config::options::Options;
use kube_proxy::process::{capabilities, descriptors, iptables, log_runner, memory, panics};
use kube_proxy::run::cleanup;
use kube_proxy::{check, config, logging, run};
use tokio::sync::{mpsc, oneshot};
use tracing::{error, warn};
use view::{print, print_error};

fn main() -> ExitCode {
    if let Err(error) = iptables::stand_in(std::env::args_os()) {
        print_error(format_args!("kube-proxy: {}", in_words(&error)));
        return ExitCode::FAILURE;
    }
    match log_runner::stand_in(std::env::args_os()) {
        Ok(None) => {}
        Ok(Some(code)) => return ExitCode::from(code),
        Err(error) => {
            print_error(format_args!("go-runner: {}", in_words(&error)));
            return ExitCode::FAILURE;
        }
    }
    panics::end_the_process();
    memory::start();
    let given: Vec<OsString> = std::env::args_os().collect();
    let program = ask::Program {
        modes: modes::footprints::ALL,
        virtual_servers: modes::ipvs::virtual_servers,
        with_next_step: descriptors::with_next_step,
    };
    if let Some(code) = ask::run(&given, &program) {
        return code;
    }
    let read = command_line::completed(given).and_then(|CompletedArguments { arguments, note }| {
        if let Some(note) = note {
            print_error(format_args!("kube-proxy: {note}"));
        }
        command_line::parse_prepared(&arguments)
    });
    match read {
        Ok(Command::Run(options)) => {
            let told = if options.process.init_only {
                FlagLog::Here
            } else {
                FlagLog::ByLife
            };
            live(&options, told, ExitCode::FAILURE, || serve(&options))
        }
        Ok(Command::Check(options, question)) => {
            let undetermined = ExitCode::from(CANNOT_SAY);
            if let Err(error) = capabilities::may_administer_network() {
                print_error(format_args!("kube-proxy: {error}"));
                return undetermined;
            }
            live(&options, FlagLog::Here, undetermined, || {
                check::check((*options).clone(), question)
            })
        }
        Ok(Command::Cleanup(options)) => {
            if let Err(error) = capabilities::may_administer_network() {
                print_error(format_args!("kube-proxy: {error}"));
                return ExitCode::FAILURE;
            }
            live(&options, FlagLog::Here, ExitCode::FAILURE, || {
                cleanup::cleanup(&options)
            })
        }
        Ok(Command::Print(text)) => match print(&text) {
            Ok(()) => ExitCode::SUCCESS,
            Err(lost) => {
                print_error(format_args!("kube-proxy: {lost}"));
                ExitCode::FAILURE
            }
        },
        Ok(Command::Write(file, text)) => match std::fs::write(&file, text) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                let file = file.display();
                print_error(format_args!("kube-proxy: cannot write {file}: {error}"));
                ExitCode::FAILURE
            }
        },
        Err(error) => {
            print_error(format_args!("kube-proxy: {error}"));
            ExitCode::from(EXIT_USAGE)
        }
    }
}

/// Function that logs the messages about the flags: `live` or `run::run`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FlagLog {
    /// The function `live` logs the messages about the flags, before it runs the command.
    Here,
    /// The function `run::run` logs the messages about the flags, after the first line of its log.
    ByLife,
}

/// Starts the async runtime and the log, and then runs `life`, the work of a command. `failed` is
/// the exit status if `life` fails.
fn live<Life: Future<Output = anyhow::Result<ExitCode>>>(
    options: &Options,
    told: FlagLog,
    failed: ExitCode,
    life: impl FnOnce() -> Life,
) -> ExitCode {
    // Runs all tasks on one thread, because the tasks only wait. Blocking netlink sockets and HTTP
    // servers have their own threads.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            print_error(format_args!("kube-proxy: cannot start: {error}"));
            return failed;
        }
    };
    let life = {
        let _entered = runtime.enter();
        life()
    };
    if let Err(error) = logging::start(&options.log) {
        print_error(format_args!("kube-proxy: cannot start logging: {error}"));
        return failed;
    }
    if told == FlagLog::Here {
        options.said.tell(&options.log);
    }
    if let Err(error) = capabilities::pass_on() {
        warn!("capabilities cannot be passed on to iptables: {error}");
    }
    let result = runtime.block_on(life);
    // Does not wait for blocking work, because a started program may hang.
    runtime.shutdown_background();
    result.unwrap_or_else(|error| {
        error!("{}", in_words(&error));
        failed
    })
}

/// Prepares the node (`--init-only`), or serves. Subscribes to signals before it serves: in a
/// container, the kernel discards a signal to process 1 if the process has no handler.
fn serve(options: &Options) -> impl Future<Output = anyhow::Result<ExitCode>> {
    let stop = (!options.process.init_only).then(run::Stop::subscribe);
    async move {
        match stop {
            Some(stop) => go_on(options, stop?).await,
            None => init(options).await,
        }
    }
}

/// Prepares the node, and stores the configuration for which the node was prepared.
async fn init(options: &Options) -> anyhow::Result<ExitCode> {
    run::init(options).await?;
    if let Some(file) = keeps_prepared(options) {
        config::record(file, &options.said.configuration)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs the daemon. Applies changes of the configuration file, except changes that need a restart.
async fn go_on(options: &Options, stop: run::Stop) -> anyhow::Result<ExitCode> {
    memory::set_oom_score(options.process.oom_score_adj);
    descriptors::raise_limit();
    keep_prepared(options);
    let (changed, changes) = mpsc::channel(1);
    let (recorder, recording) = oneshot::channel();
    let problem = FileProblem::default();
    tokio::select! {
        result = run::run(options.clone(), stop, changes, problem.clone(), recorder) => result.map(|()| ExitCode::SUCCESS),
        never = follow::follow(options.clone(), changed, recording, problem) => match never {},
    }
}

/// Formats an error with its causes. Omits a cause whose text the error already contains.
fn in_words(error: &anyhow::Error) -> String {
    let causes = error.chain().skip(1).map(ToString::to_string);
    let text = causes.fold(error.to_string(), |text, cause| {
        if text.contains(&cause) {
            text
        } else {
            format!("{text}: {cause}")
        }
    });
    descriptors::with_next_step(text)
}
