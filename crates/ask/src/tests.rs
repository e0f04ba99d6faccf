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
fn what_asks_is_told_from_the_daemons_flags() {
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
fn help_is_no_error_and_wrong_usage_is_2() {
    for (line, code) in [
        ("kube-proxy status --help", WELL),
        ("kube-proxy services --help", WELL),
        ("kube-proxy status -o text", UNREADABLE),
        ("kube-proxy services a b", UNREADABLE),
        ("kube-proxy services a/b -n c", UNREADABLE),
    ] {
        assert_eq!(asked(&arguments(line), &PROGRAM), code, "{line}");
    }
}

#[test]
fn the_help_of_each_has_examples_and_exit_statuses() {
    use clap::CommandFactory as _;
    for mut command in Asking::command().get_subcommands().cloned() {
        let help = command.render_help().to_string();
        for part in ["Examples:", "Exit status: 0", "3, no daemon answers"] {
            assert!(help.contains(part), "{part}: {help}");
        }
    }
}
