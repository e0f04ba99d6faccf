//! `kube-proxy top`: the busiest Services and endpoints, live in a terminal; once, where there is none.
//!
//! ```text
//!   keys ──────┐
//!   answers ───┼─▶ View, Top ─▶ screen::draw (pure) ─▶ lines ─▶ terminal
//!   signals ───┘
//! ```

mod screen;
mod terminal;

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use clap::{Args, ValueEnum};
use crossterm::event::{Event, EventStream, KeyEventKind};
use futures::StreamExt as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{MissedTickBehavior, interval};
use view::Top;

use super::table::coloured;
use super::{Failure, Form, Printed, WELL, has_colours, socket};
use screen::{Next, View};
use terminal::Terminal;

/// Below its help.
pub(super) const HELP: &str = "Keys: q ends it, s sorts by the next of new connections, packets and bytes, p pauses, Tab and the arrows scroll.

Examples:
  kube-proxy top
  kube-proxy top --sort bytes --interval 5
  kube-proxy top --once | head
  kube-proxy top -o json | jq '.ports[0]'

Where standard output is no terminal, and with --once or -o, it looks twice, an interval apart, prints one table and ends.

Exit status: 0, told; 2, wrong usage, or it cannot be read; 3, no daemon answers; 129, 130, 143, ended by SIGHUP, SIGINT, SIGTERM.";
/// What a shell says of a process that a signal has ended: this and the signal's number.
const SIGNALLED: u8 = 128;

/// What may be given.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// What the busiest have most of
    #[arg(long, value_enum, default_value_t)]
    sort: Sort,
    /// Seconds between two looks
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=60))]
    interval: u64,
    /// How many Service ports, and endpoints, are shown at most
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=1000))]
    limit: u16,
    /// Print one table, and end
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    form: Form,
}

/// What the busiest have most of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum Sort {
    #[default]
    Connections,
    Packets,
    Bytes,
}

impl Sort {
    fn name(self) -> &'static str {
        match self {
            Self::Connections => "connections",
            Self::Packets => "packets",
            Self::Bytes => "bytes",
        }
    }

    fn next(self) -> Self {
        match self {
            Self::Connections => Self::Packets,
            Self::Packets => Self::Bytes,
            Self::Bytes => Self::Connections,
        }
    }
}

/// The busiest, until somebody has seen enough; or once.
pub(super) fn top(arguments: &Arguments) -> Printed {
    let is_once = arguments.once || arguments.form.output.is_some();
    // Before the screen is taken: whether there is a daemon, and its first look.
    let first = ask(arguments.sort, arguments.limit)?;
    if !is_once && io::stdout().is_terminal() && io::stdin().is_terminal() {
        let failed = |error: io::Error| {
            Failure::Unreadable(format!(
                "the terminal cannot be used: {error}; --once needs none"
            ))
        };
        return live(arguments, first)
            .map(|code| (String::new(), code))
            .map_err(failed);
    }
    std::thread::sleep(Duration::from_secs(arguments.interval));
    let top = ask(arguments.sort, arguments.limit)?;
    let text = match arguments.form.of(&top)? {
        Some(text) => text,
        None => printed(&top, arguments.sort),
    };
    Ok((text, WELL))
}

fn ask(sort: Sort, limit: u16) -> Result<Top, Failure> {
    socket::get(&format!("/api/v1/top?limit={limit}&sort={}", sort.name()))
}

/// One table, as wide as its lines are.
fn printed(top: &Top, sort: Sort) -> String {
    const WIDE: u16 = 160;
    let view = View::new(sort);
    let has_colours = has_colours();
    let mut text = String::new();
    for line in screen::draw(top, &view, None, WIDE, u16::MAX) {
        let mut shown = String::new();
        for span in &line {
            shown.push_str(&coloured(&span.text, span.tone, has_colours));
        }
        text.push_str(shown.trim_end());
        text.push('\n');
    }
    text
}

fn live(arguments: &Arguments, first: Top) -> io::Result<u8> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let code = runtime.block_on(watch(arguments, first));
    // A question that is under way is not waited for.
    runtime.shutdown_background();
    code
}

async fn watch(arguments: &Arguments, mut top: Top) -> io::Result<u8> {
    let mut terminated = signal(SignalKind::terminate())?;
    // Of a key it is not: there is none in raw mode.
    let mut interrupted = signal(SignalKind::interrupt())?;
    let mut hung_up = signal(SignalKind::hangup())?;
    let mut terminal = Terminal::take()?;
    let mut keys = EventStream::new();
    let mut view = View::new(arguments.sort);
    let mut failure = None;
    let mut looks = interval(Duration::from_secs(arguments.interval));
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first is at once, and the first look has just been.
    looks.tick().await;
    let mut asked: Option<JoinHandle<Result<Top, Failure>>> = None;
    loop {
        let (width, height) = Terminal::size()?;
        terminal.show(&screen::draw(
            &top,
            &view,
            failure.as_deref(),
            width,
            height,
        ))?;
        tokio::select! {
            key = keys.next() => match key {
                Some(Ok(Event::Key(key))) if key.kind != KeyEventKind::Release => {
                    if view.press(key) == Next::End {
                        return Ok(WELL);
                    }
                }
                // Another size: it is drawn anew.
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error),
                // Whoever typed is gone.
                None => return Ok(WELL),
            },
            _ = looks.tick(), if asked.is_none() && !view.is_paused => {
                let (sort, limit) = (view.sort, arguments.limit);
                asked = Some(spawn_blocking(move || ask(sort, limit)));
            }
            answer = answered(&mut asked) => {
                asked = None;
                match answer {
                    Ok(answer) => {
                        top = answer;
                        failure = None;
                    }
                    Err(why) => failure = Some(why.to_string()),
                }
            }
            _ = terminated.recv() => return Ok(SIGNALLED + 15),
            _ = interrupted.recv() => return Ok(SIGNALLED + 2),
            _ = hung_up.recv() => return Ok(SIGNALLED + 1),
        }
    }
}

/// The answer to what was asked; never, if nothing was.
async fn answered(asked: &mut Option<JoinHandle<Result<Top, Failure>>>) -> Result<Top, Failure> {
    match asked {
        Some(asked) => asked
            .await
            .unwrap_or_else(|error| Err(Failure::Unreadable(error.to_string()))),
        None => std::future::pending().await,
    }
}
