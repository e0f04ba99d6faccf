//! Running a program with a time limit and without a shell.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, BufWriter, Read as _, Write};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

/// Where system programs are, should `PATH` not say so.
const SYSTEM_PATH: &str = "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin";

/// How much is handed over at a time.
const CHUNK: usize = 64 * 1024;

/// What writes a program's standard input.
pub type Input<'a> = &'a mut (dyn FnMut(&mut dyn Write) -> io::Result<()> + Send);
/// What reads its standard output.
pub type Output<'a> = &'a mut (dyn FnMut(&mut dyn BufRead) + Send);

/// A program that was found.
#[derive(Debug, Clone)]
pub struct Program(PathBuf);

/// What a program left when it ended.
#[derive(Debug)]
pub struct Finished {
    /// How it ended.
    pub status: ExitStatus,
    /// Standard output; empty if it was streamed.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Program {
    /// Looks in `PATH`, then where system programs are.
    pub fn find(name: &str) -> Option<Self> {
        std::env::split_paths(&search_path())
            .map(|dir| dir.join(name))
            .find(|file| file.is_file())
            .map(Self)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Runs it in the calling thread's network namespace, with `PATH` as its only variable, and waits. Past `limit` it is
    /// killed, with what it started, and that is [`io::ErrorKind::TimedOut`].
    pub fn run(&self, arguments: &[&str], input: &str, limit: Duration) -> io::Result<Finished> {
        let mut stdout = Vec::new();
        let mut finished = self.stream(
            arguments,
            &mut |sink| sink.write_all(input.as_bytes()),
            // What could be read before an error still counts.
            &mut |source| drop(source.read_to_end(&mut stdout)),
            limit,
        )?;
        finished.stdout = lossy(stdout);
        Ok(finished)
    }

    /// The same, with an input that is written, and an output that is read, piece by piece.
    pub fn stream(
        &self,
        arguments: &[&str],
        input: Input<'_>,
        output: Output<'_>,
        limit: Duration,
    ) -> io::Result<Finished> {
        let deadline = Instant::now() + limit;
        let mut child = Command::new(&self.0)
            .args(arguments)
            .env_clear()
            .env("PATH", search_path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let (stdin, stdout, stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (closed, ends) = mpsc::channel();
        let (stderr, in_time) = thread::scope(|scope| {
            // A program that does not read to the end says why on stderr.
            scope.spawn(move || {
                stdin.map(|stdin| {
                    let mut sink = BufWriter::with_capacity(CHUNK, stdin);
                    input(&mut sink).and_then(|()| sink.flush())
                })
            });
            let of_stdout = closed.clone();
            scope.spawn(move || {
                if let Some(stdout) = stdout {
                    output(&mut BufReader::with_capacity(CHUNK, stdout));
                }
                // The receiver has gone only if the time was up.
                let _ = of_stdout.send(());
            });
            let stderr = scope.spawn(move || {
                let mut bytes = Vec::new();
                if let Some(mut stderr) = stderr {
                    let _ = stderr.read_to_end(&mut bytes);
                }
                let _ = closed.send(());
                bytes
            });
            let in_time = (0..2).all(|_| {
                let left = deadline.saturating_duration_since(Instant::now());
                ends.recv_timeout(left).is_ok()
            });
            if !in_time {
                kill(&mut child);
            }
            (stderr.join().unwrap_or_default(), in_time)
        });
        let status = child.wait()?;
        if !in_time {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(Finished {
            status,
            stdout: String::new(),
            stderr: lossy(stderr),
        })
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
    // It leads a group of its own, so that what it started (modprobe) does not keep its pipes open.
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process_group(group, Signal::KILL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_gets_its_input_and_gives_both_streams() {
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
    fn a_program_that_hangs_is_killed_with_its_children() {
        let shell = Program::find("sh").unwrap();
        let started = Instant::now();
        let limit = Duration::from_millis(100);
        let error = shell.run(&["-c", "sleep 60; true"], "", limit).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(started.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn a_program_need_not_read_its_input() {
        let program = Program::find("true").unwrap();
        let long = "x".repeat(1 << 20);
        let finished = program.run(&[], &long, Duration::from_secs(20)).unwrap();
        assert!(finished.status.success());
        assert!(Program::find("there-is-no-such-program").is_none());
    }
}
