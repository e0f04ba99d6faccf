//! The subcommand `kube-proxy top`, which shows the busiest Services and endpoints. In a terminal,
//! the subcommand updates the list continuously. Without a terminal, it prints the list once.
//!
//! ```text
//!   keys ────────┐
//!   responses ───┼─▶ View, Top ─▶ screen::draw (pure) ─▶ lines ─▶ terminal
//!   signals ─────┘
//! ```

mod screen;
mod terminal;

use std::io::{self, IsTerminal as _};
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, ValueEnum};
use crossterm::event::{Event, EventStream, KeyEventKind};
use futures::StreamExt as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{MissedTickBehavior, interval};
use view::Top;

use super::table::coloured;
use super::{EXIT_WELL, Failure, Form, Printed, has_colours, socket};
use screen::{KeyReaction, View};
use terminal::Terminal;

/// Keys, examples and exit statuses, printed below the help of `top`.
pub(super) const HELP: &str =
    "Keys: q quits, s changes the sort order, p pauses, Tab and the arrows scroll.

Examples:
  kube-proxy top
  kube-proxy top --sort bytes --interval 5
  kube-proxy top --once | head
  kube-proxy top -o json | jq '.ports[0]'

With --once, with -o, or without a terminal it samples twice, an interval apart,
and prints one table.

Exit status: 0, done; 2, wrong usage, or unreadable; 3, no daemon answers; 129,
130, 143, ended by SIGHUP, SIGINT, SIGTERM.";
/// Base of the exit status after a signal: as in shells, the exit status is 128 plus the signal's
/// number.
const SIGNALLED: u8 = 128;

/// Arguments of `top`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Sort order
    #[arg(long, value_enum, default_value_t)]
    sort: Sort,
    /// Seconds between two samples
    #[arg(long, default_value_t = 2, value_parser = whole(1..=60_u64, "give whole seconds from 1 to 60"), allow_hyphen_values = true)]
    interval: u64,
    /// Maximum of Service ports, and of endpoints
    #[arg(long, default_value_t = 50, value_parser = whole(1..=1000_u16, "give a whole number from 1 to 1000"), allow_hyphen_values = true)]
    limit: u16,
    /// Print one table and exit
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    form: Form,
}

/// Returns a parser that accepts whole numbers in `range`, and rejects any other text with
/// `advice`.
fn whole<T>(
    range: RangeInclusive<T>,
    advice: &'static str,
) -> impl Fn(&str) -> Result<T, &'static str> + Clone + Send + Sync + 'static
where
    T: FromStr + PartialOrd + Clone + Send + Sync + 'static,
{
    move |text| {
        let number = text.parse().ok();
        number.filter(|number| range.contains(number)).ok_or(advice)
    }
}

/// Sort order of Services and endpoints.
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

/// Shows the busiest Services until a key or a signal ends the program. With `--once` or `-o`, or
/// without a terminal, prints the busiest Services once.
pub(super) fn top(arguments: &Arguments) -> Printed {
    let is_once = arguments.once || arguments.form.output.is_some();
    // Requests the first sample before the switch to full screen. If no daemon runs, the user then
    // sees the error as a plain line.
    let first = sample(arguments.into())?;
    if !is_once && io::stdout().is_terminal() && io::stdin().is_terminal() {
        let failed = |error: io::Error| {
            Failure::Unreadable(format!(
                "cannot use the terminal: {error}; --once needs none"
            ))
        };
        return live(arguments, first)
            .map(|code| (String::new(), code))
            .map_err(failed);
    }
    std::thread::sleep(Duration::from_secs(arguments.interval));
    let top = sample(arguments.into())?;
    let text = match arguments.form.of(&top)? {
        Some(text) => text,
        None => printed(&top, arguments.sort),
    };
    Ok((text, EXIT_WELL))
}

/// Parameters of a request for the busiest Services and endpoints.
#[derive(Debug, Clone, Copy)]
struct SampleQuery {
    sort: Sort,
    limit: u16,
    timeout: Duration,
}

impl From<&Arguments> for SampleQuery {
    fn from(arguments: &Arguments) -> Self {
        Self {
            sort: arguments.sort,
            limit: arguments.limit,
            timeout: arguments.form.patience.timeout,
        }
    }
}

fn sample(query: SampleQuery) -> Result<Top, Failure> {
    let SampleQuery {
        sort,
        limit,
        timeout,
    } = query;
    let path = format!("/api/v1/top?limit={limit}&sort={}", sort.name());
    socket::get(&path, timeout)
}

/// Renders the lists of Services and endpoints with all their rows, for one print.
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
    // Does not wait for a pending request to the daemon.
    runtime.shutdown_background();
    code
}

async fn watch(arguments: &Arguments, mut top: Top) -> io::Result<u8> {
    let mut terminated = signal(SignalKind::terminate())?;
    // In raw mode, the terminal reports Ctrl-C as a key. SIGINT can still come from another
    // program.
    let mut interrupted = signal(SignalKind::interrupt())?;
    let mut hung_up = signal(SignalKind::hangup())?;
    let mut terminal = Terminal::take()?;
    let mut keys = EventStream::new();
    let mut view = View::new(arguments.sort);
    let mut failure = None;
    let mut ticks = interval(Duration::from_secs(arguments.interval));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // Skips the first tick, which fires immediately, because the first sample was already taken.
    ticks.tick().await;
    let mut pending: Option<JoinHandle<Result<Top, Failure>>> = None;
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
                    if view.press(key) == KeyReaction::End {
                        return Ok(EXIT_WELL);
                    }
                }
                // The terminal may have a new size, so the loop draws the screen again.
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error),
                // The stream of keys has ended because the terminal closed, so the program ends.
                None => return Ok(EXIT_WELL),
            },
            _ = ticks.tick(), if pending.is_none() && !view.is_paused => {
                let query = SampleQuery {
                    sort: view.sort,
                    ..arguments.into()
                };
                pending = Some(spawn_blocking(move || sample(query)));
            }
            answer = answer_of(&mut pending) => {
                pending = None;
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

/// Waits for the response to the pending request. Waits forever if no request is pending.
async fn answer_of(pending: &mut Option<JoinHandle<Result<Top, Failure>>>) -> Result<Top, Failure> {
    match pending {
        Some(pending) => pending
            .await
            .unwrap_or_else(|error| Err(Failure::Unreadable(error.to_string()))),
        None => std::future::pending().await,
    }
}
