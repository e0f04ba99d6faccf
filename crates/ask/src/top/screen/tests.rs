use crossterm::event::KeyEvent;
use view::ServiceName;

use super::*;

fn rate(connections: f64, bytes: f64) -> Rate {
    Rate {
        connections,
        packets_in: connections * 6.0,
        packets_out: connections * 5.0,
        bytes_in: bytes,
        bytes_out: bytes,
    }
}

fn service(name: &str) -> ServiceName {
    ServiceName {
        namespace: "default".to_owned(),
        name: name.to_owned(),
    }
}

/// Returns a sample in which the Service `web` has the most connections and `files` the most bytes.
fn top() -> Top {
    let port = |name: &str, connections, bytes| TopPort {
        service: service(name),
        port_name: "http".to_owned(),
        protocol: "TCP".to_owned(),
        port: 80,
        rate: rate(connections, bytes),
        counters: Counters {
            connections: 12_345,
            active: Some(7),
            ..Counters::default()
        },
    };
    let endpoint = |at: &str, connections| TopEndpoint {
        service: service("web"),
        port_name: "http".to_owned(),
        at: at.to_owned(),
        rate: rate(connections, 100.0),
        counters: Counters::default(),
    };
    Top {
        seconds: 2.0,
        total: rate(121.0, 1_500_000.0),
        ports: vec![port("web", 120.0, 2_000.0), port("files", 1.0, 900_000.0)],
        endpoints: vec![
            endpoint("10.244.1.5:8080", 80.0),
            endpoint("10.244.1.6:8080", 40.0),
        ],
        draining: 2,
        pending: 3,
        failing: 1,
        notes: Vec::new(),
    }
}

fn text(lines: &[Line]) -> Vec<String> {
    let line = |line: &Line| {
        line.iter()
            .map(|span| span.text.as_str())
            .collect::<String>()
    };
    lines
        .iter()
        .map(|each| line(each).trim_end().to_owned())
        .collect()
}

fn drawn(top: &Top, view: &View, width: u16, height: u16) -> Vec<String> {
    text(&draw(top, view, None, width, height))
}

fn press(view: &mut View, code: KeyCode) -> KeyReaction {
    view.press(KeyEvent::from(code))
}

#[test]
fn the_top_screen_shows_busiest_services_and_problems() {
    let view = View::new(Sort::Connections);
    let lines = drawn(&top(), &view, 100, 16);
    assert_eq!(
        lines,
        [
            "kube-proxy top   over 2.0 s, by connections",
            "new 121/s   packets in 726/s, out 605/s   bytes in 1.4 MiB/s, out 1.4 MiB/s",
            "draining 2   pending 3   refused 1",
            "",
            "SERVICE PORT                          NEW/S  PACKETS/S   BYTES/S    ACTIVE  CONNECTIONS",
            "default/web:http  80/TCP                120       1320   3.9 KiB         7        12.3k",
            "default/files:http  80/TCP              1.0       11.0   1.7 MiB         7        12.3k",
            "",
            "ENDPOINT                              NEW/S  PACKETS/S   BYTES/S    ACTIVE  CONNECTIONS",
            "10.244.1.5:8080  default/web:http      80.0        880     200 B         -            0",
            "10.244.1.6:8080  default/web:http      40.0        440     200 B         -            0",
            "",
            "",
            "",
            "",
            "q quit   s sort   p pause   Tab, ↑ ↓ scroll",
        ]
    );
}

#[test]
fn the_s_key_sorts_by_the_next_column() {
    let mut view = View::new(Sort::Connections);
    let first = |view: &View| drawn(&top(), view, 100, 20)[5].clone();
    assert!(first(&view).starts_with("default/web"));
    assert_eq!(press(&mut view, KeyCode::Char('s')), KeyReaction::Go);
    assert_eq!(view.sort, Sort::Packets);
    press(&mut view, KeyCode::Char('s'));
    assert_eq!(view.sort, Sort::Bytes);
    assert!(first(&view).starts_with("default/files"));
    press(&mut view, KeyCode::Char('s'));
    assert_eq!(view.sort, Sort::Connections);
}

#[test]
fn a_narrow_terminal_keeps_the_names_and_the_sorted_column() {
    let view = View::new(Sort::Packets);
    let lines = drawn(&top(), &view, 40, 14);
    assert_eq!(lines[4], "SERVICE PORT                   PACKETS/S");
    assert!(lines[5].starts_with("default/web:http"), "{lines:#?}");
    assert!(lines[5].ends_with("1320"), "{lines:#?}");
}

#[test]
fn the_top_screen_fits_any_terminal_size() {
    let mut many = top();
    many.ports = vec![many.ports[0].clone(); 60];
    many.endpoints = vec![many.endpoints[0].clone(); 60];
    many.notes = vec!["a note that is longer than a narrow terminal has columns".to_owned()];
    for width in 0..130 {
        for height in 0..40 {
            let lines = draw(
                &many,
                &View::new(Sort::Bytes),
                Some("nobody answers"),
                width,
                height,
            );
            assert!(lines.len() <= usize::from(height), "{width}x{height}");
            for line in text(&lines) {
                assert!(
                    line.chars().count() <= usize::from(width),
                    "{width}x{height}: {line}"
                );
            }
        }
    }
}

#[test]
fn arrow_keys_scroll_the_list_that_the_tab_key_selects() {
    let mut many = top();
    many.ports = (0..30)
        .map(|number| TopPort {
            service: service(&format!("web-{number:02}")),
            rate: rate(f64::from(100 - number), 0.0),
            ..many.ports[0].clone()
        })
        .collect();
    let mut view = View::new(Sort::Connections);
    assert!(drawn(&many, &view, 100, 20)[5].contains("web-00"));
    press(&mut view, KeyCode::Down);
    assert!(drawn(&many, &view, 100, 20)[5].contains("web-01"));
    for _ in 0..100 {
        press(&mut view, KeyCode::Down);
    }
    let lines = drawn(&many, &view, 100, 20);
    assert!(
        lines.iter().any(|line| line.contains("web-29")),
        "{lines:#?}"
    );
    press(&mut view, KeyCode::Tab);
    press(&mut view, KeyCode::Up);
    assert_eq!(drawn(&many, &view, 100, 20), lines);
    press(&mut view, KeyCode::Tab);
    press(&mut view, KeyCode::Home);
    assert!(drawn(&many, &view, 100, 20)[5].contains("web-00"));
}

#[test]
fn the_q_escape_and_control_c_keys_end_top_and_the_p_key_pauses_it() {
    let mut view = View::new(Sort::Connections);
    for code in [KeyCode::Char('q'), KeyCode::Esc] {
        assert_eq!(press(&mut view, code), KeyReaction::End);
    }
    let control = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(view.press(control), KeyReaction::End);
    assert_eq!(press(&mut view, KeyCode::Char('c')), KeyReaction::Go);
    press(&mut view, KeyCode::Char('p'));
    assert!(drawn(&top(), &view, 100, 20)[0].ends_with("paused"));
    press(&mut view, KeyCode::Char('p'));
    assert!(!drawn(&top(), &view, 100, 20)[0].ends_with("paused"));
}

#[test]
fn the_top_screen_removes_escape_codes_and_reports_a_missing_daemon() {
    let mut odd = top();
    odd.ports[0].service.name = "web\x1b[2J".to_owned();
    let lines = text(&draw(
        &odd,
        &View::new(Sort::Connections),
        Some("nobody answers"),
        100,
        20,
    ));
    assert!(
        lines.iter().all(|line| !line.contains('\x1b')),
        "{lines:#?}"
    );
    assert_eq!(lines[3], "nobody answers; retrying");
}
