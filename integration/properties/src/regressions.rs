//! Saved event sequences, which once failed: one file each. The first line names the form and the
//! IP family, each other line is an action. `#` begins a comment.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{fs, io};

use proxy::IpFamily;

use crate::action::Action;
use crate::modes::{FORMS, Form};

/// A saved event sequence, as read from its file.
#[derive(Debug)]
pub struct Regression {
    /// Path of the sequence's file.
    pub path: PathBuf,
    /// Form of the sequence: its mode with flags.
    pub form: &'static Form,
    /// IP family of the sequence.
    pub family: IpFamily,
    /// Actions of the sequence, in order.
    pub actions: Vec<Action>,
}

/// Returns the directory with the saved event sequences.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("regressions")
}

/// Reads all saved event sequences in `folder`, sorted by file name.
///
/// # Errors
///
/// Returns an error if the directory or a file is unreadable, or if a file is invalid.
pub fn read(folder: &Path) -> io::Result<Vec<Regression>> {
    let files: io::Result<Vec<_>> = fs::read_dir(folder)?.collect();
    let mut paths: Vec<PathBuf> = files?.into_iter().map(|file| file.path()).collect();
    paths.retain(|path| {
        path.extension()
            .is_some_and(|extension| extension == "history")
    });
    paths.sort();
    paths.iter().map(|path| read_one(path)).collect()
}

/// Reads a saved event sequence from its file.
///
/// # Errors
///
/// Returns an error if the file is unreadable or invalid.
pub fn read_one(path: &Path) -> io::Result<Regression> {
    let text = fs::read_to_string(path)?;
    parse(path.to_owned(), &text)
        .map_err(|why| io::Error::other(format!("{}: {why}", path.display())))
}

fn parse(path: PathBuf, text: &str) -> Result<Regression, String> {
    let lines = text
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default().trim());
    let mut lines = lines.filter(|line| !line.is_empty());
    let head = lines.next().ok_or("it is empty")?;
    let (form, family) = head
        .split_once(' ')
        .ok_or("no form and family in the first line")?;
    let mut forms = FORMS.iter();
    let known = forms.find(|known| known.name == form);
    let family = match family {
        "IPv4" => IpFamily::V4,
        "IPv6" => IpFamily::V6,
        other => return Err(format!("no family: {other}")),
    };
    Ok(Regression {
        path,
        form: known.ok_or_else(|| format!("no form: {form}"))?,
        family,
        actions: lines.map(str::parse).collect::<Result<_, _>>()?,
    })
}

/// Returns the file of an event sequence that fails because of `why`.
pub fn text(form: &Form, family: IpFamily, actions: &[Action], why: &str) -> String {
    let first = why.lines().next().unwrap_or_default();
    let mut text = format!("# {first}\n{} {family}\n", form.name);
    for action in actions {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{action}");
    }
    text
}
