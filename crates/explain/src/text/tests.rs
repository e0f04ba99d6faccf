use view::{Chance, Fate};

use super::*;

fn step(place: &str, says: &str) -> Step {
    Step {
        place: place.to_owned(),
        says: says.to_owned(),
        ..Step::default()
    }
}

fn walk(chance: f64, endpoint: &str, steps: Vec<Step>) -> Walk {
    Walk {
        chance: Chance(chance),
        fate: Fate::Delivered,
        endpoint: Some(endpoint.to_owned()),
        source: "kept".to_owned(),
        steps,
        ..Walk::default()
    }
}

fn explanation(walks: Vec<Walk>) -> Explanation {
    Explanation {
        to: "default/web".to_owned(),
        journeys: vec![Journey {
            from: "pod 10.244.1.9 on this node".to_owned(),
            to: "10.96.0.9:80".to_owned(),
            protocol: "TCP".to_owned(),
            of: Some("clusterIP of default/web".to_owned()),
            walks,
            verdict: "a pod on this node reaches somebody".to_owned(),
        }],
        notes: vec!["so it is".to_owned()],
        ..Explanation::default()
    }
}

/// Returns an explanation with two paths, which divide after the first step.
fn two() -> Explanation {
    let rule = Step {
        entry: "-A KUBE-SERVICES -j KUBE-SVC-1".to_owned(),
        origin: "Service default/web".to_owned(),
        members: vec!["KUBE-CLUSTER-IP 10.96.0.9,tcp:80".to_owned()],
        packets: Some(7),
        bytes: Some(420),
        ..step("nat KUBE-SERVICES", "goes on to KUBE-SVC-1")
    };
    let way = |endpoint: &str| {
        let steps = vec![
            rule.clone(),
            step("nat KUBE-SVC-1", endpoint),
            step("routing", "by eth0"),
        ];
        walk(0.5, &format!("{endpoint}:80"), steps)
    };
    explanation(vec![way("10.0.0.1"), way("10.0.0.2")])
}

#[test]
fn steps_that_paths_share_are_printed_once() {
    let text = render(&two(), Style::default());
    let wanted = "\
pod 10.244.1.9 on this node → 10.96.0.9:80/TCP, clusterIP of default/web
  ok  a pod on this node reaches somebody
    nat KUBE-SERVICES                   goes on to KUBE-SVC-1  [7 packets, 420 bytes]
                                        ← Service default/web
    ├─ 50.0 %  10.0.0.1:80
    │    nat KUBE-SVC-1                      10.0.0.1
    │    routing                             by eth0
    └─ 50.0 %  10.0.0.2:80
         nat KUBE-SVC-1                      10.0.0.2
         routing                             by eth0
note: so it is
";
    assert_eq!(text, wanted);
}

#[test]
fn wide_output_shows_all_rules_and_paths() {
    let wide = Style {
        is_wide: true,
        ..Style::default()
    };
    let mut two = two();
    two.journeys[0].walks[0].rules_passed = 12;
    two.journeys[0].walks[0]
        .doubts
        .push("whether it is Tuesday".to_owned());
    let text = render(&two, wide);
    for line in [
        "-A KUBE-SERVICES -j KUBE-SVC-1\n",
        "found: KUBE-CLUSTER-IP 10.96.0.9,tcp:80\n",
        "(12 rules were passed that do nothing to it)\n",
        "not sure: whether it is Tuesday\n",
    ] {
        assert!(text.contains(line), "{text}");
    }
    let ways = (0..50).map(|host| {
        let endpoint = format!("10.0.0.{host}:80");
        walk(0.02, &endpoint, vec![step("IPVS", &endpoint)])
    });
    let many = explanation(ways.collect());
    let short = render(&many, Style::default());
    assert!(
        short.contains("└─ and 46 more ways: -o wide shows them\n"),
        "{short}"
    );
    assert_eq!(render(&many, wide).matches(" 2.0 %").count(), 50);
}

#[test]
fn colours_reach_the_terminal_but_escape_codes_from_kernel_entries_do_not() {
    let colours = Style {
        has_colours: true,
        ..Style::default()
    };
    assert!(render(&two(), colours).contains("\u{1b}[32mok\u{1b}[0m"));
    let mut lost = two();
    lost.journeys[0].walks[0].fate = Fate::Dropped;
    assert!(render(&lost, colours).contains("\u{1b}[31mFAILS\u{1b}[0m"));
    lost.journeys[0].walks[0].steps[0].says = "--comment \u{1b}[2J\n\u{202e}".to_owned();
    let text = render(&lost, Style::default());
    assert!(!text.contains(['\u{1b}', '\u{202e}']), "{text}");
}

#[test]
fn a_long_chain_name_has_its_own_line_and_a_failed_path_names_its_fate() {
    let mut two = two();
    let place = "table ip kube-proxy, chain service-SUSTUHLJ-default/web/tcp/http";
    two.journeys[0].walks[0].steps[1].place = place.to_owned();
    two.journeys[0].walks[1].fate = Fate::Dropped;
    let text = render(&two, Style::default());
    let wanted = format!("    │    {place}\n    │    {:<34}  10.0.0.1\n", "");
    assert!(text.contains(&wanted), "{text}");
    assert!(text.contains("    └─ 50.0 %  dropped\n"), "{text}");
}

#[test]
fn an_explanation_without_paths_is_printed_as_a_failure() {
    let text = render(&explanation(Vec::new()), Style::default());
    assert!(text.contains("FAILS"), "nothing is known of it: {text}");
    assert_eq!(render(&Explanation::default(), Style::default()), "");
}

#[test]
fn reply_steps_are_printed_only_if_the_reply_is_lost_or_in_wide_output() {
    let with_answer = || Walk {
        answer: vec![step("filter FORWARD", "goes through KUBE-FORWARD")],
        ..walk(1.0, "10.0.0.1:80", vec![step("routing", "by eth0")])
    };
    let narrow = |walk| render(&explanation(vec![walk]), Style::default());
    let fine = narrow(with_answer());
    assert!(
        fine.contains("  ok  ") && !fine.contains("its answer"),
        "{fine}"
    );
    let wide = Style {
        is_wide: true,
        ..Style::default()
    };
    let wide = render(&explanation(vec![with_answer()]), wide);
    assert!(wide.contains("its answer:\n    filter FORWARD"), "{wide}");
    let lost = narrow(Walk {
        unanswered: Some("its answer is dropped".to_owned()),
        ..with_answer()
    });
    assert!(
        lost.contains("  FAILS  ") && lost.contains("its answer:\n"),
        "{lost}"
    );
    let unsure = narrow(Walk {
        unsure: Some("the endpoint is on another node".to_owned()),
        answer: Vec::new(),
        ..with_answer()
    });
    assert!(unsure.contains("  not sure  "), "{unsure}");
    assert!(
        unsure.contains("    not sure: the endpoint is on another node\n"),
        "{unsure}"
    );
}

#[test]
fn a_brief_explanation_of_a_packet_has_three_lines() {
    let brief = Style {
        is_brief: true,
        ..Style::default()
    };
    let mut two = two();
    two.notes.clear();
    let (text, full) = (render(&two, brief), render(&two, Style::default()));
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert_eq!(lines[..2], full.lines().take(2).collect::<Vec<_>>());
    assert!(lines[2].contains("-v shows each step"), "{text}");
    assert_eq!(render(&Explanation::default(), brief), "");
}
