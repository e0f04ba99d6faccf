//! Counts how often the kernel starts the module loader for one transaction. The test replaces the
//! loader, so it needs a virtual machine of the test lab whose kernel has nf_tables as modules.

#![allow(clippy::restriction, reason = "a test stops at the first surprise")]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::in_namespace;
use nftables_netlink::Family;

const LOADER: &str = "/proc/sys/kernel/modprobe";
/// Modules that the feature probe needs, each after the modules that depend on it.
const MODULES: &str = "nft_masq nft_reject_ipv4 nft_reject nft_fib_ipv4 nft_fib nft_numgen nft_nat nft_ct nft_chain_nat";

/// Module loader that writes each request to a file before it loads the module.
struct CountingLoader {
    before: String,
    log: PathBuf,
}

impl CountingLoader {
    fn start(directory: &Path) -> Self {
        let (program, log) = (directory.join("loader"), directory.join("requests"));
        let before = fs::read_to_string(LOADER).unwrap();
        let script = format!(
            "#!/bin/sh\necho \"$3\" >>{}\nexec {} \"$@\"\n",
            log.display(),
            before.trim()
        );
        fs::write(&program, script).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(LOADER, program.to_str().unwrap()).unwrap();
        Self { before, log }
    }

    fn requests(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for name in fs::read_to_string(&self.log).unwrap_or_default().lines() {
            *counts.entry(name.to_owned()).or_default() += 1;
        }
        counts
    }
}

impl Drop for CountingLoader {
    fn drop(&mut self) {
        fs::write(LOADER, &self.before).unwrap();
    }
}

fn is_loaded(module: &str) -> bool {
    // A kernel without support for modules has no file /proc/modules.
    let modules = fs::read_to_string("/proc/modules").unwrap_or_default();
    let mut names = modules.lines().filter_map(|line| line.split(' ').next());
    names.any(|name| name == module)
}

#[test]
#[ignore = "needs a kernel to throw away: run by make test in the lab"]
fn the_kernel_requests_each_module_at_most_twice() {
    if std::env::var("LAB_LANE").as_deref() != Ok("B") {
        eprintln!("not in lane B: this kernel is not thrown away, or has no nf_tables");
        return;
    }
    in_namespace(|mut nftables| {
        assert_eq!(nftables.probe(Family::Ip).unwrap(), []);
        if !MODULES.split(' ').any(is_loaded) {
            eprintln!("this kernel has all of nf_tables built in");
            return;
        }
        for module in MODULES.split(' ') {
            // A later module may have removed this module, or it may be built in.
            drop(Command::new("modprobe").args(["-qr", module]).status());
        }
        let removed: Vec<_> = MODULES.split(' ').filter(|name| !is_loaded(name)).collect();
        assert!(removed.len() >= 6, "only {removed:?} are removed");

        let directory = std::env::temp_dir().join(format!("module-loads-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let loader = CountingLoader::start(&directory);
        assert_eq!(nftables.probe(Family::Ip).unwrap(), []);
        let requests = loader.requests();
        assert!(requests.len() >= 6, "{requests:?}");
        // A module may have two names, such as `nft-expr-2-nat` and `nft-expr-nat`. The request of
        // the second name repeats that of the first.
        assert!(requests.values().all(|count| *count <= 2), "{requests:?}");
    });
}
