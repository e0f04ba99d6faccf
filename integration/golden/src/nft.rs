//! Converts the listing of a table that `nft` prints into lines that can be compared.
//!
//! Each line begins with its set, map or chain. Sets, maps and chains are sorted by name, and their
//! elements by key. Rules keep their order.

use std::collections::BTreeSet;

/// Returns the relevant lines of `nft -s list table FAMILY kube-proxy` in a canonical order.
/// Returns no lines if the table does not exist.
pub(crate) fn table(listing: &str) -> Vec<String> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut lines = Vec::new();
    // Start of a list of elements that continues on the next line of the listing.
    let mut open: Option<String> = None;
    let mut is_inside = false;
    for line in listing.lines().map(str::trim) {
        match (blocks.last_mut().filter(|_| is_inside), &mut open) {
            (Some(block), Some(text)) => {
                text.extend([" ", line]);
                if line.ends_with('}') {
                    block.elements(text);
                    open = None;
                }
            }
            (Some(block), None) => {
                if line == "}" {
                    is_inside = false;
                } else if let Some(text) = line.strip_prefix("elements = {") {
                    if text.ends_with('}') {
                        block.elements(text);
                    } else {
                        open = Some(text.to_owned());
                    }
                } else if !line.is_empty() {
                    block.lines.push(without_braces(line));
                }
            }
            (None, _) => {
                if let Some(name) = line.strip_suffix(" {").filter(|name| is_block(name)) {
                    is_inside = true;
                    blocks.push(Block {
                        name: name.to_owned(),
                        lines: Vec::new(),
                        elements: Vec::new(),
                    });
                } else if !matches!(line, "" | "}") {
                    lines.push(line.to_owned());
                }
            }
        }
    }
    let stale = stale(&blocks);
    blocks.retain(|block| !stale.contains(&block.name));
    blocks.sort_by(|one, other| one.name.cmp(&other.name));
    for mut block in blocks {
        block.elements.sort();
        lines.push(format!("{} {{", block.name));
        lines.extend(
            block
                .lines
                .iter()
                .map(|line| format!("{} {line}", block.name)),
        );
        let elements = block.elements.iter();
        lines.extend(elements.map(|element| format!("{} element {element}", block.name)));
    }
    lines
}

/// A set, map or chain in the listing of a table.
#[derive(Debug)]
struct Block {
    /// Kind and name of the set, map or chain, such as `set cluster-ips`.
    name: String,
    lines: Vec<String>,
    elements: Vec<String>,
}

impl Block {
    /// Adds the elements of a set or map from `text`, which may end with the closing brace.
    fn elements(&mut self, text: &str) {
        let text = text.trim().trim_end_matches('}');
        let mut element = String::new();
        let mut is_quoted = false;
        for letter in text.chars().chain([',']) {
            is_quoted ^= letter == '"';
            if letter != ',' || is_quoted {
                element.push(letter);
                continue;
            }
            let words: Vec<&str> = element.split_whitespace().collect();
            if !words.is_empty() {
                self.elements.push(words.join(" "));
            }
            element.clear();
        }
    }

    /// Returns the names of the chains to which the rules or elements jump.
    fn targets(&self) -> impl Iterator<Item = &str> {
        let texts = self.lines.iter().chain(&self.elements);
        texts.flat_map(|text| {
            let words = text.split([' ', ',']);
            let after = text.split([' ', ',']).skip(1);
            words
                .zip(after)
                .filter(|(verb, _)| matches!(*verb, "goto" | "jump"))
                .map(|(_, chain)| chain)
        })
    }
}

fn is_block(name: &str) -> bool {
    ["set ", "map ", "chain "]
        .iter()
        .any(|kind| name.starts_with(kind))
}

/// Returns the names of Service chains that are empty, and to which no rule or element jumps. The
/// comparison ignores them: upstream deletes them only a second later, and an earlier deletion is
/// correct.
fn stale(blocks: &[Block]) -> BTreeSet<String> {
    let targets: BTreeSet<&str> = blocks.iter().flat_map(Block::targets).collect();
    let is_stale = |block: &&Block| {
        let chain = block.name.strip_prefix("chain ");
        block.lines.is_empty()
            && chain.is_some_and(|name| name.contains('/') && !targets.contains(name))
    };
    let stale = blocks.iter().filter(is_stale);
    stale.map(|block| block.name.clone()).collect()
}

/// Removes the braces around a single address, which some versions of `nft` omit:
/// `ip daddr { 10.96.0.0/12 } drop` → `ip daddr 10.96.0.0/12 drop`.
fn without_braces(rule: &str) -> String {
    let Some((before, rest)) = rule.split_once("daddr { ") else {
        return rule.to_owned();
    };
    match rest.split_once(" }") {
        Some((one, after)) if !one.contains([' ', ',']) => format!("{before}daddr {one}{after}"),
        _ => rule.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTING: &str = r#"table ip kube-proxy {
	comment "rules for kube-proxy"

	set b {
		type ipv4_addr
		elements = { 10.0.0.2, 10.0.0.1,
			     10.0.0.3 }
	}

	map a {
		type ipv4_addr : verdict
		elements = { 10.0.0.1 comment "x, y" : goto service-X/y }
	}

	chain service-X/y {
	}

	chain service-Z/y {
	}

	chain empty {
	}

	chain c {
		ip saddr 10.0.0.1 drop
		ip daddr { 10.96.0.0/12 } drop comment "d"
	}
}
"#;

    #[test]
    fn nft_listings_are_sorted_but_rules_keep_their_order() {
        assert_eq!(
            table(LISTING),
            [
                "table ip kube-proxy {",
                r#"comment "rules for kube-proxy""#,
                "chain c {",
                "chain c ip saddr 10.0.0.1 drop",
                r#"chain c ip daddr 10.96.0.0/12 drop comment "d""#,
                "chain empty {",
                "chain service-X/y {",
                "map a {",
                "map a type ipv4_addr : verdict",
                r#"map a element 10.0.0.1 comment "x, y" : goto service-X/y"#,
                "set b {",
                "set b type ipv4_addr",
                "set b element 10.0.0.1",
                "set b element 10.0.0.2",
                "set b element 10.0.0.3",
            ]
        );
        assert!(table("").is_empty());
    }

    #[test]
    fn each_change_that_affects_packets_is_a_difference() {
        for (from, to) in [
            ("10.0.0.3 }", "10.0.0.4 }"),
            ("saddr 10.0.0.1 drop", "saddr 10.0.0.1 accept"),
            ("x, y", "x"),
            ("goto service-X/y", "drop"),
            ("chain empty", "chain other"),
        ] {
            assert_ne!(table(&LISTING.replace(from, to)), table(LISTING), "{from}");
        }
        let stale = "\tchain service-Z/y {\n\t}\n";
        assert_eq!(table(&LISTING.replace(stale, "")), table(LISTING));
        let several = LISTING.replace("{ 10.96.0.0/12 }", "{ 10.96.0.0/12, 10.0.0.0/8 }");
        assert!(
            table(&several)
                .iter()
                .any(|line| line.contains("{ 10.96.0.0/12, 10.0.0.0/8 }"))
        );
    }
}
