//! Checksum files: what `sha256sum -c` reads with the mountpoint as its working directory.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::Path;

use anyhow::{Context, Result};
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use sha2::{Digest, Sha256};

use super::super::progress::Progress;
use super::{Naming, file_of};
use crate::catalog::Problem;
use crate::model::{Model, TensorId};
use crate::parallel;
use crate::view::View;

/// Bytes hashed at a time.
const PIECE: u64 = 1 << 20;

/// Writes the checksums of all stored tensors, all at once: a run that is interrupted leaves no
/// file behind.
pub(super) fn write(model: &Model, path: &Path) -> Result<()> {
    let mut text = String::new();
    for (id, hash) in hashes(model, &all(model))? {
        text.push_str(&line(&hash, &path_of(model, id)));
    }
    let doing = || format!("write {}", path.display());
    match unnamed_beside(path) {
        Some(mut file) => {
            file.write_all(text.as_bytes()).with_context(doing)?;
            let unnamed = format!("/proc/self/fd/{}", file.as_raw_fd());
            rustix::fs::linkat(CWD, unnamed, CWD, path, AtFlags::SYMLINK_FOLLOW)
                .map_err(std::io::Error::from)
                .with_context(doing)
        }
        // Not every file system supports unnamed files.
        None => fs::write(path, text).with_context(doing),
    }
}

/// An unnamed file in the directory of `path`, if the file system supports that.
fn unnamed_beside(path: &Path) -> Option<File> {
    let dir = match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(0o666);
    rustix::fs::open(dir, flags, mode).ok().map(File::from)
}

/// Refuses anything that exists and is not a regular file: reading a pipe or a terminal could wait forever.
pub(super) fn check_place(path: &Path) -> Result<()> {
    match fs::metadata(path) {
        Ok(found) if !found.is_file() => anyhow::bail!(
            "--checksum {}: is not a regular file; name a checksum file to compare with, or a new one to write",
            path.display()
        ),
        _ => Ok(()),
    }
}

/// Compares the stored tensors with a checksum file.
pub(super) fn compare(model: &Model, path: &Path) -> Result<Vec<Problem>> {
    let text = fs::read(path).with_context(|| format!("read {}", path.display()))?;
    let file = path.display().to_string();
    let mut problems = Vec::new();
    let mut expected: BTreeMap<String, String> = BTreeMap::new();
    for (i, line) in text.split(|&b| b == b'\n').enumerate() {
        match std::str::from_utf8(line).ok().and_then(parse) {
            Some((hash, path)) => {
                if expected.get(&path).is_some_and(|before| *before != hash) {
                    let problem = format!("line {}: {path} had another checksum before", i + 1);
                    problems.push(Problem::of_file(&file, problem));
                }
                expected.insert(path, hash);
            }
            // sha256sum ignores these lines.
            None if line.is_empty() || line.starts_with(b"#") => {}
            None => problems.push(Problem::of_file(
                &file,
                format!("line {} is not a SHA-256 checksum and a name", i + 1),
            )),
        }
    }
    let mut listed = Vec::new();
    for id in all(model) {
        match expected.contains_key(&path_of(model, id)) {
            true => listed.push(id),
            false => problems.push(Problem::of_tensor(
                &file_of(model, id, Naming::of(model)),
                model.name(id),
                format!("is not in {file}"),
            )),
        }
    }
    for (id, hash) in hashes(model, &listed)? {
        if let Some(wanted) = expected.remove(&path_of(model, id))
            && wanted != hash
        {
            let problem = format!("SHA-256 is {hash}, {file} has {wanted}: the contents differ");
            problems.push(Problem::of_tensor(
                &file_of(model, id, Naming::of(model)),
                model.name(id),
                problem,
            ));
        }
    }
    for path in expected.into_keys() {
        let problem = format!("{path} is listed, but the model has no such tensor");
        problems.push(Problem::of_file(&file, problem));
    }
    Ok(problems)
}

/// The stored tensors.
fn all(model: &Model) -> Vec<TensorId> {
    (0..model.catalog.tensors.len() as TensorId).collect()
}

/// Where the mount shows a tensor's bytes.
fn path_of(model: &Model, id: TensorId) -> String {
    format!("tensors/{}/raw", model.file_name(id))
}

/// SHA-256 of the stored bytes of these tensors, in hexadecimal.
fn hashes(model: &Model, ids: &[TensorId]) -> Result<Vec<(TensorId, String)>> {
    let nbytes = |id: &TensorId| model.catalog.tensors.get(*id).nbytes;
    let total = ids.iter().map(nbytes).sum();
    let mut progress = Progress::new(total);
    let step = progress.piece(total, total);
    let hashes = parallel::ordered(ids.len(), |i| {
        let view = model.raw(ids[i])?;
        let mut hasher = Sha256::new();
        let mut buf = vec![0; PIECE.min(view.len()) as usize];
        let mut at = 0;
        while at < view.len() {
            let n = PIECE.min(view.len() - at);
            let piece = &mut buf[..n as usize];
            view.read_at(at, piece)?;
            hasher.update(&*piece);
            step(n);
            at += n;
        }
        Ok((ids[i], format!("{:x}", hasher.finalize())))
    })?;
    Ok(hashes)
}

/// A line as GNU sha256sum writes it: names with a backslash, newline or carriage return have
/// those escaped, and the line then begins with a backslash.
fn line(hash: &str, path: &str) -> String {
    match path.contains(['\\', '\n', '\r']) {
        false => format!("{hash}  {path}\n"),
        true => {
            let escaped = path
                .replace('\\', "\\\\")
                .replace('\n', "\\n")
                .replace('\r', "\\r");
            format!("\\{hash}  {escaped}\n")
        }
    }
}

/// The hash and the path of a line, text or binary mode.
fn parse(line: &str) -> Option<(String, String)> {
    let line = line.strip_suffix('\r').unwrap_or(line);
    let (escaped, line) = match line.strip_prefix('\\') {
        Some(rest) => (true, rest),
        None => (false, line),
    };
    let (hash, rest) = line.split_at_checked(64)?;
    let path = rest
        .strip_prefix("  ")
        .or_else(|| rest.strip_prefix(" *"))?;
    if !hash.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    let path: Cow<str> = match escaped {
        true => unescape(path)?.into(),
        false => path.into(),
    };
    // As `find . -type f` lists files.
    let mut path = &*path;
    while let Some(rest) = path.strip_prefix("./") {
        path = rest;
    }
    Some((hash.to_ascii_lowercase(), path.to_string()))
}

fn unescape(path: &str) -> Option<String> {
    let mut out = String::with_capacity(path.len());
    let mut chars = path.chars();
    while let Some(c) = chars.next() {
        out.push(match c {
            '\\' => match chars.next()? {
                'n' => '\n',
                'r' => '\r',
                '\\' => '\\',
                _ => return None,
            },
            c => c,
        });
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_they_are_written() {
        let hash = "0123456789abcdef".repeat(4);
        for path in ["tensors/a.b/raw", "a\\b", "a\nb", "a\rb", "\\n", "ü  x"] {
            let text = line(&hash, path);
            assert_eq!(text.matches('\n').count(), 1);
            let parsed = parse(text.trim_end_matches('\n'));
            assert_eq!(parsed, Some((hash.clone(), path.to_string())));
        }
        assert_eq!(line(&hash, "a\\b\n"), format!("\\{hash}  a\\\\b\\n\n"));
        assert!(parse(&format!("{hash} *bin\r")).is_some_and(|(_, p)| p == "bin"));
        for prefix in ["./", "././"] {
            let parsed = parse(&format!("{hash}  {prefix}tensors/a/raw"));
            assert!(parsed.is_some_and(|(_, p)| p == "tensors/a/raw"));
        }
        for bad in [
            "",
            "# a comment",
            "x",
            &hash[1..],
            &format!("{hash} x"),
            &format!("\\{hash}  \\x"),
        ] {
            assert_eq!(parse(bad), None);
        }
    }
}
