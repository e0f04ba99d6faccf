//! Runs a program without a shell, and with a time limit.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Seek as _, SeekFrom, Write};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group};

/// Directories of system programs. The search begins with the directories in `PATH`.
const SYSTEM_PATH: &str = "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin";

/// Size of each buffer for input or output, in bytes.
const CHUNK: usize = 64 * 1024;

/// A function that writes the standard input of a program.
pub type Input<'a> = &'a mut (dyn FnMut(&mut dyn Write) -> io::Result<()> + Send);
/// A function that reads a program's standard output.
pub type Output<'a> = &'a mut (dyn FnMut(&mut dyn BufRead) + Send);

/// An installed program, identified by the path of its file.
#[derive(Debug, Clone)]
pub struct Program(PathBuf);

/// Result of a program that has exited.
#[derive(Debug)]
pub struct ProgramExit {
    /// Exit status of the program.
    pub status: ExitStatus,
    /// Text that the program wrote to standard output. Empty if the caller read the output as a
    /// stream.
    pub stdout: String,
    /// Text that the program wrote to standard error.
    pub stderr: String,
}

impl Program {
    /// Finds a program in the directories of `PATH`, and then in the directories of `SYSTEM_PATH`.
    pub fn find(name: &str) -> Option<Self> {
        std::env::split_paths(&search_path())
            .map(|dir| dir.join(name))
            .find(|file| file.is_file())
            .map(Self)
    }

    /// Returns the program at this path.
    pub(crate) fn at(path: PathBuf) -> Self {
        Self(path)
    }

    /// Returns the path of the program.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Returns the file name of the program.
    pub(crate) fn name(&self) -> String {
        let name = self.0.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    /// Runs the program in the network namespace of the caller, and waits for its exit. `PATH` is
    /// its only environment variable. After `limit`, kills the program with its children and
    /// returns [`io::ErrorKind::TimedOut`].
    ///
    /// # Errors
    ///
    /// Fails if the program cannot be started or waited for, or exceeds the limit.
    pub fn run(&self, arguments: &[&str], input: &str, limit: Duration) -> io::Result<ProgramExit> {
        let mut stdout = Vec::new();
        let mut write = |sink: &mut dyn Write| sink.write_all(input.as_bytes());
        let mut finished = self.stream(
            arguments,
            (!input.is_empty()).then_some(&mut write),
            // Keeps the output that the program wrote before a read error.
            &mut |source| drop(source.read_to_end(&mut stdout)),
            limit,
        )?;
        finished.stdout = lossy(stdout);
        Ok(finished)
    }

    /// Runs the program like [`run`](Self::run), but lets the caller write input and read output as
    /// streams. Starts a thread only if the program has input.
    ///
    /// # Errors
    ///
    /// See [`run`](Self::run).
    pub fn stream(
        &self,
        arguments: &[&str],
        input: Option<Input<'_>>,
        output: Output<'_>,
        limit: impl Into<Limit>,
    ) -> io::Result<ProgramExit> {
        let limit = limit.into();
        let deadline = Instant::now() + limit.whole;
        // stderr goes to a memory file, which accepts all messages even if no thread reads them
        // yet.
        let mut stderr = File::from(memfd_create("stderr", MemfdFlags::CLOEXEC)?);
        let stdin = match input {
            Some(_) => Stdio::piped(),
            None => Stdio::null(),
        };
        let mut child = Command::new(&self.0)
            .args(arguments)
            .env_clear()
            .env("PATH", search_path())
            .stdin(stdin)
            .stdout(Stdio::piped())
            .stderr(stderr.try_clone()?)
            .process_group(0)
            .spawn()?;
        let in_time = thread::scope(|scope| {
            let mut fed = Ok(());
            if let (Some(stdin), Some(input)) = (child.stdin.take(), input) {
                // Ignores write errors: if the program stops reading its input, its stderr has the
                // reason.
                let feed = move || {
                    let mut sink = BufWriter::with_capacity(CHUNK, stdin);
                    input(&mut sink).and_then(|()| sink.flush())
                };
                let thread = thread::Builder::new().spawn_scoped(scope, feed);
                fed = thread.map(drop);
            }
            let in_time = fed.map(|()| {
                child.stdout.take().is_none_or(|stdout| {
                    let until = TimedOutput {
                        stdout,
                        deadline,
                        silence: limit.silence,
                        is_late: false,
                    };
                    let mut source = BufReader::with_capacity(CHUNK, until);
                    output(&mut source);
                    // Reads until the program and its children have closed the output. Ignores read
                    // errors, because the exit status shows the failure, too.
                    let _ = io::copy(&mut source, &mut io::sink());
                    !source.get_ref().is_late
                })
            });
            if !matches!(in_time, Ok(true)) {
                kill(&mut child);
            }
            in_time
        });
        let status = child.wait()?;
        if !in_time? {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let mut said = Vec::new();
        stderr.seek(SeekFrom::Start(0))?;
        stderr.read_to_end(&mut said)?;
        Ok(ProgramExit {
            status,
            stdout: String::new(),
            stderr: lossy(said),
        })
    }
}

/// Time limits for one run of a program.
#[derive(Debug, Clone, Copy)]
pub struct Limit {
    /// Longest total time that the program may run.
    pub whole: Duration,
    /// Longest time that the program may run without output.
    pub silence: Duration,
}

impl From<Duration> for Limit {
    /// Creates limits with this total time, and without a separate limit for silence.
    fn from(whole: Duration) -> Self {
        let silence = whole;
        Self { whole, silence }
    }
}

/// Output of a program, readable until the deadline.
struct TimedOutput {
    stdout: ChildStdout,
    deadline: Instant,
    silence: Duration,
    is_late: bool,
}

impl Read for TimedOutput {
    /// Reads output. Returns [`io::ErrorKind::TimedOut`] after the deadline.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let left = self.deadline.saturating_duration_since(Instant::now());
            let left = if self.is_late {
                Duration::ZERO
            } else {
                left.min(self.silence)
            };
            let left = Timespec::try_from(left).map_err(io::Error::other)?;
            match poll(&mut [PollFd::new(&self.stdout, PollFlags::IN)], Some(&left)) {
                Ok(0) => {
                    self.is_late = true;
                    return Err(io::ErrorKind::TimedOut.into());
                }
                Ok(_) => return self.stdout.read(buffer),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn search_path() -> OsString {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    if !path.is_empty() {
        path.push(":");
    }
    path.push(SYSTEM_PATH);
    path
}

fn lossy(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

fn kill(child: &mut Child) {
    // The child leads a process group, so the signal also kills its own children (such as
    // modprobe). Otherwise, these children would keep the pipes open.
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process_group(group, Signal::KILL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_gets_input_and_returns_both_output_streams() {
        let shell = Program::find("sh").unwrap();
        let script = [
            "-c",
            "cat; echo said >&2; env | grep -vE '^(PATH|PWD|_|SHLVL)='; exit 3",
        ];
        let long = "0123456789\n".repeat(100_000);
        let finished = shell.run(&script, &long, Duration::from_secs(20)).unwrap();
        assert_eq!(finished.status.code(), Some(3));
        assert_eq!(
            (finished.stdout, finished.stderr),
            (long, "said\n".to_owned())
        );
    }

    #[test]
    fn a_program_that_exceeds_its_timeout_is_killed_with_children() {
        let shell = Program::find("sh").unwrap();
        let started = Instant::now();
        let limit = Duration::from_millis(100);
        let error = shell.run(&["-c", "sleep 60; true"], "", limit).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(started.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn a_program_that_prints_nothing_for_too_long_is_killed() {
        let shell = Program::find("sh").unwrap();
        let limit = Limit {
            whole: Duration::from_mins(2),
            silence: Duration::from_millis(300),
        };
        let mut said = Vec::new();
        let mut run = |script: &str| {
            let mut output = |source: &mut dyn BufRead| drop(source.read_to_end(&mut said));
            shell.stream(&["-c", script], None, &mut output, limit)
        };
        let began = Instant::now();
        let talks = "for one in 1 2 3 4 5 6; do sleep 0.1; echo $one; done";
        assert!(run(talks).unwrap().status.success());
        let falls_silent = run("echo last; sleep 60").unwrap_err();
        assert_eq!(falls_silent.kind(), io::ErrorKind::TimedOut);
        assert!(began.elapsed() < Duration::from_secs(30));
        assert!(said.ends_with(b"6\nlast\n"), "{said:?}");
    }

    #[test]
    fn a_program_that_ignores_its_input_succeeds() {
        let program = Program::find("true").unwrap();
        let long = "x".repeat(1 << 20);
        let finished = program.run(&[], &long, Duration::from_secs(20)).unwrap();
        assert!(finished.status.success());
        assert!(Program::find("there-is-no-such-program").is_none());
    }
}
