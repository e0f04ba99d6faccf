//! Tests the lab's runner from outside: arguments, output, exit status and cleanup.

#![allow(clippy::restriction, reason = "a test stops at the first surprise")]

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Temporary directory of a test, in which the runner creates its work dir.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        // Uses a short path, because the runner does not create its work dir in a directory with a
        // long path.
        let dir = PathBuf::from(format!("/tmp/lt-{name}-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        Self(dir)
    }

    fn lab(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lab"));
        command.arg("run").args(args).arg("--");
        command
            .env("TMPDIR", &self.0)
            .env_remove("LAB_LANE")
            .env_remove("LAB_KERNEL")
            .stdin(Stdio::null());
        command
    }

    fn sh(&self, args: &[&str], script: &str) -> Command {
        let mut command = self.lab(args);
        command.args(["sh", "-c", script]);
        command
    }

    /// Returns true if the run has left no work dir and no process that uses it.
    fn is_clean(&self) -> bool {
        let name = self.0.to_str().unwrap().as_bytes();
        let names = |file: PathBuf| {
            std::fs::read(file).is_ok_and(|line| line.windows(name.len()).any(|part| part == name))
        };
        let process = |entry: std::fs::DirEntry| names(entry.path().join("cmdline"));
        std::fs::read_dir(&self.0)
            .unwrap()
            .flatten()
            .all(|entry| !entry.file_name().as_encoded_bytes().starts_with(b"lab."))
            && !std::fs::read_dir("/proc").unwrap().flatten().any(process)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn code(output: &Output) -> Option<i32> {
    output.status.code()
}

fn spawn_until_up(mut command: Command) -> Child {
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert_eq!(line, "up\n");
    child
}

#[test]
fn a_guest_gets_arguments_and_environment_and_returns_its_status() {
    let scratch = Scratch::new("carry");
    let odd: Vec<OsString> = [
        "",
        " a  b ",
        "two\nlines\n",
        "'\"\\$HOME`id`",
        "--help",
        "-x=",
        "ünï",
        "*",
    ]
    .into_iter()
    .map(Into::into)
    .chain([OsString::from_vec(vec![0xff, 0xfe, b'=', 0x01])])
    .collect();
    let script = r#"printf '%s\0' "$@"; printf '%s|%s|%s|%s' "$ODD" "$PWD" "$LAB$LAB_LANE" "$PATH" >&2; exit 7"#;
    let mut command = scratch.sh(&["--lane", "A"], script);
    command
        .arg("sh")
        .args(&odd)
        .env("ODD", OsString::from_vec(b"a 'b\"\n\xff".to_vec()))
        .env("PATH", "/usr/bin:/bin");
    let output = command.current_dir("/usr/share").output().unwrap();
    let expected: Vec<u8> = odd
        .into_iter()
        .flat_map(|one| [one.into_vec(), vec![0]].concat())
        .collect();
    assert_eq!(output.stdout, expected, "{}", text(&output.stderr));
    let seen =
        b"a 'b\"\n\xff|/usr/share|1A|/usr/bin:/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/sbin";
    assert_eq!(output.stderr, seen, "{}", text(&output.stderr));
    assert_eq!(code(&output), Some(7));
    assert!(scratch.is_clean());
}

#[test]
fn the_guest_kernel_loads_its_modules() {
    let scratch = Scratch::new("kernel");
    // Both modules load on demand: ip_vs through `ipvsadm`, dummy through the kernel. The command
    // is not PID 1, because init is.
    let script = "ip link add d0 type dummy && ipvsadm -Ln | head -1 && test -e /proc/net/ip_vs && sysctl -n net.core.fb_tunnels_only_for_init_net && test $$ != 1";
    let output = scratch.sh(&["--lane", "A"], script).output().unwrap();
    assert_eq!(code(&output), Some(0), "{}", text(&output.stderr));
    let stdout = text(&output.stdout);
    assert!(
        stdout.starts_with("IP Virtual Server") && stdout.ends_with("\n2\n"),
        "{stdout}"
    );
}

#[test]
fn a_guest_cannot_change_files_of_the_host() {
    let scratch = Scratch::new("files");
    let (keep, other) = (scratch.0.join("keep it"), scratch.0.join("other"));
    for dir in [&keep, &other] {
        std::fs::create_dir(dir).unwrap();
        std::fs::write(dir.join("old"), "host").unwrap();
    }
    let script = r#"
        set -e
        for dir in "$1" "$2"; do cat "$dir/old"; echo guest >"$dir/new"; rm "$dir/old"; done
        echo guest >/usr/lab-was-here; rm /etc/passwd; cat "$1/new" "$2/new" /usr/lab-was-here
        ls /run /dev/shm"#;
    let mut command = scratch.sh(&["--lane", "A", "--keep", keep.to_str().unwrap()], script);
    let output = command.arg("sh").args([&keep, &other]).output().unwrap();
    assert_eq!(code(&output), Some(0), "{}", text(&output.stderr));
    assert_eq!(
        text(&output.stdout),
        "hosthostguest\nguest\nguest\n/dev/shm:\n\n/run:\nlock\nnetns\n"
    );
    assert_eq!(
        std::fs::read_to_string(keep.join("new")).unwrap(),
        "guest\n"
    );
    assert!(!keep.join("old").exists());
    assert_eq!(std::fs::read_to_string(other.join("old")).unwrap(), "host");
    assert!(!other.join("new").exists());
    assert!(Path::new("/etc/passwd").exists() && !Path::new("/usr/lab-was-here").exists());
    assert!(scratch.is_clean());
}

#[test]
fn a_guest_command_returns_its_exit_status() {
    let scratch = Scratch::new("ends");
    // The lab kills the `sleep` that remains after the command. A program may open /dev/stdout.
    let script =
        "sleep 100 & echo one; echo two >/dev/stdout; echo three >/dev/stderr; kill -SEGV $$";
    let started = Instant::now();
    let output = scratch
        .sh(&["--lane", "A", "--timeout", "60"], script)
        .output()
        .unwrap();
    assert_eq!(code(&output), Some(128 + 11));
    assert_eq!(
        (&*text(&output.stdout), &*text(&output.stderr)),
        ("one\ntwo\n", "three\n")
    );
    assert!(started.elapsed() < Duration::from_secs(50));

    let output = scratch
        .lab(&["--lane", "A"])
        .arg("no-such-program")
        .output()
        .unwrap();
    assert_eq!(code(&output), Some(127));
    assert!(text(&output.stderr).contains("no-such-program"));
}

#[test]
fn output_arrives_while_the_guest_runs() {
    let scratch = Scratch::new("live");
    let mut child = spawn_until_up(scratch.sh(&["--lane", "A"], "echo up; sleep 1"));
    let up = Instant::now();
    assert!(child.wait().unwrap().success());
    assert!(
        up.elapsed() > Duration::from_millis(600),
        "{:?}",
        up.elapsed()
    );
}

#[test]
fn a_guest_is_killed_at_its_time_limit() {
    let scratch = Scratch::new("limit");
    let started = Instant::now();
    let output = scratch
        .sh(
            &["--lane", "A", "--timeout", "4"],
            "echo up; sleep 100 & while :; do :; done",
        )
        .output()
        .unwrap();
    assert_eq!(code(&output), Some(124));
    assert_eq!(text(&output.stdout), "up\n");
    assert!(text(&output.stderr).contains("time limit of 4 s"));
    // Far below the 100 s that the command would take, but enough for a busy machine that boots
    // several VMs.
    assert!(
        started.elapsed() < Duration::from_mins(1),
        "{:?}",
        started.elapsed()
    );
    assert!(scratch.is_clean());
}

/// The command pauses before it crashes the kernel, because a crash loses output that is still in
/// the VM's pipe.
#[test]
fn a_crashed_guest_is_reported_with_its_last_output() {
    let scratch = Scratch::new("dead");
    let output = scratch
        .sh(
            &["--lane", "A"],
            "echo up; sleep 0.5; echo c >/proc/sysrq-trigger; sleep 100",
        )
        .output()
        .unwrap();
    assert_eq!(code(&output), Some(125));
    assert_eq!(text(&output.stdout), "up\n");
    assert!(
        text(&output.stderr).contains("the guest died"),
        "{}",
        text(&output.stderr)
    );
    assert!(scratch.is_clean());
}

#[test]
fn an_interrupted_run_leaves_no_files() {
    let scratch = Scratch::new("signal");
    for (signal, status) in [
        (Signal::INT, Some(130)),
        (Signal::TERM, Some(143)),
        (Signal::KILL, None),
    ] {
        let mut child = spawn_until_up(
            scratch.sh(&["--lane", "A"], "echo up; sleep 100 & while :; do :; done"),
        );
        assert!(!scratch.is_clean());
        kill_process(Pid::from_child(&child), signal).unwrap();
        assert_eq!(child.wait().unwrap().code(), status);
        // If the runner is killed, its sentry cleans up a moment later.
        let deadline = Instant::now()
            + if status.is_none() {
                Duration::from_secs(10)
            } else {
                Duration::ZERO
            };
        while !scratch.is_clean() {
            assert!(
                Instant::now() < deadline,
                "something is left after {signal:?}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn parallel_runs_do_not_affect_each_other() {
    let scratch = Scratch::new("many");
    let spawn = |name: &str| {
        let mut command = scratch.sh(
            &["--lane", "A"],
            &format!("ip link add {name} type dummy && ls /sys/class/net && sleep 0.5"),
        );
        command.stdout(Stdio::piped()).spawn().unwrap()
    };
    for (name, child) in ["one", "two", "six"].map(|name| (name, spawn(name))) {
        let output = child.wait_with_output().unwrap();
        let links = text(&output.stdout);
        let links: Vec<&str> = links
            .lines()
            .filter(|link| ["one", "two", "six"].contains(link))
            .collect();
        assert_eq!((links, code(&output)), (vec![name], Some(0)));
    }
    assert!(scratch.is_clean());
}

/// Tests a run on the host's kernel (host lane). The command does not need IPVS, which this kernel
/// may lack.
#[test]
fn a_run_on_the_hosts_kernel_has_new_namespaces() {
    let scratch = Scratch::new("host");
    if !rustix::process::geteuid().is_root() {
        let output = scratch.sh(&["--lane", "host"], "true").output().unwrap();
        assert_eq!(code(&output), Some(127));
        assert!(text(&output.stderr).contains("root"));
        return;
    }
    let script = "ls /sys/class/net; ls -A /run/netns; cat /proc/sys/kernel/osrelease; echo $LAB_LANE >&2; sleep 100 & exit 5";
    let output = scratch.sh(&["--lane", "host"], script).output().unwrap();
    assert_eq!(code(&output), Some(5));
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let links = text(&output.stdout);
    assert!(
        links.starts_with("lo\n") || links.starts_with("bonding_masters\nlo\n"),
        "{links}"
    );
    assert!(
        links.ends_with(&release) && !links.contains("eth"),
        "{links}"
    );
    assert_eq!(text(&output.stderr), "host\n");

    let output = scratch
        .sh(&["--lane", "host", "--timeout", "1"], "sleep 100")
        .output()
        .unwrap();
    assert_eq!(code(&output), Some(124));
    assert!(scratch.is_clean());
}

#[test]
fn each_error_of_the_lab_names_its_cause() {
    let scratch = Scratch::new("wrong");
    for (args, status, part) in [
        (
            ["--kernel", "/no/kernel"],
            127,
            "/no/kernel is not an executable kernel",
        ),
        (["--lane", "B"], 127, "lane B needs its kernel"),
        (["--memory", "lots"], 125, "memory `lots`"),
        (["--cpu", "4000"], 125, "CPU 4000"),
        (["--keep", "/no/folder"], 125, "--keep /no/folder"),
        (["--lane", "C"], 2, "no lane `C`"),
    ] {
        let output = scratch.lab(&args).arg("true").output().unwrap();
        assert_eq!(code(&output), Some(status), "{args:?}");
        assert!(
            text(&output.stderr).contains(part),
            "{}",
            text(&output.stderr)
        );
    }
    assert!(scratch.is_clean());

    let doctor = |args: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_lab"))
            .arg("doctor")
            .args(args)
            .output()
            .unwrap()
    };
    let broken = doctor(&["--kernel", "/no/kernel"]);
    assert_eq!(code(&broken), Some(1));
    assert!(text(&broken.stdout).contains("MISSING kernel: /no/kernel"));
    let lane = text(&doctor(&["--lane", "A"]).stdout);
    assert!(
        lane.contains("ok      kernel: lane A: User Mode Linux"),
        "{lane}"
    );
}
