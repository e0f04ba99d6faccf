//! Parses the output of `iptables-save`, line by line. Words are borrowed from the line, except
//! words with escaped characters or with quotation marks in the middle.

use std::borrow::Cow;
use std::collections::BTreeSet;

use crate::table::Table;

/// A line in the output of `iptables-save`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Line<'a> {
    /// `*nat`: begins a table.
    Table(&'a str),
    /// `:CHAIN ACCEPT [0:0]`: declares a chain.
    Chain(&'a str),
    /// `-A CHAIN ...`: a rule.
    Rule(RuleLine<'a>),
    /// `COMMIT`: ends the table.
    Commit,
}

impl<'a> Line<'a> {
    /// Parses a line without its line feed. Returns `None` for comments and unknown lines.
    pub fn parse(line: &'a str) -> Option<Self> {
        if let Some(text) = line.strip_prefix("-A ") {
            let chain = first(text);
            return Some(Self::Rule(RuleLine { text: line, chain }));
        }
        if let Some(declared) = line.strip_prefix(':') {
            return Some(Self::Chain(first(declared)));
        }
        if let Some(name) = line.strip_prefix('*') {
            return Some(Self::Table(name.trim()));
        }
        (line == "COMMIT").then_some(Self::Commit)
    }

    /// Returns the chain of a line with a rule, with or without counters. Returns `None` for other
    /// lines.
    pub(crate) fn chain_of_rule(line: &'a str) -> Option<&'a str> {
        let rule = match line.strip_prefix('[') {
            Some(counted) => counted.split_once("] ")?.1,
            None => line,
        };
        RuleLine::parse(rule).map(|rule| rule.chain)
    }
}

/// A rule with its packet counter, as `iptables-save -c` prints it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CountedRule<'a> {
    /// Number of matched packets. In the table nat, this is the number of matched connections,
    /// because only the first packet of a connection passes this table.
    pub packets: u64,
    /// The rule without its counters.
    pub rule: RuleLine<'a>,
}

impl<'a> CountedRule<'a> {
    /// Parses a line without its line feed. Returns `None` if the line is not a rule with counters.
    pub fn parse(line: &'a str) -> Option<Self> {
        let (counts, rule) = line.strip_prefix('[')?.split_once("] ")?;
        let (packets, _) = counts.split_once(':')?;
        Some(Self {
            packets: packets.parse().ok()?,
            rule: RuleLine::parse(rule)?,
        })
    }
}

fn first(words: &str) -> &str {
    words.split(' ').next().unwrap_or_default()
}

/// A rule in the output of `iptables-save`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RuleLine<'a> {
    /// The whole rule as a line that begins with `-A`.
    pub text: &'a str,
    /// The chain that contains the rule.
    pub chain: &'a str,
}

impl<'a> RuleLine<'a> {
    /// Parses a line without its line feed. Returns `None` if the line is not a rule.
    pub fn parse(line: &'a str) -> Option<Self> {
        match Line::parse(line) {
            Some(Line::Rule(rule)) => Some(rule),
            _ => None,
        }
    }

    /// Returns the words of the rule without the texts of comments, which may look like options.
    pub fn options(&self) -> impl Iterator<Item = Cow<'a, str>> {
        let mut words = self.words();
        std::iter::from_fn(move || {
            let word = words.next()?;
            if word == COMMENT {
                words.next();
            }
            Some(word)
        })
    }

    /// Returns the rule's target, if any: a chain, or an action such as `ACCEPT`.
    pub fn target(&self) -> Option<Cow<'a, str>> {
        let mut options = self.options();
        options.find(|word| word == "-j" || word == "-g")?;
        options.next()
    }

    /// Returns the text of the rule's first comment, if any.
    pub fn comment(&self) -> Option<Cow<'a, str>> {
        let mut words = self.words();
        words.find(|word| word == COMMENT)?;
        words.next()
    }

    /// Reports whether the rule uses this ipset, in a match or in a target (`--map-set`).
    pub fn asks_set(&self, name: &str) -> bool {
        let mut options = self.options();
        while options.any(|word| word == "--match-set" || word == "--map-set") {
            if options.next().is_some_and(|set| set == name) {
                return true;
            }
        }
        false
    }

    /// Returns all words, including `-A` and the chain, as `iptables-restore` splits the line.
    pub fn words(&self) -> Words<'a> {
        Words { rest: self.text }
    }
}

const COMMENT: &str = "--comment";

/// Word that replaces the part of a rule that iptables cannot express.
pub(crate) const NATIVE: &str = "[nft]";

/// Words of a line. Quotation marks group characters into a word, and `\` escapes the next
/// character.
#[derive(Debug, Clone)]
pub struct Words<'a> {
    rest: &'a str,
}

impl<'a> Iterator for Words<'a> {
    type Item = Cow<'a, str>;

    fn next(&mut self) -> Option<Cow<'a, str>> {
        self.rest = self.rest.trim_start_matches(' ');
        if self.rest.is_empty() {
            return None;
        }
        // A search by bytes is sufficient: none of these bytes can be part of a multi-byte
        // character.
        let is_special = |byte: u8| matches!(byte, b' ' | b'"' | b'\\');
        let special = self.rest.bytes().position(is_special);
        let (word, after) = self.rest.split_at(special.unwrap_or(self.rest.len()));
        if after.is_empty() || after.starts_with(' ') {
            self.rest = after;
            return Some(Cow::Borrowed(word));
        }
        // Fast path for a quoted word without a special character.
        if let Some(quoted) = self.rest.strip_prefix('"')
            && let Some((word, after)) = quoted.split_once('"')
            && !word.contains('\\')
            && (after.is_empty() || after.starts_with(' '))
        {
            self.rest = after;
            return Some(Cow::Borrowed(word));
        }
        let (mut word, mut is_quoted) = (String::new(), false);
        let mut characters = self.rest.char_indices();
        let mut end = self.rest.len();
        while let Some((at, character)) = characters.next() {
            match character {
                '"' => is_quoted = !is_quoted,
                '\\' => word.extend(characters.next().map(|(_, next)| next)),
                ' ' if !is_quoted => {
                    end = at;
                    break;
                }
                character => word.push(character),
            }
        }
        self.rest = self.rest.get(end..).unwrap_or_default();
        Some(Cow::Owned(word))
    }
}

/// A reader of lines that adds the current table to each entry.
#[derive(Debug, Clone, Default)]
pub struct Reader {
    table: Option<Table>,
}

/// A chain or a rule of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry<'a> {
    /// A chain with this name.
    Chain(&'a str),
    /// A rule of a chain.
    Rule(RuleLine<'a>),
}

impl Reader {
    /// Reads a line without its line feed. Returns `None` in tables to which no kube-proxy writes,
    /// and for lines that contain no chain or rule.
    pub fn read<'a>(&mut self, line: &'a str) -> Option<(Table, Entry<'a>)> {
        let entry = match Line::parse(line)? {
            Line::Table(name) => {
                self.table = Table::find(name);
                return None;
            }
            Line::Commit => {
                self.table = None;
                return None;
            }
            Line::Chain(name) => Entry::Chain(name),
            Line::Rule(rule) => Entry::Rule(rule),
        };
        Some((self.table?, entry))
    }
}

/// Returns the chains that contain a rule which only nft can list, each with its table.
pub fn native_chains(saved: &str) -> BTreeSet<(&str, &str)> {
    let (mut chains, mut table) = (BTreeSet::new(), "");
    for line in saved.lines() {
        match Line::parse(line) {
            Some(Line::Table(name)) => table = name,
            Some(Line::Rule(rule))
                if rule.text.contains(NATIVE) && rule.options().any(|word| word == NATIVE) =>
            {
                chains.insert((table, rule.chain));
            }
            _ => {}
        }
    }
    chains
}

/// Returns all chains and rules in the output of `iptables-save`, each with its table.
pub fn entries(saved: &str) -> impl Iterator<Item = (Table, Entry<'_>)> {
    let mut reader = Reader::default();
    saved.lines().filter_map(move |line| reader.read(line))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn words(line: &str) -> Vec<Cow<'_, str>> {
        let rule = RuleLine {
            text: line,
            chain: "",
        };
        rule.words().collect()
    }

    #[test]
    fn rule_lines_are_split_into_unquoted_words_as_by_iptables_restore() {
        assert_eq!(
            words(r#"-A X --comment "a \"b\" -j c" "" -j D"#),
            ["-A", "X", "--comment", r#"a "b" -j c"#, "", "-j", "D"]
        );
        assert_eq!(words(r#" a"b c"d  \" "e "#), ["ab cd", "\"", "e "]);
    }

    #[test]
    fn options_within_a_comment_are_not_parsed() {
        let text = "-A X -m comment --comment -j -m set --match-set A dst -m comment --comment \"-j Y\" -g Z";
        let rule = RuleLine::parse(text).unwrap();
        assert_eq!(rule.chain, "X");
        assert_eq!(rule.target().as_deref(), Some("Z"));
        assert_eq!(rule.comment().as_deref(), Some("-j"));
        assert!(rule.asks_set("A") && !rule.asks_set("B"));
        let rule = RuleLine::parse("-A X -m set --match-set A dst -j SET --map-set B dst").unwrap();
        assert!(rule.asks_set("A") && rule.asks_set("B") && !rule.asks_set("dst"));
    }

    #[test]
    fn counters_before_a_rule_are_parsed() {
        let counted = CountedRule::parse("[12:720] -A A -j B").unwrap();
        assert_eq!(counted.packets, 12);
        assert_eq!(Some(counted.rule), RuleLine::parse("-A A -j B"));
        for other in [
            "",
            "-A A -j B",
            "[1:2]",
            "[1] -A A",
            "[-1:0] -A A",
            ":A - [0:0]",
        ] {
            assert_eq!(CountedRule::parse(other), None, "{other}");
        }
    }

    #[test]
    fn saved_chains_and_rules_are_read_with_their_table() {
        let saved = "# x\n*nat\n:A - [0:0]\n-A A -j B\nCOMMIT\n:C - [0:0]\n*raw\n:D - [0:0]\n*filter\n:E - [0:0]\n";
        let found: Vec<_> = entries(saved).collect();
        let rule = RuleLine::parse("-A A -j B").unwrap();
        assert_eq!(
            found,
            [
                (Table::Nat, Entry::Chain("A")),
                (Table::Nat, Entry::Rule(rule)),
                (Table::Filter, Entry::Chain("E"))
            ]
        );
    }

    #[test]
    fn chains_with_native_nft_rules_are_found() {
        let saved = "*nat\n-A A -j B\n-A P [nft] -j B\n-A P [nft]\nCOMMIT\n*raw\n-A Q [nft]\n\
             -A A -m comment --comment \"[nft]\" -j B\nCOMMIT\n";
        let chains: Vec<_> = native_chains(saved).into_iter().collect();
        assert_eq!(chains, [("nat", "P"), ("raw", "Q")]);
    }

    proptest! {
        #[test]
        fn arbitrary_text_never_panics_the_parser_of_saved_rules(saved in "(\\*nat\n|:KUBE-SVC-A - \\[0:0\\]\n|-A [A-Z \"\\\\ä-]*\n|.*\n){0,8}") {
            for (_, entry) in entries(&saved) {
                if let Entry::Rule(rule) = entry {
                    let _ = (rule.target(), rule.comment(), rule.asks_set("A"), rule.words().count());
                }
            }
            for line in saved.lines() {
                let _ = CountedRule::parse(line);
            }
        }
    }
}
