//! Tests `kube-proxy top` in a terminal: its output, and the terminal's state after its end.

use anyhow::{Context as _, Result, ensure};
use lab::Transport;
use rustix::process::Signal;
use scenarios::{Cluster, Outcome, Service, Terminal, at, kube_proxy, tally, tcp};

fn start(c: &Cluster) -> Result<Terminal> {
    let program = kube_proxy()?;
    let program = program.to_str().context("a path that is text")?;
    let terminal = Terminal::start(&c.node1, &[program, "top", "--interval", "1"])?;
    terminal.sees("SERVICE PORT")?;
    Ok(terminal)
}

pub(crate) fn top_restores_the_terminal_at_each_exit(c: &mut Cluster) -> Outcome {
    let web = Service::new("web", "10.96.0.10").port(tcp(80, 8080).named("http"));
    c.apply(&web.endpoints("10.244.1.10 10.244.2.10"))?;
    c.start(&[])?;
    for (keys, signal, code) in [
        ("q", None, 0),
        ("\x03", None, 0),
        ("\x1b", None, 0),
        ("", Some(Signal::TERM), 143),
        ("", Some(Signal::INT), 130),
        ("", Some(Signal::HUP), 129),
    ] {
        let mut top = start(c)?;
        top.types(keys)?;
        if let Some(signal) = signal {
            top.signal(signal)?;
        }
        let status = top.ended()?;
        ensure!(
            status.code() == Some(code),
            "{keys:?} {signal:?}: {status}, {}",
            top.shown()
        );
        top.is_given_back()
            .with_context(|| format!("{keys:?} {signal:?}"))?;
    }

    // The daemon stops and starts again while `top` runs.
    let mut top = start(c)?;
    tally(&c.client, Transport::Tcp, at("10.96.0.10:80"), 20)?;
    top.sees("default/web:http")?;
    c.stop()?;
    top.sees("no kube-proxy-ipvs answers")?;
    c.start(&[])?;
    top.sees("first sample")?;
    tally(&c.client, Transport::Tcp, at("10.96.0.10:80"), 20)?;
    top.sees("default/web:http")?;
    top.types("q")?;
    ensure!(top.ended()?.success());
    top.is_given_back()?;

    // `top` must end when its terminal hangs up, as a closed window does.
    let mut top = start(c)?;
    top.hang_up();
    top.ended()?;

    // With `--once`, `top` writes one table to a pipe. It must exit with status 0, although the
    // reader closes the pipe immediately.
    let program = kube_proxy()?;
    let piped = format!(
        "{} top --once --interval 1 | true; echo ${{PIPESTATUS[0]}}",
        program.display()
    );
    let output = c.node1.run(["bash", "-c", &piped])?;
    ensure!(
        output.stdout.trim() == "0" && output.stderr.is_empty(),
        "{} {}",
        output.stdout,
        output.stderr
    );
    c.stop()
}
