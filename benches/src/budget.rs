//! How long cells take, by experience: what is begun must be done before the time of all is over.
//!
//! The figures are of a quiet machine (2 cores of 2024, User Mode Linux). Another machine, or a busy one, differs by a factor, which
//! is learned from the cells that are done.

use crate::schema::{Axis, Cell, Mode, SubjectKind};

/// Boot, the nodes, and the end.
const AROUND: f64 = 1.6;
/// Cells that are believed before the machine's own figures count as much.
const PRIOR: f64 = 60.0;

/// What cells took, against what they were expected to.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    expected: f64,
    took: f64,
}

impl Budget {
    /// Seconds that a cell will take, as things are.
    pub(crate) fn expected(&self, cell: &Cell) -> f64 {
        seconds(cell) * (PRIOR + self.took) / (PRIOR + self.expected)
    }

    /// Takes account of a cell that is done.
    pub(crate) fn learn(&mut self, cell: &Cell, took_s: f64) {
        self.expected += seconds(cell);
        self.took += took_s;
    }
}

/// Seconds that a cell takes on a quiet machine.
pub(crate) fn seconds(cell: &Cell) -> f64 {
    let services = f64::from(cell.size.services) / 1e4;
    let endpoints = services * f64::from(cell.size.endpoints) / 2.0;
    let mode = match &cell.subject.kind {
        SubjectKind::KubeProxy { mode, .. } => Some(*mode),
        _ => None,
    };
    let is_iptables = mode == Some(Mode::Iptables);
    let start = start(&cell.subject.kind, services, endpoints);
    let rest = match cell.axis {
        Axis::Cold | Axis::Loaded | Axis::Big => 0.0,
        Axis::Memory | Axis::Keptalive => 5.0,
        Axis::Restart => 0.7 + start * if is_iptables { 1.6 } else { 0.4 },
        Axis::Add => 5.5 + if is_iptables { 22.0 * services } else { 0.5 },
        Axis::Change if mode.is_none() => 0.2,
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
        // The kernel walks all rules for each packet.
        Axis::First if is_iptables => 1.3 + services * services,
        Axis::First => 1.0,
        Axis::Connect | Axis::Udp => 4.0,
        Axis::Throughput => 8.5,
        Axis::Anatomy => 10.0,
    };
    let all = AROUND + start + rest;
    if cell.is_counting {
        // strace, and the wait until it is calm.
        all * 1.5 + 3.5
    } else {
        all
    }
}

/// Seconds from nothing until a subject has programmed so many ten thousand Services, the last look included.
fn start(subject: &SubjectKind, services: f64, endpoints: f64) -> f64 {
    // Addresses on a device cost by the square.
    let (fixed, by_service, by_endpoint, by_square) = match subject {
        SubjectKind::KubeProxy {
            mode: Mode::Iptables,
            ..
        } => (1.0, 3.0, 4.0, 1.0),
        SubjectKind::KubeProxy { .. } if subject.has(crate::schema::ROUTE) => (0.9, 2.6, 1.5, 0.0),
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
    fn a_slow_machine_is_noticed() {
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
