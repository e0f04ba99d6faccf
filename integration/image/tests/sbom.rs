//! Tests the archive's software bill of materials: its SPDX 2.3 format, and its agreement with the
//! image.
#![allow(clippy::indexing_slicing, clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;

use image::Flavour;
use serde_json::Value;

fn sbom() -> Value {
    let file = image::archive(Flavour::Debian)
        .unwrap()
        .with_extension("spdx.json");
    serde_json::from_slice(&fs::read(file).unwrap()).unwrap()
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value[field].as_array().map(Vec::as_slice).unwrap()
}

/// The SBOM and its packages must have all required fields, and every reference must have a target.
#[test]
fn the_sbom_is_a_valid_spdx_document() {
    let sbom = sbom();
    assert_eq!(text(&sbom, "spdxVersion"), "SPDX-2.3");
    assert_eq!(text(&sbom, "dataLicense"), "CC0-1.0");
    assert_eq!(text(&sbom, "SPDXID"), "SPDXRef-DOCUMENT");
    assert!(text(&sbom, "documentNamespace").starts_with("https://spdx.org/spdxdocs/"));
    assert!(text(&sbom["creationInfo"], "created").ends_with('Z'));
    assert!(!list(&sbom["creationInfo"], "creators").is_empty());
    let mut ids = BTreeSet::from(["SPDXRef-DOCUMENT"]);
    for package in list(&sbom, "packages") {
        let id = text(package, "SPDXID");
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '-';
        assert!(
            id.starts_with("SPDXRef-") && id.chars().all(is_plain),
            "{id}"
        );
        assert!(ids.insert(id), "{id} twice");
        for field in [
            "name",
            "versionInfo",
            "downloadLocation",
            "licenseDeclared",
            "copyrightText",
        ] {
            assert_ne!(text(package, field), "", "{field} of {id}");
        }
        assert!(!text(package, "licenseDeclared").contains('/'), "{id}");
    }
    for relation in list(&sbom, "relationships") {
        for end in ["spdxElementId", "relatedSpdxElement"] {
            assert!(ids.contains(text(relation, end)), "{relation}");
        }
    }
}

#[test]
fn the_sbom_lists_only_packages_and_linked_crates() {
    let sbom = sbom();
    let of_kind = |kind: &str| -> BTreeSet<String> {
        let packages = list(&sbom, "packages").iter();
        packages
            .filter(|package| text(package, "SPDXID").starts_with(kind))
            .map(|package| text(package, "name").to_owned())
            .collect()
    };
    let debs = of_kind("SPDXRef-deb-");
    for name in [
        "iptables",
        "kmod",
        "libc6",
        "libgcc-s1",
        "libxtables12",
        "netbase",
    ] {
        assert!(debs.contains(name), "{name}: {debs:?}");
    }
    assert!(!debs.contains("dash") && !debs.contains("dpkg"), "{debs:?}");
    let crates = of_kind("SPDXRef-crate-");
    for name in [
        "tokio",
        "rustls",
        "kube-client",
        "ipvs-netlink",
        "proxy-ipvs",
    ] {
        assert!(crates.contains(name), "{name}: {crates:?}");
    }
    // The SBOM must omit procedural macros, and dependencies of build scripts and tests: the
    // program does not contain them.
    for name in ["syn", "serde_derive", "cc", "proptest", "apiserver"] {
        assert!(!crates.contains(name), "{name}");
    }
    for package in list(&sbom, "packages") {
        let purl = text(&package["externalRefs"][0], "referenceLocator");
        let is_published = purl.starts_with("pkg:deb/") || purl.starts_with("pkg:cargo/");
        assert!(
            !is_published || package["checksums"][0]["checksumValue"].is_string(),
            "{package}"
        );
    }
}
