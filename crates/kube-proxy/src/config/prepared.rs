//! What a pod was prepared for (`--prepared-config`): the configuration as it was when the pod
//! began, in a volume that lives and ends with the pod.
//!
//! A container that is started again in its pod, after a crash or for want of memory, reads a
//! ConfigMap that may have changed meanwhile, and no init container runs before it. So what takes a
//! new start goes on waiting for the next pod. Fields that are applied while kube-proxy runs are
//! those of the file, as ever.

use std::fs;
use std::io;
use std::path::Path;

use super::{Configuration, ConfigurationError, read};

/// Keeps a configuration in `file`, in place of what was there.
///
/// # Errors
///
/// It cannot be written.
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

/// What was kept in `file`, if anything was.
///
/// # Errors
///
/// It cannot be read, or is no configuration.
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
