//! Tests every row of the table with real packets.

use std::fmt::Write as _;

use anyhow::{Context as _, ensure};
use lab::Transport;
use scenarios::{Cluster, Outcome};

use crate::clients::{
    Mode, answers_come_back, inner_service, named, place, policies, service, start, v4, v6,
};
use crate::explained::ExplainOutputs;
use crate::observe::{see, see_by_chance};
use crate::table::{self, Row, SECTIONS};

/// Flags of the daemon for the table's three columns. The default flags name the pod networks of
/// both families. Without the pod network of a family, the daemon cannot detect local traffic of
/// that family.
const MODES: [&[&str]; 3] = [&[], &["--cluster-cidr=fd44::/16"], &["--masquerade-all"]];

const DOCUMENT: &str = include_str!("../../../../docs/packet-matrix.md");

pub(crate) fn each_row_of_the_packet_matrix_holds(c: &mut Cluster) -> Outcome {
    if Mode::of(c) != Mode::Ipvs {
        return every_row_by_chance(c);
    }
    set_up(c)?;
    let mut seen = vec![<[String; 3]>::default(); rows().count()];
    let explained = ExplainOutputs::default();
    let mut unlike = Vec::new();
    for (mode, flags) in MODES.iter().enumerate() {
        start(c, flags)?;
        explained.forget();
        for (cells, (number, row)) in seen.iter_mut().zip(rows()) {
            let cell = cells.iter_mut().zip(row.seen).nth(mode);
            let (cell, expected) = cell.context("a column for each mode")?;
            let (from, to) = (place(c, row.from), v4(row.to, number));
            *cell = see(c, from, Transport::Tcp, to, expected);
            let way = (Transport::Tcp, to);
            let service = named(row.to, number);
            unlike.extend(explained.differs(c, from, way, &service, cell)?);
        }
        c.stop()?;
    }
    let document = table::document_of(seen.iter().cloned());
    println!("{document}");

    let mut wrong = String::new();
    for ((number, row), seen) in rows().zip(&seen) {
        let Row { from, to, .. } = row;
        if *seen != row.seen {
            let _ = writeln!(
                wrong,
                "{number}: {from} to {to}: {seen:?}, not {:?}",
                row.seen
            );
        }
        if !row.is_sound() {
            let _ = writeln!(
                wrong,
                "{number}: {from} to {to}: iptables mode and the reason do not fit what is seen"
            );
        }
    }
    ensure!(wrong.is_empty(), "rows that are not as expected:\n{wrong}");
    explained.agree(&unlike)?;
    ensure!(
        DOCUMENT == document,
        "docs/packet-matrix.md is out of date; its first lines say how it is made"
    );
    Ok(())
}

/// Tests every row in a mode that chooses endpoints at random. Each such mode has a column in the
/// document.
fn every_row_by_chance(c: &mut Cluster) -> Outcome {
    set_up(c)?;
    let mode = Mode::of(c);
    let mut wrong = String::new();
    let explained = ExplainOutputs::default();
    let mut unlike = Vec::new();
    for (column, flags) in MODES.iter().enumerate() {
        start(c, &[&["--iptables-min-sync-period=0s"][..], flags].concat())?;
        explained.forget();
        for (number, row) in rows() {
            let expected = row.expected(mode, Transport::Tcp, column);
            let (from, to) = (place(c, row.from), v4(row.to, number));
            let seen = see_by_chance(c, from, Transport::Tcp, to, expected);
            let way = (Transport::Tcp, to);
            let service = named(row.to, number);
            unlike.extend(explained.differs(c, from, way, &service, &seen)?);
            if seen != expected {
                let Row { from, to, .. } = row;
                let _ = writeln!(
                    wrong,
                    "{number}: {from} to {to}, {flags:?}: {seen}, not {expected}"
                );
            }
        }
        c.stop()?;
    }
    ensure!(wrong.is_empty(), "rows that are not as expected:\n{wrong}");
    explained.agree(&unlike)
}

/// UDP, SCTP and IPv6 have the same results as TCP over IPv4. Skips `internalTrafficPolicy`, whose
/// effect does not depend on the protocol.
pub(crate) fn each_row_of_the_packet_matrix_holds_for_udp_and_sctp(c: &mut Cluster) -> Outcome {
    let mode = Mode::of(c);
    c.near.serve_sctp(8080)?;
    c.far.serve_sctp(8080)?;
    set_up(c)?;
    start(c, &[])?;
    let mut wrong = String::new();
    let explained = ExplainOutputs::default();
    let mut unlike = Vec::new();
    for (transport, to) in [
        (Transport::Udp, v4 as fn(&str, usize) -> _),
        (Transport::Sctp, v4),
        (Transport::Tcp, v6),
        (Transport::Udp, v6),
    ] {
        if mode == Mode::Userspace && transport == Transport::Sctp {
            continue;
        }
        for (number, row) in rows().filter(|(number, _)| [0, 1, 5].contains(number)) {
            let (expected, to) = (row.expected(mode, transport, 0), to(row.to, number));
            let from = place(c, row.from);
            let seen = if mode.is_ipvs() {
                see(c, from, transport, to, expected)
            } else {
                see_by_chance(c, from, transport, to, expected)
            };
            let service = named(row.to, number);
            unlike.extend(explained.differs(c, from, (transport, to), &service, &seen)?);
            if seen != expected {
                let _ = writeln!(
                    wrong,
                    "{transport:?}, {} to {} {to}: {seen}, not {expected}",
                    row.from, row.to
                );
            }
        }
    }
    ensure!(wrong.is_empty(), "not as over TCP and IPv4:\n{wrong}");
    explained.agree(&unlike)
}

/// Creates the Services of all table sections, and routes replies through node1.
fn set_up(c: &Cluster) -> Outcome {
    answers_come_back(c)?;
    for (number, section) in SECTIONS.iter().enumerate() {
        let endpoints = if section.is_here {
            "10.244.1.10 10.244.2.10 fd44:1::10 fd44:2::10"
        } else {
            "10.244.2.10 fd44:2::10"
        };
        let policies = policies(section.external_local, section.internal_local);
        c.apply(&service(number).endpoints(endpoints).spec(&policies))?;
        let policy = policies.split(", ").last().unwrap_or_default();
        c.apply(&inner_service(number).endpoints(endpoints).spec(policy))?;
    }
    Ok(())
}

/// Returns all rows of the table, each with the number of its section.
fn rows() -> impl Iterator<Item = (usize, Row)> {
    let sections = SECTIONS.iter().enumerate();
    sections.flat_map(|(number, section)| section.rows().map(move |row| (number, row)))
}
