//! The life of the process: read the command line, serve, say why it ended.

use std::process::ExitCode;

use kube_proxy::flags::{self, Command, Options};
use kube_proxy::{logging, run};
use tracing::error;

fn main() -> ExitCode {
    match flags::parse(std::env::args_os()) {
        Ok(Command::Run(options)) => serve(*options),
        Ok(Command::Print(text)) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("kube-proxy: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(options: Options) -> ExitCode {
    if let Err(error) = logging::start(options.verbosity) {
        eprintln!("kube-proxy: cannot start logging: {error}");
        return ExitCode::FAILURE;
    }
    // One thread for everything that waits; what blocks, the netlink sockets, has threads of its own.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let result = runtime
        .map_err(anyhow::Error::from)
        .and_then(|runtime| runtime.block_on(run::run(options)));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error!("{}", told(&error));
            ExitCode::FAILURE
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
