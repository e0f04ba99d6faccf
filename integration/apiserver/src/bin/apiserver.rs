//! Runs the API server fixture as a program: `apiserver --objects DIR --kubeconfig-out FILE`.
//! Prints the listen address, and serves until SIGINT or SIGTERM.

use std::net::SocketAddr;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use apiserver::{Options, Server};
use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};

/// An API server fixture: lists and watches Services, EndpointSlices and Nodes over plain HTTP.
#[derive(Debug, Parser)]
struct Flags {
    /// Listen address. Port 0 takes a free port. The program prints the address.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// YAML or JSON files with the initial objects, or folders of such files.
    #[arg(long, num_args = 1.., value_name = "DIR_OR_FILE")]
    objects: Vec<PathBuf>,
    /// File for a kubeconfig.
    #[arg(long, value_name = "FILE")]
    kubeconfig_out: Option<PathBuf>,
    /// Record when the server sends events of changes, for GET /fixture/sent.
    #[arg(long)]
    notes_sent: bool,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .init();
    let flags = Flags::parse();
    let server = Server::start(Options {
        address: flags.listen,
        notes_sent: flags.notes_sent,
        ..Options::default()
    })
    .await
    .with_context(|| format!("cannot listen on {}", flags.listen))?;
    // Loads the objects in a separate thread, because each thread has its own arena of glibc's
    // allocator. Parsing leaves hundreds of thousands of free gaps between the objects. Requests
    // that allocated from the same arena would use these gaps, and would be slow, because the gaps
    // are not in the CPU's caches.
    std::thread::scope(|scope| {
        let loader = scope.spawn(|| {
            flags
                .objects
                .iter()
                .try_for_each(|path| load(&server, path))
        });
        loader.join().unwrap_or_else(|panic| resume_unwind(panic))
    })?;
    if let Some(path) = &flags.kubeconfig_out {
        std::fs::write(path, server.kubeconfig())
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    println!("{}", server.address());

    let mut terminated = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    tokio::select! {
        interrupted = tokio::signal::ctrl_c() => interrupted.context("cannot wait for SIGINT")?,
        _ = terminated.recv() => {}
    }
    server.stop().await;
    Ok(())
}

/// Stores the objects of a YAML or JSON file, or of all files in a directory, sorted by file name.
fn load(server: &Server, path: &Path) -> Result<()> {
    let read = || format!("cannot read {}", path.display());
    if !path.is_dir() {
        let text = std::fs::read_to_string(path).with_context(read)?;
        let count = server
            .apply_yaml(&text)
            .with_context(|| format!("{} is not all applied", path.display()))?;
        tracing::info!(count, path = %path.display(), "applied");
        return Ok(());
    }
    let entries: std::io::Result<Vec<_>> = std::fs::read_dir(path)
        .with_context(read)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect();
    let mut entries = entries.with_context(read)?;
    entries.retain(|path| {
        path.extension()
            .is_some_and(|name| ["yaml", "yml", "json"].iter().any(|known| name == *known))
    });
    entries.sort();
    entries.iter().try_for_each(|entry| load(server, entry))
}
