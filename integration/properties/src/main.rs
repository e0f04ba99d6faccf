//! `make properties`: runs event sequences, and prints their number, the first seed and the speed.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Parser;
use properties::campaign::{Account, Campaign, Ground, carried, go};
use properties::modes::FORMS;
use properties::regressions;
use properties::stepped_threads::Threads;
use proxy::IpFamily;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Runs histories of events, faults, foreign changes and restarts, on the strict fakes of all modes
/// or on this machine's kernel.
#[derive(Debug, Parser)]
struct Arguments {
    /// Number of histories.
    #[arg(long, default_value_t = 1_000)]
    histories: u64,
    /// Seconds after which no further history begins.
    #[arg(long)]
    seconds: Option<u64>,
    /// Seed of the first history [default: the time].
    #[arg(long)]
    seed: Option<u64>,
    /// Run only forms whose name begins with this text: `ipvs`, `nftables-flat`, ...
    #[arg(long, default_value = "")]
    mode: String,
    /// Run only the form with exactly this name.
    #[arg(long)]
    form: Option<String>,
    /// Run on this machine's kernel, with the forms that it supports.
    #[arg(long)]
    kernel: bool,
    /// Run only the history of this file, with a log of all its steps.
    #[arg(long)]
    replay: Option<PathBuf>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    stay_on_one_processor();
    let threads = Threads::start();
    let ground = if arguments.kernel {
        Ground::Kernel
    } else {
        Ground::Fakes
    };
    if let Some(path) = arguments.replay {
        return tell(&path, ground, &threads);
    }
    if let Err(why) = replay(ground, &threads) {
        eprintln!("properties: a history that is kept fails again: {why}");
        return ExitCode::FAILURE;
    }
    let by_time = || {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        since.unwrap_or_default().as_secs() << 24
    };
    let seed = arguments.seed.unwrap_or_else(by_time);
    let is_asked_for = |name: &str| match &arguments.form {
        Some(form) => form == name,
        None => name.starts_with(&arguments.mode),
    };
    let mut forms: Vec<_> = FORMS
        .iter()
        .filter(|form| is_asked_for(form.name))
        .collect();
    if arguments.kernel {
        for family in IpFamily::ALL {
            let (carried, others) = carried(&forms, family);
            forms = carried;
            for why in others {
                println!("passed over: {why}");
            }
        }
    }
    if forms.is_empty() {
        let all: Vec<&str> = FORMS.iter().map(|form| form.name).collect();
        eprintln!(
            "properties: no mode is called so; there are {}",
            all.join(", ")
        );
        return ExitCode::FAILURE;
    }
    let names: Vec<&str> = forms.iter().map(|form| form.name).collect();
    let account = go(
        &Campaign {
            histories: arguments.histories,
            limit: arguments.seconds.map(Duration::from_secs),
            seed,
            forms,
            ground,
        },
        &threads,
    );
    let Account {
        histories,
        pieces,
        took,
        twice,
        unlike,
        failed,
    } = account;
    let took = took.as_secs_f64();
    let rate = f64::from(u32::try_from(histories).unwrap_or(u32::MAX)) / took;
    println!(
        "{histories} histories from seed {seed}, {pieces} pieces of kernel work, {took:.1} s, {rate:.0} histories a second; of {}",
        names.join(", ")
    );
    let Some(failed) = failed else {
        println!("all of them held; {twice} were run twice, {unlike} of these in another order");
        return ExitCode::SUCCESS;
    };
    for line in &failed.log {
        println!("  {line}");
    }
    let what = &failed.failure.what;
    println!(
        "seed {} fails in {} ({}): {what}",
        failed.seed, failed.form.name, failed.family
    );
    let name = format!("{}-{}.history", failed.form.name, failed.seed);
    println!("to keep it, as integration/properties/regressions/{name}:\n");
    print!(
        "{}",
        regressions::text(failed.form, failed.family, &failed.actions, what)
    );
    ExitCode::FAILURE
}

/// Binds this program to one CPU. Only one of its threads runs at a time, and waking another CPU at
/// each turn would take longer.
fn stay_on_one_processor() {
    if let Ok(may) = sched_getaffinity(None)
        && let Some(last) = (0..CpuSet::MAX_CPU).rev().find(|cpu| may.is_set(*cpu))
    {
        let mut one = CpuSet::new();
        one.set(last);
        // Ignores an error: without the binding, the program is only slower.
        let _ = sched_setaffinity(None, &one);
    }
}

fn tell(path: &Path, ground: Ground, threads: &Threads) -> ExitCode {
    let kept = match regressions::read_one(path) {
        Ok(kept) => kept,
        Err(error) => {
            eprintln!("properties: {error}");
            return ExitCode::FAILURE;
        }
    };
    let ran = ground.run(kept.form, kept.family, &kept.actions, threads, true);
    for line in &ran.log {
        println!("  {line}");
    }
    match ran.failure {
        Some(failure) => {
            println!("it fails: {}", failure.what);
            ExitCode::FAILURE
        }
        None => ExitCode::SUCCESS,
    }
}

fn replay(ground: Ground, threads: &Threads) -> Result<(), String> {
    let kept = regressions::read(&regressions::folder()).map_err(|error| error.to_string())?;
    for kept in kept {
        if ground == Ground::Kernel {
            // Skips saved event sequences on a real kernel: they fail only with the order in which
            // the fake kernel returns entries.
            continue;
        }
        let ran = ground.run(kept.form, kept.family, &kept.actions, threads, false);
        if let Some(failure) = ran.failure {
            return Err(format!("{}: {}", kept.path.display(), failure.what));
        }
    }
    Ok(())
}
