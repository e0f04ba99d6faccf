//! Writes the man pages of kube-proxy and its subcommands to a directory.

use std::path::PathBuf;
use std::{env, fs, io};

use kube_proxy::config::command_line::tree;

fn main() -> io::Result<()> {
    let folder = env::args_os()
        .nth(1)
        .map_or_else(|| "target/man".into(), PathBuf::from);
    fs::create_dir_all(&folder)?;
    clap_mangen::generate_to(tree(), &folder)
}
