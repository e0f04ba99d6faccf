//! Runs each fuzz target on its stored inputs, and then on random mutations of them for a few
//! seconds.
#![allow(clippy::restriction, reason = "a test stops at the first surprise")]

use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use chance::Chance;
use fuzz::mutate::mutate;
use fuzz::{TARGETS, Target};

/// Total time for the mutations of all targets.
const MUTATED_FOR: Duration = Duration::from_secs(10);
/// Maximum time for parsing one input, in a debug build on a loaded machine.
const LONGEST: Duration = Duration::from_secs(5);

fn corpus(target: &Target) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let folder = folder.join(target.name);
    let mut inputs: Vec<_> = fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.clone(), fs::read(&path).unwrap()))
        .collect();
    inputs.sort();
    assert!(!inputs.is_empty(), "{}: no input", folder.display());
    inputs
}

fn feed(target: &Target, about: &str, input: &[u8]) {
    let began = Instant::now();
    let fed = catch_unwind(|| (target.run)(input));
    let took = began.elapsed();
    assert!(
        fed.is_ok() && took < LONGEST,
        "{} with {about} took {took:?}, panicked: {}; the input: {}",
        target.name,
        fed.is_err(),
        input.escape_ascii(),
    );
}

#[test]
fn each_stored_fuzz_input_is_parsed_without_panic() {
    for target in TARGETS {
        for (path, input) in corpus(target) {
            feed(target, &path.display().to_string(), &input);
        }
    }
}

#[test]
fn mutated_fuzz_inputs_never_cause_a_panic() {
    let seed = std::env::var("SEED").ok();
    let seed: u64 = seed.map_or(1, |seed| seed.parse().unwrap());
    let share = MUTATED_FOR / u32::try_from(TARGETS.len()).unwrap();
    for target in TARGETS {
        let inputs = corpus(target);
        let mut chance = Chance::new(seed);
        let (began, mut count) = (Instant::now(), 0);
        while began.elapsed() < share {
            let (_, input) = &inputs[chance.index(inputs.len())];
            let (_, other) = &inputs[chance.index(inputs.len())];
            let input = mutate(input, other, &mut chance);
            feed(target, &format!("SEED={seed}"), &input);
            count += 1;
        }
        println!("{:15} {count:8} inputs", target.name);
    }
}

/// Checks that the directory `fuzz` has exactly one program for each target.
#[test]
fn each_fuzz_target_has_a_program() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
    let manifest = fs::read_to_string(root.join("Cargo.toml")).unwrap();
    let mut named: Vec<&str> = manifest
        .lines()
        .filter_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'))
        .filter(|name| *name != "kube-proxy-fuzz")
        .collect();
    named.sort_unstable();
    let mut all: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
    all.sort_unstable();
    assert_eq!(named, all, "of fuzz/Cargo.toml");
    for name in all {
        assert!(root.join(format!("targets/{name}.rs")).exists(), "{name}");
    }
}
