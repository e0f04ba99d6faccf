//! Which cells there are, and in which order.
//!
//! For each repeat, for each size, for each axis, for each subject; what is counted comes after the first repeat. So a change of
//! the machine's speed meets all subjects alike, and a run that ends early has whole comparisons.

use std::str::FromStr;

use crate::schema::{Axis, Cell, Size, Subject, SubjectKind};

/// Above this many Services an axis has two endpoints each only.
const MANY: u32 = 10_000;
/// All sizes of a run without limits.
const ALL: [&str; 11] = [
    "1", "100", "1000", "5000", "10000", "50000", "1x50", "100x50", "1000x50", "5000x50",
    "10000x50",
];

/// An axis, at sizes of the plan or at one of its own: `change@50000`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) axis: Axis,
    pub(crate) size: Option<Size>,
}

impl FromStr for Asked {
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

/// What is asked for.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    /// Empty: all axes.
    pub(crate) axes: &'a [Asked],
    /// Empty: each axis at the sizes where it says most.
    pub(crate) sizes: &'a [Size],
    pub(crate) subjects: &'a [Subject],
    pub(crate) repeats: u32,
    pub(crate) is_counted: bool,
    pub(crate) is_full: bool,
    /// Time limit of a cell, in seconds.
    pub(crate) limit_s: u64,
    pub(crate) changes: u32,
}

impl Plan<'_> {
    /// All cells, in order.
    pub(crate) fn cells(&self) -> Vec<Cell> {
        let mut points: Vec<(Size, Axis)> = Vec::new();
        for axis in Axis::ALL {
            for size in self.sizes(axis) {
                if !points.contains(&(size, axis)) {
                    points.push((size, axis));
                }
            }
        }
        // Axes stay in order.
        points.sort_by_key(|(size, _)| *size);
        let mut cells = Vec::new();
        for repeat in 0..self.repeats {
            cells.extend(self.repeat(&points, repeat, false));
            if repeat == 0 && self.is_counted {
                cells.extend(self.repeat(&points, self.repeats, true));
            }
        }
        cells
    }

    fn repeat(&self, points: &[(Size, Axis)], repeat: u32, is_counting: bool) -> Vec<Cell> {
        let mut cells: Vec<Cell> = Vec::new();
        for &(size, axis) in points {
            for subject in self.subjects {
                let is_once = matches!(axis, Axis::Idle | Axis::Memory) && !is_counting;
                // Without Services their number makes no difference.
                let is_told = subject.kind == SubjectKind::Direct
                    && cells
                        .iter()
                        .any(|cell| cell.axis == axis && cell.subject.kind == subject.kind);
                let is_wanted = if is_counting {
                    counts(axis, &subject.kind) && (self.is_full || is_worth(points, axis, size))
                } else {
                    has(axis, &subject.kind)
                };
                if !is_wanted || (is_once && repeat > 0) || is_told {
                    continue;
                }
                cells.push(Cell {
                    axis,
                    subject: subject.clone(),
                    size,
                    repeat,
                    is_counting,
                    // strace makes everything slower.
                    limit_s: self.limit_s * if is_counting { 2 } else { 1 },
                    changes: if is_counting {
                        self.changes.min(100)
                    } else {
                        self.changes
                    },
                    idle_s: if self.is_full { 600 } else { 60 },
                });
            }
        }
        cells
    }

    /// The sizes at which an axis is measured.
    fn sizes(&self, axis: Axis) -> Vec<Size> {
        let mut sizes: Vec<Size> = self
            .axes
            .iter()
            .filter(|asked| asked.axis == axis)
            .filter_map(|asked| asked.size)
            .collect();
        let is_asked = self.axes.is_empty()
            || self
                .axes
                .iter()
                .any(|asked| asked.axis == axis && asked.size.is_none());
        if is_asked {
            sizes.extend(self.general_sizes(axis));
        }
        sizes
    }

    /// As `sizes`, of an axis without sizes of its own.
    fn general_sizes(&self, axis: Axis) -> Vec<Size> {
        let read = |texts: &[&str]| texts.iter().filter_map(|text| text.parse().ok()).collect();
        let fixed = |text| -> Vec<Size> { read(&[text]) };
        let largest = self.sizes.iter().map(|size| size.services).max();
        let largest = largest.unwrap_or(MANY).min(MANY);
        match axis {
            Axis::Big => fixed("1x10000"),
            Axis::Anatomy => fixed("1"),
            Axis::Idle => fixed(&format!("{largest}")),
            Axis::Memory => fixed(&format!("{largest}x50")),
            _ if !self.sizes.is_empty() => self
                .sizes
                .iter()
                .copied()
                .filter(|size| self.is_full || size.services <= MANY || size.endpoints <= 2)
                .collect(),
            _ if self.is_full => read(&ALL),
            Axis::Cold => read(&[
                "1", "100", "1000", "5000", "10000", "50000", "1000x50", "10000x50",
            ]),
            Axis::Change => read(&["100", "1000", "10000", "50000"]),
            Axis::First => read(&["1", "100", "1000", "5000", "10000", "50000"]),
            Axis::Restart | Axis::Connect => read(&["100", "10000", "50000"]),
            Axis::Add | Axis::Delete => read(&["100", "10000"]),
            Axis::Rolling | Axis::Keptalive | Axis::Udp | Axis::Throughput => fixed("10000"),
        }
    }
}

/// Whether counting says something at a size that it does not say at others: the largest, and of changes the smallest, too,
/// as they are to be the same.
fn is_worth(points: &[(Size, Axis)], axis: Axis, size: Size) -> bool {
    let of_axis = points
        .iter()
        .filter(|point| point.1 == axis && point.0.services <= MANY && point.0.endpoints <= 2)
        .map(|point| point.0);
    of_axis.clone().max() == Some(size) || (axis == Axis::Change && of_axis.min() == Some(size))
}

/// Whether a subject is measured on an axis.
fn has(axis: Axis, subject: &SubjectKind) -> bool {
    match subject {
        // It is made of pieces that are added to bare virtual servers.
        subject if axis == Axis::Anatomy => *subject == SubjectKind::BareIpvs,
        // The shim makes a difference to packets, and to how a state is written at once.
        SubjectKind::KubeProxy { .. } if subject.is_lean() => {
            matches!(axis, Axis::Cold | Axis::First | Axis::Connect)
        }
        SubjectKind::KubeProxy { .. } => true,
        SubjectKind::Floor => {
            matches!(axis, Axis::Cold | Axis::Change | Axis::Memory | Axis::Big)
        }
        SubjectKind::Tools => matches!(axis, Axis::Cold | Axis::Big),
        SubjectKind::BareIpvs | SubjectKind::Direct => axis.is_data_plane(),
    }
}

/// Whether a subject's system calls are counted on an axis.
fn counts(axis: Axis, subject: &SubjectKind) -> bool {
    matches!(subject, SubjectKind::KubeProxy { .. })
        && has(axis, subject)
        && matches!(
            axis,
            Axis::Cold | Axis::Restart | Axis::Add | Axis::Change | Axis::Rolling | Axis::Delete
        )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::schema::Mode;

    fn subjects() -> Vec<Subject> {
        let subject = |name: &str, kind| Subject {
            name: name.to_owned(),
            kind,
        };
        let ours = |flags: &[&str]| SubjectKind::KubeProxy {
            path: "kube-proxy".into(),
            mode: Mode::Ipvs,
            flags: flags.iter().map(|&flag| flag.to_owned()).collect(),
            is_ours: true,
        };
        vec![
            subject("ipvs", ours(&[])),
            subject("ipvs-lean", ours(&["--ipvs-shim=lean"])),
            subject("floor", SubjectKind::Floor),
            subject("tools", SubjectKind::Tools),
            subject("bare-ipvs", SubjectKind::BareIpvs),
            subject("direct", SubjectKind::Direct),
        ]
    }

    fn plan<'a>(axes: &'a [Asked], sizes: &'a [Size], subjects: &'a [Subject]) -> Plan<'a> {
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
    fn an_axis_has_the_sizes_of_all_or_its_own() {
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
        assert!("cold@".parse::<Asked>().is_err() && "warm".parse::<Asked>().is_err());
    }

    #[test]
    fn repeats_are_interleaved_and_counting_comes_second() {
        let subjects = subjects();
        let axes = ["cold".parse().unwrap()];
        let sizes = ["100".parse().unwrap()];
        let cells = plan(&axes, &sizes, &subjects).cells();
        let order: Vec<(&str, u32, bool)> = cells
            .iter()
            .map(|cell| (&*cell.subject.name, cell.repeat, cell.is_counting))
            .collect();
        let repeat = |repeat, is_counting| {
            ["ipvs", "ipvs-lean", "floor", "tools"].map(|name| (name, repeat, is_counting))
        };
        let counted = &repeat(3, true)[..2];
        let wanted = [
            &repeat(0, false)[..],
            counted,
            &repeat(1, false),
            &repeat(2, false),
        ]
        .concat();
        assert_eq!(order, wanted);
    }

    #[test]
    fn all_axes_are_in_the_plan_without_arguments() {
        let subjects = subjects();
        let cells = plan(&[], &[], &subjects).cells();
        let axes: BTreeSet<Axis> = cells.iter().map(|cell| cell.axis).collect();
        assert_eq!(axes.len(), Axis::ALL.len());
        let direct = |cell: &&Cell| cell.axis == Axis::First && cell.subject.name == "direct";
        assert_eq!(
            cells.iter().filter(direct).count(),
            3,
            "one for each repeat"
        );
        let idle = |cell: &&Cell| cell.axis == Axis::Idle;
        assert_eq!(cells.iter().filter(idle).count(), 1);
        let full = Plan {
            is_full: true,
            ..plan(&[], &[], &subjects)
        };
        assert!(full.cells().len() > 2 * cells.len());
    }
}
