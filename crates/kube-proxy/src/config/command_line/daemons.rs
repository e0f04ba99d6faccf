//! The flags of the daemon, for who asks what it would do and gives none: in the daemon's own
//! container it is process 1, and a shell that a unit file's variables were read into has them in
//! `KUBE_PROXY_ARGS`.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use super::CommandLineError;
use crate::config::asked::Question;

/// The variable that units of distributions keep the flags in.
const VARIABLE: &str = "KUBE_PROXY_ARGS";

/// A command line that has flags, and a line about where they come from if they were not given.
#[derive(Debug, PartialEq, Eq)]
pub struct Completed {
    /// The whole command line, the program's name first.
    pub arguments: Vec<OsString>,
    /// What is to be told.
    pub note: Option<String>,
}

/// What may be known of the daemon's flags.
#[derive(Debug, Default)]
struct Known {
    /// `KUBE_PROXY_ARGS`.
    variable: Option<String>,
    /// The command line of process 1, if that is another process of this program.
    first: Option<Vec<OsString>>,
}

/// Takes the flags of the daemon where something is asked of it and none are given.
///
/// # Errors
///
/// They are not known: [`CommandLineError::NoFlags`].
pub fn completed(arguments: Vec<OsString>) -> Result<Completed, CommandLineError> {
    complete(arguments, || Known {
        variable: env::var(VARIABLE).ok(),
        first: first(Path::new("/proc")),
    })
}

fn complete(
    mut arguments: Vec<OsString>,
    known: impl FnOnce() -> Known,
) -> Result<Completed, CommandLineError> {
    let word = arguments.get(1).and_then(|word| word.to_str());
    let Some(question) = word.and_then(Question::of) else {
        return Ok(Completed {
            arguments,
            note: None,
        });
    };
    if has_flags(&arguments) {
        return Ok(Completed {
            arguments,
            note: None,
        });
    }
    // A form that there is not is told first: flags change nothing of it.
    super::arguments::take_question(&mut arguments.clone())?;
    let Known { variable, first } = known();
    let (flags, note) = match (variable, first) {
        (Some(variable), _) if !variable.trim().is_empty() => {
            let flags = variable.split_whitespace().map(OsString::from).collect();
            (flags, format!("with the flags of {VARIABLE}"))
        }
        (_, Some(line)) if is_daemons(&line) => {
            let flags: Vec<OsString> = line.into_iter().skip(1).collect();
            let told: Vec<_> = flags.iter().map(|flag| flag.to_string_lossy()).collect();
            let told = told.join(" ");
            (flags, format!("with the flags of process 1: {told}"))
        }
        _ => {
            let question = question.word();
            return Err(CommandLineError::NoFlags { question });
        }
    };
    arguments.extend(flags);
    Ok(Completed {
        arguments,
        note: Some(note),
    })
}

/// Whether anything is given beside the question and `-o`.
fn has_flags(arguments: &[OsString]) -> bool {
    let mut given = arguments.iter().skip(2);
    while let Some(argument) = given.next() {
        let text = argument.to_string_lossy();
        match text.split_once('=') {
            Some(("-o" | "--output", _)) => {}
            None if text == "-o" || text == "--output" => {
                given.next();
            }
            _ => return true,
        }
    }
    false
}

/// Whether a command line is that of a daemon: flags alone, none of which ends it soon.
fn is_daemons(line: &[OsString]) -> bool {
    let is_flag = |argument: &OsString| argument.to_string_lossy().starts_with('-');
    line.len() == 1 || line.get(1).is_some_and(is_flag)
}

/// The command line of process 1, if that is another process of this very program.
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

    fn told(text: &str, variable: Option<&str>, first: Option<&str>) -> Result<Completed, String> {
        let known = Known {
            variable: variable.map(str::to_owned),
            first: first.map(line),
        };
        complete(line(text), || known).map_err(|error| error.to_string())
    }

    #[test]
    fn flags_that_are_given_count() {
        for text in [
            "kube-proxy",
            "kube-proxy --cleanup",
            "kube-proxy diff --manifests=/m",
            "kube-proxy check -o json --config /c",
        ] {
            let completed = told(text, Some("--v=9"), Some("kube-proxy --v=9")).unwrap();
            assert_eq!((completed.arguments, completed.note), (line(text), None));
        }
    }

    #[test]
    fn the_daemons_own_flags_are_taken_where_it_is_process_1() {
        let first = Some("/usr/local/bin/kube-proxy --config=/c --hostname-override=n");
        let completed = told("kube-proxy diff -o json", None, first).unwrap();
        let wanted = "kube-proxy diff -o json --config=/c --hostname-override=n";
        assert_eq!(completed.arguments, line(wanted));
        assert_eq!(
            completed.note.unwrap(),
            "with the flags of process 1: --config=/c --hostname-override=n"
        );
        // One that has none is that of a pod with the defaults.
        let completed = told("kube-proxy plan", None, Some("kube-proxy")).unwrap();
        assert_eq!(completed.arguments, line("kube-proxy plan"));
        let variable = told("kube-proxy plan", Some(" --config=/c  -v=2"), first).unwrap();
        assert_eq!(variable.arguments, line("kube-proxy plan --config=/c -v=2"));
    }

    #[test]
    fn who_gives_none_is_told_which_are_wanted() {
        for first in [None, Some("kube-proxy check -o json")] {
            let error = told("kube-proxy diff --output yaml", Some(""), first).unwrap_err();
            assert!(
                error.contains("kubectl -n kube-system exec POD -- kube-proxy diff --config="),
                "{error}"
            );
        }
    }

    #[test]
    fn a_form_that_there_is_not_is_told_before_that_flags_are_missing() {
        let error = told("kube-proxy plan -o toml", None, None).unwrap_err();
        assert!(error.contains("'toml' for '--output'"), "{error}");
    }

    #[test]
    fn process_1_counts_if_it_is_this_program() {
        let folder = env::temp_dir().join(format!("first-{}", std::process::id()));
        for name in ["1", "self"] {
            fs::create_dir_all(folder.join(name)).unwrap();
        }
        fs::write(folder.join("program"), "").unwrap();
        fs::write(folder.join("other"), "").unwrap();
        symlink(folder.join("program"), folder.join("self/exe")).unwrap();
        fs::write(folder.join("1/cmdline"), b"kube-proxy\0--v=2\0").unwrap();
        assert_eq!(first(&folder), None, "its file cannot be seen");
        symlink(folder.join("other"), folder.join("1/exe")).unwrap();
        assert_eq!(first(&folder), None);
        fs::remove_file(folder.join("1/exe")).unwrap();
        symlink(folder.join("program"), folder.join("1/exe")).unwrap();
        assert_eq!(first(&folder), Some(line("kube-proxy --v=2")));
        fs::remove_dir_all(folder).unwrap();
    }
}
