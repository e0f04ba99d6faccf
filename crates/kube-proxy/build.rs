//! Finds the commit of the build, for `--version`, the log and the metrics. Uses the first source
//! that exists:
//!
//! 1. The environment variable `KUBE_PROXY_COMMIT`. A build outside the repository sets it.
//! 2. The files of git. This script does not run the program `git`, which may be missing or may
//!    distrust the directory.
//! 3. The word `unknown`.
//!
//! Cargo runs this script again after a new commit, but not after an edit.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

const GIVEN: &str = "KUBE_PROXY_COMMIT";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed={GIVEN}");
    let given = env::var(GIVEN).ok().filter(|given| is_commit(given));
    let commit = given.or_else(|| {
        let manifest = env::var_os("CARGO_MANIFEST_DIR")?;
        of_repository(&Path::new(&manifest).join("../.."))
    });
    let commit = commit.unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env={GIVEN}={commit}");
}

/// Returns the commit that is checked out in a directory, if the directory is a repository.
fn of_repository(folder: &Path) -> Option<String> {
    let git = git_folder(folder)?;
    let head = read(&git.join("HEAD"))?;
    let Some(name) = head.strip_prefix("ref: ") else {
        return Some(head).filter(|head| is_commit(head));
    };
    // A linked worktree shares the main worktree's branches; `commondir` names their directory.
    let common = read(&git.join("commondir")).map_or(git.clone(), |common| git.join(common));
    let file = common.join(name);
    let loose = read(&file).filter(|commit| is_commit(commit));
    loose.or_else(|| {
        // The branch has no file of its own, because its ref is in `packed-refs`. Makes Cargo watch
        // the directory, in which the next commit creates the file.
        let folder = file.parent().filter(|folder| folder.is_dir())?;
        println!("cargo::rerun-if-changed={}", folder.display());
        packed(&common, name)
    })
}

/// Returns the directory that contains git's files, if any.
fn git_folder(folder: &Path) -> Option<PathBuf> {
    let git = folder.join(".git");
    if git.is_dir() {
        return Some(git);
    }
    let pointer = fs::read_to_string(&git).ok()?;
    Some(folder.join(pointer.trim().strip_prefix("gitdir: ")?))
}

fn packed(common: &Path, name: &str) -> Option<String> {
    let all = read(&common.join("packed-refs"))?;
    let line = all
        .lines()
        .find_map(|line| line.split_once(' ').filter(|(_, of)| *of == name))?;
    Some(line.0.to_owned()).filter(|commit| is_commit(commit))
}

/// Returns the text of a file. Makes Cargo watch the file if it exists.
fn read(file: &Path) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    println!("cargo::rerun-if-changed={}", file.display());
    Some(text.trim().to_owned())
}

fn is_commit(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}
