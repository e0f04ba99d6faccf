//! The whole command line as one tree: the daemon's flags and every subcommand. The program
//! generates help, completions, man pages and suggestions from this tree.

use clap::builder::PossibleValuesParser;
use clap::{Arg, Command};
use clap_complete::{Shell, generate};
use flags::headings::{self, HELP_COLUMNS};

use crate::config::question::{Output, Question};

/// Name of the program.
pub(super) const PROGRAM: &str = "kube-proxy";
/// Name of the subcommand that prints a completion script.
pub(super) const COMPLETION: &str = "completion";
/// Name of the subcommand that prints the version.
pub(super) const VERSION: &str = "version";
/// Name of the argument of `completion` that selects the shell.
const SHELL: &str = "shell";

/// Shells with a completion script, by name.
const SHELLS: [(&str, Shell); 3] = [
    ("bash", Shell::Bash),
    ("zsh", Shell::Zsh),
    ("fish", Shell::Fish),
];

const AFTER_HELP: &str = "\
Without a command, kube-proxy runs as the daemon until it is stopped.
A boolean flag takes its value behind =, as in --masquerade-all=false.

Exit status: 0, done, and nothing is wrong; 1, failed, or something is wrong or
would change; 2, wrong usage, or undetermined; 3, no daemon answers.";

/// Returns clap's definition of the whole command line.
pub fn tree() -> Command {
    let questions = Question::WORDS.map(|(_, question)| question_command(question));
    headings::command()
        .override_usage("kube-proxy [FLAGS]\n       kube-proxy COMMAND [ARGUMENTS]")
        .after_help(AFTER_HELP)
        .args_conflicts_with_subcommands(true)
        .subcommands(ask::commands())
        .subcommands(questions)
        .subcommand(
            Command::new(COMPLETION)
                .about("Print a completion script for bash, zsh or fish")
                .after_help("Example:\n  source <(kube-proxy completion bash)")
                .arg(
                    Arg::new(SHELL)
                        .required(true)
                        .value_name("SHELL")
                        .help("Shell to complete commands in")
                        .value_parser(PossibleValuesParser::new(SHELLS.map(|(name, _)| name))),
                ),
        )
        .subcommand(Command::new(VERSION).about("Print the version, as --version does"))
}

/// Returns the program's name with a subcommand, or `None` if no subcommand has the name `word`.
pub(super) fn command_named(word: &str) -> Option<String> {
    tree().find_subcommand(word)?;
    Some(format!("{PROGRAM} {word}"))
}

/// Returns the completion script for the shell in `matches`, the arguments of `completion`.
pub(super) fn completion(matches: &clap::ArgMatches) -> String {
    let name = matches.get_one::<String>(SHELL).map(String::as_str);
    let mut shells = SHELLS.iter();
    let mut script = Vec::new();
    if let Some((_, shell)) = shells.find(|(known, _)| Some(*known) == name) {
        generate(*shell, &mut tree(), PROGRAM, &mut script);
    }
    // clap_complete names the cases of a subcommand after our program in two ways, because the
    // program's name contains a hyphen. Without one name, the script for bash completes nothing
    // after a subcommand.
    String::from_utf8_lossy(&script).replace("kube__subcmd__proxy", "kube__proxy")
}

/// Returns the long help of a command that previews a start (`check`, `plan` or `diff`).
pub(super) fn question_help(question: Question) -> String {
    let mut tree = tree();
    tree.build();
    let command = tree.find_subcommand_mut(question.word());
    command.map_or_else(String::new, |command| command.render_help().to_string())
}

fn question_command(question: Question) -> Command {
    let (about, status) = match question {
        Question::Check => (
            "Check this node, and report the changes of a start",
            "0, a start would change nothing; 1, it would change something; 2, undetermined, or the start would fail",
        ),
        Question::Plan => (
            "Print the writes of a start in their order (also --dry-run)",
            "0, no write; 1, some writes; 2, undetermined, or the start would fail",
        ),
        Question::Diff => (
            "Compare the kernel with the state that a start would write",
            "0, no difference; 1, differences; 2, undetermined, or the start would fail",
        ),
    };
    let word = question.word();
    let forms = Output::WORDS.map(|(name, _)| name);
    Command::new(word)
        .about(about)
        .after_help(format!(
            "It takes all flags of the daemon (kube-proxy --help) and writes nothing.\n\
             Without flags it uses those of process 1, if that is kube-proxy.\n\n\
             Example:\n  kube-proxy {word} --config=/var/lib/kube-proxy/config.conf\n\n\
             Exit status: {status}."
        ))
        .max_term_width(HELP_COLUMNS)
        .override_usage(format!("kube-proxy {word} [FLAGS]"))
        .arg(
            Arg::new("output")
                .short('o')
                .long("output")
                .value_name("FORM")
                .default_value("text")
                .help("Form of the answer")
                .value_parser(PossibleValuesParser::new(forms)),
        )
        .arg(
            Arg::new("timeout")
                .long("timeout")
                .value_name("DURATION")
                .default_value("1m")
                .help("Longest wait for the API server's objects"),
        )
}
