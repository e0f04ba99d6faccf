//! Runs programs on a node, in a pod or on an external host. A thread per output stream collects
//! the program's lines. Dropping the handle kills the program.

use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::Error;

/// Time to wait for the end of the output streams after the program has ended. A child process may
/// keep a stream open for longer, but the program's own output arrives in time even on a slow
/// machine.
const HELD_FOR: Duration = Duration::from_secs(2);

/// Output and exit status of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// Exit status of the program.
    pub status: ExitStatus,
    /// Standard output of the program, with invalid UTF-8 replaced.
    pub stdout: String,
    /// Standard error of the program, with invalid UTF-8 replaced.
    pub stderr: String,
}

/// A running program, with its output so far. Dropping this value kills the program.
#[derive(Debug)]
pub struct Running {
    command: String,
    child: Child,
    heard: Arc<Heard>,
    /// Number of lines of output that [`next_line`](Self::next_line) has returned.
    told: usize,
}

#[derive(Debug, Default)]
struct Heard {
    text: Mutex<Text>,
    more: Condvar,
}

#[derive(Debug, Default)]
struct Text {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    /// Lines of standard output and standard error so far, in the order of their arrival.
    lines: Vec<String>,
    ended: u8,
}

#[derive(Clone, Copy)]
enum Stream {
    Stdout,
    Stderr,
}

impl Running {
    /// Starts a command in the network namespace of the calling thread.
    /// [`Place::spawn`](super::Place::spawn) starts it on a node, in a pod or on an external host.
    pub fn start(mut command: Command) -> Result<Self, Error> {
        let name = std::iter::once(command.get_program())
            .chain(command.get_args())
            .map(|part| part.to_string_lossy())
            .collect::<Vec<_>>()
            .join(" ");
        let failed = |error: std::io::Error| Error::Command {
            command: name.clone(),
            text: error.to_string(),
        };
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let running = Self {
            command: name.clone(),
            child,
            heard: Arc::default(),
            told: 0,
        };
        if let (Some(stdout), Some(stderr)) = (stdout, stderr) {
            running.listen(stdout, Stream::Stdout).map_err(failed)?;
            running.listen(stderr, Stream::Stderr).map_err(failed)?;
        }
        Ok(running)
    }

    fn listen(&self, mut from: impl Read + Send + 'static, stream: Stream) -> std::io::Result<()> {
        let heard = Arc::clone(&self.heard);
        let listen = move || {
            let (mut buffer, mut line) = ([0; 4096], Vec::new());
            loop {
                let length = match from.read(&mut buffer) {
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                    read => read.unwrap_or(0),
                };
                let bytes = buffer.get(..length).unwrap_or_default();
                let mut text = heard.text.lock().unwrap_or_else(PoisonError::into_inner);
                match stream {
                    Stream::Stdout => text.stdout.extend_from_slice(bytes),
                    Stream::Stderr => text.stderr.extend_from_slice(bytes),
                }
                line.extend_from_slice(bytes);
                while let Some(end) = line.iter().position(|&byte| byte == b'\n') {
                    let whole: Vec<u8> = line.drain(..=end).collect();
                    text.lines
                        .push(String::from_utf8_lossy(whole.trim_ascii_end()).into_owned());
                }
                if length == 0 {
                    if !line.is_empty() {
                        text.lines.push(String::from_utf8_lossy(&line).into_owned());
                    }
                    text.ended += 1;
                    heard.more.notify_all();
                    return;
                }
                heard.more.notify_all();
            }
        };
        std::thread::Builder::new()
            .name("output".into())
            .spawn(listen)
            .map(drop)
    }

    /// Returns the command line, for error messages.
    pub(super) fn command(&self) -> &str {
        &self.command
    }

    fn text(&self) -> MutexGuard<'_, Text> {
        self.heard
            .text
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `enough` returns true for the output, until both output streams have ended, or
    /// until the timeout.
    fn wait_text(&self, timeout: Duration, enough: impl Fn(&Text) -> bool) -> MutexGuard<'_, Text> {
        let waited = self
            .heard
            .more
            .wait_timeout_while(self.text(), timeout, |text| !enough(text) && text.ended < 2);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Returns the next line of standard output or standard error, or `None` after the last line.
    /// Fails after the timeout.
    pub fn next_line(&mut self, timeout: Duration) -> Result<Option<String>, Error> {
        let told = self.told;
        let text = self.wait_text(timeout, |text| text.lines.len() > told);
        let (line, ended) = (text.lines.get(told).cloned(), text.ended == 2);
        drop(text);
        if line.is_none() && !ended {
            return Err(self.late("say another line", timeout));
        }
        self.told += usize::from(line.is_some());
        Ok(line)
    }

    /// Returns the next line of output that contains `part`, and skips the lines before it. If the
    /// program ends without such a line, returns an error with its whole output.
    pub fn wait_for(&mut self, part: &str, timeout: Duration) -> Result<String, Error> {
        let deadline = Instant::now() + timeout;
        loop {
            match self.next_line(deadline.saturating_duration_since(Instant::now())) {
                Ok(Some(line)) if line.contains(part) => return Ok(line),
                Ok(Some(_)) => {}
                Ok(None) => {
                    return Err(Error::Command {
                        command: self.command.clone(),
                        text: format!("ended without saying {part:?}; it said:\n{}", self.said()),
                    });
                }
                Err(_) => return Err(self.late(&format!("say {part:?}"), timeout)),
            }
        }
    }

    fn late(&self, what: &str, timeout: Duration) -> Error {
        Error::Command {
            command: self.command.clone(),
            text: format!(
                "did not {what} within {} s; it said:\n{}",
                timeout.as_secs_f64(),
                self.said()
            ),
        }
    }

    /// Returns the program's output so far: the lines of standard output and standard error, in the
    /// order of their arrival.
    pub fn said(&self) -> String {
        self.text().lines.join("\n")
    }

    /// Returns the program's process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to the program, unless it has ended.
    pub fn signal(&mut self, signal: Signal) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = kill_process(Pid::from_child(&self.child), signal);
        }
    }

    /// Returns the program's exit status, or `None` if it is still running. After an exit status,
    /// [`said`](Self::said) returns the whole output.
    pub fn status(&mut self) -> Option<ExitStatus> {
        let status = self.ended(Duration::ZERO)?;
        drop(self.wait_text(HELD_FOR, |_| false));
        Some(status)
    }

    /// Waits until the program ends, and returns its exit status. Returns `None` at the timeout.
    fn ended(&mut self, timeout: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Some(status);
            }
            if Instant::now() >= deadline {
                return None;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits until the program ends, and returns its output. Fails after the timeout.
    pub fn wait(&mut self, timeout: Duration) -> Result<Output, Error> {
        let deadline = Instant::now() + timeout;
        let left = || deadline.saturating_duration_since(Instant::now());
        // The end of the output streams wakes this thread, usually together with the program's end.
        // Because a child process may keep them open, this thread also checks every 50 ms whether
        // the program has ended.
        let slice = Duration::from_millis(50);
        while self.wait_text(left().min(slice), |_| false).ended < 2 && !left().is_zero() {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                drop(self.wait_text(HELD_FOR.min(left()), |_| false));
                break;
            }
        }
        let status = self
            .ended(left())
            .ok_or_else(|| self.late("end", timeout))?;
        let text = self.text();
        let string = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(Output {
            status,
            stdout: string(&text.stdout),
            stderr: string(&text.stderr),
        })
    }

    /// Sends SIGTERM to the program, waits until it ends, and returns its output. Fails after the
    /// timeout.
    pub fn stop(&mut self, timeout: Duration) -> Result<Output, Error> {
        self.signal(Signal::TERM);
        self.wait(timeout)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(10);

    fn sh(script: &str) -> Running {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Running::start(command).unwrap()
    }

    #[test]
    fn lines_of_both_output_streams_are_read_separately() {
        let mut running =
            sh("echo one; sleep 0.05; echo two >&2; sleep 0.05; printf three; exit 3");
        assert_eq!(running.wait_for("two", SOON).unwrap(), "two");
        assert_eq!(running.next_line(SOON).unwrap().as_deref(), Some("three"));
        assert_eq!(running.next_line(SOON).unwrap(), None);
        let output = running.wait(SOON).unwrap();
        assert_eq!(
            (output.status.code(), &*output.stdout, &*output.stderr),
            (Some(3), "one\nthree", "two\n")
        );
    }

    #[test]
    fn each_wait_for_a_program_has_a_timeout() {
        let mut running = sh("echo up; exec sleep 60");
        let error = running
            .wait_for("down", Duration::from_millis(200))
            .unwrap_err()
            .to_string();
        assert!(error.contains("down") && error.contains("up"), "{error}");
        assert!(running.wait(Duration::from_millis(10)).is_err());
        assert_eq!(running.stop(SOON).unwrap().status.code(), None);
        assert!(
            sh("echo up")
                .wait_for("down", SOON)
                .unwrap_err()
                .to_string()
                .contains("ended")
        );
    }

    #[test]
    fn the_output_is_complete_after_an_exit_status() {
        for _ in 0..50 {
            let mut running = sh("seq 2000; echo last >&2; exit 3");
            let status = loop {
                if let Some(status) = running.status() {
                    break status;
                }
            };
            let said = running.said();
            assert_eq!(status.code(), Some(3));
            assert!(said.contains("last") && said.contains("2000"), "{said}");
        }
    }

    #[test]
    fn a_wait_ends_although_a_background_child_still_runs() {
        let started = Instant::now();
        let output = sh("sleep 5 & echo done").wait(SOON).unwrap();
        assert_eq!(output.stdout, "done\n");
        assert!(started.elapsed() < Duration::from_secs(4));
    }
}
