//! The configuration that a pod was prepared for (`--prepared-config`), in a volume that lives as
//! long as the pod.
//!
//! A container that restarts in its pod, after a crash or for lack of memory, reads a ConfigMap
//! that may have changed. No init container runs before it. So changes that need a restart go on
//! waiting for the next pod. Fields that apply to a running kube-proxy have the file's values.

use std::fs;
use std::io;
use std::path::Path;

use super::{Configuration, ConfigurationError, read};

/// Stores a configuration in `file`, in place of an earlier one.
///
/// # Errors
///
/// The file cannot be written.
pub fn record(file: &Path, configuration: &Configuration) -> Result<(), ConfigurationError> {
    let text = configuration.tree().to_string();
    let aside = file.with_extension("new");
    fs::write(&aside, text)
        .and_then(|()| fs::rename(&aside, file))
        .map_err(|source| ConfigurationError::File {
            verb: "write",
            file: file.to_owned(),
            source,
        })
}

/// Returns the configuration stored in `file`, if any.
///
/// # Errors
///
/// The file cannot be read, or is no configuration.
pub fn prepared(file: &Path) -> Result<Option<Configuration>, ConfigurationError> {
    match read(file) {
        Ok((configuration, _)) => Ok(Some(configuration)),
        Err(ConfigurationError::File { source, .. })
            if source.kind() == io::ErrorKind::NotFound =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
