use super::*;

const PROGRAM: Program = Program {
    modes: &[],
    virtual_servers: || unreachable!("no kernel is read"),
    with_next_step: |error| error,
};

fn arguments(line: &str) -> Vec<OsString> {
    line.split(' ').map(OsString::from).collect()
}

#[test]
fn every_subcommand_accepts_its_defaults() {
    for line in [
        "status",
        "services",
        "explain shop/web",
        "top",
        "top --interval=60 --limit=1000",
    ] {
        let parsed = CommandLine::try_parse_from(arguments(&format!("kube-proxy {line}")));
        assert!(parsed.is_ok(), "{line}: {parsed:?}");
    }
}

#[test]
fn an_argument_that_names_no_subcommand_of_this_crate_runs_nothing() {
    for line in [
        "kube-proxy",
        "kube-proxy --v=4",
        "kube-proxy check -o json",
        "kube-proxy --status",
    ] {
        assert!(run(&arguments(line), &PROGRAM).is_none(), "{line}");
    }
}

#[test]
fn help_exits_with_0_and_wrong_usage_with_2() {
    for (line, code) in [
        ("kube-proxy status --help", EXIT_WELL),
        ("kube-proxy services --help", EXIT_WELL),
        ("kube-proxy status -o text", EXIT_USAGE),
        ("kube-proxy services a b", EXIT_USAGE),
        ("kube-proxy services a/b -n c", EXIT_USAGE),
        ("kube-proxy services -A -n c", EXIT_USAGE),
        ("kube-proxy services -n a/b", EXIT_USAGE),
        ("kube-proxy services a/b/c", EXIT_USAGE),
        ("kube-proxy explain a/b -n c", EXIT_USAGE),
        ("kube-proxy explain a/b --from ,", EXIT_USAGE),
        ("kube-proxy explain", EXIT_USAGE),
        ("kube-proxy status --timeout soon", EXIT_USAGE),
    ] {
        let name = line.split(' ').nth(1).unwrap();
        assert_eq!(run_named(name, &arguments(line), &PROGRAM), code, "{line}");
    }
}

#[test]
fn a_usage_error_is_one_line_with_the_next_step() {
    for (line, parts) in [
        (
            "services --nonsense",
            ["unknown flag: --nonsense", "see kube-proxy services --help"],
        ),
        (
            "services --serch=a",
            ["unknown flag: --serch", "is --search meant?"],
        ),
        (
            "services a b",
            ["unexpected argument: 'b'", "see kube-proxy services --help"],
        ),
        (
            "status -o text",
            [
                "invalid value 'text' for '--output'",
                "give wide or json or yaml",
            ],
        ),
        (
            "explain",
            ["missing argument: <TO>", "see kube-proxy explain --help"],
        ),
        (
            "top --timeout soon",
            ["invalid value 'soon' for '--timeout'", "give a duration"],
        ),
        (
            "status --timeout -1s",
            ["invalid value '-1s' for '--timeout'", "negative duration"],
        ),
        (
            "top --interval 1h",
            [
                "invalid value '1h' for '--interval'",
                "seconds from 1 to 60",
            ],
        ),
        (
            "top --interval -1",
            [
                "invalid value '-1' for '--interval'",
                "seconds from 1 to 60",
            ],
        ),
        (
            "top --limit 99999999999999999999",
            ["for '--limit'", "give a whole number from 1 to 1000"],
        ),
        (
            "services -A -n x",
            ["--all-namespaces and --namespace", "exclude each other"],
        ),
        ("explain a/b --from=", ["--from", "needs a value"]),
        (
            "status --help=false",
            ["'false' is unexpected", "--help takes no value"],
        ),
    ] {
        let line = format!("kube-proxy {line}");
        let error = CommandLine::try_parse_from(arguments(&line)).unwrap_err();
        let command: Vec<&str> = line.split(' ').take(2).collect();
        let text = usage::in_words(&error, &command.join(" "));
        assert!(!text.contains('\n'), "{text}");
        for part in parts {
            assert!(text.contains(part), "{line}: {text:?} lacks {part:?}");
        }
    }
}

#[test]
fn each_help_has_examples_and_exit_statuses_in_80_columns() {
    for command in commands() {
        let help = command.term_width(80).render_help().to_string();
        let widest = help.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(80), "{help}");
        for part in ["Examples:", "Exit status: 0", "3, no daemon answers"] {
            assert!(help.contains(part), "{part}: {help}");
        }
    }
}
