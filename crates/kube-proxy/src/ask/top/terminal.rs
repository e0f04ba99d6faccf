//! The terminal, taken for a while: given back as it was when this is dropped, and when something
//! panics.

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
use crate::ask::has_colours;
use crate::ask::table::Tone;

/// The terminal, in raw mode and with a screen of its own.
#[derive(Debug)]
pub(super) struct Terminal {
    out: Stdout,
    has_colours: bool,
}

impl Terminal {
    /// Takes it.
    ///
    /// # Errors
    ///
    /// It cannot be set; it is as before then.
    pub(super) fn take() -> io::Result<Self> {
        static HOOKED: Once = Once::new();
        HOOKED.call_once(|| {
            let say = take_hook();
            // A panic ends the process without dropping anything.
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

    /// Its columns and lines.
    ///
    /// # Errors
    ///
    /// It is none any more.
    pub(super) fn size() -> io::Result<(u16, u16)> {
        terminal::size()
    }

    /// Shows these lines, from the top, in one write.
    ///
    /// # Errors
    ///
    /// It takes no more.
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
    // Where it cannot be, nobody looks at it any more.
    let _ = execute!(io::stdout(), Show, LeaveAlternateScreen);
    let _ = disable_raw_mode();
}
