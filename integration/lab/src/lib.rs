//! The lab: a real kernel with IPVS, and network namespaces as nodes, pods and external hosts.
//!
//! The *runner* ([`run`], the `lab` command) runs a command on a kernel with IPVS:
//!
//! - on the host's kernel, in fresh namespaces, if this kernel has IPVS and the user is root;
//! - otherwise in a User Mode Linux VM, whose root is an overlay over the host's root.
//!
//! In the lab, the *world* ([`World`]) builds a test network: a fabric, nodes, pods on the nodes,
//! external hosts, and servers. A server reports its name and the client's address.
//!
//! ```text
//!  host                          │ lab (UML guest, or namespaces of the host)
//!  lab run -- CMD  or  enter() ──┼─▶ init (PID 1, same binary) ──▶ CMD, or the test binary again
//!        ▲  output, exit status  │                                     │ World::new
//!        └──────── work dir ◀────┼── stdout, stderr, status            ▼
//!                                │       fabric ── node ── cni0 ── pod, pod …
//! ```
//!
//! A test binary with a custom `main` enters the lab with one call. A test is then short:
//!
//! ```no_run
//! # use std::time::Duration;
//! lab::enter(Duration::from_secs(120)); // returns inside the lab only
//! let mut world = lab::World::new("story")?;
//! let node = world.node("node1", "172.35.0.100/24", "192.167.1.1/24")?;
//! let pod = world.pod(&node, "nginx-1", "192.167.1.123")?;
//! pod.serve_tcp(80)?;
//! let answer = node.ask_tcp("192.167.1.123:80".parse()?, Duration::from_secs(1))?;
//! assert_eq!(answer.who, "nginx-1");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The lab does not support an emulated IPVS, internet access from the VM, or more than one CPU. A
//! User Mode Linux that moves between CPUs is several times slower.

pub mod http;
mod init;
mod job;
mod lane;
pub mod pages;
mod prerequisites;
pub mod process;
mod runner;
mod signals;
mod stalls;
mod threads;
pub mod traffic;
mod world;

use std::ffi::OsString;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;
use std::{fs, io};

pub use init::maybe_init;
pub use lane::{Lane, Missing};
pub use prerequisites::{Finding, doctor};
pub use runner::{Options, run};
pub use rustix::process::Signal;
pub use stalls::less_stalls;
pub use threads::{Crew, StopSignal};
pub use world::{
    Answer, Connection, Dial, Error, Failure, Node, Output, Place, Running, Server, Transport,
    World,
};

/// Returns true if this process runs in the lab, where init sets `LAB=1`.
pub fn in_lab() -> bool {
    std::env::var_os("LAB").is_some_and(|lab| lab == "1")
}

/// Returns the iptables backend for tests, which is also the suffix of the iptables commands:
///
/// - `nft` on the kernel of lane B, which must have nf_tables, and on a host whose nft backend
///   supports NAT;
/// - `legacy` on any other kernel.
pub fn iptables_backend() -> &'static str {
    static BACKEND: OnceLock<&str> = OnceLock::new();
    BACKEND.get_or_init(|| {
        let lane = std::env::var("LAB_LANE").unwrap_or_default();
        let has_nft = lane == Lane::B.to_string()
            || lane == Lane::Host.to_string()
                && lane::succeeds("iptables-nft", &["-t", "nat", "-S"]);
        if has_nft { "nft" } else { "legacy" }
    })
}

/// Fills the directory `folder` with links `iptables`, `iptables-save` and so on to the programs of
/// one backend. Returns the names of programs that are not installed.
///
/// # Errors
///
/// Returns an error if it cannot write to the directory.
pub fn link_iptables(backend: &str, folder: &Path) -> io::Result<Vec<String>> {
    fs::create_dir_all(folder)?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut missing = Vec::new();
    for plain in ["iptables", "ip6tables"] {
        for verb in ["", "-save", "-restore"] {
            let name = format!("{plain}-{backend}{verb}");
            let mut files = std::env::split_paths(&path).map(|folder| folder.join(&name));
            match files.find(|file| file.is_file()) {
                Some(file) => symlink(file, folder.join(format!("{plain}{verb}")))?,
                None => missing.push(name),
            }
        }
    }
    Ok(missing)
}

/// Runs this test binary in the lab, with the same arguments. A test binary must call this function
/// first in `main`.
///
/// - Inside the lab, the function returns immediately.
/// - Outside the lab, the function exits with the status of the run: 124 after `limit`, 125 if the
///   VM died, 127 without IPVS and User Mode Linux.
/// - With `--list`, the function always returns, because a list needs no kernel.
///
/// The variables `LAB_LANE`, `LAB_KERNEL` and `LAB_MEMORY` correspond to the runner's flags.
pub fn enter(limit: Duration) {
    maybe_init();
    if in_lab() || std::env::args_os().any(|argument| argument == "--list") {
        return;
    }
    let status = match std::env::current_exe() {
        Ok(exe) => {
            let argv: Vec<OsString> = std::iter::once(exe.into())
                .chain(std::env::args_os().skip(1))
                .collect();
            run(
                &argv,
                &Options {
                    timeout: limit,
                    ..Options::from_env()
                },
            )
        }
        Err(error) => {
            eprintln!("lab: cannot find this program's own file: {error}");
            125
        }
    };
    std::process::exit(status);
}
