//! `kube-proxy check`: what the daemon would write if it were started now, with the same flags. Nothing is written.
//!
//! It takes the way of the daemon up to the first write: sources, kernel, model, plans. Not foretold: connection tracking
//! entries of UDP flows that turn stale, and what objects that change meanwhile bring. Asking for IPVS may make the kernel load
//! its module, as `ipvsadm -L` does.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use proxy::{Mode as _, Model};
use proxy_ipvs::{Op, Plan};
use serde::Serialize;

use crate::flags::Options;
use crate::{mode, run, source, sysctl};

/// How long the first lists may take.
const PATIENCE: Duration = Duration::from_mins(1);

/// The form of the answer (`-o`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Output {
    /// Lines for people.
    #[default]
    Text,
    /// A JSON object: `wouldChange`, `warnings`, and `changes`, each with `of` and `write`.
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
    changes: Vec<Change>,
}

/// One write, in the order they would be done.
#[derive(Debug, Serialize)]
struct Change {
    /// `node`, `IPv4` or `IPv6`.
    of: String,
    write: String,
}

/// Prints what would change. Exit status 0: nothing would; 1: something would. An error is for exit status 2.
pub async fn check(options: Options, output: Output) -> Result<ExitCode> {
    let answer = Box::pin(look(&options)).await?;
    print!("{}", answer.render(output)?);
    Ok(ExitCode::from(u8::from(answer.would_change)))
}

async fn look(options: &Options) -> Result<Answer> {
    let (mut events, _) = source::open(&options.source, &options.node_name).await?;
    let kernels = mode::open_to_read(options)?;
    let mut changes = Vec::new();
    let settings = kernels.pending_timeouts(options).await?;
    for write in settings.into_iter().chain(sysctl::pending(options)) {
        changes.push(Change::new("node", write));
    }
    let mut model = Model::new();
    tokio::time::timeout(PATIENCE, run::gather(&mut events, &mut model, options))
        .await
        .with_context(|| {
            format!(
                "the objects have not come within {} s: is the API server there (--kubeconfig, --master)?",
                PATIENCE.as_secs()
            )
        })?;
    let mut warnings = Vec::new();
    if !(model.is_complete() && model.is_whole()) {
        warnings.push(
            "some objects cannot be read: until that is mended nothing is removed".to_owned(),
        );
    }
    let told = model.take_changes();
    for mut proxier in kernels.into_proxiers(options, &model) {
        let (family, now) = (proxier.family(), Instant::now());
        proxier.update(&model, &told);
        let failed = |failure| anyhow!("{family}: {failure}");
        proxier.resync(&model, now).await.map_err(failed)?;
        let plans = proxier.preview(now).await.map_err(failed)?;
        let writes = plans.iter().flat_map(writes);
        changes.extend(writes.map(|write| Change::new(&family.to_string(), write)));
    }
    Ok(Answer {
        would_change: !changes.is_empty(),
        warnings,
        changes,
    })
}

/// What a plan does, a line each.
fn writes(plan: &Plan) -> Vec<String> {
    let told = |op: &Op| match op {
        Op::WriteRules { wanted, installed } => wanted.differences(installed),
        op => vec![op.to_string()],
    };
    plan.ops.iter().flat_map(told).collect()
}

impl Change {
    fn new(of: &str, write: String) -> Self {
        Self {
            of: of.to_owned(),
            write,
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
        for Change { of, write } in &self.changes {
            let _ = writeln!(text, "{of:<7}  {write}");
        }
        let _ = match self.changes.len() {
            0 => writeln!(text, "nothing would change"),
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
            changes,
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
        let one = answer(vec![Change::new("IPv4", "create \"x\": y".to_owned())]);
        assert_eq!(
            render(&one, Output::Text),
            "warning  look\nIPv4     create \"x\": y\n1 changes; nothing was written\n"
        );
        let wanted = serde_json::json!({
            "wouldChange": true,
            "warnings": ["look"],
            "changes": [{"of": "IPv4", "write": "create \"x\": y"}],
        });
        let json: serde_json::Value = serde_json::from_str(&render(&one, Output::Json)).unwrap();
        let yaml: serde_json::Value = serde_saphyr::from_str(&render(&one, Output::Yaml)).unwrap();
        assert_eq!((&json, &yaml), (&wanted, &wanted));
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
        assert_eq!(
            writes(&plan),
            [
                "create set ClusterIp for 65536 members",
                "remove in table nat: -A KUBE-SERVICES -j RETURN"
            ]
        );
    }
}
