//! Runs a command with its log in a file, if this program is called as `go-runner`.
//!
//! Upstream's image has the program `/go-runner` (`kube-log-runner`), and kops' static pod starts
//! kube-proxy through it. In our image, `/go-runner` is a link to kube-proxy.
//!
//! - With `--log-file` and `--also-stdout`, this process is the parent of the command and copies
//!   its output. If a child copied the output, the last lines would be lost: the kernel kills a
//!   container's other processes as soon as its first process ends.
//! - In all other cases, the command replaces this process.
//!
//! A failed write to the log file does not stop the command. The exit status is the command's.
//! Upstream's runner exits with 1 if the command fails.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, PipeReader, Write};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Error, bail};
use rustix::process::{Pid, Signal, kill_process};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::spawn_blocking;

/// Names of upstream's program. `go-runner` is the older name.
const NAMES: [&str; 2] = ["go-runner", "kube-log-runner"];
/// Supported flags of the log runner, as error messages list them.
const FLAGS: &str = "--log-file=FILE, --also-stdout and --redirect-stderr=false";
/// Time limit for copying the last lines after the command's end.
const LAST_LINES: Duration = Duration::from_secs(1);
/// Signals that this process forwards to the command, as upstream's runner does.
const FORWARDED: [Signal; 4] = [Signal::HUP, Signal::INT, Signal::TERM, Signal::QUIT];

/// Parsed command line of the log runner.
#[derive(Debug, PartialEq, Eq)]
struct Invocation {
    log_file: Option<PathBuf>,
    also_stdout: bool,
    redirect_stderr: bool,
    /// Command to run: its program and its arguments.
    command: Vec<OsString>,
}

/// Runs the command in `arguments` if the first argument, this program's name, is a runner's name.
/// Returns the command's exit status, or `None` for another name.
///
/// # Errors
///
/// Fails if the command line is invalid, the log file cannot be opened, or the command cannot be
/// started.
pub fn stand_in(mut arguments: impl Iterator<Item = OsString>) -> Result<Option<u8>, Error> {
    let called = arguments.next().unwrap_or_default();
    let name = Path::new(&called).file_name().unwrap_or_default();
    if !NAMES.iter().any(|one| name == OsStr::new(one)) {
        return Ok(None);
    }
    Invocation::parse(arguments)?.run().map(Some)
}

impl Invocation {
    /// Parses flags as Go's package `flag` does. A flag has one hyphen or two. The flags end at the
    /// first argument that is not a flag.
    fn parse(arguments: impl Iterator<Item = OsString>) -> Result<Self, Error> {
        let mut arguments = arguments.peekable();
        let mut read = Self {
            log_file: None,
            also_stdout: false,
            redirect_stderr: true,
            command: Vec::new(),
        };
        while let Some(argument) = arguments.next_if(|one| is_flag(one)) {
            if argument == "--" {
                break;
            }
            let text = argument.as_bytes();
            let text = text.strip_prefix(b"--").or(text.strip_prefix(b"-"));
            let text = text.unwrap_or_default();
            let at = text.iter().position(|byte| *byte == b'=');
            let (name, value) = match at.map(|at| text.split_at(at)) {
                Some((name, value)) => (name, value.get(1..)),
                None => (text, None),
            };
            match name {
                b"log-file" => {
                    let value = value.map(|value| OsStr::from_bytes(value).to_owned());
                    let value = value.or_else(|| arguments.next());
                    let value = value.context("--log-file needs a file name")?;
                    read.log_file = (!value.is_empty()).then(|| value.into());
                }
                b"also-stdout" => read.also_stdout = switch(&argument, value)?,
                b"redirect-stderr" => read.redirect_stderr = switch(&argument, value)?,
                _ => bail!("unknown flag {}: use {FLAGS}", argument.display()),
            }
        }
        read.command.extend(arguments);
        if read.command.is_empty() {
            bail!("no command to run: give it after the flags {FLAGS}");
        }
        Ok(read)
    }

    /// Runs the command, and returns its exit status.
    fn run(self) -> Result<u8, Error> {
        let (program, arguments) = self.command.split_first().context("no command to run")?;
        let mut command = Command::new(program);
        command.args(arguments);
        let log = match &self.log_file {
            Some(path) => {
                let file = File::options().append(true).create(true).open(path);
                Some(file.with_context(|| format!("cannot open the log file {}", path.display()))?)
            }
            None => None,
        };
        let started = || format!("cannot run {}", program.display());
        if let (Some(log), true) = (&log, self.also_stdout) {
            let (reader, writer) = io::pipe()?;
            if self.redirect_stderr {
                command.stderr(writer.try_clone()?);
            }
            command.stdout(writer);
            return copying(command, reader, log.try_clone()?).with_context(started);
        }
        let output: OwnedFd = match log {
            Some(log) => log.into(),
            None => io::stdout().as_fd().try_clone_to_owned()?,
        };
        if self.redirect_stderr {
            command.stderr(output.try_clone()?);
        }
        Err(command.stdout(Stdio::from(output)).exec()).with_context(started)
    }
}

/// Returns true if an argument begins with a hyphen. A single hyphen is not a flag.
fn is_flag(argument: &OsStr) -> bool {
    argument.len() > 1 && argument.as_bytes().starts_with(b"-")
}

/// Parses the value of a boolean flag, which is true without a value.
fn switch(argument: &OsStr, value: Option<&[u8]>) -> Result<bool, Error> {
    match value {
        None | Some(b"1" | b"t" | b"T" | b"true" | b"TRUE" | b"True") => Ok(true),
        Some(b"0" | b"f" | b"F" | b"false" | b"FALSE" | b"False") => Ok(false),
        Some(_) => bail!("{}: give true or false", argument.display()),
    }
}

/// Runs a command, copies its output to the standard output and the log file, and forwards signals.
fn copying(mut command: Command, reader: PipeReader, log: File) -> Result<u8, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let ended = runtime.block_on(async {
        // Installs the handlers before the start of the command. In a container, the kernel
        // discards a signal to process 1 if the process has no handler for it.
        let mut forwarded = Vec::new();
        for number in FORWARDED {
            let kind = SignalKind::from_raw(number.as_raw());
            forwarded.push((signal(kind)?, number));
        }
        let mut child = command.spawn()?;
        // Drops the command's builder, because it holds write ends of the pipe. These ends would
        // keep the pipe open after the command has ended.
        drop(command);
        let pid = Pid::from_child(&child);
        for (mut signals, number) in forwarded {
            tokio::spawn(async move {
                while signals.recv().await.is_some() {
                    // Ignores the error, which means that the command has ended.
                    let _ = kill_process(pid, number);
                }
            });
        }
        let (is_copied, copied) = mpsc::channel();
        thread::spawn(move || {
            tee(reader, &mut [&mut io::stdout(), &mut &log]);
            let _ = is_copied.send(());
        });
        let ended = spawn_blocking(move || child.wait()).await??;
        // Waits for a limited time, because a process that the command started may keep the pipe
        // open.
        let _ = copied.recv_timeout(LAST_LINES);
        io::Result::Ok(ended)
    })?;
    Ok(status(ended))
}

/// Copies the reader's bytes to each output. Reports the first failed write of each output.
fn tee(mut reader: impl io::Read, outputs: &mut [&mut dyn Write]) {
    let mut buffer = vec![0; 1 << 16];
    let mut has_failed = vec![false; outputs.len()];
    loop {
        let length = match reader.read(&mut buffer) {
            Ok(0) => return,
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => return,
        };
        let text = buffer.get(..length).unwrap_or_default();
        for (output, has_failed) in outputs.iter_mut().zip(&mut has_failed) {
            let written = output.write_all(text).and_then(|()| output.flush());
            if let Err(error) = written
                && !*has_failed
            {
                *has_failed = true;
                view::print_error(format_args!(
                    "go-runner: cannot copy a part of the log: {error}; the command continues"
                ));
            }
        }
    }
}

/// Returns the exit status of a process: 128 plus the signal's number if a signal ended it, as in a
/// shell.
fn status(ended: ExitStatus) -> u8 {
    let number = ended
        .code()
        .unwrap_or_else(|| 128 + ended.signal().unwrap_or_default());
    u8::try_from(number).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Invocation, String> {
        let arguments = line.split_whitespace().map(OsString::from);
        Invocation::parse(arguments).map_err(|error| error.to_string())
    }

    /// Runs the log runner with the command line `line`, in which the path of the log file replaces
    /// `LOG`. Returns the exit status and the log file's text.
    fn run(line: &str, script: &str) -> (u8, String) {
        let process = std::process::id();
        let log = std::env::temp_dir().join(format!("log-runner-{process}-{}", line.len()));
        std::fs::write(&log, "before\n").unwrap();
        let line = line.replace("LOG", log.to_str().unwrap());
        let arguments = line.split_whitespace().chain(["sh", "-c", script]);
        let code = stand_in(arguments.map(OsString::from)).unwrap().unwrap();
        let text = std::fs::read_to_string(&log).unwrap();
        std::fs::remove_file(log).unwrap();
        (code, text)
    }

    #[test]
    fn log_runner_flags_end_at_the_command() {
        let command = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        // Parses the command line of kops' static pod.
        assert_eq!(
            parse(
                "--log-file=/var/log/kube-proxy.log --also-stdout /usr/local/bin/kube-proxy --v=2"
            ),
            Ok(Invocation {
                log_file: Some("/var/log/kube-proxy.log".into()),
                also_stdout: true,
                redirect_stderr: true,
                command: command(&["/usr/local/bin/kube-proxy", "--v=2"]),
            })
        );
        assert_eq!(
            parse("-log-file a -also-stdout=false --redirect-stderr=0 -- -x"),
            Ok(Invocation {
                log_file: Some("a".into()),
                also_stdout: false,
                redirect_stderr: false,
                command: command(&["-x"]),
            })
        );
        for (line, said) in [
            ("", "no command to run"),
            ("--log-file", "--log-file needs a file name"),
            (
                "--also-stdout=maybe x",
                "--also-stdout=maybe: give true or false",
            ),
            (
                "--log-file-size=1M x",
                "unknown flag --log-file-size=1M: use --log-file=FILE",
            ),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(said), "{line}: {error}");
        }
    }

    #[test]
    fn the_log_runner_copies_all_lines_and_returns_the_commands_exit_status() {
        let script = "echo out; echo err >&2; exit 7";
        let (code, text) = run("/go-runner --log-file=LOG --also-stdout", script);
        assert_eq!((code, &*text), (7, "before\nout\nerr\n"));
        let (code, text) = run(
            "kube-log-runner --log-file=LOG --also-stdout --redirect-stderr=false",
            "echo out; kill -TERM $$",
        );
        assert_eq!((code, &*text), (128 + 15, "before\nout\n"));
    }

    #[test]
    fn the_log_runner_does_not_start_under_the_name_of_kube_proxy() {
        let arguments = ["/usr/local/bin/kube-proxy", "--v=2"].map(OsString::from);
        assert_eq!(stand_in(arguments.into_iter()).unwrap(), None);
    }

    /// A full disk must not stop the command.
    #[test]
    fn a_failed_copy_of_the_log_does_not_stop_the_other_copies() {
        let full = File::options().append(true).open("/dev/full").unwrap();
        let mut copy = Vec::new();
        tee(&b"all lines"[..], &mut [&mut &full, &mut copy]);
        assert_eq!(copy, b"all lines");
    }
}
