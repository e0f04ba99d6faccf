//! Compares the strict fake with real iptables: both must accept or refuse the same restores, and
//! then have the same rules.
#![allow(clippy::restriction, reason = "a test stops at the first surprise")]

use std::fmt::Write as _;

use chance::Chance;
use iptables::{Backend, Iptables, Kind};
use namespace::in_namespace;
use proxy::IpFamily;
use proxy_iptables::fake::FakeKernel;
use proxy_iptables::{IptablesKernel, Kernel, Table};

/// Number of random restores that the test applies one after another.
const RESTORES: usize = 60;

/// A generator of random restores.
struct Restores(Chance);

impl Restores {
    /// Returns a rule in the format of `iptables-save`. Jumps lead only to chains with higher
    /// numbers, so that no loop exists.
    fn rule(&mut self, family: IpFamily) -> String {
        let chain = self.0.small(4);
        let name = if self.0.small(6) == 0 {
            "OUTPUT".to_owned()
        } else {
            format!("KUBE-{chain}")
        };
        let source = match family {
            IpFamily::V4 => format!("10.0.0.{}/32", self.0.small(3)),
            IpFamily::V6 => format!("fd00::{:x}/128", 1 + self.0.small(3)),
        };
        let to = chain + 1 + self.0.small(3);
        match self.0.small(3) {
            0 => format!("{name} -s {source} -j RETURN"),
            _ => format!("{name} -s {source} -j KUBE-{to}"),
        }
    }

    fn command(&mut self, family: IpFamily) -> String {
        match self.0.small(12) {
            0..4 => format!(":KUBE-{} - [0:0]", self.0.small(5)),
            4..8 => format!("-A {}", self.rule(family)),
            8 => format!("-I {}", self.rule(family)),
            9 => format!("-D {}", self.rule(family)),
            _ => format!("-X KUBE-{}", self.0.small(5)),
        }
    }

    /// Returns a restore that declares all chains first, as the mode does.
    fn restore(&mut self, family: IpFamily) -> String {
        let mut text = String::new();
        for table in ["filter", "nat"] {
            if self.0.small(3) == 0 {
                continue;
            }
            let mut commands: Vec<String> = (0..=self.0.small(5))
                .map(|_| self.command(family))
                .collect();
            commands.sort_by_key(|command| !command.starts_with(':'));
            let _ = writeln!(text, "*{table}\n{}\nCOMMIT", commands.join("\n"));
        }
        text
    }
}

/// Returns true if the kernel accepts the restore, and false if it refuses the restore. Panics on
/// any other error.
fn taken(kernel: &mut impl Kernel, text: &str) -> bool {
    let done = kernel.restore(&mut |to| to.write_all(text.as_bytes()));
    match done {
        Ok(()) => true,
        // The programs' messages do not distinguish a refused rule from a missing module.
        Err(refusal) if matches!(refusal.kind, Kind::Refused | Kind::NoModule) => false,
        Err(refusal) => panic!("{text}: {refusal:?}"),
    }
}

/// Returns the chains and rules of the tables filter and nat.
fn held(kernel: &mut impl Kernel) -> Vec<String> {
    let mut held = Vec::new();
    for table in [Table::Filter, Table::Nat] {
        let mut lines = Vec::new();
        let told = kernel.save(Some(table), &mut |line| {
            let of = line.split(' ').next().unwrap_or_default();
            match line.as_bytes().first() {
                Some(b':') if of.starts_with(":KUBE") => lines.push(of.to_owned()),
                Some(b'-') => lines.push(line.to_owned()),
                _ => {}
            }
        });
        told.unwrap();
        // Some iptables programs sort chains by name, and some sort them by creation. All iptables
        // programs keep the order of a chain's rules.
        lines.sort_by_key(|line| line.split(' ').take(2).collect::<String>());
        held.push(format!("{table:?}: {lines:#?}"));
    }
    held
}

fn compare(family: IpFamily, backend: Backend) {
    let Ok(iptables) = Iptables::choose(Some(backend)) else {
        eprintln!("{backend:?} does not work here");
        return;
    };
    if iptables.check(family).is_err() {
        eprintln!("{backend:?} does not work here for {family}");
        return;
    }
    let mut kernel = IptablesKernel::new(family, iptables);
    let mut fake = FakeKernel::new(&[]);
    let mut restores = Restores(Chance::new(1));
    let (mut refused, mut differences) = (0, Vec::new());
    for at in 0..RESTORES {
        let text = restores.restore(family);
        let (pretended, real) = (taken(&mut fake, &text), taken(&mut kernel, &text));
        refused += usize::from(!real);
        if pretended != real {
            differences.push(format!(
                "{at}: the fake {pretended}, iptables {real}:\n{text}"
            ));
        }
        let there = held(&mut kernel);
        if held(&mut fake) != there {
            differences.push(format!("{at}: {:?}, {there:?}:\n{text}", held(&mut fake)));
        }
        if !differences.is_empty() {
            break;
        }
    }
    assert!(
        differences.is_empty(),
        "{backend:?} {family}: {}",
        differences.join("\n")
    );
    // The test proves little unless the kernel refuses at least a fifth of the restores, and
    // accepts some.
    assert!((RESTORES / 5..RESTORES).contains(&refused), "{refused}");
}

#[test]
#[ignore = "needs iptables, and the right to make network namespaces"]
fn the_fake_and_iptables_refuse_the_same_restores_and_end_with_the_same_rules() {
    for family in IpFamily::ALL {
        for backend in [Backend::Nft, Backend::Legacy] {
            in_namespace(|| compare(family, backend));
        }
    }
}
