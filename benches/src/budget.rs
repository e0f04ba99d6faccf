//! Predicts the duration of each cell (one benchmark run), so that the benchmark starts only cells
//! that can finish in time.
//!
//! The expected durations were measured on an idle machine (2 cores of 2024, User Mode Linux). On
//! another machine, or on a busy machine, all durations differ by about the same factor. The budget
//! learns this factor from finished cells.
//!
//! For other kube-proxies, the durations are estimates from upstream's 1.36. Each of these programs
//! has its own factor, so that a wrong estimate does not look like a slow machine.

use std::collections::BTreeMap;

use crate::schema::{Axis, Cell, FLAT, Mode, SubjectKind};

/// Seconds for booting the VM, setting up its nodes, and shutting down.
const AROUND: f64 = 1.6;
/// Weight of the initial factor 1, in seconds. Once the finished cells have taken this long in
/// total, their factor and the initial factor count equally.
const PRIOR: f64 = 60.0;

/// Expected and actual durations of the finished cells.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    ours: Account,
    /// Durations of other kube-proxies, by the name of the measured program.
    others: BTreeMap<String, Account>,
}

/// Total expected and total actual duration of the finished cells, in seconds.
#[derive(Debug, Clone, Copy, Default)]
struct Account {
    expected: f64,
    took: f64,
}

impl Budget {
    /// Returns the expected seconds of a cell, corrected by the durations of finished cells.
    pub(crate) fn expected(&self, cell: &Cell) -> f64 {
        let account = if cell.subject.kind.is_other() {
            self.others.get(&cell.subject.name).unwrap_or(&self.ours)
        } else {
            &self.ours
        };
        seconds(cell) * (PRIOR + account.took) / (PRIOR + account.expected)
    }

    /// Records the duration of a finished cell.
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

/// Returns the expected seconds of a cell (one benchmark run) on an idle machine.
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
        // The changes take a sixth of the limit, and the warm-up takes a quarter of this sixth. The
        // cell makes at least ten changes.
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
        // Covers two storms of ten seconds, the recovery after each storm, and a quiet period after
        // each occasion.
        Axis::Api => 65.0,
        // For each packet, the kernel walks the rules of all Services.
        Axis::First if is_iptables => 1.3 + services * services,
        Axis::First => 1.0,
        Axis::Connect | Axis::Udp => 4.0,
        Axis::Throughput => 8.5,
        Axis::Anatomy => 10.0,
    };
    let all = AROUND + start + rest;
    if cell.is_counting {
        // Adds the cost of strace, and the wait until the measured program is idle.
        all * 1.5 + 3.5
    } else {
        all
    }
}

/// Returns true if the measured program is expected to exceed the cell's time limit.
pub(crate) fn is_over(cell: &Cell) -> bool {
    #[allow(clippy::cast_precision_loss, reason = "minutes")]
    let limit = cell.limit_s as f64;
    start(cell) > limit
}

/// Returns the seconds from the program's start until the kernel has all its Services. Includes the
/// benchmark's last check of the kernel.
fn start(cell: &Cell) -> f64 {
    let services = f64::from(cell.size.services) / 1e4;
    let endpoints = services * f64::from(cell.size.endpoints) / 2.0;
    let subject = &cell.subject.kind;
    // Seconds per ten thousand Services or endpoints. The cost of addresses on a device grows with
    // the square of the number of addresses.
    let (fixed, by_service, by_endpoint, by_square) = match subject {
        // Upstream's IPVS mode is slow, because it starts several processes for each Service and
        // endpoint.
        SubjectKind::KubeProxy {
            mode: Mode::Ipvs,
            is_ours: false,
            ..
        } => (1.0, 260.0, 15.0, 0.0),
        SubjectKind::KubeProxy {
            mode: Mode::Iptables,
            ..
        } => (1.0, 3.0, 4.0, 1.0),
        // For each Service, the kernel walks the list of all maps in the table.
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
