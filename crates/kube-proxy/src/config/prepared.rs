//! Stores the configuration for which a pod was prepared (`--prepared-config`). The file is in a
//! volume with the lifetime of the pod.
//!
//! A container may restart within its pod, after a crash or when its memory is exhausted. The
//! ConfigMap may have changed since the pod's start, but no init container runs again. So:
//!
//! - fields that need a new pod keep their stored values;
//! - all other fields take the values of the configuration file.

use std::fs;
use std::io;
use std::path::Path;

use super::{Configuration, ConfigurationError, read};

/// Stores a configuration in `file`. Replaces the configuration that the file contains, if any.
///
/// # Errors
///
/// Fails if the file cannot be written.
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

/// Returns the configuration stored in `file`, or `None` if the file does not exist.
///
/// # Errors
///
/// Fails if the file cannot be read, or if its content is not a configuration.
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
