//! Functions that several tests use.

mod modes;
pub(crate) mod scripted;

use std::ffi::OsString;

use crate::config::command_line::{Command, parse};
use crate::config::options::Options;

/// Returns the options of `node1` in IPVS mode with additional flags.
pub(crate) fn options(arguments: &[&str]) -> Options {
    let start = [
        "kube-proxy",
        "--manifests=/nowhere",
        "--hostname-override=node1",
        "--proxy-mode=ipvs",
    ];
    let arguments = start.iter().chain(arguments);
    match parse(arguments.map(OsString::from)) {
        Ok(Command::Run(options)) => *options,
        other => panic!("{other:?}"),
    }
}
