//! Measures the control plane: how long a program takes to write state into the kernel, and what
//! this costs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::net::SocketAddrV4;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use ipvs_netlink::{Protocol, ServiceKey};
use lab::Signal;
use nix::time::{ClockId, clock_gettime};

use crate::counts;
use crate::objects::{Objects, PORT, changed, path};
use crate::process::{self, Process};
use crate::schema::{
    Axis, Cell, CellFigures, Distribution, KernelDigest, Mode, Outcome, SubjectKind,
};
use crate::stage::Stage;
use crate::subject;
use crate::wait::{Background, WaitEnd};

/// Number of Services that the axis `add` adds, one after another. Under strace, it adds fewer
/// ([`ADDED_COUNTING`]).
const ADDED: u32 = 20;
const ADDED_COUNTING: u32 = 5;
/// Number of endpoints that the axis `rolling` replaces, in as many Services.
const ROLLED: u32 = 100;
/// Pause before a measurement, in which the measured program finishes its work.
const SETTLE: Duration = Duration::from_secs(5);
/// Time without output of strace after which the measured program counts as idle.
const CALM: Duration = Duration::from_secs(3);
/// Number of changes before the first measured one.
const WARM_UP: u32 = 20;
/// Minimum number of changes to measure, however slow they are.
const LEAST: u32 = 10;

/// Measures a cell (one benchmark run) of the control plane axes `cold` to `big`. Runs in the lab.
pub(crate) fn measure(cell: &Cell) -> Result<Outcome> {
    let mut stage = Stage::new(cell)?;
    let is_kube_proxy = matches!(cell.subject.kind, SubjectKind::KubeProxy { .. });
    if is_kube_proxy {
        stage.serve()?;
    }
    if cell.axis == Axis::Loaded {
        load_modules()?;
    }
    let fixture_before = stage.fixture_cpu_s()?;
    let (mut subject, started) = subject::start(&stage)?;
    if cell.axis == Axis::Change && !is_kube_proxy {
        // The bare loader makes the changes by itself, so the expected objects must already include
        // them.
        for turn in 0..cell.changes {
            let (service, index) = changed(cell.size, turn);
            stage.objects.replace(service, index, turn);
        }
    }
    let (since, state) = match stage.until_programmed(&mut subject, started)? {
        WaitEnd::Done(since, state) => (since, state),
        WaitEnd::Not(outcome) => return Ok(outcome),
    };
    let mut measured = CellFigures {
        wall_s: Some((since - started).as_secs_f64()),
        cpu_s: Some(subject.cpu_s()?),
        fixture_cpu_s: Some(stage.fixture_cpu_s()? - fixture_before),
        peak_kib: Some(subject.memory_kib("VmHWM")?),
        state: Some(state),
        ..CellFigures::default()
    };
    match cell.axis {
        Axis::Cold | Axis::Loaded | Axis::Big => {}
        Axis::Memory => {
            std::thread::sleep(SETTLE);
            measured.peak_kib = Some(subject.memory_kib("VmHWM")?);
            measured.steady_kib = Some(subject.memory_kib("VmRSS")?);
        }
        Axis::Change if !is_kube_proxy => {}
        axis if !is_kube_proxy => bail!("{} has no axis {axis}", cell.subject.name),
        Axis::Restart => return restart(stage, subject),
        Axis::Idle => measured = idle(&stage, &subject)?,
        Axis::Add => return add(&mut stage, subject),
        Axis::Change => return change(&mut stage, subject),
        Axis::Rolling => return rolling(&mut stage, subject),
        Axis::Delete => return delete(&mut stage, subject),
        axis => bail!("{axis} is measured elsewhere"),
    }
    if cell.is_counting {
        // strace slows the measured program down. So this run only counts, and reports no
        // durations.
        measured = CellFigures {
            counts: Some(counted(&stage, 0)?),
            state: measured.state,
            ..CellFigures::default()
        };
    } else if !is_kube_proxy {
        parts(&subject.log(), &mut measured);
    }
    Ok(Outcome::Measured(Box::new(measured)))
}

/// Loads the kernel modules that IPVS mode needs. `modprobe` accepts features that are built into
/// the kernel.
fn load_modules() -> Result<()> {
    let of_both = |table| ["ip", "ip6"].map(|family| format!("{family}{table}"));
    let tables = ["_tables", "table_nat", "table_filter"]
        .into_iter()
        .flat_map(of_both);
    let status = Command::new("modprobe")
        .args(["-q", "-a", "ip_vs_rr"])
        .args(iptables::MODULES)
        .args(proxy_ipvs::MODULES)
        .args(tables)
        .status()
        .context("cannot start modprobe")?;
    ensure!(status.success(), "modprobe ended with {status}");
    Ok(())
}

/// Parses the figures that the bare loader or the kernel's tools print, one on each line:
///
/// - a name and a duration in seconds, such as `write_sets_s 0.12`;
/// - a name, a start time and an end time, both in seconds;
/// - `changes_ms` and a JSON list of durations.
fn parts(log: &str, measured: &mut CellFigures) {
    for line in log.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |text: &str| text.parse::<f64>().ok();
        match words.as_slice() {
            ["changes_ms", values] => {
                let values = serde_json::from_str(values).unwrap_or_default();
                if let Some(all) = Distribution::of("ms", values) {
                    measured.series.insert("all".into(), all);
                }
            }
            [part, seconds] if part.ends_with("_s") => {
                if let Some(seconds) = number(seconds) {
                    measured.figures.insert((*part).to_owned(), seconds);
                }
            }
            [part, from, to] => {
                if let (Some(from), Some(to)) = (number(from), number(to)) {
                    measured.figures.insert(format!("{part}_s"), to - from);
                }
            }
            _ => {}
        }
    }
}

/// Waits until strace has been idle for a while. Then counts the system calls in its output, from
/// byte `from` on.
fn counted(stage: &Stage, from: u64) -> Result<crate::schema::Counts> {
    let trace = stage.trace();
    // strace may not have created its output file yet.
    let length = || fs::metadata(&trace).map_or(0, |file| file.len());
    let (mut before, mut since) = (length(), Instant::now());
    let deadline = Instant::now() + stage.limit();
    while (before == 0 || since.elapsed() < CALM) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(200));
        let now = length();
        // Ignores growth of up to 2,000 bytes, because the timers of an idle daemon cause some
        // output.
        if now > before + 2_000 {
            (before, since) = (now, Instant::now());
        }
    }
    let mut file = fs::File::open(&trace).context("strace wrote nothing")?;
    file.seek(SeekFrom::Start(from))?;
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    let mut counts = counts::count(&String::from_utf8_lossy(&text));
    // The output begins with the start of the measured program itself, which does not count.
    counts.processes -= u64::from(from == 0 && counts.processes > 0);
    Ok(counts)
}

/// Values of counters at the start of a measured phase.
struct Phase {
    /// Length in bytes of strace's output before the phase.
    traced: u64,
    cpu_s: f64,
    fixture_cpu_s: f64,
}

impl Phase {
    fn begin(stage: &Stage, subject: &Process) -> Result<Self> {
        if stage.cell.is_counting {
            // strace may not have written all system calls of the previous phase yet.
            std::thread::sleep(CALM);
        }
        Ok(Self {
            traced: fs::metadata(stage.trace()).map_or(0, |file| file.len()),
            cpu_s: subject.cpu_s()?,
            fixture_cpu_s: stage.fixture_cpu_s()?,
        })
    }

    fn end(&self, stage: &Stage, subject: &Process) -> Result<CellFigures> {
        Ok(CellFigures {
            cpu_s: Some(subject.cpu_s()? - self.cpu_s),
            fixture_cpu_s: Some(stage.fixture_cpu_s()? - self.fixture_cpu_s),
            peak_kib: Some(subject.memory_kib("VmHWM")?),
            ..CellFigures::default()
        })
    }
}

/// Waits until the kernel has the present objects. Returns the time at which it first had them, and
/// a digest of its state. Returns the outcome if it does not get them.
fn settled(
    stage: &mut Stage,
    subject: &mut Process,
    started: Instant,
) -> Result<Result<(Instant, KernelDigest), Outcome>> {
    Ok(match stage.until_programmed(subject, started)? {
        WaitEnd::Done(since, state) => Ok((since, state)),
        WaitEnd::Not(outcome) => Err(outcome),
    })
}

/// Restarts the measured program. Measures the time until it has restored one Service, which the
/// benchmark removed from the kernel while the program was stopped.
///
/// Under strace, removes no Service, and counts the system calls of the start.
fn restart(mut stage: Stage, subject: Process) -> Result<Outcome> {
    subject.stop()?;
    if stage.cell.is_counting {
        let _ = fs::remove_file(stage.trace());
    } else {
        take_out(&mut stage)?;
    }
    let fixture_before = stage.fixture_cpu_s()?;
    let (mut subject, started) = subject::start(&stage)?;
    let (since, state) = match settled(&mut stage, &mut subject, started)? {
        Ok(settled) => settled,
        Err(outcome) => return Ok(outcome),
    };
    if stage.cell.is_counting {
        let counts = counted(&stage, 0)?;
        return Ok(Outcome::Measured(Box::new(CellFigures {
            counts: Some(counts),
            state: Some(state),
            ..CellFigures::default()
        })));
    }
    Ok(Outcome::Measured(Box::new(CellFigures {
        wall_s: Some((since - started).as_secs_f64()),
        cpu_s: Some(subject.cpu_s()?),
        fixture_cpu_s: Some(stage.fixture_cpu_s()? - fixture_before),
        peak_kib: Some(subject.memory_kib("VmHWM")?),
        state: Some(state),
        ..CellFigures::default()
    })))
}

/// Removes the kernel entry that leads to the last Service.
fn take_out(stage: &mut Stage) -> Result<()> {
    let last = Objects::address(stage.objects.services().saturating_sub(1));
    match stage.mode() {
        Mode::Ipvs => stage.kernel.write_servers(|family, batch| {
            let key = ServiceKey::new(Protocol::TCP, last.into(), PORT);
            family.del_service(batch, &key);
        }),
        Mode::Nftables => stage.kernel.take_out(last),
        Mode::Userspace => bail!("nothing of userspace mode is taken out"),
        Mode::Iptables => {
            let saved = stage.node.read(["iptables-save", "-t", "nat"])?;
            let rule = format!("-A KUBE-SERVICES -d {last}/32 ");
            let rule = saved.lines().find(|line| line.starts_with(&rule));
            let rule = rule.with_context(|| format!("no rule for {last}"))?;
            let text = format!("*nat\n{}\nCOMMIT\n", rule.replacen("-A", "-D", 1));
            let file = stage.folder().join("take-out");
            fs::write(&file, text)?;
            let script = "iptables-restore --noflush < \"$1\"";
            let argv = ["sh", "-ec", script, "sh", &file.display().to_string()];
            stage
                .node
                .read(argv)
                .map(drop)
                .context("cannot take a rule away")
        }
    }
}

/// Adds Services one after another. Waits until the kernel serves a Service before it adds the
/// next.
fn add(stage: &mut Stage, mut subject: Process) -> Result<Outcome> {
    std::thread::sleep(SETTLE);
    let mut api = stage.api()?;
    let phase = Phase::begin(stage, &subject)?;
    let mut took = Vec::new();
    let first = stage.objects.services();
    let added = if stage.cell.is_counting {
        ADDED_COUNTING
    } else {
        ADDED
    };
    for service in first..first + added {
        stage.objects.set_services(service + 1);
        let object = Objects::service(service);
        let slices = stage.objects.slices(service);
        let started = Instant::now();
        for (_, slice) in &slices {
            api.post(&path("discovery.k8s.io/v1", "endpointslices", None), slice)?;
        }
        api.post(&path("v1", "services", None), &object)?;
        if let Some(outcome) = until_served(stage, &mut subject, service, started)? {
            return Ok(outcome);
        }
        took.push(started.elapsed().as_secs_f64() * 1e3);
    }
    finish(stage, subject, &phase, took)
}

/// Replaces endpoints one after another. Waits until the kernel has a replacement before it makes
/// the next.
fn change(stage: &mut Stage, mut subject: Process) -> Result<Outcome> {
    std::thread::sleep(SETTLE);
    let mut api = stage.api()?;
    let size = stage.cell.size;
    let mut phase = None;
    let warm_up = if stage.cell.is_counting { 0 } else { WARM_UP };
    // Makes fewer changes if they take too long. The report shows their number.
    let share = if stage.cell.is_counting { 12 } else { 6 };
    let enough = stage.limit() / stage.cell.patience() / share;
    let begun = Instant::now();
    let mut moments = Vec::new();
    for turn in 0..stage.cell.changes + warm_up {
        let is_slow = begun.elapsed() > enough / if phase.is_none() { 4 } else { 1 };
        if phase.is_some() && moments.len() >= LEAST as usize && is_slow {
            break;
        }
        if phase.is_none() && (turn == warm_up || is_slow) {
            phase = Some(Phase::begin(stage, &subject)?);
            moments.clear();
        }
        let (service, index) = changed(size, turn);
        stage.objects.replace(service, index, turn);
        let slices = stage.objects.slices(service);
        let slice = slices.get(index / 100).context("no such slice")?;
        let path = path("discovery.k8s.io/v1", "endpointslices", Some(&slice.0));
        let slice = serde_json::to_vec(&slice.1)?;
        let started = Instant::now();
        let asked = monotonic_ms();
        let answer = api.put_encoded(&path, &slice)?;
        if let Some(outcome) = until_served(stage, &mut subject, service, started)? {
            return Ok(outcome);
        }
        moments.push((asked, monotonic_ms(), answer));
    }
    let phase = phase.context("no change is to be made")?;
    let took = moments.iter().map(|(asked, seen, _)| seen - asked);
    let mut outcome = finish(stage, subject, &phase, took.collect())?;
    if let (Outcome::Measured(measured), false) = (&mut outcome, stage.cell.is_counting) {
        let sent = api.get("/fixture/sent")?;
        let (mut before, mut after) = (Vec::new(), Vec::new());
        for (asked, seen, answer) in moments {
            let at = sent_ms(&sent, &answer)?;
            before.push(at - asked);
            after.push(seen - at);
        }
        for (name, values) in [("until-event", before), ("from-event", after)] {
            let values = Distribution::of("ms", values).map(|values| (name.to_owned(), values));
            measured.series.extend(values);
        }
    }
    Ok(outcome)
}

/// Returns when the fake API server sent the event of a change, in milliseconds of
/// [`monotonic_ms`]. `answer` is the server's response to the change, which contains the resource
/// version.
fn sent_ms(sent: &serde_json::Value, answer: &[u8]) -> Result<f64> {
    let object: serde_json::Value = serde_json::from_slice(answer)?;
    let version = object.pointer("/metadata/resourceVersion");
    let version = version.and_then(serde_json::Value::as_str);
    let version = version.context("the fixture answered with an object without a version")?;
    let time = sent.get(version).and_then(serde_json::Value::as_f64);
    let time = time.with_context(|| format!("the fixture has sent no event of version {version}"));
    Ok(time? / 1e6)
}

/// Returns the time of `CLOCK_MONOTONIC` in milliseconds. All processes share this clock.
fn monotonic_ms() -> f64 {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC);
    time.map(Duration::from).unwrap_or_default().as_secs_f64() * 1e3
}

/// Replaces an endpoint in each of many Services, without waiting in between. Measures the time
/// until the kernel has all replacements.
fn rolling(stage: &mut Stage, mut subject: Process) -> Result<Outcome> {
    std::thread::sleep(SETTLE);
    let mut api = stage.api()?;
    let size = stage.cell.size;
    let mut changes: BTreeMap<String, serde_json::Value> = BTreeMap::new();
    for turn in 0..ROLLED {
        let (service, index) = changed(size, turn);
        stage.objects.replace(service, index, turn);
        changes.extend(stage.objects.slices(service).into_iter().nth(index / 100));
    }
    let phase = Phase::begin(stage, &subject)?;
    let started = Instant::now();
    for (name, slice) in &changes {
        api.put(
            &path("discovery.k8s.io/v1", "endpointslices", Some(name)),
            slice,
        )?;
    }
    whole(stage, &mut subject, &phase, started)
}

/// Deletes all objects while the measured program is stopped (SIGSTOP), then continues it. So the
/// measured time excludes the API server's work on the deletions.
fn delete(stage: &mut Stage, mut subject: Process) -> Result<Outcome> {
    std::thread::sleep(SETTLE);
    let mut api = stage.api()?;
    subject.signal(Signal::STOP)?;
    for service in 0..stage.objects.services() {
        let name = Objects::name(service);
        api.delete(&path("v1", "services", Some(&name)))?;
        for (name, _) in stage.objects.slices(service) {
            api.delete(&path("discovery.k8s.io/v1", "endpointslices", Some(&name)))?;
        }
    }
    stage.objects.set_services(0);
    let phase = Phase::begin(stage, &subject)?;
    let started = Instant::now();
    subject.signal(Signal::CONT)?;
    whole(stage, &mut subject, &phase, started)
}

/// Measures CPU time, wakeups, started processes and memory of an idle daemon.
fn idle(stage: &Stage, subject: &Process) -> Result<CellFigures> {
    std::thread::sleep(SETTLE);
    let phase = Phase::begin(stage, subject)?;
    let (kernel, forks) = (process::kernel_threads()?, process::forks()?);
    let waits = subject.waits()?;
    let started = Instant::now();
    std::thread::sleep(Duration::from_secs(stage.cell.idle_s));
    let seconds = started.elapsed().as_secs_f64();
    let (waits, forks) = (subject.waits()? - waits, process::forks()? - forks);
    // Number of new kernel threads, which the measured program has not started.
    let kernel = process::kernel_threads()?.difference(&kernel).count() as u64;
    let mut measured = phase.end(stage, subject)?;
    measured.steady_kib = Some(subject.memory_kib("VmRSS")?);
    measured.wall_s = Some(seconds);
    let per_minute = |count: u64| per(count, seconds / 60.0);
    let figures = [
        ("wakeups_per_min", per_minute(waits)),
        // Includes new threads. Only the measured program starts any, because the benchmark does
        // not.
        (
            "processes_per_min",
            per_minute(forks.saturating_sub(kernel)),
        ),
        (
            "cpu_ms_per_min",
            measured.cpu_s.unwrap_or_default() * 1e3 / (seconds / 60.0),
        ),
    ];
    measured
        .figures
        .extend(figures.map(|(name, value)| (name.to_owned(), value)));
    Ok(measured)
}

/// Waits until new connections to a Service reach exactly its endpoints. Returns the outcome if the
/// time limit passes first.
///
/// Checks at background priority, so that the program's work right after its write counts: it would
/// delay the next change.
fn until_served(
    stage: &mut Stage,
    subject: &mut Process,
    service: u32,
    started: Instant,
) -> Result<Option<Outcome>> {
    let wanted = stage.objects.endpoints(service);
    let wanted: BTreeSet<SocketAddrV4> = wanted.iter().map(|endpoint| endpoint.at).collect();
    let address = Objects::address(service);
    let limit = stage.limit();
    let _background = Background::enter()?;
    loop {
        if stage.kernel.serves(address, &wanted)? {
            return Ok(None);
        }
        if started.elapsed() > limit {
            return Ok(Some(Outcome::Over {
                limit_s: limit.as_secs(),
                reached: format!("Service {service} is not as it must be"),
            }));
        }
        if subject.is_over() {
            bail!("the subject ended: {}", subject.said());
        }
    }
}

/// Compares the kernel's whole state after the last change. Returns the figures: `took` has the
/// duration of each change in milliseconds.
fn finish(
    stage: &mut Stage,
    mut subject: Process,
    phase: &Phase,
    took: Vec<f64>,
) -> Result<Outcome> {
    let mut measured = phase.end(stage, &subject)?;
    let state = match settled(stage, &mut subject, Instant::now())? {
        Ok((_, state)) => state,
        Err(outcome) => return Ok(outcome),
    };
    let count = took.len() as u64;
    if stage.cell.is_counting {
        measured = CellFigures {
            counts: Some(counted(stage, phase.traced)?),
            figures: [("steps".to_owned(), per(count, 1.0))].into(),
            ..CellFigures::default()
        };
    } else {
        let cpu = measured.cpu_s.unwrap_or_default() * 1e3;
        measured
            .figures
            .insert("cpu_ms_per_step".into(), 1.0 / per(count, cpu));
    }
    measured.state = Some(state);
    if let Some(all) = Distribution::of("ms", took).filter(|_| !stage.cell.is_counting) {
        measured.series.insert("all".into(), all);
    }
    Ok(Outcome::Measured(Box::new(measured)))
}

/// Waits until the kernel has the present objects. Returns the figures for all changes together,
/// since `started`.
fn whole(
    stage: &mut Stage,
    subject: &mut Process,
    phase: &Phase,
    started: Instant,
) -> Result<Outcome> {
    let (since, state) = match settled(stage, subject, started)? {
        Ok(settled) => settled,
        Err(outcome) => return Ok(outcome),
    };
    let mut measured = phase.end(stage, subject)?;
    measured.wall_s = Some((since - started).as_secs_f64());
    measured.state = Some(state);
    if stage.cell.is_counting {
        measured = CellFigures {
            counts: Some(counted(stage, phase.traced)?),
            state: measured.state,
            ..CellFigures::default()
        };
    }
    Ok(Outcome::Measured(Box::new(measured)))
}

#[allow(clippy::cast_precision_loss, reason = "counts stay far below 2^52")]
fn per(count: u64, of: f64) -> f64 {
    count as f64 / of
}
