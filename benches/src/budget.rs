//! Predicts how long each cell (one benchmark run) takes, so that a run starts only cells that can
//! finish in time.
//!
//! The expected durations were measured on an idle machine (2 cores of 2024, User Mode Linux). On
//! another or a busy machine, all durations differ by about the same factor, which finished cells
//! tell.
//!
//! For other kube-proxies, the expected durations are those of upstream's 1.36. Each of them has
//! its own factor, so that a wrong estimate does not look like a slow machine.

use std::collections::BTreeMap;

use crate::schema::{Axis, Cell, FLAT, Mode, SubjectKind};

/// Time in seconds for booting the VM, creating its nodes, and powering off.
const AROUND: f64 = 1.6;
/// Weight, in seconds, of the assumption that this machine is as fast as expected. After finished
/// cells of this total duration, their factor counts as much as the assumption.
const PRIOR: f64 = 60.0;

/// Expected and actual durations of finished cells.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    ours: Account,
    /// Durations of cells of other kube-proxies, by the subject's name.
    others: BTreeMap<String, Account>,
}

/// Sum of the expected durations, and sum of the actual durations, in seconds.
#[derive(Debug, Clone, Copy, Default)]
struct Account {
    expected: f64,
    took: f64,
}

impl Budget {
    /// Returns the expected duration of a cell in seconds, corrected by the durations of finished
    /// cells.
    pub(crate) fn expected(&self, cell: &Cell) -> f64 {
        let account = if cell.subject.kind.is_other() {
            self.others.get(&cell.subject.name).unwrap_or(&self.ours)
        } else {
            &self.ours
        };
        seconds(cell) * (PRIOR + account.took) / (PRIOR + account.expected)
    }

    /// Records that a cell took `took_s` seconds.
    pub(crate) fn learn(&mut self, cell: &Cell, took_s: f64) {
        let account = if cell.subject.kind.is_other() {
            let name = cell.subject.name.clone();
            self.others.entry(name).or_insert(self.ours)
        } else {
            &mut self.ours
        };
        account.expected += seconds(cell);
        account.took += took_s;
    }
}

/// Returns the expected duration of a cell (one benchmark run) on an idle machine, in seconds.
pub(crate) fn seconds(cell: &Cell) -> f64 {
    let services = f64::from(cell.size.services) / 1e4;
    let mode = match &cell.subject.kind {
        SubjectKind::KubeProxy { mode, .. } => Some(*mode),
        _ => None,
    };
    let is_iptables = mode == Some(Mode::Iptables);
    let start = start(cell);
    #[allow(clippy::cast_precision_loss, reason = "minutes")]
    let limit = cell.limit_s as f64;
    if is_over(cell) {
        return AROUND + limit;
    }
    let rest = match cell.axis {
        Axis::Cold | Axis::Loaded | Axis::Big => 0.0,
        Axis::Memory | Axis::Keptalive => 5.0,
        Axis::Restart => 0.7 + start * if is_iptables { 1.6 } else { 0.4 },
        Axis::Add => 5.5 + if is_iptables { 22.0 * services } else { 0.5 },
        Axis::Change if mode.is_none() => 0.2,
        // Changes take a sixth of the time limit, and warm-up changes a quarter of that. The cell
        // makes at least ten changes.
        Axis::Change if cell.subject.kind.is_other() => {
            5.5 + limit / f64::from(cell.patience()) / 5.0 + 10.0 * services
        }
        Axis::Change => {
            7.0 + if is_iptables {
                17.0 + 10.0 * services
            } else {
                1.0
            }
        }
        Axis::Rolling => 5.5 + if is_iptables { 4.0 * services } else { 0.3 },
        Axis::Delete => 5.5 + 8.0 * services,
        #[allow(clippy::cast_precision_loss, reason = "a few minutes")]
        Axis::Idle => 5.5 + cell.idle_s as f64,
        // Two storms of ten seconds, the recovery from each, and an idle time after each occasion.
        Axis::Api => 65.0,
        // In iptables mode, the kernel walks through the rules of all Services for each packet.
        Axis::First if is_iptables => 1.3 + services * services,
        Axis::First => 1.0,
        Axis::Connect | Axis::Udp => 4.0,
        Axis::Throughput => 8.5,
        Axis::Anatomy => 10.0,
    };
    let all = AROUND + start + rest;
    if cell.is_counting {
        // Adds the cost of strace, and the time until the measured program is idle.
        all * 1.5 + 3.5
    } else {
        all
    }
}

/// Returns true if the measured program is likely to exceed the cell's time limit.
pub(crate) fn is_over(cell: &Cell) -> bool {
    #[allow(clippy::cast_precision_loss, reason = "minutes")]
    let limit = cell.limit_s as f64;
    start(cell) > limit
}

/// Returns the time in seconds from the program's start until the kernel has all Services,
/// including the benchmark's comparison of the whole state.
fn start(cell: &Cell) -> f64 {
    let services = f64::from(cell.size.services) / 1e4;
    let endpoints = services * f64::from(cell.size.endpoints) / 2.0;
    let subject = &cell.subject.kind;
    // Seconds per 10,000 Services or endpoints. The cost of addresses on a device grows with the
    // square of their number.
    let (fixed, by_service, by_endpoint, by_square) = match subject {
        // Upstream's IPVS mode starts several processes for each Service and endpoint.
        SubjectKind::KubeProxy {
            mode: Mode::Ipvs,
            is_ours: false,
            ..
        } => (1.0, 260.0, 15.0, 0.0),
        SubjectKind::KubeProxy {
            mode: Mode::Iptables,
            ..
        } => (1.0, 3.0, 4.0, 1.0),
        // For each Service, the kernel walks through the list of all maps of the table.
        SubjectKind::KubeProxy {
            mode: Mode::Nftables,
            is_ours: false,
            ..
        } => (1.0, 3.0, 2.0, 12.0),
        SubjectKind::KubeProxy {
            mode: Mode::Nftables,
            ..
        } if subject.has(FLAT) => (0.9, 1.0, 0.7, 0.0),
        SubjectKind::KubeProxy {
            mode: Mode::Nftables,
            ..
        } => (0.5, 2.0, 1.0, 8.0),
        SubjectKind::KubeProxy {
            mode: Mode::Userspace,
            ..
        } => (1.0, 4.0, 1.0, 1.0),
        SubjectKind::NftFloor => (0.5, 0.4, 0.4, 8.0),
        SubjectKind::NftFlatFloor => (0.5, 0.1, 0.1, 0.0),
        SubjectKind::KubeProxy { .. }
            if subject.has(crate::schema::ROUTE) || subject.has(crate::schema::RANGE) =>
        {
            (0.9, 2.6, 1.5, 0.0)
        }
        SubjectKind::KubeProxy { .. } => (0.9, 2.6, 1.4, 1.2),
        SubjectKind::Floor => (0.5, 0.4, 0.4, 1.1),
        SubjectKind::Tools => (0.6, 5.0, 4.0, 1.2),
        SubjectKind::BareIpvs => (0.0, 0.3, 0.2, 0.0),
        SubjectKind::Direct => (0.0, 0.0, 0.0, 0.0),
    };
    fixed + by_service * services + by_endpoint * endpoints + by_square * services * services
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::Subject;

    fn cell(axis: Axis) -> Cell {
        Cell {
            axis,
            subject: Subject {
                name: "floor".into(),
                kind: SubjectKind::Floor,
            },
            size: "10000".parse().unwrap(),
            repeat: 0,
            is_counting: false,
            limit_s: 120,
            changes: 1_000,
            idle_s: 60,
        }
    }

    #[test]
    fn a_slow_machine_lengthens_the_expected_times() {
        let mut budget = Budget::default();
        let cold = cell(Axis::Cold);
        let quiet = budget.expected(&cold);
        assert!((quiet - seconds(&cold)).abs() < 1e-9);
        for _ in 0..100 {
            budget.learn(&cold, 3.0 * quiet);
        }
        assert!((2.5..3.0).contains(&(budget.expected(&cold) / quiet)));
    }
}
