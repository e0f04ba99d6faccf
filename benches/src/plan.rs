//! Plans the cells of a run, and their order. A cell is one measurement of an axis (measured
//! quantity), a size and a subject (measured program). A point is an axis with a size.
//!
//! ```text
//!  all points except `Spare` ─▶ counting ─▶ repeats of `All` ─▶ one repeat of `Twice`
//!    ─▶ `Spare` points ─▶ counting other kube-proxies
//! ```
//!
//! Within a phase, the most informative points come first. All subjects are measured at a point
//! before the next point, so that a change of the machine's speed affects them equally. Even a run
//! that ends early has every axis, and complete comparisons.
//!
//! A cell of another kube-proxy may take minutes. By default, a run first measures other
//! kube-proxies only for the main table. Their remaining cells come last.

use std::str::FromStr;

use crate::schema::{Axis, Cell, Mode, NATIVE, RANGE, ROUTE, Size, Subject, SubjectKind};

/// Maximum number of Services for which a run measures sizes with more than two endpoints each.
const MANY: u32 = 10_000;
/// Sizes for all axes in a run without limits (`--full`).
const ALL: [&str; 11] = [
    "1", "100", "1000", "5000", "10000", "50000", "1x50", "100x50", "1000x50", "5000x50",
    "10000x50",
];

/// Number of times that a run measures a point, and its place in the order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Often {
    /// In every repeat (`--repeats`).
    All,
    Twice,
    Once,
    /// Once: early if the run includes another kube-proxy, otherwise after all other cells.
    Beside,
    /// Once, after all other cells.
    Spare,
}

/// Points of a run without arguments, the most informative first: axis, size and frequency in each
/// row.
const POINTS: &str = include_str!("points.txt");

impl Often {
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "all" => Self::All,
            "twice" => Self::Twice,
            "once" => Self::Once,
            "beside" => Self::Beside,
            "spare" => Self::Spare,
            _ => return None,
        })
    }
}

/// Parses a row of `points.txt` into an axis, a size and a frequency.
fn point(row: &str) -> Option<(Axis, Size, Often)> {
    let mut words = row.split(' ');
    let (axis, size) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    Some((axis, size, Often::named(words.next()?)?))
}

/// An axis on the command line, optionally with a size: `change` or `change@50000`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AxisChoice {
    pub(crate) axis: Axis,
    pub(crate) size: Option<Size>,
}

impl FromStr for AxisChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (axis, size) = match text.split_once('@') {
            Some((axis, size)) => (axis, Some(size.parse()?)),
            None => (text, None),
        };
        Ok(Self {
            axis: axis.parse()?,
            size,
        })
    }
}

/// Choices of the user for a run: subjects, axes, sizes and limits.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    /// Axes to measure. Empty for all axes.
    pub(crate) axes: &'a [AxisChoice],
    /// Sizes to measure. Empty for the most informative sizes of each axis.
    pub(crate) sizes: &'a [Size],
    pub(crate) subjects: &'a [Subject],
    pub(crate) repeats: u32,
    pub(crate) is_counted: bool,
    pub(crate) is_full: bool,
    /// Time limit of a cell in seconds.
    pub(crate) limit_s: u64,
    pub(crate) changes: u32,
}

/// An axis, a size, and when to measure them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Point {
    axis: Axis,
    size: Size,
    often: Often,
    /// True if the command line names this axis and size. Then all subjects, even slow ones, are
    /// measured early.
    is_asked: bool,
}

impl Point {
    /// Returns how often and when to measure this subject at this point.
    fn often(&self, subject: &SubjectKind) -> Often {
        if self.is_asked {
            self.often
        } else if is_dear(self.axis, self.size, subject) {
            Often::Spare
        } else if subject.is_other() {
            often_for_others(self.axis, self.size)
        } else {
            self.often
        }
    }
}

/// Returns how often and when to measure other kube-proxies at a point. Because a cell may take
/// minutes, only points of the main table come early.
fn often_for_others(axis: Axis, size: Size) -> Often {
    let is_for_a_minute = size.services > MANY && axis != Axis::Cold;
    if !is_main(axis, size) || is_for_a_minute {
        Often::Spare
    } else if size.services <= 100 && size.endpoints <= 2 {
        Often::Twice
    } else {
        Often::Once
    }
}

/// Returns true if the main table of the report has this axis at this size. (Without another
/// kube-proxy, the table omits 1,000 Services.)
pub(crate) fn is_main(axis: Axis, size: Size) -> bool {
    let are_two = size.endpoints == 2;
    match axis {
        Axis::Memory | Axis::Api => true,
        Axis::First if size.services == 1 => true,
        Axis::Cold | Axis::Change | Axis::First => {
            are_two && matches!(size.services, 100 | 1_000 | 10_000 | 50_000)
        }
        Axis::Restart => are_two && matches!(size.services, 1_000 | 10_000),
        Axis::Connect | Axis::Keptalive | Axis::Throughput => are_two && size.services == 10_000,
        _ => false,
    }
}

impl Plan<'_> {
    /// Returns all cells of the run, in the order in which to measure them.
    pub(crate) fn cells(&self) -> Vec<Cell> {
        let points = self.points();
        let mut cells = Vec::new();
        self.repeat(&points, 0, &mut cells, |often| often != Often::Spare);
        if self.is_counted {
            self.count(&points, &mut cells, |subject| !subject.is_other());
        }
        for repeat in 1..self.repeats {
            self.repeat(&points, repeat, &mut cells, |often| often == Often::All);
        }
        if self.repeats > 1 {
            self.repeat(&points, 1, &mut cells, |often| often == Often::Twice);
        }
        self.repeat(&points, 0, &mut cells, |often| often == Often::Spare);
        if self.is_counted {
            self.count(&points, &mut cells, SubjectKind::is_other);
        }
        cells
    }

    /// Adds a cell for each point and subject whose frequency `is_had` accepts.
    fn repeat(
        &self,
        points: &[Point],
        repeat: u32,
        cells: &mut Vec<Cell>,
        is_had: impl Fn(Often) -> bool,
    ) {
        for point in points {
            for subject in self.subjects {
                // The subject `direct` uses no Service, so one cell is enough for all sizes of an
                // axis.
                let is_told = subject.kind == SubjectKind::Direct
                    && cells.iter().any(|cell| {
                        (cell.axis, cell.repeat) == (point.axis, repeat)
                            && cell.subject.kind == subject.kind
                    });
                if has(point.axis, &subject.kind) && is_had(point.often(&subject.kind)) && !is_told
                {
                    cells.push(self.cell(point, subject, repeat, false));
                }
            }
        }
    }

    /// Adds cells that count system calls, for the subjects that `is_had` accepts.
    fn count(
        &self,
        points: &[Point],
        cells: &mut Vec<Cell>,
        is_had: impl Fn(&SubjectKind) -> bool,
    ) {
        for point in points {
            for subject in self.subjects.iter().filter(|one| is_had(&one.kind)) {
                let is_worth = self.is_full || is_worth(points, point);
                if is_worth && counts(point.axis, &subject.kind) {
                    cells.push(self.cell(point, subject, self.repeats, true));
                }
            }
        }
    }

    fn cell(&self, point: &Point, subject: &Subject, repeat: u32, is_counting: bool) -> Cell {
        let mut cell = Cell {
            axis: point.axis,
            subject: subject.clone(),
            size: point.size,
            repeat,
            is_counting,
            limit_s: self.limit_s,
            changes: if is_counting {
                self.changes.min(100)
            } else {
                self.changes
            },
            idle_s: if self.is_full { 600 } else { 60 },
        };
        cell.limit_s *= u64::from(cell.patience());
        cell
    }

    /// Returns all points of the run, in the order in which to measure them.
    fn points(&self) -> Vec<Point> {
        let is_whole = |axis| {
            let asks = |asked: &AxisChoice| asked.axis == axis && asked.size.is_none();
            self.axes.is_empty() || self.axes.iter().any(asks)
        };
        let mut points: Vec<Point> = Vec::new();
        let mut add = |axis, size, often, is_asked| {
            let is_there = |point: &Point| (point.axis, point.size) == (axis, size);
            if !points.iter().any(is_there) {
                points.push(Point {
                    axis,
                    size,
                    often,
                    is_asked,
                });
            }
        };
        for asked in self.axes {
            if let Some(size) = asked.size {
                add(asked.axis, size, often(asked.axis), true);
            }
        }
        if self.sizes.is_empty() && !self.is_full {
            let are_others = self.subjects.iter().any(|one| one.kind.is_other());
            for (axis, size, often) in POINTS.lines().filter_map(point) {
                let often = match often {
                    Often::Beside if are_others => Often::Once,
                    Often::Beside => Often::Spare,
                    often => often,
                };
                if is_whole(axis) {
                    add(axis, size, often, false);
                }
            }
            return points;
        }
        for axis in Axis::all().filter(|axis| is_whole(*axis)) {
            for size in self.sizes(axis) {
                add(axis, size, often(axis), true);
            }
        }
        points.sort_by_key(|point| (point.size, point.axis));
        points
    }

    /// Returns the sizes for an axis: those of the command line, or all. Some axes have one fixed
    /// size.
    fn sizes(&self, axis: Axis) -> Vec<Size> {
        let read = |texts: &[&str]| texts.iter().filter_map(|text| text.parse().ok()).collect();
        let fixed = |text| -> Vec<Size> { read(&[text]) };
        let largest = self.sizes.iter().map(|size| size.services).max();
        let largest = largest.unwrap_or(MANY).min(MANY);
        match axis {
            Axis::Big => fixed("1x10000"),
            Axis::Anatomy => fixed("1"),
            Axis::Idle => fixed(&format!("{largest}")),
            Axis::Memory => fixed(&format!("{largest}x50")),
            _ if self.sizes.is_empty() => read(&ALL),
            _ => self
                .sizes
                .iter()
                .copied()
                .filter(|size| self.is_full || size.services <= MANY || size.endpoints <= 2)
                .collect(),
        }
    }
}

/// Returns how often to measure an axis at a size that the user has chosen.
fn often(axis: Axis) -> Often {
    if matches!(axis, Axis::Idle | Axis::Memory) {
        Often::Once
    } else {
        Often::All
    }
}

/// Returns true if system calls should be counted at this point: at the largest size of an axis (up
/// to 10,000 Services), and for `change` at the smallest, because the counts for a change should
/// not depend on the size.
fn is_worth(points: &[Point], point: &Point) -> bool {
    let of_axis = points
        .iter()
        .filter(|one| {
            one.axis == point.axis && one.size.services <= MANY && one.size.endpoints <= 2
        })
        .map(|one| one.size);
    of_axis.clone().max() == Some(point.size)
        || (point.axis == Axis::Change && of_axis.min() == Some(point.size))
}

/// Returns true if this axis can and should be measured for this subject.
fn has(axis: Axis, subject: &SubjectKind) -> bool {
    match subject {
        // The axis `anatomy` measures the parts of IPVS mode's shim and of the tables of nftables
        // mode.
        SubjectKind::KubeProxy {
            mode,
            flags,
            is_ours,
            ..
        } if axis == Axis::Anatomy => {
            let has_pieces = flags.is_empty() || subject.is_lean() || subject.has(NATIVE);
            *is_ours
                && match mode {
                    Mode::Ipvs => has_pieces,
                    Mode::Nftables => true,
                    Mode::Iptables | Mode::Userspace => false,
                }
        }
        // One subject is enough to find out the cost of loading kernel modules.
        SubjectKind::KubeProxy {
            mode,
            flags,
            is_ours,
            ..
        } if axis == Axis::Loaded => *is_ours && *mode == Mode::Ipvs && flags.is_empty(),
        // In userspace mode, the daemon accepts the connections. The kernel does not know the
        // endpoints, so the benchmark cannot wait for their changes.
        SubjectKind::KubeProxy {
            mode: Mode::Userspace,
            ..
        } => !matches!(
            axis,
            Axis::Restart | Axis::Add | Axis::Change | Axis::Rolling | Axis::First
        ),
        // The lean shim differs from upstream's only for packets, and in the cost of writing the
        // whole state.
        SubjectKind::KubeProxy { .. } if subject.is_lean() => {
            axis == Axis::Cold || axis.is_data_plane()
        }
        // Local routes instead of bound addresses only change the cost of writing, and of the first
        // packet.
        SubjectKind::KubeProxy { .. } if subject.has(ROUTE) => {
            !matches!(axis, Axis::Idle | Axis::Memory | Axis::Big | Axis::Api)
                && axis <= Axis::First
        }
        SubjectKind::KubeProxy { .. } if subject.has(RANGE) => axis == Axis::Cold,
        SubjectKind::KubeProxy { .. } => true,
        SubjectKind::Floor => {
            matches!(axis, Axis::Cold | Axis::Loaded | Axis::Change | Axis::Big)
        }
        SubjectKind::NftFloor | SubjectKind::NftFlatFloor => {
            matches!(axis, Axis::Cold | Axis::Change)
        }
        SubjectKind::Tools => matches!(axis, Axis::Cold | Axis::Big),
        SubjectKind::BareIpvs | SubjectKind::Direct => {
            axis.is_data_plane() && axis != Axis::Anatomy
        }
    }
}

/// Returns true if a cell takes long but adds little information, so that it comes last.
fn is_dear(axis: Axis, size: Size, subject: &SubjectKind) -> bool {
    let is_large = size.services > MANY || size.services * size.endpoints > 100_000;
    match subject {
        SubjectKind::KubeProxy {
            mode: Mode::Iptables,
            ..
        } => {
            // With more than 10,000 Services in iptables mode, twenty changes would take a minute.
            (size.services > MANY && !matches!(axis, Axis::Cold | Axis::First))
                || size.services * size.endpoints > 100_000
        }
        SubjectKind::KubeProxy { .. } if subject.is_lean() => is_large && axis != Axis::First,
        // Local routes and bound addresses differ only while the daemon adds or removes addresses,
        // and for packets.
        SubjectKind::KubeProxy { .. } if subject.has(ROUTE) => match axis {
            Axis::Cold | Axis::Restart | Axis::Delete => false,
            Axis::Change => size.services > 100,
            Axis::First => size.services != MANY,
            _ => true,
        },
        SubjectKind::Tools => is_large,
        _ => false,
    }
}

/// Returns true if a run counts this subject's system calls on this axis. It counts them for at
/// least one subject of each mode.
fn counts(axis: Axis, subject: &SubjectKind) -> bool {
    matches!(subject, SubjectKind::KubeProxy { .. })
        && has(axis, subject)
        && !subject.is_lean()
        && !subject.has(RANGE)
        && (!subject.has(ROUTE) || axis <= Axis::Restart)
        && matches!(
            axis,
            Axis::Cold | Axis::Restart | Axis::Add | Axis::Change | Axis::Rolling | Axis::Delete
        )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use super::*;
    use crate::run::{default_minutes, foreseen};
    use crate::schema::LEAN;

    fn subjects() -> Vec<Subject> {
        let subject = |name: &str, kind| Subject {
            name: name.to_owned(),
            kind,
        };
        let ours = |name: &str, mode, flags: &[&str]| {
            Subject::kube_proxy(name, "kube-proxy", mode, flags, true)
        };
        vec![
            ours("ipvs", Mode::Ipvs, &[]),
            ours("ipvs-route", Mode::Ipvs, &[ROUTE]),
            ours("ipvs-lean", Mode::Ipvs, &[LEAN]),
            ours("iptables", Mode::Iptables, &[]),
            subject("floor", SubjectKind::Floor),
            subject("tools", SubjectKind::Tools),
            subject("bare-ipvs", SubjectKind::BareIpvs),
            subject("direct", SubjectKind::Direct),
        ]
    }

    fn plan<'a>(axes: &'a [AxisChoice], sizes: &'a [Size], subjects: &'a [Subject]) -> Plan<'a> {
        Plan {
            axes,
            sizes,
            subjects,
            repeats: 3,
            is_counted: true,
            is_full: false,
            limit_s: 120,
            changes: 1_000,
        }
    }

    fn points(cells: &[Cell]) -> Vec<String> {
        let mut points = Vec::new();
        for cell in cells {
            let point = format!("{}@{}", cell.axis, cell.size);
            if !points.contains(&point) {
                points.push(point);
            }
        }
        points
    }

    #[test]
    fn each_row_of_the_points_file_is_parsed() {
        assert_eq!(POINTS.lines().filter_map(point).count(), 43);
        assert_eq!(POINTS.lines().count(), 43);
    }

    #[test]
    fn requested_sizes_apply_only_to_axes_without_a_size_of_their_own() {
        let subjects = subjects();
        let axes = ["cold", "change@50000", "idle", "anatomy"].map(|text| text.parse().unwrap());
        let sizes = ["100", "50000", "50000x50"].map(|text| text.parse().unwrap());
        let cells = plan(&axes, &sizes, &subjects).cells();
        let wanted = [
            "anatomy@1x2",
            "cold@100x2",
            "idle@10000x2",
            "cold@50000x2",
            "change@50000x2",
        ];
        assert_eq!(points(&cells), wanted);
        let counted: Vec<Cell> = cells.into_iter().filter(|cell| cell.is_counting).collect();
        assert_eq!(points(&counted), ["cold@100x2"]);
        assert!("cold@".parse::<AxisChoice>().is_err() && "warm".parse::<AxisChoice>().is_err());
    }

    /// Names of the subjects that the axis `cold` includes.
    const LOADERS: [&str; 6] = [
        "ipvs",
        "ipvs-route",
        "ipvs-lean",
        "iptables",
        "floor",
        "tools",
    ];

    #[test]
    fn each_repeat_has_all_subjects_and_counting_runs_follow_the_first_repeat() {
        let subjects = subjects();
        let axes = ["cold".parse().unwrap()];
        let sizes = ["100".parse().unwrap()];
        let cells = plan(&axes, &sizes, &subjects).cells();
        let order: Vec<(&str, u32, bool)> = cells
            .iter()
            .map(|cell| (&*cell.subject.name, cell.repeat, cell.is_counting))
            .collect();
        let repeat = |repeat| LOADERS.map(|name| (name, repeat, false));
        let counted = ["ipvs", "ipvs-route", "iptables"].map(|name| (name, 3, true));
        let wanted = [&repeat(0)[..], &counted, &repeat(1), &repeat(2)].concat();
        assert_eq!(order, wanted);
    }

    #[test]
    fn the_default_benchmark_plan_has_all_axes() {
        let subjects = subjects();
        let cells = plan(&[], &[], &subjects).cells();
        let axes: BTreeSet<Axis> = cells.iter().map(|cell| cell.axis).collect();
        assert_eq!(axes.len(), Axis::all().count());
        let direct = |cell: &&Cell| cell.axis == Axis::First && cell.subject.name == "direct";
        assert_eq!(
            cells.iter().filter(direct).count(),
            3,
            "one for each repeat"
        );
        let idle = |cell: &&Cell| cell.axis == Axis::Idle;
        assert_eq!(cells.iter().filter(idle).count(), 2, "once in each mode");
        let again = cells
            .iter()
            .position(|cell| !cell.is_counting && cell.repeat > 0);
        let before: BTreeSet<Axis> = cells
            .iter()
            .take(again.unwrap())
            .map(|cell| cell.axis)
            .collect();
        assert_eq!(before, axes, "each has its turn before one has two");
        let full = Plan {
            is_full: true,
            ..plan(&[], &[], &subjects)
        };
        assert!(full.cells().len() > 2 * cells.len());
    }

    /// Returns our subjects, and upstream's kube-proxy in IPVS mode and in iptables mode.
    fn with_upstream() -> Vec<Subject> {
        let other = |mode: Mode| {
            let name = format!("upstream-{}", mode.name());
            Subject::kube_proxy(&name, "kube-proxy", mode, &[], false)
        };
        let mut subjects = subjects();
        subjects.splice(4..4, [Mode::Ipvs, Mode::Iptables].map(other));
        subjects
    }

    /// Returns the cells that finish within `minutes` on the reference machine.
    fn done(subjects: &[Subject], minutes: u64) -> Vec<Cell> {
        let cells = plan(&[], &[], subjects).cells();
        let mut until = Duration::ZERO;
        foreseen(&cells)
            .into_iter()
            .filter_map(|(cell, seconds)| {
                until += Duration::from_secs_f64(seconds?);
                (until < Duration::from_mins(minutes)).then(|| cell.clone())
            })
            .collect()
    }

    /// Returns how many of these cells measure a subject on an axis at a size.
    fn times(done: &[Cell], axis: Axis, size: &str, name: &str) -> usize {
        let size: Size = size.parse().unwrap();
        let is_it = |cell: &&Cell| {
            (cell.axis, cell.size, cell.is_counting) == (axis, size, false)
                && cell.subject.name == name
        };
        done.iter().filter(is_it).count()
    }

    /// Asserts that these cells include all on which a performance aim depends.
    fn assert_aims(done: &[Cell]) {
        let times = |axis, size, name| times(done, axis, size, name);
        for name in LOADERS {
            assert_eq!(times(Axis::Cold, "10000", name), 3, "{name}");
        }
        for name in ["ipvs", "ipvs-route", "iptables", "floor"] {
            assert!(times(Axis::Cold, "50000", name) >= 1, "{name}");
        }
        assert!(times(Axis::Change, "100", "ipvs") >= 2);
        assert!(times(Axis::Change, "50000", "ipvs") >= 2);
        for size in ["1", "100", "10000", "50000"] {
            for name in ["ipvs", "iptables", "bare-ipvs"] {
                assert!(times(Axis::First, size, name) >= 1, "{name} {size}");
            }
        }
        for axis in [Axis::Connect, Axis::Keptalive, Axis::Udp, Axis::Throughput] {
            for name in ["ipvs", "ipvs-lean", "iptables", "direct"] {
                assert!(times(axis, "10000", name) >= 1, "{axis} {name}");
            }
        }
        assert!(times(Axis::Anatomy, "1", "ipvs-lean") >= 1);
        let restart = |cell: &Cell| cell.is_counting && cell.axis == Axis::Restart;
        assert!(done.iter().any(restart));
    }

    /// Asserts that these cells include other kube-proxies at every size that they can complete.
    fn assert_compared(done: &[Cell]) {
        let rows = [
            (Axis::Cold, "100"),
            (Axis::Cold, "1000"),
            (Axis::Change, "100"),
            (Axis::Change, "1000"),
            (Axis::Restart, "1000"),
            (Axis::First, "100"),
            (Axis::First, "1000"),
            (Axis::Memory, "1000x50"),
        ];
        for (axis, size) in rows {
            for name in ["ipvs", "iptables", "upstream-ipvs", "upstream-iptables"] {
                assert!(times(done, axis, size, name) >= 1, "{axis} {size} {name}");
            }
        }
        assert_eq!(times(done, Axis::Cold, "10000", "upstream-ipvs"), 1, "over");
        let limit = |size: &str| {
            let size: Size = size.parse().unwrap();
            let is_it = |cell: &&Cell| cell.size == size && cell.subject.name == "upstream-ipvs";
            done.iter().find(is_it).unwrap().limit_s
        };
        assert_eq!((limit("1000"), limit("10000")), (240, 120));
        assert_eq!(times(done, Axis::First, "10000", "upstream-ipvs"), 0);
    }

    /// Checks that `make bench` measures all performance aims within its time limit.
    #[test]
    fn all_performance_aims_are_measured_within_48_minutes() {
        assert_aims(&done(&subjects(), 48));
    }

    #[test]
    fn a_comparison_with_upstream_still_measures_all_performance_aims() {
        let subjects = with_upstream();
        assert_eq!(default_minutes(&subjects), 68);
        let done = done(&subjects, 68);
        assert_aims(&done);
        assert_compared(&done);
        let twice = times(&done, Axis::Cold, "100", "upstream-ipvs");
        assert_eq!(twice, 2);
    }

    #[test]
    fn the_planned_comparison_with_upstream_takes_at_most_48_minutes() {
        assert_compared(&done(&with_upstream(), 48));
    }

    #[test]
    fn runs_that_count_system_calls_of_upstream_come_last() {
        let cells = plan(&[], &[], &with_upstream()).cells();
        let last = cells.iter().rposition(|cell| !cell.is_counting).unwrap();
        let counted = |cell: &Cell| cell.is_counting && cell.subject.kind.is_other();
        assert_eq!(cells.iter().position(counted), Some(last + 1));
    }
}
