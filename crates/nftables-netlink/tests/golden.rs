//! Recreates rulesets that upstream's kube-proxy has created with `nft`. Afterwards, the kernel
//! must return the same bytes, and `nft` must list the same text. Needs root and `nft` 1.0.6.

#![allow(clippy::restriction, reason = "a test stops at the first surprise")]

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use common::{FAMILIES, in_namespace, in_order, making, nft, read_all, run, timeless};
use netlink_batch::{Attribute, Attributes, Connection, Protocol};
use nftables_netlink::{Family, Nftables, TableDump};

/// Returns the paths of the ruleset files in `integration/golden/cases/nftables`. The environment
/// variable `NFTABLES_CASES` may name another directory.
fn files() -> Vec<PathBuf> {
    let of_repository = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../integration/golden/cases/nftables"
    );
    let folder = std::env::var_os("NFTABLES_CASES").map_or(of_repository.into(), PathBuf::from);
    let list = |folder: &Path| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder)
            .unwrap_or_else(|error| panic!("{}: {error}: no cases to test with", folder.display()));
        let mut found: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        found.sort();
        found
    };
    let cases = list(&folder).into_iter().filter(|path| path.is_dir());
    let files = cases.flat_map(|case| list(&case));
    files
        .filter(|file| {
            file.file_name()
                .unwrap()
                .to_str()
                .unwrap()
                .starts_with("nft-ip")
        })
        .collect()
}

/// Returns the kernel's tables, chains, sets, elements and rules as bytes, without handles, use
/// counts and generations. Replaces the names of anonymous sets by numbers, because the kernel and
/// this crate name these sets differently, and no program displays their names.
fn raw(nftables: &mut Nftables) -> BTreeMap<String, Vec<Vec<u8>>> {
    // Message types, each with the attributes that the comparison ignores. These attributes differ
    // between kernels, or are only padding.
    const TABLES: (u16, &[u16]) = (0x0a01, &[3, 4, 5]);
    const CHAINS: (u16, &[u16]) = (0x0a04, &[2, 6, 9]);
    const RULES: (u16, &[u16]) = (0x0a07, &[3, 6, 8]);
    const SETS: (u16, &[u16]) = (0x0a0a, &[14, 16]);
    const ELEMENTS: u16 = 0x0a0d;
    let mut connection = Connection::open(Protocol::Netfilter).unwrap();
    let mut held = BTreeMap::new();
    let mut sets = Vec::new();
    let mut anonymous = BTreeMap::new();
    for (what, (kind, volatile)) in [
        ("tables", TABLES),
        ("chains", CHAINS),
        ("sets", SETS),
        ("rules", RULES),
    ] {
        let dump = connection.dump(kind, 0, |w| w.bytes(&[0; 4])).unwrap();
        let mut all = Vec::new();
        for (_, payload) in dump.iter() {
            let mut kept = vec![payload[0]];
            let mut names = Vec::new();
            for attribute in Attributes::after(4, payload).unwrap() {
                let attribute = attribute.unwrap();
                if what == "sets" && attribute.kind <= 2 {
                    names.push(attribute.string().unwrap().to_owned());
                }
                if volatile.contains(&attribute.kind) {
                    continue;
                }
                match (what, attribute.kind) {
                    ("sets", 2) if names[1].starts_with("__") => {
                        let number = format!("{} {}", &names[1][..5], anonymous.len());
                        anonymous.insert((payload[0], names[1].clone()), number.clone());
                        write(&mut kept, 2, number.as_bytes());
                        names.push(number);
                    }
                    ("rules", 4) => expressions(&mut kept, attribute, &|name| {
                        anonymous.get(&(payload[0], name.to_owned()))
                    }),
                    (_, kind) => write(&mut kept, kind, attribute.payload),
                }
            }
            if what == "sets" {
                sets.push((payload[0], names));
            }
            all.push(kept);
        }
        held.insert(what.to_owned(), all);
    }
    for (family, names) in sets {
        let dump = connection
            .dump(ELEMENTS, 0, |w| {
                w.bytes(&[family, 0, 0, 0]);
                w.attr_str(1, &names[0]);
                w.attr_str(2, &names[1]);
            })
            .unwrap();
        let mut all = Vec::new();
        for (_, payload) in dump.iter() {
            for attribute in Attributes::after(4, payload).unwrap().flatten() {
                if attribute.kind == 3 {
                    all.extend(attribute.nested().map(|one| one.unwrap().payload.to_vec()));
                }
            }
        }
        // The kernel returns elements in hash order, with a random seed.
        all.sort();
        let shown = names.last().unwrap();
        held.insert(format!("{family} {} {shown}", names[0]), all);
    }
    assert_eq!(nftables.tables(None).unwrap().len(), held["tables"].len());
    held
}

fn write(to: &mut Vec<u8>, kind: u16, content: &[u8]) {
    to.extend(kind.to_ne_bytes());
    to.extend(u16::try_from(content.len()).unwrap().to_ne_bytes());
    to.extend(content);
}

/// Returns the expressions of a rule, with numbers in place of the names of anonymous sets.
fn expressions<'a>(
    kept: &mut Vec<u8>,
    all: Attribute<'_>,
    anonymous: &dyn Fn(&str) -> Option<&'a String>,
) {
    for one in all.nested() {
        for part in one.unwrap().nested() {
            let part = part.unwrap();
            if part.kind == 1 {
                write(kept, 1, part.payload);
                continue;
            }
            for field in part.nested() {
                let field = field.unwrap();
                let name = field.string().ok().and_then(anonymous);
                let content = name.map_or(field.payload, |number| number.as_bytes());
                write(kept, field.kind, content);
            }
        }
    }
}

/// nf_tables content of a network namespace: as the kernel's raw bytes, as `nft`'s text, and as
/// decoded tables.
struct NamespaceContent {
    raw: BTreeMap<String, Vec<Vec<u8>>>,
    text: Vec<String>,
    whole: Vec<TableDump>,
}

fn see(nftables: &mut Nftables) -> NamespaceContent {
    let whole = read_all(nftables);
    agrees_with_json(&whole);
    NamespaceContent {
        raw: raw(nftables),
        text: in_order(&nft(&["list", "ruleset"])),
        whole: whole.into_iter().map(timeless).collect(),
    }
}

/// Compares decoded tables with the names, numbers and handles that `nft -j` prints.
fn agrees_with_json(whole: &[TableDump]) {
    let json: serde_json::Value = serde_json::from_str(&nft(&["-j", "list", "ruleset"])).unwrap();
    let mut told = BTreeMap::<String, usize>::new();
    let mut count = |what: String| *told.entry(what).or_default() += 1;
    for object in json["nftables"].as_array().unwrap() {
        let (what, object) = object.as_object().unwrap().iter().next().unwrap();
        let text = |key: &str| object[key].as_str().unwrap_or_default().to_owned();
        let of = format!("{} {}", text("family"), text("table"));
        match what.as_str() {
            "metainfo" => {}
            "table" => count(format!("table {} {}", text("family"), text("name"))),
            "chain" => count(format!(
                "chain {of} {} {} {} {}",
                text("name"),
                text("type"),
                text("hook"),
                object
                    .get("prio")
                    .map_or(0, |priority| priority.as_i64().unwrap()),
            )),
            "set" | "map" => count(format!(
                "{what} {of} {} {} {} {}",
                text("name"),
                object["handle"],
                text("comment"),
                object
                    .get("elem")
                    .map_or(0, |all| all.as_array().unwrap().len()),
            )),
            "rule" => count(format!(
                "rule {of} {} {} {}",
                text("chain"),
                object["handle"],
                text("comment"),
            )),
            other => panic!("{other}"),
        }
    }
    let mut read = BTreeMap::<String, usize>::new();
    let mut count = |what: String| *read.entry(what).or_default() += 1;
    for whole in whole {
        let table = whole.table.as_ref().unwrap();
        let family = match table.family {
            Family::Ip => "ip",
            Family::Ip6 => "ip6",
            Family::Inet => "inet",
            other => panic!("{other:?}"),
        };
        let of = format!("{family} {}", table.name);
        count(format!("table {of}"));
        for chain in &whole.chains {
            let (kind, hook, priority) = chain.base.map_or_else(Default::default, |base| {
                let lower = |text: String| text.to_lowercase();
                (
                    lower(format!("{:?}", base.kind)),
                    lower(format!("{:?}", base.hook)),
                    base.priority,
                )
            });
            count(format!(
                "chain {of} {} {kind} {hook} {priority}",
                chain.name
            ));
        }
        for (set, elements) in &whole.sets {
            let what = if set.set.kind == nftables_netlink::SetKind::Set {
                "set"
            } else {
                "map"
            };
            let comment = set.set.comment.as_deref().unwrap_or_default();
            let elements = elements.iter().filter(|element| !element.ends_interval);
            count(format!(
                "{what} {of} {} {} {comment} {}",
                set.set.name,
                set.handle,
                elements.count(),
            ));
        }
        for rule in &whole.rules {
            let comment = rule.rule.comment.as_deref().unwrap_or_default();
            count(format!(
                "rule {of} {} {} {comment}",
                rule.chain, rule.handle
            ));
        }
    }
    assert_eq!(read, told);
}

/// Loads a file with `nft`, and checks that this crate can recreate its tables in another
/// namespace.
fn same_in_another_namespace(file: &Path) {
    let path = file.to_str().unwrap().to_owned();
    let theirs = in_namespace(move |mut nftables| {
        nft(&["-f", &path]);
        (see(&mut nftables), read_all(&mut nftables))
    });
    let (theirs, whole) = theirs;
    let ours = in_namespace(move |mut nftables| {
        for whole in whole {
            nftables.commit(&making(whole), None).unwrap();
        }
        see(&mut nftables)
    });
    let place = file.display();
    assert_eq!(ours.text, theirs.text, "{place}");
    assert_eq!(ours.whole, theirs.whole, "{place}");
    for (what, theirs) in &theirs.raw {
        let ours = ours
            .raw
            .get(what)
            .unwrap_or_else(|| panic!("{place}: no {what}"));
        for (ours, theirs) in ours.iter().zip(theirs) {
            assert_eq!(
                String::from_utf8_lossy(ours),
                String::from_utf8_lossy(theirs),
                "{place}: {what}"
            );
            assert_eq!(ours, theirs, "{place}: {what}");
        }
        assert_eq!(ours.len(), theirs.len(), "{place}: {what}");
    }
    assert_eq!(ours.raw.len(), theirs.raw.len(), "{place}");
    assert!(FAMILIES.iter().any(|family| {
        let mut families = theirs.whole.iter().flat_map(|whole| &whole.table);
        families.any(|table| table.family == *family)
    }));
}

#[test]
fn a_copy_of_each_upstream_ruleset_equals_the_original() {
    let files = files();
    assert!(files.len() > 40, "{}", files.len());
    for file in files {
        same_in_another_namespace(&file);
    }
}

#[test]
fn a_copy_of_each_expression_and_object_equals_the_original() {
    same_in_another_namespace(Path::new(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/data/all.nft"
    )));
}

/// Compares the listings by the installed `nft`, or by each program in `NFTS` (paths, separated by
/// spaces).
#[test]
fn each_nft_version_lists_the_same_ruleset() {
    let programs = std::env::var("NFTS").unwrap_or_else(|_| "nft".to_owned());
    let each = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/all.nft");
    let mut files = files();
    files.push(each.into());
    let mut faults = Vec::new();
    for program in programs.split_whitespace() {
        for loader in ["nft", program] {
            for file in &files {
                let (program, loader) = (program.to_owned(), loader.to_owned());
                faults.extend(listed_alike(program, loader, file));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Compares two listings that `program` prints: one after `loader` has loaded the file, and one
/// after this crate has created the same tables. Returns the difference, or `None` if both listings
/// are equal.
fn listed_alike(program: String, loader: String, file: &Path) -> Option<String> {
    let what = format!("{program} lists what {loader} loads: {}", file.display());
    let path = file.to_str().unwrap().to_owned();
    let list = program.clone();
    let loaded = in_namespace(move |mut nftables| {
        if std::process::Command::new(loader)
            .args(["-f", &path])
            .output()
            .is_ok_and(|output| output.status.success())
        {
            let text = in_order(&run(&list, &["list", "ruleset"]));
            Some((text, read_all(&mut nftables)))
        } else {
            None
        }
    });
    let Some((theirs, whole)) = loaded else {
        return Some(format!("{what}: it does not load"));
    };
    let ours = in_namespace(move |mut nftables| {
        for whole in whole {
            nftables.commit(&making(whole), None).unwrap();
        }
        in_order(&run(&program, &["list", "ruleset"]))
    });
    let mut lines = ours
        .iter()
        .zip(&theirs)
        .filter(|(ours, theirs)| ours != theirs);
    lines
        .next()
        .map(|(ours, theirs)| format!("{what}:\n  ours   {ours}\n  theirs {theirs}"))
}
