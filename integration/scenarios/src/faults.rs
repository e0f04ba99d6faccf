//! Wrappers around the iptables programs, which make a program hang or fail during a fault.
//!
//! ```text
//!   daemon ─▶ FOLDER/iptables-legacy-save ─┬─ during a fault: the fault's script
//!                                          └─ the program, unless the script exits
//! ```

use std::fs::{self, File};
use std::path::PathBuf;

use anyhow::{Context as _, Result};

use crate::cluster::Cluster;
use crate::programs::{find, put_first, write_program};

/// Directory with wrappers of the iptables programs.
#[derive(Debug)]
pub struct Faults(PathBuf);

/// An active fault of a program. Dropping this value ends the fault.
#[derive(Debug)]
#[must_use]
pub struct Fault {
    script: PathBuf,
    /// Open script file, whose lock the script of a hanging program waits for.
    _held: File,
}

impl Faults {
    /// Puts wrappers of the iptables programs first into the PATH of daemons that start later.
    pub fn prepare(cluster: &mut Cluster) -> Result<Self> {
        let folder = cluster.folder().join("faults");
        fs::create_dir_all(&folder)?;
        for stem in ["iptables", "ip6tables"] {
            for verb in ["save", "restore"] {
                let name = name(stem, verb);
                let real = find(&name).with_context(|| format!("there is no {name}"))?;
                let file = folder.join(&name);
                let script = format!(
                    "#!/bin/sh\nfault={}.fault\n[ ! -e $fault ] || . $fault\nexec {} \"$@\"\n",
                    file.display(),
                    real.display()
                );
                write_program(&file, &script)?;
            }
        }
        put_first(cluster, &folder);
        Ok(Self(folder))
    }

    /// Makes an iptables program hang, such as `ip6tables restore`, until the returned fault is
    /// dropped.
    pub fn hang(&self, program: &str) -> Result<Fault> {
        self.set(program, "flock --shared $fault true")
    }

    /// Makes an iptables program print an error and fail, until the returned fault is dropped.
    pub fn fail(&self, program: &str) -> Result<Fault> {
        self.set(program, "echo 'it fails on purpose' >&2; exit 1")
    }

    /// Makes an iptables program fail if its input contains one of `parts`, until the returned
    /// fault is dropped.
    pub fn refuse(&self, program: &str, parts: &[&str]) -> Result<Fault> {
        let parts: Vec<String> = parts.iter().map(|part| format!("*{part}*")).collect();
        let script = format!(
            "text=$(cat)\ncase $text in {}) echo 'it refuses on purpose' >&2; exit 1;; esac\n\
             exec 0<<END\n$text\nEND\n",
            parts.join("|")
        );
        self.set(program, &script)
    }

    fn set(&self, program: &str, script: &str) -> Result<Fault> {
        let (stem, verb) = program.split_once(' ').context("a stem and a verb")?;
        let file = self.0.join(name(stem, verb) + ".fault");
        // The rename is atomic, so no wrapper reads an incomplete script.
        let draft = self.0.join("draft");
        fs::write(&draft, script)?;
        let held = File::open(&draft)?;
        held.lock()?;
        fs::rename(&draft, &file)?;
        Ok(Fault {
            script: file,
            _held: held,
        })
    }
}

impl Drop for Fault {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.script);
    }
}

fn name(stem: &str, verb: &str) -> String {
    format!("{stem}-{}-{verb}", lab::iptables_backend())
}
