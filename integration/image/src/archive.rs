//! Reads an OCI archive as a container engine does: index, manifest, config, layers. Checks each
//! blob against its digest.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

/// Flavour of the image. `image/build` builds a flavour by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flavour {
    /// Image with Debian packages and the daemon. The environment variable `IMAGE` may name another
    /// archive to test.
    Debian,
    /// Image with only the daemon, without Debian packages.
    Nftables,
}

/// Returns the path of the image archive for these tests.
///
/// # Errors
/// Fails if there is no such archive.
pub fn archive(flavour: Flavour) -> Result<PathBuf> {
    if let (Flavour::Debian, Some(path)) = (flavour, std::env::var_os("IMAGE")) {
        return Ok(path.into());
    }
    let exe = std::env::current_exe().context("cannot find this program's own file")?;
    let target = exe
        .parent()
        .and_then(Path::parent)
        .context("this program's file is in no target directory")?;
    let suffix = match flavour {
        Flavour::Debian => "",
        Flavour::Nftables => "-nftables",
    };
    let name = format!("kube-proxy-ipvs-v{}{suffix}.tar", env!("CARGO_PKG_VERSION"));
    let file = target.join("image").join(name);
    ensure!(
        file.is_file(),
        "there is no {}: run `integration/test image`",
        file.display()
    );
    Ok(file)
}

/// A container image whose root file system is unpacked into a directory.
#[derive(Debug, Clone)]
pub struct Image {
    /// Names of the image, from the index.
    pub names: Vec<String>,
    /// The image's config (OCI image specification, `config.md`).
    pub config: Value,
    /// Directory with the root file system.
    pub root: PathBuf,
}

impl Image {
    /// Unpacks an OCI archive into subdirectories of `folder`. Needs root, because the files get
    /// the owners that the layers name.
    pub fn unpack(archive: &Path, folder: &Path) -> Result<Self> {
        let (layout, root) = (folder.join("layout"), folder.join("root"));
        for folder in [&layout, &root] {
            fs::create_dir_all(folder)?;
        }
        tar(&["-xf".as_ref(), archive, "-C".as_ref(), &layout])?;
        let index: Value = serde_json::from_slice(&fs::read(layout.join("index.json"))?)?;
        let manifests = list(&index, "/manifests");
        ensure!(manifests.len() == 1, "not one image: {index}");
        let descriptor = manifests.first().context("no manifest")?;
        let annotations = descriptor
            .pointer("/annotations")
            .and_then(Value::as_object)
            .context("the image has no names")?;
        let manifest: Value = serde_json::from_slice(&fs::read(blob(&layout, descriptor)?)?)?;
        let config_blob = blob(&layout, manifest.pointer("/config").context("no config")?)?;
        let config: Value = serde_json::from_slice(&fs::read(config_blob)?)?;
        let layers = list(&manifest, "/layers");
        let unpacked = list(&config, "/rootfs/diff_ids");
        ensure!(layers.len() == unpacked.len(), "{manifest}\n{config}");
        for (layer, diff_id) in layers.iter().zip(unpacked) {
            let (layer, plain) = (blob(&layout, layer)?, layout.join("layer.tar"));
            let gunzipped = Command::new("gzip").arg("-dc").arg(&layer).output()?;
            ensure!(
                gunzipped.status.success(),
                "{} is not gzip",
                layer.display()
            );
            fs::write(&plain, gunzipped.stdout)?;
            ensure!(
                Some(sha256(&plain)?.as_str()) == diff_id.as_str(),
                "{}",
                layer.display()
            );
            tar(&["-xpf".as_ref(), &plain, "-C".as_ref(), &root])?;
        }
        Ok(Self {
            names: annotations
                .values()
                .filter_map(|name| Some(name.as_str()?.to_owned()))
                .collect(),
            config,
            root,
        })
    }

    /// Returns the strings in the config's list at a JSON pointer, or no strings if the list is
    /// missing.
    pub(crate) fn strings(&self, pointer: &str) -> Vec<String> {
        list(&self.config, pointer)
            .iter()
            .filter_map(|one| Some(one.as_str()?.to_owned()))
            .collect()
    }
}

fn list<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value
        .pointer(pointer)
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default()
}

/// Returns the file of a descriptor's blob, after checks of its size and digest.
fn blob(layout: &Path, descriptor: &Value) -> Result<PathBuf> {
    let digest = descriptor.pointer("/digest").and_then(Value::as_str);
    let digest = digest.with_context(|| format!("no digest: {descriptor}"))?;
    let hex = digest.strip_prefix("sha256:").context("not SHA-256")?;
    let file = layout.join("blobs/sha256").join(hex);
    let size = fs::metadata(&file)
        .with_context(|| format!("no blob {digest}"))?
        .len();
    ensure!(
        descriptor.pointer("/size").and_then(Value::as_u64) == Some(size),
        "{descriptor}: it has {size} bytes"
    );
    ensure!(sha256(&file)? == digest, "{digest} is something else");
    Ok(file)
}

fn sha256(file: &Path) -> Result<String> {
    let output = Command::new("sha256sum").arg(file).output()?;
    let text = String::from_utf8(output.stdout)?;
    let hex = text.split(' ').next().unwrap_or_default();
    Ok(format!("sha256:{hex}"))
}

fn tar(arguments: &[&Path]) -> Result<()> {
    let output = Command::new("tar").args(arguments).output()?;
    ensure!(
        output.status.success(),
        "tar: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}
