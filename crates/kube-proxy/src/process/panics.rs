//! Ends the process after a panic of any thread.
//!
//! A panic destroys the thread's sockets and its work in progress, and its callers get no reply. If
//! the process continued, this thread would be missing without notice. A new process starts within
//! a second and adopts all kernel entries.

use std::panic::{set_hook, take_hook};
use std::process::exit;

/// Exit status after a panic. Rust uses the same status when the main thread panics.
pub const EXIT_STATUS: i32 = 101;

/// Makes the process end with [`EXIT_STATUS`] after a panic in any thread or task. Prints the
/// message of the panic to standard error first.
pub fn end_the_process() {
    let say = take_hook();
    set_hook(Box::new(move |panic| {
        say(panic);
        // Prints to standard error instead of the log: the logging code itself may have panicked
        // while it held its lock.
        view::print_error(format_args!(
            "kube-proxy: this is a defect of kube-proxy. It ends with status {EXIT_STATUS}, and \
             the programmed entries stay and serve; after a restart it continues from there. \
             Please report the message above"
        ));
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

    /// Panics on a worker thread of a child process. Without the handler, the child's main thread
    /// would continue after this panic.
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
