//! A program in its own pseudo-terminal. A test types keys, and checks the output and the
//! terminal's final state.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use lab::Place;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};

use crate::cluster::SOON;

/// Escape sequences that switch to the alternate screen and back (xterm's private mode 1049).
const TAKEN: &str = "\x1b[?1049h";
const GIVEN_BACK: &str = "\x1b[?1049l";
/// Escape sequence that shows the cursor (DECTCEM).
const CURSOR: &str = "\x1b[?25h";
const LOOK: Duration = Duration::from_millis(20);

/// A pseudo-terminal of 100 columns and 30 lines, and its program. Dropping this value kills the
/// program.
#[derive(Debug)]
pub struct Terminal {
    /// The test's side of the terminal, or `None` after a hang-up. Writes to it are keystrokes.
    end: Option<File>,
    /// The program's side, kept open to read the terminal's settings.
    own: OwnedFd,
    before: String,
    program: Child,
    shown: Arc<Mutex<Vec<u8>>>,
    /// Thread that reads the test's side of the terminal, or `None` after a hang-up.
    reader: Option<JoinHandle<()>>,
    is_hung_up: Arc<AtomicBool>,
}

/// Appends the program's output to `to` until the test hangs up the terminal.
fn read(mut from: File, to: &Mutex<Vec<u8>>, is_hung_up: &AtomicBool) {
    let mut piece = [0; 4096];
    let pause = Timespec {
        tv_sec: 0,
        tv_nsec: 20_000_000,
    };
    while !is_hung_up.load(Ordering::Acquire) {
        let mut awaited = [PollFd::new(&from, PollFlags::IN)];
        if poll(&mut awaited, Some(&pause)).is_ok_and(|count| count == 0) {
            continue;
        }
        // A read fails while the program's side is closed.
        let Ok(length @ 1..) = from.read(&mut piece) else {
            return;
        };
        let mut shown = to.lock().unwrap_or_else(PoisonError::into_inner);
        shown.extend(piece.iter().take(length));
    }
}

/// Returns the terminal's settings, which a shell would inherit after the program has ended.
fn settings(terminal: &OwnedFd) -> Result<String> {
    let Termios {
        input_modes,
        output_modes,
        control_modes,
        local_modes,
        ..
    } = tcgetattr(terminal)?;
    Ok(format!(
        "{input_modes:?} {output_modes:?} {control_modes:?} {local_modes:?}"
    ))
}

impl Terminal {
    /// Starts a program on a node, or in a pod.
    ///
    /// # Errors
    ///
    /// Fails if no pseudo-terminal or no such program is available.
    pub fn start(at: &Place, line: &[&str]) -> Result<Self> {
        let end = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        grantpt(&end)?;
        unlockpt(&end)?;
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let own = ioctl_tiocgptpeer(&end, flags)?;
        let size = Winsize {
            ws_row: 30,
            ws_col: 100,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&end, size)?;
        let before = settings(&own)?;
        let (name, arguments) = line.split_first().context("no program")?;
        let (input, output, error) = (own.try_clone()?, own.try_clone()?, own.try_clone()?);
        let program = at.enter(|| {
            // `setsid --ctty` makes this terminal the program's controlling terminal. A hang-up
            // then sends SIGHUP to the program.
            Command::new("setsid")
                .args(["--ctty", name])
                .args(arguments)
                .env("TERM", "xterm")
                .env_remove("NO_COLOR")
                .stdin(Stdio::from(input))
                .stdout(Stdio::from(output))
                .stderr(Stdio::from(error))
                .spawn()
        })?;
        let end = File::from(end);
        let shown = Arc::<Mutex<Vec<u8>>>::default();
        let is_hung_up = Arc::<AtomicBool>::default();
        let reader = {
            let (from, to) = (end.try_clone()?, Arc::clone(&shown));
            let is_over = Arc::clone(&is_hung_up);
            thread::spawn(move || read(from, &to, &is_over))
        };
        Ok(Self {
            end: Some(end),
            own,
            before,
            program,
            shown,
            reader: Some(reader),
            is_hung_up,
        })
    }

    /// Returns everything that the program has written to the terminal.
    pub fn shown(&self) -> String {
        let shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&shown).into_owned()
    }

    /// Waits until the program writes `text` after this call.
    ///
    /// # Errors
    ///
    /// Fails if the program does not write the text in time.
    pub fn sees(&self, text: &str) -> Result<()> {
        let began = Instant::now();
        let from = self.shown().len();
        while !self
            .shown()
            .get(from..)
            .is_some_and(|behind| behind.contains(text))
        {
            ensure!(
                began.elapsed() < SOON,
                "{text:?} is not shown within {SOON:?}: {}",
                self.shown()
            );
            sleep(LOOK);
        }
        Ok(())
    }

    /// Types keys into the terminal.
    ///
    /// # Errors
    ///
    /// Fails if the terminal was hung up.
    pub fn types(&mut self, keys: &str) -> Result<()> {
        let end = self.end.as_mut().context("it was hung up")?;
        Ok(end.write_all(keys.as_bytes())?)
    }

    /// Hangs up the terminal, like closing its window.
    pub fn hang_up(&mut self) {
        self.is_hung_up.store(true, Ordering::Release);
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
        self.end = None;
    }

    /// Sends a signal to the program.
    ///
    /// # Errors
    ///
    /// Fails if the program has ended.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill_process(self.pid(), signal)?)
    }

    /// Returns the program's process id.
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.program)
    }

    /// Waits until the program has ended, and returns its exit status.
    ///
    /// # Errors
    ///
    /// Fails if the program does not end in time.
    pub fn ended(&mut self) -> Result<ExitStatus> {
        let began = Instant::now();
        loop {
            if let Some(status) = self.program.try_wait()? {
                return Ok(status);
            }
            if began.elapsed() > SOON {
                bail!("it goes on: {}", self.shown());
            }
            sleep(LOOK);
        }
    }

    /// Checks that the program switched to the alternate screen, and that it later restored the
    /// main screen, the cursor and the terminal's former settings.
    ///
    /// # Errors
    ///
    /// Fails if the terminal is not restored.
    pub fn is_given_back(&self) -> Result<()> {
        // Waits, because the thread that reads the output may lag behind the program.
        let began = Instant::now();
        let is_back = |shown: &str| {
            let back = shown.rfind(GIVEN_BACK);
            back.is_some_and(|back| {
                let taken = shown.rfind(TAKEN);
                let behind = taken.and_then(|taken| shown.get(taken..));
                taken < Some(back) && behind.is_some_and(|behind| behind.contains(CURSOR))
            })
        };
        while !is_back(&self.shown()) {
            ensure!(began.elapsed() < SOON, "{:?}", self.shown());
            sleep(LOOK);
        }
        let now = settings(&self.own)?;
        ensure!(now == self.before, "{now} and not {}", self.before);
        Ok(())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Ignores the error, because the program may already have ended.
        let _: io::Result<()> = self.program.kill();
        let _ = self.program.wait();
        self.hang_up();
    }
}
