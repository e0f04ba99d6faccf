//! Makes recordings: cases whose files contain the kernel state that our daemon leaves.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::case::Case;
use crate::node::{Check, Node};
use crate::table::Table;

/// Runs the daemon with the objects of a case. Writes the kernel state that it leaves to a case
/// with the same name in `folder`.
pub(crate) fn record(node: &Node<'_>, case: &Case, folder: &Path) -> Result<()> {
    node.prepare(case)?;
    let (found, _) = node.serve(case, &case.phases, Check::Unasked, &|_, _| String::new())?;
    let name = case.folder.file_name().context("the case has no name")?;
    let folder = folder.join(name);
    fs::create_dir_all(&folder)?;
    for file in ["objects.yaml", "flags"] {
        // Copies the input of the case, unless the recording replaces the case itself: then
        // `objects.yaml` is a symbolic link, which must stay.
        if folder.canonicalize()? != case.folder && case.folder.join(file).exists() {
            fs::copy(case.folder.join(file), folder.join(file))?;
        }
    }
    for table in Table::all() {
        let file = folder.join(table.file());
        let lines = found.get(&table).map(|dump| table.recorded(dump));
        match lines.filter(|lines| !lines.is_empty() && table.is_recorded()) {
            Some(lines) => fs::write(&file, lines.join("\n") + "\n")
                .with_context(|| format!("cannot write {}", file.display()))?,
            None if file.exists() => fs::remove_file(&file)?,
            None => {}
        }
    }
    Ok(())
}
