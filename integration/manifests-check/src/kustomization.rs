//! Builds the objects of a directory, as `kustomize build` does.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use crate::merge::merge;

/// Reason why a directory cannot be built.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are what the messages say")]
pub enum BuildError {
    #[error("cannot read {path}: {source}")]
    Read {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("{path} is no YAML, or not what is expected there: {source}")]
    Yaml {
        path: PathBuf,
        source: Box<serde_saphyr::Error>,
    },
    #[error("{path} patches {target}, which is in none of the resources")]
    NoTarget { path: PathBuf, target: String },
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Kustomization {
    #[serde(rename = "apiVersion")]
    _api_version: ApiVersion,
    #[serde(rename = "kind")]
    _kind: Kind,
    resources: Vec<PathBuf>,
    #[serde(default)]
    patches: Vec<Patch>,
}

#[derive(Deserialize)]
enum ApiVersion {
    #[serde(rename = "kustomize.config.k8s.io/v1beta1")]
    V1Beta1,
}

#[derive(Deserialize)]
enum Kind {
    Kustomization,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Patch {
    path: PathBuf,
}

/// Returns the objects of a directory with a `kustomization.yaml`, with its patches applied.
pub fn build(folder: &Path) -> Result<Vec<Value>, BuildError> {
    let path = folder.join("kustomization.yaml");
    let kustomization: Kustomization =
        serde_saphyr::from_str(&text(&path)?).map_err(|source| yaml(&path, source))?;
    let mut objects = Vec::new();
    for resource in &kustomization.resources {
        let resource = folder.join(resource);
        objects.extend(if resource.is_dir() {
            build(&resource)?
        } else {
            read(&resource)?
        });
    }
    for patch in &kustomization.patches {
        let path = folder.join(&patch.path);
        for patch in read(&path)? {
            let target = identity(&patch);
            let object = objects
                .iter_mut()
                .find(|object| identity(object) == target)
                .ok_or(BuildError::NoTarget {
                    path: path.clone(),
                    target,
                })?;
            merge(object, &patch);
        }
    }
    Ok(objects)
}

/// Returns the documents of a YAML file.
pub fn read(path: &Path) -> Result<Vec<Value>, BuildError> {
    serde_saphyr::from_multiple(&text(path)?).map_err(|source| yaml(path, source))
}

/// Returns the API version, kind, namespace and name, by which a patch finds its target.
fn identity(object: &Value) -> String {
    [
        "/apiVersion",
        "/kind",
        "/metadata/namespace",
        "/metadata/name",
    ]
    .map(|path| {
        object
            .pointer(path)
            .and_then(Value::as_str)
            .unwrap_or_default()
    })
    .join(" ")
}

fn text(path: &Path) -> Result<String, BuildError> {
    fs::read_to_string(path).map_err(|source| BuildError::Read {
        path: path.to_owned(),
        source,
    })
}

fn yaml(path: &Path, source: serde_saphyr::Error) -> BuildError {
    BuildError::Yaml {
        path: path.to_owned(),
        source: Box::new(source),
    }
}
