//! Ends the process after a panic of any thread.
//!
//! A panic loses the thread's sockets, its part of the work and its callers. A new process adopts
//! the kernel's entries within a second and loses no entry. Without the exit, the loss of one
//! thread would remain unnoticed.

use std::panic::{set_hook, take_hook};
use std::process::exit;

/// Exit status after a panic. Every Rust program has it after a panic of its main thread.
pub const EXIT_STATUS: i32 = 101;

/// Makes a panic of any thread or task end the process with [`EXIT_STATUS`], after its message is
/// on standard error.
pub fn end_the_process() {
    let say = take_hook();
    set_hook(Box::new(move |panic| {
        say(panic);
        // The log is not used: the logging code itself may have panicked with its lock held.
        eprintln!(
            "kube-proxy: this is a defect of kube-proxy. It ends with status {EXIT_STATUS}, and \
             the programmed entries stay and serve; after a restart it continues from there. \
             Please report the message above"
        );
        exit(EXIT_STATUS);
    }));
}

#[cfg(test)]
mod tests {
    use std::env::{current_exe, var_os};
    use std::io;
    use std::process::Command;
    use std::thread::sleep;
    use std::time::Duration;

    use netlink_batch::Worker;

    use super::*;

    const PANICS: &str = "KUBE_PROXY_TEST_PANICS";

    /// Test code of the child process: its main thread continues after the panic of another thread.
    #[test]
    fn a_panic_on_a_kernel_thread_terminates_the_process() {
        if var_os(PANICS).is_some() {
            end_the_process();
            let worker = Worker::spawn("services", || Ok::<_, io::Error>(())).unwrap();
            drop(worker.call(|()| panic!("on purpose")));
            sleep(Duration::from_mins(1));
            return;
        }
        let name = "process::panics::tests::a_panic_on_a_kernel_thread_terminates_the_process";
        let ended = Command::new(current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env(PANICS, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(EXIT_STATUS), "{said}");
        assert!(said.contains("'services'"), "{said}");
        assert!(said.contains("on purpose"), "{said}");
        assert!(said.contains("after a restart"), "{said}");
    }
}
