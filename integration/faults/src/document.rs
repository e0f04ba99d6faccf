//! docs/faults.md.

use std::fmt::Write as _;

use crate::faults::ALL;
use crate::row::{Row, table};

/// The rows of a kernel.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) lane: String,
    pub(crate) kernel: String,
    pub(crate) rows: Vec<Row>,
}

const HEAD: &str = "# Faults, and what they cost\n\n\
    This page is made by `make faults` ([integration/faults](../integration/faults)). Each row is one fault on a node of the lab while traffic runs: new TCP\n\
    connections by five ways, each at most 40 a second (from a pod to a ClusterIP of each family, from outside to a node port and to a load balancer's\n\
    address, from the node itself), and six connections that are held open and asked ten times a second. A request has failed that is not answered within\n\
    0.9 s, which is before TCP sends a lost packet again. An open connection is lost that is reset, or not answered within 20 s.\n\n\
    *Until repaired* is counted from the fault, or from its end where it lasts, until all is as it is to be; the sync period is the default, 30 s. Where nothing of ours\n\
    was wrong it is how long the next change took, or a start. Every row has a promise, and the command fails where one is not kept: no request fails and no\n\
    open connection ends, unless somebody else has taken away what carries them. What failed then is counted, too. The sentence that says what was promised is below.\n";

/// The page.
pub(crate) fn page(parts: &[Part]) -> String {
    let mut text = HEAD.to_owned();
    for part in parts {
        let _ = write!(text, "\n## Linux {} ({})\n\n{}", part.kernel, part.lane, table(&part.rows));
    }
    text += "\n## What each fault is\n\n";
    for fault in ALL {
        let _ = writeln!(text, "* **{}**: {}", fault.name, fault.about);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_says_what_each_fault_is() {
        let part = Part {
            lane: "lane A".into(),
            kernel: "6.1".into(),
            rows: Vec::new(),
        };
        let page = page(&[part]);
        assert!(page.contains("## Linux 6.1 (lane A)"));
        for fault in ALL {
            assert!(page.contains(&format!("* **{}**: ", fault.name)));
        }
    }
}
