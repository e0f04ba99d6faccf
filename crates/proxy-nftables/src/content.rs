//! Digests of chains' rules. The mode stores only digests, because the rules of a chain with 50
//! endpoints need some kilobytes. It builds the rules themselves only to write them.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use nftables_netlink::{AnonymousSet, Element, Expression, LookupFor, Rule, SetRef};

/// Digest of a chain's rules. Different rules have the same digest only with a probability of 2⁻⁶⁴.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Content {
    /// Number of rules that were added to the digest.
    pub rules: u32,
    digest: u64,
}

impl Content {
    /// Returns the digest of `rules`, which depends on their order.
    pub fn of<'a>(rules: impl IntoIterator<Item = &'a Rule>) -> Self {
        let mut content = Self::default();
        for rule in rules {
            content.add(rule);
        }
        content
    }

    /// Adds the chain's next rule to the digest.
    pub fn add(&mut self, rule: &Rule) {
        let mut hasher = DefaultHasher::new();
        self.digest.hash(&mut hasher);
        rule.comment.hash(&mut hasher);
        for expression in &rule.expressions {
            add_expression(expression, &mut hasher);
        }
        self.digest = hasher.finish();
        self.rules = self.rules.saturating_add(1);
    }
}

fn add_expression(expression: &Expression, hasher: &mut DefaultHasher) {
    if let Expression::Lookup {
        key,
        set: SetRef::Anonymous(set),
        what,
    } = expression
    {
        // Ignores the anonymous set's types, which only listings show, and the order of its
        // elements, which has no effect.
        (key, what as &LookupFor).hash(hasher);
        add_set(set, hasher);
    } else {
        expression.hash(hasher);
    }
}

fn add_set(set: &AnonymousSet, hasher: &mut DefaultHasher) {
    let mut elements: Vec<&Element> = set.elements.iter().collect();
    elements.sort_unstable_by(|a, b| (&a.key, a.ends_interval).cmp(&(&b.key, b.ends_interval)));
    set.intervals.hash(hasher);
    for element in elements {
        (&element.key, element.ends_interval, &element.data).hash(hasher);
    }
}

#[cfg(test)]
mod tests {
    use proxy::{IpFamily, Protocol};

    use super::*;
    use kube_rules::nft::Line;

    #[test]
    fn chains_with_different_rules_have_different_digests() {
        let line = || Line::new(IpFamily::V4);
        let endpoints = |hosts: &[u8]| {
            let hosts = hosts.iter().map(|host| ([10, 0, 0, *host], 80).into());
            let hosts: Vec<_> = hosts.collect();
            line()
                .protocol(Protocol::Tcp)
                .translate_to_one_of(hosts.into_iter())
                .rule()
        };
        let one = Content::of(&[endpoints(&[1, 2])]);
        assert_eq!(one, Content::of(&[endpoints(&[1, 2])]));
        assert_ne!(one, Content::of(&[endpoints(&[2, 1])]));
        assert_ne!(
            one,
            Content::of(&[endpoints(&[1, 2]), line().drop().rule()])
        );
        let [said, other] = ["said", "other"].map(|why| Content::of(&[line().drop().comment(why)]));
        assert_ne!(said, other);
    }

    #[test]
    fn the_order_of_a_sets_elements_does_not_change_the_digest() {
        let rule = Line::new(IpFamily::V4).goto_one_of(["a".into(), "b".into()].into_iter());
        let rule = rule.rule();
        let mut other = rule.clone();
        let Some(Expression::Lookup { set, .. }) = other.expressions.last_mut() else {
            unreachable!("it looks up");
        };
        if let SetRef::Anonymous(map) = set {
            std::sync::Arc::make_mut(map).elements.reverse();
        }
        assert_ne!(rule, other);
        assert_eq!(Content::of(&[rule]), Content::of(&[other]));
    }
}
