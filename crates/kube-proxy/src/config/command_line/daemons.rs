//! Finds the daemon's flags for a command without flags, such as a bare `kube-proxy check`. There
//! are two origins:
//!
//! - In the daemon's container, the command line of process 1 contains the flags.
//! - In a shell with the variables of a unit file, `KUBE_PROXY_ARGS` contains the flags.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use super::CommandLineError;
use super::arguments::{has_flags, take_question};
use crate::config::question::Question;

/// Environment variable that contains the flags in the unit files of distributions.
const VARIABLE: &str = "KUBE_PROXY_ARGS";

/// A command line to which the daemon's flags were added, if it had none.
#[derive(Debug, PartialEq, Eq)]
pub struct CompletedArguments {
    /// The whole command line, beginning with the program's name.
    pub arguments: Vec<OsString>,
    /// Message for the operator that names the origin of the added flags, or `None` if no flag was
    /// added.
    pub note: Option<String>,
}

/// The two possible origins of the daemon's flags.
#[derive(Debug, Default)]
struct FlagOrigins {
    /// Value of `KUBE_PROXY_ARGS`, if set.
    variable: Option<String>,
    /// Command line of process 1, if that process runs this program.
    first: Option<Vec<OsString>>,
}

/// Adds the flags of the daemon to a command without flags.
///
/// # Errors
///
/// [`CommandLineError::NoFlags`] if no origin has flags.
pub fn completed(arguments: Vec<OsString>) -> Result<CompletedArguments, CommandLineError> {
    complete(arguments, || FlagOrigins {
        variable: env::var(VARIABLE).ok(),
        first: first(Path::new("/proc")),
    })
}

fn complete(
    mut arguments: Vec<OsString>,
    origins: impl FnOnce() -> FlagOrigins,
) -> Result<CompletedArguments, CommandLineError> {
    let word = arguments.get(1).and_then(|word| word.to_str());
    let Some(question) = word.and_then(Question::of) else {
        return Ok(CompletedArguments {
            arguments,
            note: None,
        });
    };
    if has_flags(&arguments) {
        return Ok(CompletedArguments {
            arguments,
            note: None,
        });
    }
    // Reports an invalid subcommand or option first, because added flags would not correct it.
    take_question(&mut arguments.clone())?;
    let FlagOrigins { variable, first } = origins();
    let (flags, note) = match (variable, first) {
        (Some(variable), _) if !variable.trim().is_empty() => {
            let flags = variable.split_whitespace().map(OsString::from).collect();
            (flags, format!("with the flags of {VARIABLE}"))
        }
        (_, Some(line)) if is_daemons(&line) => {
            let flags: Vec<OsString> = line.into_iter().skip(1).collect();
            let words: Vec<_> = flags.iter().map(|flag| flag.to_string_lossy()).collect();
            let words = words.join(" ");
            (flags, format!("with the flags of process 1: {words}"))
        }
        _ => {
            let question = question.word();
            return Err(CommandLineError::NoFlags { question });
        }
    };
    arguments.extend(flags);
    Ok(CompletedArguments {
        arguments,
        note: Some(note),
    })
}

/// Returns true if a command line runs the daemon, that is, if all its arguments are flags.
fn is_daemons(line: &[OsString]) -> bool {
    let is_flag = |argument: &OsString| argument.to_string_lossy().starts_with('-');
    line.len() == 1 || line.get(1).is_some_and(is_flag)
}

/// Returns the command line of process 1, if process 1 is another process that runs the same
/// program file as this process.
fn first(proc: &Path) -> Option<Vec<OsString>> {
    if std::process::id() == 1 {
        return None;
    }
    let identity = |process: &str| {
        let file = fs::metadata(proc.join(process).join("exe")).ok()?;
        Some((file.dev(), file.ino()))
    };
    if identity("1")? != identity("self")? {
        return None;
    }
    let line = fs::read(proc.join("1/cmdline")).ok()?;
    let arguments = line.strip_suffix(b"\0")?.split(|byte| *byte == 0);
    Some(
        arguments
            .map(|part| OsString::from_vec(part.to_vec()))
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn line(text: &str) -> Vec<OsString> {
        text.split_whitespace().map(OsString::from).collect()
    }

    fn outcome(
        text: &str,
        variable: Option<&str>,
        first: Option<&str>,
    ) -> Result<CompletedArguments, String> {
        let origins = FlagOrigins {
            variable: variable.map(str::to_owned),
            first: first.map(line),
        };
        complete(line(text), || origins).map_err(|error| error.to_string())
    }

    #[test]
    fn a_command_line_with_daemon_flags_or_without_a_subcommand_is_kept() {
        for text in [
            "kube-proxy",
            "kube-proxy --cleanup",
            "kube-proxy diff --manifests=/m",
            "kube-proxy check -o json --config /c",
        ] {
            let completed = outcome(text, Some("--v=9"), Some("kube-proxy --v=9")).unwrap();
            assert_eq!((completed.arguments, completed.note), (line(text), None));
        }
    }

    #[test]
    fn a_subcommand_without_daemon_flags_uses_the_flags_of_process_1() {
        let first = Some("/usr/local/bin/kube-proxy --config=/c --hostname-override=n");
        let completed = outcome("kube-proxy diff -o json", None, first).unwrap();
        let wanted = "kube-proxy diff -o json --config=/c --hostname-override=n";
        assert_eq!(completed.arguments, line(wanted));
        assert_eq!(
            completed.note.unwrap(),
            "with the flags of process 1: --config=/c --hostname-override=n"
        );
        // The daemon runs without flags, so the subcommand gets none, and the defaults apply.
        let completed = outcome("kube-proxy plan", None, Some("kube-proxy")).unwrap();
        assert_eq!(completed.arguments, line("kube-proxy plan"));
        let variable = outcome("kube-proxy plan", Some(" --config=/c  -v=2"), first).unwrap();
        assert_eq!(variable.arguments, line("kube-proxy plan --config=/c -v=2"));
    }

    #[test]
    fn the_error_for_missing_flags_shows_an_example() {
        for first in [None, Some("kube-proxy check -o json")] {
            let error = outcome("kube-proxy diff --output yaml", Some(""), first).unwrap_err();
            assert!(
                error.contains("kubectl -n kube-system exec POD -- kube-proxy diff --config="),
                "{error}"
            );
        }
    }

    #[test]
    fn an_invalid_output_format_is_reported_before_missing_flags() {
        let error = outcome("kube-proxy plan -o toml", None, None).unwrap_err();
        assert!(error.contains("'toml' for '--output'"), "{error}");
    }

    #[test]
    fn flags_of_process_1_are_used_only_for_the_same_program_file() {
        let folder = env::temp_dir().join(format!("first-{}", std::process::id()));
        for name in ["1", "self"] {
            fs::create_dir_all(folder.join(name)).unwrap();
        }
        fs::write(folder.join("program"), "").unwrap();
        fs::write(folder.join("other"), "").unwrap();
        symlink(folder.join("program"), folder.join("self/exe")).unwrap();
        fs::write(folder.join("1/cmdline"), b"kube-proxy\0--v=2\0").unwrap();
        assert_eq!(first(&folder), None, "its file cannot be read");
        symlink(folder.join("other"), folder.join("1/exe")).unwrap();
        assert_eq!(first(&folder), None);
        fs::remove_file(folder.join("1/exe")).unwrap();
        symlink(folder.join("program"), folder.join("1/exe")).unwrap();
        assert_eq!(first(&folder), Some(line("kube-proxy --v=2")));
        fs::remove_dir_all(folder).unwrap();
    }
}
