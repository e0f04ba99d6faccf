# The bill of materials, SPDX 2.3: the image contains Debian's packages and kube-proxy, which has crates and Rust's standard
# library linked into it. (Debian's packages were unpacked without their scripts, and without most of their documentation.)

def id: "SPDXRef-" + gsub("[^A-Za-z0-9.-]"; "-");
def lines: split("\n") | map(select(. != "") | split(" "));
def package($id; $name; $version; $license; $purl; $sha256): {
  SPDXID: $id, name: $name, versionInfo: $version, downloadLocation: "NOASSERTION", filesAnalyzed: false,
  licenseConcluded: "NOASSERTION", licenseDeclared: $license, copyrightText: "NOASSERTION"}
  + (if $sha256 then {checksums: [{algorithm: "SHA256", checksumValue: $sha256}]} else {} end)
  + (if $purl then {externalRefs: [{referenceCategory: "PACKAGE-MANAGER", referenceType: "purl", referenceLocator: $purl}]} else {} end);
def relation($from; $type; $to): {spdxElementId: $from, relationshipType: $type, relatedSpdxElement: $to};

($checksums | lines | map({key: "\(.[0]) \(.[1])", value: .[2]}) | from_entries) as $checksum
| ($metadata | map({key: "\(.name) \(.version)", value: .}) | from_entries) as $known
| ($debs | map(
    package("deb-\(.Package)" | id; .Package; .Version; "NOASSERTION";
      "pkg:deb/debian/\(.Package | @uri)@\(.Version | @uri)?arch=\(.Architecture)&distro=\($distro)"; .sha256)
    + {supplier: "Organization: Debian", sourceInfo: "built from the Debian source package \(.Source // .Package)",
       licenseComments: "see /usr/share/doc/\(.Package)/copyright in the image"})) as $deb
| ($crates | lines | map(select(.[0] != "kube-proxy")
    | "\(.[0]) \(.[1])" as $key | .[0] as $crate | .[1] as $number | $known[$key] as $meta
    | package("crate-\($crate)-\($number)" | id; $crate; $number; ($meta.license // "NOASSERTION" | gsub(" ?/ ?"; " OR "));
        (if $meta.source then "pkg:cargo/\($crate | @uri)@\($number | @uri)" else null end); $checksum[$key]))
  + [package("SPDXRef-rust-std"; "rust-std"; $rustc; "MIT OR Apache-2.0"; null; null)]
  + (if $libc == "" then [] else [package("SPDXRef-glibc"; "glibc"; $libc; "LGPL-2.1-or-later"; null; null)] end)) as $crate
| (package("SPDXRef-image"; $name; $version; "NOASSERTION"; "pkg:oci/\($name)?arch=\($arch)&tag=\($version)"; null)
  + {primaryPackagePurpose: "CONTAINER"}) as $image
| (package("SPDXRef-kube-proxy"; "kube-proxy"; $version | ltrimstr("v"); "Apache-2.0"; null; $sha256)
  + {primaryPackagePurpose: "APPLICATION", comment: "/usr/local/bin/kube-proxy"}) as $program
| {
  spdxVersion: "SPDX-2.3", dataLicense: "CC0-1.0", SPDXID: "SPDXRef-DOCUMENT", name: "\($name)-\($version)",
  documentNamespace: "https://spdx.org/spdxdocs/\($name)-\($version)-",
  creationInfo: {created: $created, creators: ["Tool: kube-proxy-ipvs-image-build"]},
  packages: ([$image, $program] + $deb + $crate),
  relationships: (
    [relation("SPDXRef-DOCUMENT"; "DESCRIBES"; "SPDXRef-image")]
    + [relation("SPDXRef-image"; "CONTAINS"; ("SPDXRef-kube-proxy", $deb[].SPDXID))]
    + [relation($crate[].SPDXID; "STATIC_LINK"; "SPDXRef-kube-proxy")])}
