//! `lab`: runs a command on a kernel with IPVS.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use lab::{Lane, Options};

/// Runs a command where IPVS is real: on this kernel if it has IPVS, otherwise in User Mode Linux.
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Run CMD in the lab; pass on its output and exit status.
    ///
    /// 124: time limit; 125: the guest died; 126, 127: CMD cannot be started, or there is no kernel
    /// to run it on.
    Run {
        #[command(flatten)]
        place: GuestOptions,
        /// Time limit in seconds, boot included
        #[arg(long, value_name = "SECS", default_value_t = 600)]
        timeout: u64,
        /// Memory of the guest
        #[arg(long, value_name = "SIZE")]
        memory: Option<String>,
        /// The CPU that the guest uses [default: one that no other guest uses]
        #[arg(long, value_name = "N")]
        cpu: Option<usize>,
        /// Host directory that the guest may write to, at the same path (repeatable)
        #[arg(long, value_name = "DIR")]
        keep: Vec<PathBuf>,
        /// The command and its arguments
        #[arg(
            value_name = "CMD",
            required = true,
            trailing_var_arg = true,
            allow_hyphen_values = true
        )]
        argv: Vec<OsString>,
    },
    /// Run as PID 1 of the guest (internal: `run` starts this)
    #[command(hide = true)]
    Init {
        #[arg(hide = true)]
        dir: Option<PathBuf>,
    },
    /// Report the installed and missing tools, and the kernel that a run would use
    Doctor {
        #[command(flatten)]
        place: GuestOptions,
    },
}

#[derive(Args)]
struct GuestOptions {
    /// host, A (Debian's packaged User Mode Linux; also `uml`) or B (the kernel of --kernel)
    /// [default: B with --kernel, else host if it has IPVS, else A]
    #[arg(long)]
    lane: Option<Lane>,
    /// A User Mode Linux kernel of your own; its modules, if any, are in the directory `modules` next to it
    #[arg(long, value_name = "PATH")]
    kernel: Option<PathBuf>,
}

impl GuestOptions {
    fn options(self) -> Options {
        let given = Options::from_env();
        // A flag overrides all environment variables: `--lane A` must not use the kernel of lane B
        // from LAB_KERNEL.
        match (self.lane, self.kernel) {
            (None, None) => given,
            (Some(Lane::B), None) => Options {
                lane: Some(Lane::B),
                ..given
            },
            (lane, kernel) => Options {
                lane,
                kernel,
                ..given
            },
        }
    }
}

fn main() -> ExitCode {
    lab::maybe_init();
    match Cli::parse().command {
        Verb::Run {
            place,
            timeout,
            memory,
            cpu,
            keep,
            argv,
        } => {
            let mut options = Options {
                timeout: Duration::from_secs(timeout),
                cpu,
                keep,
                ..place.options()
            };
            if let Some(memory) = memory {
                options.memory = memory;
            }
            std::process::exit(lab::run(&argv, &options))
        }
        Verb::Init { .. } => {
            eprintln!("lab: init is PID 1 of the lab's guest; use `lab run -- CMD`");
            ExitCode::from(2)
        }
        Verb::Doctor { place } => doctor(&place.options()),
    }
}

fn doctor(options: &Options) -> ExitCode {
    let findings = lab::doctor(options);
    for finding in &findings {
        let (mark, text) = match &finding.found {
            Ok(text) => ("ok     ", text),
            Err(text) => ("MISSING", text),
        };
        println!("{mark} {}: {text}", finding.what);
    }
    let missing = || findings.iter().filter(|finding| finding.found.is_err());
    let packages: Vec<&str> = missing().filter_map(|finding| finding.package).collect();
    if !packages.is_empty() {
        println!("apt-get install -y {}", packages.join(" "));
    }
    if missing().next().is_none() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
