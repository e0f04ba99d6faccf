//! Compiles `xstate.c` into a shared library, which the runner contains and preloads into User Mode
//! Linux.

use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=xstate.c");
    println!("cargo::rerun-if-env-changed=CC");
    let out =
        PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("xstate.so");
    // User Mode Linux exists only on x86-64, so other platforms get an empty file.
    if std::env::var("CARGO_CFG_TARGET_ARCH").as_deref() != Ok("x86_64") {
        std::fs::write(&out, []).expect("OUT_DIR is writable");
        return;
    }
    let cc = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let built = Command::new(&cc)
        .args([
            "-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-o",
        ])
        .arg(&out)
        .args(["xstate.c", "-ldl"])
        .status();
    match built {
        Ok(status) if status.success() => {}
        Ok(status) => println!(
            "cargo::error={} could not compile xstate.c ({status})",
            cc.display()
        ),
        Err(error) => {
            println!(
                "cargo::error=cannot start the C compiler {}: {error}; install gcc or set CC",
                cc.display()
            );
        }
    }
}
