//! Findings of the preflight checks, each with the next step for the operator.

use std::fmt::Write as _;

use serde::Serialize;

use view::shown;

/// Result of a preflight check, such as a missing kernel module.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    /// Name of the check, such as `modules` or `capabilities`.
    pub(super) name: &'static str,
    pub(super) status: Status,
    /// Description of the finding, and the next step for the operator.
    pub(super) message: String,
}

/// Severity of a preflight check's result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Status {
    /// No problem was found.
    Ok,
    /// A start succeeds, but the operator should read the finding or correct the node.
    Warn,
    /// A start would fail, or serve no Service.
    Fail,
}

impl Finding {
    pub(super) fn ok(name: &'static str, message: impl Into<String>) -> Self {
        Self::new(name, Status::Ok, message)
    }

    pub(super) fn warn(name: &'static str, message: impl Into<String>) -> Self {
        Self::new(name, Status::Warn, message)
    }

    pub(super) fn fail(name: &'static str, message: impl Into<String>) -> Self {
        Self::new(name, Status::Fail, message)
    }

    fn new(name: &'static str, status: Status, message: impl Into<String>) -> Self {
        Self {
            name,
            status,
            message: message.into(),
        }
    }
}

/// Renders findings, one line each.
pub(super) fn lines(findings: &[Finding]) -> String {
    let mut text = String::new();
    for Finding {
        name,
        status,
        message,
    } in findings
    {
        let mark = match status {
            Status::Ok => "[ok]",
            Status::Warn => "[warn]",
            Status::Fail => "[fail]",
        };
        let _ = writeln!(text, "{mark:<6} {name}: {}", shown(message));
    }
    text
}

/// Joins the first five items with commas, and adds the number of remaining items.
pub(super) fn some(all: &[String]) -> String {
    const MOST: usize = 5;
    let mut told = all
        .iter()
        .take(MOST)
        .cloned()
        .collect::<Vec<_>>()
        .join(", ");
    if let Some(more) = all.len().checked_sub(MOST).filter(|more| *more > 0) {
        let _ = write!(told, " and {more} more");
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_finding_is_marked_with_its_status() {
        let findings = [
            Finding::ok("modules", "loaded"),
            Finding::warn("ports", "taken"),
            Finding::fail("capabilities", "none"),
        ];
        assert_eq!(
            lines(&findings),
            "[ok]   modules: loaded\n[warn] ports: taken\n[fail] capabilities: none\n"
        );
    }

    #[test]
    fn a_long_list_of_names_is_cut_with_a_count() {
        let names = |count| (1..=count).map(|n: u8| n.to_string()).collect::<Vec<_>>();
        assert_eq!(some(&names(5)), "1, 2, 3, 4, 5");
        assert_eq!(some(&names(7)), "1, 2, 3, 4, 5 and 2 more");
    }
}
