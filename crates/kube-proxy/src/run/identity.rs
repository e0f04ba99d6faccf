//! First line of the log: the program, its mode, its source of objects, and its node. Messages
//! about flags come after this line.

use std::fmt::Write as _;

use flags::version::KUBERNETES;
use footprint::uses::Uses;
use proxy::IpFamily;
use source::Settings;
use tracing::info;

use crate::config::options::Options;
use crate::process::version;

/// Logs the first line of the log, and then the messages about flags. `from` is the source, or
/// `None` if it could not be opened. `uses` are the mode's kernel features, or `None` if the kernel
/// could not be opened.
pub(super) fn tell(options: &Options, from: Option<&str>, uses: Option<&Uses>) {
    info!("{}", line(options, from, uses));
    options.said.tell(&options.log);
}

fn line(options: &Options, from: Option<&str>, uses: Option<&Uses>) -> String {
    let mode = options.modes.chosen.name();
    let kubernetes = KUBERNETES.git_version();
    let (program, by) = (version::program(), &options.said.mode_from);
    let mut line = format!("{program}, as Kubernetes {kubernetes}: {mode} mode ({by})");
    if let Some(uses) = uses {
        // Omits the iptables backend, because a later log line names the backend with the reason
        // for the choice.
        let forms = uses
            .forms
            .iter()
            .filter(|form| !form.starts_with("backend "));
        for part in forms.chain(&uses.backend) {
            let _ = write!(line, ", {part}");
        }
        let is_served = |family: &&IpFamily| !uses.left_out.iter().any(|(of, _)| of == *family);
        let families = IpFamily::ALL.iter().filter(is_served);
        let families: Vec<String> = families.map(ToString::to_string).collect();
        let _ = write!(line, "; {}", families.join(" and "));
    }
    let _ = write!(line, "; node {}", options.process.node_name);
    let from = from.map_or_else(|| origin(&options.source), str::to_owned);
    let _ = write!(line, "; {from}");
    line
}

/// Describes the configured source of objects, without secrets such as the kubeconfig's token.
fn origin(source: &Settings) -> String {
    match source {
        Settings::Manifests(folder) => format!("manifests in {}", folder.display()),
        Settings::Api(api) => match (&api.master, &api.kubeconfig) {
            (Some(_), Some(file)) => {
                format!("API server of --master and {}", file.display())
            }
            (Some(_), None) => "API server of --master".to_owned(),
            (None, Some(file)) => format!("API server of {}", file.display()),
            (None, None) => "API server of this Pod".to_owned(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::options;

    #[test]
    fn the_start_line_names_version_mode_and_node() {
        let options = options(&[]);
        let uses = Uses {
            forms: vec!["scheduler rr".to_owned(), "shim lean".to_owned()],
            backend: Some("iptables nft (the kubelet's chains are in it)".to_owned()),
            left_out: vec![(IpFamily::V6, "disabled".to_owned())],
            ..Uses::default()
        };
        let program = version::program();
        assert!(program.contains(version::short_commit()));
        let kubernetes = KUBERNETES.git_version();
        assert_eq!(
            line(&options, Some("API server https://a"), Some(&uses)),
            format!(
                "{program}, as Kubernetes {kubernetes}: ipvs mode (--proxy-mode), scheduler rr, shim lean, iptables nft (the \
                 kubelet's chains are in it); IPv4; node node1; API server https://a"
            )
        );
        let said = line(&options, None, None);
        let end = ": ipvs mode (--proxy-mode); node node1; manifests in /nowhere";
        assert!(said.ends_with(end), "{said}");
    }
}
