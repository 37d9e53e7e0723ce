//! The line that a mount prints.

use std::path::Path;

use crate::meta::ModelSummary;
use crate::model::Model;
use crate::text::{bytes, plural, printable};

/// What is mounted, and where.
pub(super) fn summary(model: &Model, mountpoint: &Path) -> String {
    let s = ModelSummary::of(model);
    let files = model.catalog.shards().count();
    let dtype = s
        .main_dtype()
        .map_or_else(String::new, |d| format!(", {d}"));
    let on_disk = model.catalog.shards().map(|f| f.len()).sum();
    let count = |n: usize, what: &str| match n {
        0 => String::new(),
        n => format!(" ({} {what})", plural(n as u64, "tensor")),
    };
    let absent = count(model.catalog.absent.len(), "missing")
        + &count(
            model.catalog.left_out.len(),
            "left out, see 'stfs ls --why'",
        );
    format!(
        "stfs: {}{absent}, {}{}, {}, {} at {}\n",
        plural(s.tensors, "tensor"),
        plural(s.parameters, "parameter"),
        printable(&dtype),
        plural(files as u64, "file"),
        bytes(on_disk),
        printable(&mountpoint.to_string_lossy())
    )
}
