//! The terminal in full-screen mode. Both a panic and the drop of `Terminal` restore the terminal's
//! former state.

use std::io::{self, Stdout, Write as _};
use std::panic::{set_hook, take_hook};
use std::sync::Once;

use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::style::{Attribute, Color, Print, ResetColor, SetAttribute, SetForegroundColor};
use crossterm::terminal::{
    self, Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode,
    enable_raw_mode,
};
use crossterm::{execute, queue};

use super::screen::Line;
use crate::has_colours;
use crate::table::Tone;

/// The terminal in raw mode, showing the alternate screen.
#[derive(Debug)]
pub(super) struct Terminal {
    out: Stdout,
    has_colours: bool,
}

impl Terminal {
    /// Switches the terminal to raw mode and to the alternate screen.
    ///
    /// # Errors
    ///
    /// Fails if the terminal cannot switch. The terminal then keeps its former state.
    pub(super) fn take() -> io::Result<Self> {
        static HOOKED: Once = Once::new();
        HOOKED.call_once(|| {
            let say = take_hook();
            // A panic may end the process without running destructors, so the panic hook restores
            // the terminal.
            set_hook(Box::new(move |panic| {
                give_back();
                say(panic);
            }));
        });
        let mut taken = Self {
            out: io::stdout(),
            has_colours: has_colours(),
        };
        enable_raw_mode()?;
        execute!(taken.out, EnterAlternateScreen, Hide)?;
        Ok(taken)
    }

    /// Returns the numbers of columns and lines of the terminal.
    ///
    /// # Errors
    ///
    /// Fails if the terminal is disconnected.
    pub(super) fn size() -> io::Result<(u16, u16)> {
        terminal::size()
    }

    /// Redraws the screen with these lines, in a single write.
    ///
    /// # Errors
    ///
    /// Fails if the terminal is disconnected.
    pub(super) fn show(&mut self, lines: &[Line]) -> io::Result<()> {
        let mut screen = Vec::new();
        for (row, line) in (0_u16..).zip(lines) {
            queue!(screen, MoveTo(0, row))?;
            for span in line {
                if self.has_colours {
                    match span.tone {
                        Tone::Plain => {}
                        Tone::Good => queue!(screen, SetForegroundColor(Color::DarkGreen))?,
                        Tone::Odd => queue!(screen, SetForegroundColor(Color::DarkYellow))?,
                        Tone::Bad => queue!(screen, SetForegroundColor(Color::DarkRed))?,
                        Tone::Faint => queue!(screen, SetAttribute(Attribute::Dim))?,
                    }
                }
                if span.is_strong {
                    queue!(screen, SetAttribute(Attribute::Bold))?;
                }
                queue!(
                    screen,
                    Print(&span.text),
                    ResetColor,
                    SetAttribute(Attribute::Reset)
                )?;
            }
            queue!(screen, Clear(ClearType::UntilNewLine))?;
        }
        queue!(screen, Clear(ClearType::FromCursorDown))?;
        self.out.write_all(&screen)?;
        self.out.flush()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        give_back();
    }
}

fn give_back() {
    // Ignores the error, because the terminal may be disconnected.
    let _ = execute!(io::stdout(), Show, LeaveAlternateScreen);
    let _ = disable_raw_mode();
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::fs::File;
    use std::io::Read as _;
    use std::process::{Command, Stdio};

    use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
    use rustix::termios::{LocalModes, tcgetattr};

    use super::*;

    /// Environment variable that makes this test panic. Only its child process has the variable.
    const PANICS: &str = "KUBE_PROXY_TEST_PANICS_IN_A_TERMINAL";

    /// Runs this test again as a child process that panics in its own terminal.
    #[test]
    fn a_panic_restores_the_terminal_before_it_prints_its_message() {
        if env::var_os(PANICS).is_some() {
            let _taken = Terminal::take().unwrap();
            panic!("on purpose");
        }
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let end = openpt(flags).unwrap();
        grantpt(&end).unwrap();
        unlockpt(&end).unwrap();
        let terminal = ioctl_tiocgptpeer(&end, flags).unwrap();
        let modes = || tcgetattr(&terminal).unwrap().local_modes;
        assert!(modes().contains(LocalModes::ECHO | LocalModes::ICANON));
        let stream = || Stdio::from(terminal.try_clone().unwrap());
        let name =
            "top::terminal::tests::a_panic_restores_the_terminal_before_it_prints_its_message";
        let ended = Command::new(env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture", "--test-threads=1"])
            .env(PANICS, "yes")
            .env("TERM", "xterm")
            .stdin(stream())
            .stdout(stream())
            .stderr(stream())
            .status()
            .unwrap();
        assert!(!ended.success());
        assert!(modes().contains(LocalModes::ECHO | LocalModes::ICANON));
        drop(terminal);
        let mut shown = Vec::new();
        // Ignores the error that the kernel returns once the child process has closed its terminal.
        let _ = File::from(end).read_to_end(&mut shown);
        let shown = String::from_utf8_lossy(&shown);
        let at = |part: &str| {
            let at = shown.find(part);
            at.unwrap_or_else(|| panic!("{part:?} is not in {shown:?}"))
        };
        assert!(at("\x1b[?1049h") < at("\x1b[?25h"));
        assert!(at("\x1b[?25h") < at("\x1b[?1049l"));
        assert!(at("\x1b[?1049l") < at("on purpose"));
    }
}
