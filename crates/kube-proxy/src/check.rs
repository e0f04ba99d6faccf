//! `kube-proxy check`: what the daemon would write if it were started now, with the same flags. Nothing is written.
//!
//! It takes the way of the daemon up to the first write: sources, kernel, model, plans. Not foretold: connection tracking
//! entries of UDP flows that turn stale, what objects that change meanwhile bring, and whether the kernel has a scheduler that no
//! virtual server uses, which can only be tried: a warning says it where the lists of modules do. Asking for IPVS, which every mode
//! does (ipvs mode may have left something), may make the kernel load its module, as `ipvsadm -L` does.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use proxy::{IpFamily, Mode as _, Model, Unreadable};
use proxy_ipvs::{Op, Plan};
use serde::Serialize;

use crate::flags::Options;
use crate::mode::Kernels;
use crate::{mode, run, sysctl};

/// How long the first lists may take.
const PATIENCE: Duration = Duration::from_mins(1);

/// How many changes of one kind are listed for people.
const LISTED: usize = 20;

/// The form of the answer (`-o`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Output {
    /// Lines for people.
    #[default]
    Text,
    /// A JSON object: `wouldChange`, `warnings`, `writes` (how many the kernel would see, by `node`, `IPv4` and `IPv6`), and
    /// `changes`, each with `of`, `kind`, `action` (`add`, `change` or `remove`) and `write`, the same in words.
    Json,
    /// The same as YAML.
    Yaml,
}

/// The answer.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    would_change: bool,
    warnings: Vec<String>,
    /// By `node`, `IPv4` and `IPv6`. All rules of a family are one write.
    writes: BTreeMap<String, usize>,
    changes: Vec<Change>,
}

/// One change, in the order they would be made.
#[derive(Debug, Serialize)]
struct Change {
    /// `node`, `IPv4` or `IPv6`.
    of: String,
    /// `virtual servers`, `rules`, ...
    kind: &'static str,
    action: Action,
    write: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Action {
    Add,
    Change,
    Remove,
}

/// Prints what would change. Exit status 0: nothing would; 1: something would. An error is for exit status 2.
pub async fn check(options: Options, output: Output) -> Result<ExitCode> {
    let answer = Box::pin(look(&options)).await?;
    print!("{}", answer.render(output)?);
    Ok(ExitCode::from(u8::from(answer.would_change)))
}

async fn look(options: &Options) -> Result<Answer> {
    let (mut events, _) =
        source::open(&options.source, &options.node_name, source::uncounted).await?;
    let kernels = mode::open_to_read(options)?;
    let mut changes = Vec::new();
    let mut counted = BTreeMap::new();
    let settings = kernels.pending_timeouts(options).await?;
    for write in settings.into_iter().chain(sysctl::pending(options)) {
        changes.push(Change::setting(write));
    }
    counted.insert("node".to_owned(), changes.len());
    let mut model = Model::of_node(&options.node_name).with_external_ips(options.external_ips());
    tokio::time::timeout(PATIENCE, run::gather(&mut events, &mut model, options))
        .await
        .with_context(|| {
            format!(
                "the objects have not come within {} s: is the API server there (--kubeconfig, --master)?",
                PATIENCE.as_secs()
            )
        })?;
    let mut warnings = options.warnings.clone();
    if !(model.is_complete() && model.is_whole()) {
        warnings.push(
            "some objects cannot be read: until that is mended nothing is removed".to_owned(),
        );
    }
    let told = model.take_changes();
    kernels.require(mode::primary(options, &model))?;
    let failed = |family: IpFamily| {
        move |Unreadable { part, reason }| anyhow!("{family}: cannot read {part}: {reason}")
    };
    let now = Instant::now();
    match kernels {
        Kernels::Ipvs(kernels) => {
            warnings.extend(proxy_ipvs::foresee_scheduler(&options.scheduler));
            for mut proxier in kernels.into_proxiers(options, &model, now)? {
                let family = proxier.family();
                proxier.read(&model, now).await.map_err(failed(family))?;
                proxier.update(&model, &told, now);
                let plans = Box::pin(proxier.preview(now)).await;
                let of = family.to_string();
                changes.extend(plans.iter().flat_map(|plan| plan_changes(&of, plan)));
                counted.insert(of, plans.iter().map(|plan| plan.ops.len()).sum());
            }
        }
        Kernels::Iptables(kernels) => {
            let used = kernels.iptables();
            for mut proxier in kernels.into_proxiers(options, &model, now)? {
                let family = proxier.family();
                proxier.read(&model, now).await.map_err(failed(family))?;
                proxier.update(&model, &told, now);
                let plans = proxier.preview(now);
                let of = family.to_string();
                let lines = plans.iter().flat_map(proxy_iptables::Plan::lines);
                changes.extend(lines.map(|line| rule_change(&of, line)));
                counted.insert(of, plans.len());
            }
            if model.is_complete() && model.is_whole() {
                let excluded = options.exclude_cidrs.clone();
                let foresee = move || proxy_ipvs::foresee_beside(&used, &excluded);
                let left = tokio::task::spawn_blocking(foresee).await?;
                *counted.entry("node".to_owned()).or_default() += left.removed.len();
                changes.extend(
                    left.removed
                        .iter()
                        .map(|line| Change::left_by_another(line)),
                );
                warnings.extend(left.left);
            }
        }
    }
    Ok(Answer {
        would_change: !changes.is_empty(),
        warnings,
        writes: counted,
        changes,
    })
}

/// What a plan does, one change each.
fn plan_changes(of: &str, plan: &Plan) -> Vec<Change> {
    let told = |op: &Op| match op {
        Op::WriteRules { wanted, installed } => {
            let lines = wanted.differences(installed).into_iter();
            lines.map(|line| rule_change(of, line)).collect()
        }
        op => {
            let (kind, action) = class(op);
            vec![Change {
                of: of.to_owned(),
                kind,
                action,
                write: op.to_string(),
            }]
        }
    };
    plan.ops.iter().flat_map(told).collect()
}

/// A change of rules, of which the first word says what is done.
fn rule_change(of: &str, line: String) -> Change {
    let action = match line.split(' ').next() {
        Some("add") => Action::Add,
        Some("remove") => Action::Remove,
        _ => Action::Change,
    };
    Change {
        of: of.to_owned(),
        kind: "rules",
        action,
        write: line,
    }
}

fn class(op: &Op) -> (&'static str, Action) {
    use Action::{Add, Change, Remove};
    match op {
        Op::CreateLink => ("link", Add),
        Op::CreateSet(..) => ("sets", Add),
        Op::AddMember(..) => ("set members", Add),
        Op::RemoveMember(..) => ("set members", Remove),
        Op::WriteRules { .. } => ("rules", Change),
        Op::AddServer(..) => ("virtual servers", Add),
        Op::SetServer(..) => ("virtual servers", Change),
        Op::RemoveServer(..) => ("virtual servers", Remove),
        Op::AddDestination(..) => ("destinations", Add),
        Op::SetDestination(..) => ("destinations", Change),
        Op::RemoveDestination(..) => ("destinations", Remove),
        Op::BindAddress(..) => ("addresses", Add),
        Op::UnbindAddress(..) | Op::UnbindOtherwise(..) => ("addresses", Remove),
        Op::RemoveLeftovers(..) => ("other modes", Remove),
    }
}

impl Change {
    fn setting(write: String) -> Self {
        Self {
            of: "node".to_owned(),
            kind: "settings",
            action: Action::Change,
            write,
        }
    }

    /// Of a line that says what would be removed.
    fn left_by_another(line: &str) -> Self {
        Self {
            of: "node".to_owned(),
            kind: "other modes",
            action: Action::Remove,
            write: format!("remove what another mode has left: {line}"),
        }
    }
}

impl Answer {
    fn render(&self, output: Output) -> Result<String> {
        Ok(match output {
            Output::Text => self.lines(),
            Output::Json => serde_json::to_string_pretty(self)? + "\n",
            Output::Yaml => serde_saphyr::to_string(self)?,
        })
    }

    fn lines(&self) -> String {
        let mut text = String::new();
        for warning in &self.warnings {
            let _ = writeln!(text, "warning  {warning}");
        }
        let mut counts: Vec<((&str, &str), [usize; 3])> = Vec::new();
        for change in &self.changes {
            let key = (change.of.as_str(), change.kind);
            let index = counts.iter().position(|(of, _)| *of == key);
            let index = index.unwrap_or_else(|| {
                counts.push((key, [0; 3]));
                counts.len() - 1
            });
            let Some((_, count)) = counts.get_mut(index) else {
                continue;
            };
            let listed: usize = count.iter().sum();
            if let Some(count) = count.get_mut(change.action as usize) {
                *count += 1;
            }
            let _ = match listed {
                ..LISTED => writeln!(text, "{:<7}  {}", change.of, change.write),
                LISTED => writeln!(text, "{:<7}  more {}: see -o yaml", change.of, change.kind),
                _ => Ok(()),
            };
        }
        if self.changes.is_empty() {
            text.push_str("nothing would change\n");
            return text;
        }
        let _ = writeln!(
            text,
            "\n{:<25}{:>7}{:>8}{:>8}",
            "", "add", "change", "remove"
        );
        for ((of, kind), [add, change, remove]) in &counts {
            let _ = writeln!(text, "{of:<7}  {kind:<16}{add:>7}{change:>8}{remove:>8}");
        }
        let _ = match self.changes.len() {
            1 => writeln!(text, "1 change; nothing was written"),
            count => writeln!(text, "{count} changes; nothing was written"),
        };
        text
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proxy_ipvs::{Rules, Set};

    use super::*;

    fn answer(changes: Vec<Change>) -> Answer {
        Answer {
            would_change: !changes.is_empty(),
            warnings: vec!["look".to_owned()],
            writes: [("IPv4".to_owned(), changes.len())].into(),
            changes,
        }
    }

    fn member(port: u16) -> Change {
        Change {
            of: "IPv4".to_owned(),
            kind: "set members",
            action: Action::Add,
            write: format!("add {port} to set NodePortTcp"),
        }
    }

    #[test]
    fn an_answer_reads_well_in_each_form() {
        let render = |answer: &Answer, output| answer.render(output).unwrap();
        let none = answer(Vec::new());
        assert_eq!(
            render(&none, Output::Text),
            "warning  look\nnothing would change\n"
        );
        let one = answer(vec![member(80)]);
        assert_eq!(
            render(&one, Output::Text),
            "warning  look\nIPv4     add 80 to set NodePortTcp\n\n\
             \x20                            add  change  remove\n\
             IPv4     set members           1       0       0\n1 change; nothing was written\n"
        );
        let wanted = serde_json::json!({
            "wouldChange": true,
            "warnings": ["look"],
            "writes": {"IPv4": 1},
            "changes": [{
                "of": "IPv4",
                "kind": "set members",
                "action": "add",
                "write": "add 80 to set NodePortTcp",
            }],
        });
        let json: serde_json::Value = serde_json::from_str(&render(&one, Output::Json)).unwrap();
        let yaml: serde_json::Value = serde_saphyr::from_str(&render(&one, Output::Yaml)).unwrap();
        assert_eq!((&json, &yaml), (&wanted, &wanted));
    }

    #[test]
    fn of_many_changes_some_are_listed_and_all_are_counted() {
        let text = answer((1..=1000).map(member).collect()).lines();
        assert_eq!(text.matches("to set NodePortTcp").count(), LISTED);
        assert_eq!(text.matches("more set members: see -o yaml").count(), 1);
        assert!(
            text.contains("set members        1000       0       0\n1000 changes;"),
            "{text}"
        );
    }

    #[test]
    fn rules_are_told_by_the_line() {
        let installed = "*nat\n:KUBE-SERVICES - [0:0]\n-A KUBE-SERVICES -j RETURN\nCOMMIT\n";
        let plan = Plan {
            ops: vec![
                Op::CreateSet(Set::ClusterIp, 65_536),
                Op::WriteRules {
                    wanted: Arc::new(Rules::parse("*nat\n:KUBE-SERVICES - [0:0]\nCOMMIT\n")),
                    installed: Arc::new(Rules::parse(installed)),
                },
            ],
        };
        let told: Vec<_> = plan_changes("IPv4", &plan)
            .into_iter()
            .map(|change| (change.kind, change.action, change.write))
            .collect();
        assert_eq!(
            told,
            [
                (
                    "sets",
                    Action::Add,
                    "create set ClusterIp for 65536 members".to_owned()
                ),
                (
                    "rules",
                    Action::Remove,
                    "remove in table nat: -A KUBE-SERVICES -j RETURN".to_owned()
                )
            ]
        );
    }
}
