//! Renders the screen of `kube-proxy top` as lines of text. Does not read a clock or write to the
//! terminal.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use view::{Counters, Rate, Top, TopEndpoint, TopPort};

use super::Sort;
use crate::table::{Tone, short, shown};

/// Minimum width of the name column, in characters. A narrow screen omits number columns to keep
/// this width.
const NAME_MIN: usize = 28;
/// Minimum number of visible rows of each list. A shorter list shows all its rows.
const ROWS_MIN: usize = 3;

/// A line of the screen, as parts with one colour each.
pub(super) type Line = Vec<Span>;

/// A part of a line that has one colour.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) text: String,
    pub(super) tone: Tone,
    pub(super) is_strong: bool,
}

impl Span {
    fn of(text: impl Into<String>, tone: Tone) -> Self {
        Self {
            text: text.into(),
            tone,
            is_strong: false,
        }
    }

    fn strong(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            tone: Tone::Plain,
            is_strong: true,
        }
    }
}

/// Choices that the user has made with keys: sort order, pause and scroll positions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct View {
    pub(super) sort: Sort,
    pub(super) is_paused: bool,
    /// List that the arrow keys scroll: Service ports or endpoints.
    list: List,
    /// Index of the first visible row in the list of Service ports. [`View::endpoints_from`] is the
    /// index for the list of endpoints.
    ports_from: usize,
    endpoints_from: usize,
}

/// One of the two lists on the screen: Service ports or endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum List {
    Ports,
    Endpoints,
}

/// Reaction of the program to a pressed key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyReaction {
    /// The program continues, and draws the view again.
    Go,
    /// The program ends and restores the terminal.
    End,
}

impl View {
    pub(super) fn new(sort: Sort) -> Self {
        Self {
            sort,
            is_paused: false,
            list: List::Ports,
            ports_from: 0,
            endpoints_from: 0,
        }
    }

    /// Changes the view according to a pressed key.
    pub(super) fn press(&mut self, key: KeyEvent) -> KeyReaction {
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if is_control => return KeyReaction::End,
            KeyCode::Char('q') | KeyCode::Esc => return KeyReaction::End,
            KeyCode::Char('s') => {
                self.sort = self.sort.next();
                (self.ports_from, self.endpoints_from) = (0, 0);
            }
            KeyCode::Char('p' | ' ') => self.is_paused = !self.is_paused,
            KeyCode::Tab | KeyCode::BackTab => {
                self.list = match self.list {
                    List::Ports => List::Endpoints,
                    List::Endpoints => List::Ports,
                }
            }
            KeyCode::Down | KeyCode::Char('j') => self.scroll(|from| from.saturating_add(1)),
            KeyCode::Up | KeyCode::Char('k') => self.scroll(|from| from.saturating_sub(1)),
            KeyCode::PageDown => self.scroll(|from| from.saturating_add(10)),
            KeyCode::PageUp => self.scroll(|from| from.saturating_sub(10)),
            KeyCode::Home => self.scroll(|_| 0),
            _ => {}
        }
        KeyReaction::Go
    }

    fn scroll(&mut self, to: impl FnOnce(usize) -> usize) {
        let from = match self.list {
            List::Ports => &mut self.ports_from,
            List::Endpoints => &mut self.endpoints_from,
        };
        *from = to(*from).min(usize::from(u16::MAX));
    }
}

/// A row of a list: a Service port or an endpoint.
struct CounterRow {
    name: String,
    /// Text in a faint colour after the name: port and protocol, or the endpoint's Service.
    of: String,
    rate: Rate,
    counters: Counters,
}

/// Renders at most `height` lines of at most `width` columns. `failure` is the error of the last
/// request.
pub(super) fn draw(
    top: &Top,
    view: &View,
    failure: Option<&str>,
    width: u16,
    height: u16,
) -> Vec<Line> {
    let (width, height) = (usize::from(width), usize::from(height));
    let mut lines = head(top, view, failure);
    let keys = "q quit   s sort   p pause   Tab, ↑ ↓ scroll";
    // Reserves five lines: a blank line and a header for each list, and the help on keys.
    let rows = height.saturating_sub(lines.len() + 5);
    let ports = sorted(top.ports.iter().map(port), view.sort);
    let endpoints = sorted(top.endpoints.iter().map(endpoint), view.sort);
    let (for_ports, for_endpoints) = shares(rows, ports.len(), endpoints.len());
    let columns = columns(width, view.sort);
    let form = (
        columns.as_slice(),
        for_names(&[&ports, &endpoints], &columns, width),
    );
    for (list, name, all, shown) in [
        (
            List::Ports,
            "SERVICE PORT",
            &ports,
            (view.ports_from, for_ports),
        ),
        (
            List::Endpoints,
            "ENDPOINT",
            &endpoints,
            (view.endpoints_from, for_endpoints),
        ),
    ] {
        lines.push(Line::new());
        lines.extend(listed(name, all, shown, view, list, form));
    }
    if height < usize::from(u16::MAX) {
        // The last line is for the help on keys.
        lines.truncate(height.saturating_sub(1));
        lines.resize(height.saturating_sub(1), Line::new());
        lines.push(vec![Span::of(keys, Tone::Faint)]);
    }
    lines.truncate(height);
    for line in &mut lines {
        cut(line, width);
    }
    lines
}

fn head(top: &Top, view: &View, failure: Option<&str>) -> Vec<Line> {
    let mut first = vec![Span::strong("kube-proxy top")];
    if top.seconds > 0.0 {
        first.push(Span::of(
            format!("   over {:.1} s, by {}", top.seconds, view.sort.name()),
            Tone::Faint,
        ));
    } else {
        first.push(Span::of(
            "   first sample; rates come with the next",
            Tone::Faint,
        ));
    }
    if view.is_paused {
        first.push(Span::of("   paused", Tone::Odd));
    }
    let total = &top.total;
    let second = format!(
        "new {}/s   packets in {}/s, out {}/s   bytes in {}/s, out {}/s",
        number(total.connections),
        number(total.packets_in),
        number(total.packets_out),
        bytes(total.bytes_in),
        bytes(total.bytes_out),
    );
    let third = vec![
        Span::of(
            format!("draining {}   pending {}   ", top.draining, top.pending),
            Tone::Plain,
        ),
        Span::of(
            format!("refused {}", top.failing),
            Tone::Bad.when(top.failing > 0),
        ),
    ];
    let mut lines = vec![first, vec![Span::of(second, Tone::Plain)], third];
    let notes = top
        .notes
        .iter()
        .map(|note| vec![Span::of(shown(note), Tone::Odd)]);
    lines.extend(notes);
    if let Some(failure) = failure {
        lines.push(vec![Span::of(
            format!("{}; retrying", shown(failure)),
            Tone::Bad,
        )]);
    }
    lines
}

/// Divides the rows of the screen between the two lists. Each list gets half of the rows. If a list
/// needs fewer rows, the other list gets the unused rows.
fn shares(rows: usize, ports: usize, endpoints: usize) -> (usize, usize) {
    let half = rows.div_ceil(2);
    let for_ports = ports.min(half.max(rows.saturating_sub(endpoints)));
    let least = ROWS_MIN.min(ports).min(rows);
    let for_ports = for_ports.max(least);
    (for_ports, endpoints.min(rows.saturating_sub(for_ports)))
}

fn port(port: &TopPort) -> CounterRow {
    CounterRow {
        name: named(&port.service.to_string(), &port.port_name),
        of: format!("{}/{}", port.port, port.protocol),
        rate: port.rate,
        counters: port.counters,
    }
}

fn endpoint(endpoint: &TopEndpoint) -> CounterRow {
    CounterRow {
        name: endpoint.at.clone(),
        of: named(&endpoint.service.to_string(), &endpoint.port_name),
        rate: endpoint.rate,
        counters: endpoint.counters,
    }
}

fn named(service: &str, port: &str) -> String {
    if port.is_empty() {
        service.to_owned()
    } else {
        format!("{service}:{port}")
    }
}

/// Sorts rows, the busiest first. Rows with equal values keep the daemon's order.
fn sorted(rows: impl Iterator<Item = CounterRow>, sort: Sort) -> Vec<CounterRow> {
    let mut rows: Vec<_> = rows.collect();
    rows.sort_by(|one, other| by(&other.rate, sort).total_cmp(&by(&one.rate, sort)));
    rows
}

fn by(rate: &Rate, sort: Sort) -> f64 {
    match sort {
        Sort::Connections => rate.connections,
        Sort::Packets => rate.packets_in + rate.packets_out,
        Sort::Bytes => rate.bytes_in + rate.bytes_out,
    }
}

/// A column of numbers in both lists, such as the rate of new connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Column {
    New,
    Packets,
    Bytes,
    Active,
    All,
}

impl Column {
    /// All columns, the most important first. A narrow screen omits the last ones.
    const BY_WORTH: [Self; 5] = [
        Self::New,
        Self::Bytes,
        Self::Active,
        Self::Packets,
        Self::All,
    ];

    fn head(self) -> &'static str {
        match self {
            Self::New => "NEW/S",
            Self::Packets => "PACKETS/S",
            Self::Bytes => "BYTES/S",
            Self::Active => "ACTIVE",
            Self::All => "CONNECTIONS",
        }
    }

    /// Returns the width of the column in characters, including a gap of two spaces.
    fn width(self) -> usize {
        self.head().len().max(8) + 2
    }

    fn of(self, row: &CounterRow) -> String {
        match self {
            Self::New => number(row.rate.connections),
            Self::Packets => number(row.rate.packets_in + row.rate.packets_out),
            Self::Bytes => bytes(row.rate.bytes_in + row.rate.bytes_out),
            Self::Active => row.counters.active.map_or_else(|| "-".to_owned(), short),
            Self::All => short(row.counters.connections),
        }
    }

    fn is_of(self, sort: Sort) -> bool {
        matches!(
            (self, sort),
            (Self::New, Sort::Connections)
                | (Self::Packets, Sort::Packets)
                | (Self::Bytes, Sort::Bytes)
        )
    }
}

/// Returns the width of the name column, which both lists share. It fits the longest name, if the
/// screen is wide enough.
fn for_names(rows: &[&[CounterRow]], columns: &[Column], width: usize) -> usize {
    let numbers: usize = columns.iter().map(|column| column.width()).sum();
    let rows = rows.iter().flat_map(|rows| rows.iter());
    let longest = rows.map(|row| row.name.chars().count() + row.of.chars().count() + 2);
    let wanted = longest.max().unwrap_or_default().max(NAME_MIN);
    wanted.min(width.saturating_sub(numbers))
}

/// Returns the number columns that fit on the screen, from left to right. Prefers the column of the
/// sort order.
fn columns(width: usize, sort: Sort) -> Vec<Column> {
    let mut by_worth = Column::BY_WORTH;
    by_worth.sort_by_key(|column| !column.is_of(sort));
    let mut left = width.saturating_sub(NAME_MIN);
    let mut chosen = Vec::new();
    for column in by_worth {
        if let Some(rest) = left.checked_sub(column.width()) {
            left = rest;
            chosen.push(column);
        }
    }
    let order = [
        Column::New,
        Column::Packets,
        Column::Bytes,
        Column::Active,
        Column::All,
    ];
    order
        .into_iter()
        .filter(|column| chosen.contains(column))
        .collect()
}

fn listed(
    name: &str,
    all: &[CounterRow],
    (from, most): (usize, usize),
    view: &View,
    list: List,
    (columns, for_name): (&[Column], usize),
) -> Vec<Line> {
    let from = from.min(all.len().saturating_sub(most));
    let rows: Vec<_> = all.iter().skip(from).take(most).collect();
    let shown_of = if rows.len() < all.len() {
        format!("{name} {}-{} of {}", from + 1, from + rows.len(), all.len())
    } else {
        name.to_owned()
    };
    let mut heads = vec![Span {
        text: padded(&shown_of, for_name),
        tone: Tone::Faint.when(list != view.list),
        is_strong: list == view.list,
    }];
    for column in columns {
        let head = format!("{:>1$}", column.head(), column.width());
        heads.push(if column.is_of(view.sort) {
            Span::strong(head)
        } else {
            Span::of(head, Tone::Faint)
        });
    }
    let mut lines = vec![heads];
    if all.is_empty() {
        lines.push(vec![Span::of("no traffic counted yet", Tone::Faint)]);
    }
    lines.extend(rows.into_iter().map(|row| line(row, for_name, columns)));
    lines
}

fn line(row: &CounterRow, for_name: usize, columns: &[Column]) -> Line {
    let name = shortened(&shown(&row.name), for_name);
    let left = for_name.saturating_sub(name.chars().count() + 2);
    let of = if left < 4 {
        String::new()
    } else {
        format!("  {}", shortened(&shown(&row.of), left))
    };
    let pad = for_name.saturating_sub(name.chars().count());
    let mut line = vec![
        Span::of(name, Tone::Plain),
        Span::of(padded(&of, pad), Tone::Faint),
    ];
    let numbers = columns
        .iter()
        .map(|column| format!("{:>1$}", column.of(row), column.width()));
    let numbers: String = numbers.collect();
    line.push(Span::of(numbers, Tone::Plain));
    line
}

fn padded(text: &str, width: usize) -> String {
    format!("{:<width$}", shortened(text, width))
}

fn shortened(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(width.saturating_sub(1)).collect();
    if width > 0 {
        short.push('…');
    }
    short
}

/// Cuts a line to `width` characters, and marks the cut with an ellipsis.
fn cut(line: &mut Line, width: usize) {
    let mut left = width;
    for span in line {
        let length = span.text.chars().count();
        if length > left {
            span.text = shortened(&span.text, left);
        }
        left = left.saturating_sub(length);
    }
}

/// Formats a rate. Rates below 100 have one decimal.
fn number(rate: f64) -> String {
    if rate > 0.0 && rate < 100.0 {
        format!("{rate:.1}")
    } else {
        short(whole(rate))
    }
}

fn bytes(rate: f64) -> String {
    let mut left = rate.max(0.0);
    let mut units = ["B", "KiB", "MiB", "GiB", "TiB"].into_iter();
    let mut unit = units.next().unwrap_or_default();
    for next in units {
        if left < 1024.0 {
            break;
        }
        left /= 1024.0;
        unit = next;
    }
    if unit == "B" || left >= 100.0 {
        format!("{left:.0} {unit}")
    } else {
        format!("{left:.1} {unit}")
    }
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rate of a thing; as saturates, and a fraction is not told"
)]
fn whole(rate: f64) -> u64 {
    rate.max(0.0).round() as u64
}

#[cfg(test)]
mod tests;
