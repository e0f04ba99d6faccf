//! Hides other programs' rules from users other than root, as the kernel does. These users may
//! learn that a rule drops a packet, but may not read the rule. In an explanation, quoted rules are
//! between backticks.

use view::{Step, Walk};

use super::origin::NOT_OURS;

/// Note for a user to whom the response does not show rules of other programs.
pub(super) const LEFT_OUT: &str = "rules of other programs are named, not quoted: run kube-proxy \
                                   explain as root on the node to see them";
/// Rules that a response may quote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quotes {
    /// The response may quote all rules, because root has requested it.
    All,
    /// The response may quote only kube-proxy's rules.
    Own,
}

impl Quotes {
    /// Replaces or removes quotations that the response may not have. Returns true if there were
    /// any.
    pub(super) fn leave_out(self, walks: &mut [Walk]) -> bool {
        self == Self::Own && walks.iter_mut().fold(false, |any, walk| any | cut(walk))
    }
}

fn cut(walk: &mut Walk) -> bool {
    let mut is_any = false;
    for step in walk.steps.iter_mut().chain(&mut walk.answer) {
        is_any |= cut_step(step);
    }
    let why = walk.unanswered.iter_mut().chain(&mut walk.unsure);
    // These texts do not say whose rule they quote, so every quoted rule is removed.
    for text in why.chain(&mut walk.doubts) {
        is_any |= unquote(text);
    }
    is_any
}

fn cut_step(step: &mut Step) -> bool {
    let is_others = step.origin.starts_with(NOT_OURS);
    // A step with a rule that could not be evaluated has no origin, but its text quotes the rule.
    let is_cut = (is_others || step.origin.is_empty()) && unquote(&mut step.says);
    if is_others {
        step.entry.clear();
        step.members.clear();
        (step.packets, step.bytes) = (None, None);
    }
    is_others || is_cut
}

/// Replaces the quotation of a rule in a text by the words "a rule". Returns true if there was one.
fn unquote(text: &mut String) -> bool {
    // Takes the first and the last backtick, because the rule itself may contain backticks.
    let (Some(first), Some(last)) = (text.find('`'), text.rfind('`')) else {
        return false;
    };
    text.replace_range(first..=last, "a rule");
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(origin: &str, says: &str) -> Step {
        Step {
            place: "filter cali-x".to_owned(),
            entry: "-A cali-x -s 192.0.2.66/32 -j DROP".to_owned(),
            says: says.to_owned(),
            origin: origin.to_owned(),
            packets: Some(5),
            members: vec!["cali-secret 192.0.2.66".to_owned()],
            ..Step::default()
        }
    }

    fn walks() -> Vec<Walk> {
        let theirs = format!("{NOT_OURS}: chain cali-x");
        vec![Walk {
            steps: vec![
                step("Service default/web, port http: spec.clusterIPs", "found"),
                step(&theirs, "dropped"),
                step(&theirs, "`-m bpf --secret` is not understood"),
                Step {
                    place: "not understood".to_owned(),
                    says: "it depends on an unsupported rule: filter cali-x: `-m bpf --secret`"
                        .to_owned(),
                    ..Step::default()
                },
            ],
            doubts: vec![
                "filter cali-x: `-m bpf --secret` is not understood; taken not to match".to_owned(),
                "the sysctl net.ipv4.vs.conntrack cannot be read; taken to match".to_owned(),
            ],
            answer: vec![step(&theirs, "dropped")],
            unanswered: Some("dropped by filter cali-x (`-s secret`)".to_owned()),
            unsure: Some("filter cali-x: its `secret` in `-s secret`".to_owned()),
            ..Walk::default()
        }]
    }

    #[test]
    fn rules_of_other_programs_are_mentioned_but_not_quoted() {
        let mut told = walks();
        assert!(Quotes::Own.leave_out(&mut told));
        assert_eq!(told[0].steps.remove(0), walks()[0].steps[0]);
        let text = format!("{told:?}");
        assert!(!text.contains("secret"), "{text}");
        let theirs = &told[0].steps[0];
        assert_eq!((&*theirs.entry, theirs.packets), ("", None));
        assert_eq!(theirs.says, "dropped");
        assert_eq!(told[0].answer[0], *theirs);
        assert_eq!(theirs.origin, "not kube-proxy's: chain cali-x");
        assert_eq!(
            told[0].doubts,
            [
                "filter cali-x: a rule is not understood; taken not to match",
                "the sysctl net.ipv4.vs.conntrack cannot be read; taken to match",
            ]
        );
    }

    #[test]
    fn root_sees_the_rules_of_other_programs() {
        let mut told = walks();
        assert!(!Quotes::All.leave_out(&mut told));
        assert_eq!(told, walks());
    }
}
