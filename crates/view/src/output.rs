//! Prints to standard output and standard error. Unlike Rust's macros, these functions do not panic
//! if the reader has closed the pipe, or if the disk is full.

use std::fmt::Display;
use std::io::{self, Write};

/// Error of output that could not be written.
#[derive(Debug)]
pub struct LostOutput(io::Error);

impl Display for LostOutput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cannot write to standard output: {}", self.0)
    }
}

impl std::error::Error for LostOutput {}

/// Writes a text to standard output. If the reader has closed the pipe, as in `kube-proxy plan |
/// head -1`, the rest of the text is not wanted, and there is no error.
///
/// # Errors
///
/// Fails for every other reason, such as a full disk.
pub fn print(text: &str) -> Result<(), LostOutput> {
    print_to(&mut io::stdout().lock(), text)
}

fn print_to(output: &mut impl Write, text: &str) -> Result<(), LostOutput> {
    let written = output.write_all(text.as_bytes());
    match written.and_then(|()| output.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(LostOutput(error)),
        _ => Ok(()),
    }
}

/// Writes a line to standard error. Ignores an error, because there is no other place to report it.
pub fn print_error(line: impl Display) {
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn a_closed_pipe_ends_the_output_quietly_and_a_full_disk_is_an_error() {
        let (reader, mut pipe) = io::pipe().unwrap();
        drop(reader);
        print_to(&mut pipe, "one\n").unwrap();
        let mut full = File::options().write(true).open("/dev/full").unwrap();
        let error = print_to(&mut full, "one\n").unwrap_err().to_string();
        assert!(
            error.starts_with("cannot write to standard output: No space"),
            "{error}"
        );
    }
}
