//! Runs the demo: three small clusters of network namespaces, our daemon with the example
//! manifests, and real traffic. Reports the replies, and exits with 0 only if all expected results
//! were observed.

mod account;
mod bare;
mod local;
mod nginx;
mod svc;
mod tour;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use account::Account;
use anyhow::Context as _;
use clap::Parser;

/// Time limit of a run, which normally takes well under a minute including the VM's boot.
const LIMIT: Duration = Duration::from_mins(5);

/// Shows Services served by the kernel's IPVS, programmed by kube-proxy from a directory of manifests.
#[derive(Debug, Parser)]
struct Arguments {
    /// The kube-proxy binary to show
    #[arg(long, value_name = "PATH")]
    kube_proxy: PathBuf,
    /// Directory with the example manifests
    #[arg(long, value_name = "DIR")]
    examples: PathBuf,
    /// Run in a guest without the programs of iptables and ipset
    #[arg(long)]
    without_iptables: bool,
    /// Print docs/tour.md instead: Services of each type, as the subcommands show them
    #[arg(long, conflicts_with = "without_iptables")]
    tour: bool,
}

fn main() -> ExitCode {
    lab::enter(LIMIT);
    let arguments = Arguments::parse();
    if arguments.tour {
        return match tour::print(&arguments) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("demo: the tour: {error:#}");
                ExitCode::FAILURE
            }
        };
    }
    let mut account = Account::new();
    if arguments.without_iptables {
        match bare::hide_programs() {
            Ok(()) => bare::claim_that_no_program_is_there(&mut account),
            Err(error) => account.failed(&format!("{error:#}")),
        }
    }
    for (what, show) in [
        ("nginx", nginx::show as fn(&Arguments, &mut Account) -> _),
        ("svc", svc::show),
        ("local", local::show),
    ] {
        if let Err(error) =
            show(&arguments, &mut account).with_context(|| format!("example {what}"))
        {
            account.failed(&format!("{error:#}"));
        }
    }
    account.close()
}
