//! Programs that run on a node, in a pod or on a host. A thread collects the output of a program.
//! Dropping the handle ends the program.

use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::Error;

/// Time to wait for the end of the output streams after a program has ended. A remaining child
/// process may keep the streams open. The program's own output arrives within this time, even on a
/// slow machine.
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

/// A running program. Dropping it kills the program.
#[derive(Debug)]
pub struct Running {
    command: String,
    child: Child,
    heard: Arc<Heard>,
    /// Number of lines that [`next_line`](Self::next_line) has returned.
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
    /// Lines of both streams, in the order of their arrival.
    lines: Vec<String>,
    ended: u8,
}

#[derive(Clone, Copy)]
enum Stream {
    Stdout,
    Stderr,
}

impl Running {
    /// Starts a command in the calling thread's network namespace. To start it on a
    /// node, an external host or a pod, use [`Place::spawn`](super::Place::spawn).
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

    /// Returns the program and its arguments as one text.
    pub(super) fn command(&self) -> &str {
        &self.command
    }

    fn text(&self) -> MutexGuard<'_, Text> {
        self.heard
            .text
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `enough` accepts the output, until both streams have ended, or until the
    /// timeout.
    fn wait_text(&self, timeout: Duration, enough: impl Fn(&Text) -> bool) -> MutexGuard<'_, Text> {
        let waited = self
            .heard
            .more
            .wait_timeout_while(self.text(), timeout, |text| !enough(text) && text.ended < 2);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Returns the next line of either stream, or `None` after the last line.
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

    /// Returns the next line of either stream that contains `part`, and skips the lines before. If
    /// the program ends without such a line, fails with its whole output.
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

    /// Returns the lines of both streams so far, in order of arrival.
    pub fn said(&self) -> String {
        self.text().lines.join("\n")
    }

    /// Returns the program's process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to the program. Does nothing if the program has ended.
    pub fn signal(&mut self, signal: Signal) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = kill_process(Pid::from_child(&self.child), signal);
        }
    }

    /// Returns the exit status, or `None` if the program is still running. If this function returns
    /// a status, [`said`](Self::said) returns the program's whole output.
    pub fn status(&mut self) -> Option<ExitStatus> {
        let status = self.ended(Duration::ZERO)?;
        drop(self.wait_text(HELD_FOR, |_| false));
        Some(status)
    }

    /// Waits for the program to end. Returns `None` if it is still running.
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

    /// Waits for the program to end, and returns its output. Fails after the timeout.
    pub fn wait(&mut self, timeout: Duration) -> Result<Output, Error> {
        let deadline = Instant::now() + timeout;
        let left = || deadline.saturating_duration_since(Instant::now());
        // Usually, the streams end with the program, which wakes this thread. A remaining child
        // process may keep them open. Therefore this thread also checks every 50 ms whether the
        // program has ended.
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

    /// Sends SIGTERM, and then waits for the end like [`wait`](Self::wait).
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
