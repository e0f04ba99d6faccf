//! Tests the relay in a process that has no free descriptors. This test has its own binary, because
//! the limit of open files applies to the whole process.
#![allow(clippy::restriction, reason = "a test stops at the first surprise")]

mod support;

use std::fs::{self, File};
use std::io::{ErrorKind, Read as _};
use std::net::TcpStream;
use std::os::unix::fs::FileExt as _;
use std::thread;
use std::time::Duration;

use relay::{Limits, Transport};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::{LONG, World, by, limits, named, until};

/// Returns the CPU time of this process, in ticks of 10 ms.
fn worked(stat: &File) -> u64 {
    let mut text = [0; 4096];
    let count = stat.read_at(&mut text, 0).unwrap();
    let text = String::from_utf8_lossy(&text[..count]).into_owned();
    let fields: Vec<&str> = text
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

#[test]
fn a_relay_without_free_descriptors_waits_and_recovers() {
    let with = Limits {
        // Makes the relay assume that enough descriptors are free.
        descriptors: Some(1_000_000),
        ..limits()
    };
    let world = World::new(with, Transport::Tcp, by(&[named("a")]));
    let stat = File::open("/proc/self/stat").unwrap();
    let at_rest = open();
    // A connection needs two descriptors: one for the client, and one for the endpoint.
    for free in [0, 1] {
        assert_eq!(world.who(), "a");
        until("all of it has ended", || open() == at_rest);
        let mut clients: Vec<TcpStream> = (0..8).map(|_| world.connect()).collect();
        for client in &mut clients {
            client.read_exact(&mut [0; 1]).unwrap();
        }
        let before = getrlimit(Resource::Nofile);
        let current = Some(open() as u64 + 8);
        setrlimit(Resource::Nofile, Rlimit { current, ..before }).unwrap();
        let mut taken = all_there_are();
        // Frees one descriptor for the client's socket in this test, and `free` descriptors for the
        // relay.
        taken.truncate(taken.len() - 1 - free);
        let mut waits = world.connect();
        thread::sleep(Duration::from_millis(100));
        let start = worked(&stat);
        let second = Some(Duration::from_secs(1));
        waits.set_read_timeout(second).unwrap();
        let read = waits.read(&mut [0; 1]);
        assert_eq!(read.unwrap_err().kind(), ErrorKind::WouldBlock, "it waits");
        let ticks = worked(&stat) - start;
        assert!(ticks < 20, "{ticks} ticks of 100");
        clients.clear();
        waits.set_read_timeout(Some(LONG)).unwrap();
        waits.read_exact(&mut [0; 1]).unwrap();
        drop(taken);
        setrlimit(Resource::Nofile, before).unwrap();
    }
    assert_eq!(world.who(), "a");
}

/// Returns the number of open descriptors.
fn open() -> usize {
    // The listing itself needs one descriptor.
    fs::read_dir("/proc/self/fd").unwrap().count() - 1
}

/// Opens files until no descriptor is free. Returns the files.
fn all_there_are() -> Vec<File> {
    std::iter::from_fn(|| File::open("/dev/null").ok()).collect()
}
