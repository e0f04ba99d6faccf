//! `make soak`: changes Services under traffic in the lab, for hours. Reports measured values that
//! grow, such as the daemon's memory.
//!
//! ```text
//!  churn: Services, endpoints, a pod ─▶ API server fixture ─▶ daemon on node1 ─▶ kernel
//!  traffic: TCP, UDP, affinity, one persistent connection ─────────────────────────▲
//!  samples: the process in /proc, the kernel by an operator's tools ─▶ CSV ─▶ judge ─▶ charts
//! ```
//!
//! The number of Services of each kind is constant, so the number of kernel entries is constant,
//! too. At the end, the run deletes all Services. The kernel must then hold as many entries as
//! before the first Service.

mod churn;
mod judge;
mod report;
mod sample;
mod traffic;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Parser;
use scenarios::Cluster;

use churn::Churn;
use lab::traffic::Traffic;
use report::Samples;

/// Checks that nothing grows while Services are created, changed and deleted under traffic.
#[derive(Debug, Parser)]
struct Arguments {
    /// Duration of the test run, in minutes
    #[arg(long, default_value_t = 120.0)]
    minutes: f64,
    /// Directory for the samples, the charts and the table
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Proxy mode: ipvs, iptables or nftables (nftables needs lane B)
    #[arg(long, default_value = "ipvs")]
    mode: String,
}

/// Approximate number of samples per run, and the most that a chart can show.
const SAMPLES: f64 = 720.0;
/// Minimum number of samples of a run, so that growth can be judged.
const FEWEST: usize = 20;
/// Minimum interval between two samples.
const CLOSEST: Duration = Duration::from_secs(1);
/// Pause between two rounds of changes.
const PAUSE: Duration = Duration::from_millis(300);
/// Time for the VM's boot and the cleanup, in addition to a run's duration.
const AROUND: Duration = Duration::from_mins(3);
/// Timeout for the daemon to remove all entries of Services. The daemon removes a draining
/// destination only after its last connection has ended.
const GONE_WITHIN: Duration = Duration::from_mins(1);

/// Script that shortens conntrack timeouts. Even a short run then reaches the steady state of a
/// long run.
const FORGETFUL: &str = "
sysctl -qw net.netfilter.nf_conntrack_udp_timeout=10 net.netfilter.nf_conntrack_udp_timeout_stream=10 \
  net.netfilter.nf_conntrack_tcp_timeout_time_wait=10 net.netfilter.nf_conntrack_tcp_timeout_close=5 \
  net.netfilter.nf_conntrack_tcp_timeout_fin_wait=10 net.netfilter.nf_conntrack_tcp_timeout_syn_sent=10 \
  net.netfilter.nf_conntrack_icmp_timeout=5";

fn main() -> ExitCode {
    lab::maybe_init();
    let arguments = Arguments::parse();
    let done = if lab::in_lab() {
        soak(&arguments)
    } else {
        carry(&arguments)
    };
    match done {
        Ok(status) => status,
        Err(error) => {
            eprintln!("soak: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs this program again in the lab, where it can write to the output directory.
fn carry(arguments: &Arguments) -> Result<ExitCode> {
    ensure!(
        arguments.minutes > 0.0 && arguments.minutes < 14_400.0,
        "--minutes: more than none, and less than ten days"
    );
    scenarios::kube_proxy()?;
    let out = &arguments.out;
    std::fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
    let out = out.canonicalize()?;
    let options = lab::Options {
        timeout: duration(arguments) + AROUND,
        keep: vec![out.clone()],
        ..lab::Options::from_env()
    };
    let argv: Vec<OsString> = vec![
        std::env::current_exe()?.into(),
        format!("--minutes={}", arguments.minutes).into(),
        format!("--mode={}", arguments.mode).into(),
        "--out".into(),
        out.into(),
    ];
    let status = lab::run(&argv, &options);
    Ok(ExitCode::from(u8::try_from(status).unwrap_or(1)))
}

fn duration(arguments: &Arguments) -> Duration {
    Duration::from_secs_f64(arguments.minutes * 60.0)
}

fn soak(arguments: &Arguments) -> Result<ExitCode> {
    let mut cluster = Cluster::new("soak")?;
    // The daemon may take longer than usual to program a change, because the machine may be slow.
    // The clients' timeouts stay unchanged.
    cluster.patience = Duration::from_mins(1);
    let mut api = cluster.api_server(true)?;
    api.start()?;
    let mode = format!("--proxy-mode={}", arguments.mode);
    // The daemon logs little, because the guest keeps the log in memory. Checks of drift are
    // frequent, so that their memory is allocated before the judged part begins.
    let flags = [
        mode.as_str(),
        "--v=1",
        "--ipvs-sync-period=5s",
        "--ipvs-udp-timeout=10s",
        "--ipvs-tcpfin-timeout=10s",
    ];
    cluster.launch_on(&api, &flags)?;
    cluster.await_first_sync()?;
    cluster.sh(FORGETFUL)?;
    let before = sample::left(&sample::take(&cluster)?);
    let mut churn = Churn::begin(&mut cluster, &api)?;
    for to in [churn::STEADY, churn::STEADY_V6, churn::STICKY] {
        cluster.until_answered(&cluster.outside, to)?;
    }
    let mut traffic = traffic::start(&cluster);
    let mut samples = Samples::create(&arguments.out)?;
    let rounds = run(
        &mut cluster,
        &mut churn,
        &api,
        &traffic,
        &mut samples,
        duration(arguments),
    );
    traffic.stop()?;
    let [steady, elsewhere] = traffic::accounts(&traffic);
    println!("steady: {steady}\nelsewhere: {elsewhere}");
    let rounds = match rounds {
        Ok(rounds) => rounds,
        Err(error) => {
            println!(
                "{}\n-- kube-proxy said:\n{}",
                samples.judge()?.0,
                cluster.said()
            );
            return Err(error);
        }
    };
    churn.end(&api)?;
    let left = until_left(&cluster, before);
    cluster.stop()?;
    let (table, mut wrong) = samples.judge()?;
    println!(
        "{rounds} rounds of churn, {} samples\n{table}",
        samples.len()
    );
    if !steady.is_judged() {
        wrong.push(format!("too few requests can be judged: {steady}"));
    }
    if steady.failed > 0 {
        wrong.push(format!(
            "requests failed of a Service that had endpoints at all times: {steady}"
        ));
    }
    wrong.extend(left.err().map(|error| format!("{error:#}")));
    if wrong.is_empty() {
        println!("nothing grows, and nothing is left");
        return Ok(ExitCode::SUCCESS);
    }
    for what in wrong {
        eprintln!("soak: {what}");
    }
    Ok(ExitCode::FAILURE)
}

/// Changes Services and takes samples for `time`. Returns the number of rounds.
fn run(
    cluster: &mut Cluster,
    churn: &mut Churn,
    api: &scenarios::ApiServer,
    traffic: &Traffic,
    samples: &mut Samples,
    time: Duration,
) -> Result<u32> {
    let (started, pace) = (Instant::now(), time.div_f64(SAMPLES).max(CLOSEST));
    let (mut rounds, mut due) = (0, Duration::ZERO);
    // On a slow machine, even a short run continues until it has enough samples.
    while started.elapsed() < time || samples.len() < FEWEST {
        churn
            .round(cluster, api)
            .with_context(|| format!("after {rounds} rounds"))?;
        rounds += 1;
        std::thread::sleep(PAUSE);
        let elapsed = started.elapsed();
        if elapsed >= due {
            let values = sample::take(cluster)?;
            samples.add(
                elapsed.as_secs_f64() / 60.0,
                values,
                traffic::accounts(traffic),
            )?;
            due = elapsed + pace;
        }
    }
    Ok(rounds)
}

/// Waits until the kernel has as many entries of Services as before the first Service was created.
fn until_left(cluster: &Cluster, before: [u32; 6]) -> Result<()> {
    let started = Instant::now();
    loop {
        let now = sample::left(&sample::take(cluster)?);
        if now == before {
            return Ok(());
        }
        if started.elapsed() > GONE_WITHIN {
            bail!(
                "all Services are gone, and the kernel does not hold what it held before they came; \
                 virtual servers, destinations, members of sets, addresses, rules, lines of tables: {before:?} before, {now:?} now"
            );
        }
        std::thread::sleep(Duration::from_secs(1));
    }
}
