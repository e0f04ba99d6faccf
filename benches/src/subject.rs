//! Starts the subject of a cell: the measured program, which keeps running after its work.

use std::process::Command;
use std::time::Instant;

use anyhow::{Result, bail};

use crate::objects::CLUSTER_CIDR;
use crate::process::Process;
use crate::schema::SubjectKind;
use crate::stage::{API, Stage};
use crate::{floor, tools};

/// Starts the measured program. Returns its process, and the time at which it began to work.
pub(crate) fn start(stage: &Stage) -> Result<(Process, Instant)> {
    let log = stage.folder().join("subject.log");
    if matches!(
        stage.cell.subject.kind,
        SubjectKind::Floor | SubjectKind::NftFloor | SubjectKind::NftFlatFloor
    ) {
        // The bare loader prepares its messages, and stops itself. Its work begins when the
        // benchmark continues it.
        let process = Process::start(command(stage)?, &log)?;
        floor::await_ready(process, stage.limit())
    } else {
        let command = command(stage)?;
        let started = Instant::now();
        Ok((Process::start(command, &log)?, started))
    }
}

fn command(stage: &Stage) -> Result<Command> {
    match &stage.cell.subject.kind {
        SubjectKind::KubeProxy {
            path,
            mode,
            flags,
            is_ours,
        } => {
            let mut command = if stage.cell.is_counting {
                let mut command = stage.node.command("strace");
                // With -D, strace runs in the background, and the child process is the measured
                // program itself, which gets the signals. With -s and the following options, strace
                // prints all sent bytes.
                command
                    .args(["-D", "-f", "-qq", "-s", "1000000", "-o"])
                    .arg(stage.trace());
                command.arg(path);
                command
            } else {
                stage.node.command(path)
            };
            command
                .arg(format!("--master=http://{API}"))
                .arg(format!("--proxy-mode={}", mode.name()))
                .arg(format!("--cluster-cidr={CLUSTER_CIDR}"))
                .args([
                    "--hostname-override=node1",
                    // 0 leaves the size of the conntrack table unchanged, which only the initial
                    // network namespace may set.
                    "--conntrack-max-per-core=0",
                    "--ipvs-min-sync-period=0s",
                    "--iptables-min-sync-period=0s",
                ])
                .args(flags);
            if *is_ours && stage.has_legacy_iptables() && lab::iptables_backend() == "nft" {
                // Other kube-proxies run the program `iptables`, which is the legacy one here. Our
                // daemon would otherwise choose iptables-nft.
                command.arg("--iptables-backend=legacy");
            }
            Ok(command)
        }
        SubjectKind::Floor | SubjectKind::NftFloor | SubjectKind::NftFlatFloor => {
            let mut command = stage.node.command(std::env::current_exe()?);
            command.args(["floor", &serde_json::to_string(&stage.cell)?]);
            Ok(command)
        }
        SubjectKind::Tools => tools::command(stage),
        SubjectKind::BareIpvs | SubjectKind::Direct => {
            bail!(
                "{} writes nothing that could be measured",
                stage.cell.subject.name
            )
        }
    }
}
