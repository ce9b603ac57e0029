//! The sources of a crate as text, without what no rule looks at.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// A crate of the workspace.
pub(crate) struct Crate {
    /// The folder's name below `crates/`.
    pub(crate) name: String,
    /// `Cargo.toml`.
    pub(crate) manifest: String,
    /// Files below `src`, tests included.
    pub(crate) files: Vec<File>,
    /// Files below `tests`.
    pub(crate) tests: Vec<File>,
}

/// A source file.
pub(crate) struct File {
    /// Relative to the root of the repository.
    pub(crate) path: PathBuf,
    /// Names of the modules from the crate's root to this file; empty for `lib.rs` and `main.rs`.
    pub(crate) module: Vec<String>,
    pub(crate) text: String,
    /// The text with comments, texts in quotes and modules of tests blanked out; lines keep their numbers.
    pub(crate) code: String,
}

/// The crates below `crates/`, in the order of their names.
///
/// # Errors
/// A folder or file that cannot be read.
pub(crate) fn crates(root: &Path) -> anyhow::Result<Vec<Crate>> {
    let mut found = Vec::new();
    for folder in entries(&root.join("crates"))? {
        let manifest = folder.join("Cargo.toml");
        if manifest.exists() {
            found.push(Crate {
                name: name(&folder),
                manifest: read(&manifest)?,
                files: files(root, &folder.join("src"))?,
                tests: files(root, &folder.join("tests"))?,
            });
        }
    }
    Ok(found)
}

pub(crate) fn read(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))
}

fn entries(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let listed = fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    let mut paths = listed.map(|entry| Ok(entry?.path())).collect::<anyhow::Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn files(root: &Path, base: &Path) -> anyhow::Result<Vec<File>> {
    let mut found = Vec::new();
    let mut folders = vec![base.to_owned()];
    while let Some(folder) = folders.pop().filter(|folder| folder.is_dir()) {
        for path in entries(&folder)? {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = read(&path)?;
                found.push(File {
                    module: module(path.strip_prefix(base)?),
                    path: path.strip_prefix(root)?.to_owned(),
                    code: code(&text),
                    text,
                });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

fn module(path: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        path.with_extension("").iter().map(|part| part.to_string_lossy().into()).collect();
    if names.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
        names.pop();
    }
    names
}

impl File {
    /// Whether the file holds tests only.
    pub(crate) fn is_test(&self) -> bool {
        let test = |name: &String| name == "tests" || name.ends_with("_tests") || name.starts_with("tests_");
        self.module.iter().any(test) || self.text.starts_with("#![cfg(test)]")
    }
}

/// `text` with comments, literals and `#[cfg(test)] mod ... { ... }` blanked out.
pub(crate) fn code(text: &str) -> String {
    let mut blanked = without_literals(text);
    while let Some(start) = blanked.find("#[cfg(test)]") {
        let rest = &blanked[start..];
        let open = rest.find('{');
        let end = match (open, rest.find(';')) {
            (Some(open), semicolon) if semicolon.is_none_or(|semicolon| open < semicolon) => {
                start + closing(rest, open)
            }
            (_, Some(semicolon)) => start + semicolon + 1,
            _ => blanked.len(),
        };
        let kept: String = blanked[start..end].chars().map(|c| if c == '\n' { c } else { ' ' }).collect();
        blanked.replace_range(start..end, &kept);
    }
    blanked
}

/// The offset behind the brace that closes the one at `open`.
pub(crate) fn closing(text: &str, open: usize) -> usize {
    let mut depth = 0_usize;
    for (offset, byte) in text.bytes().enumerate().skip(open) {
        match byte {
            b'{' => depth += 1,
            b'}' if depth <= 1 => return offset + 1,
            b'}' => depth -= 1,
            _ => {}
        }
    }
    text.len()
}

/// What the scanner is inside of.
enum Inside {
    Code,
    Line,
    Block(usize),
    Text,
    Raw(usize),
}

/// Comments, strings and character literals become blanks of the same length in bytes.
fn without_literals(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut inside = Inside::Code;
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let mut skip = 1;
        let mut keep = false;
        match inside {
            Inside::Code if rest.starts_with(b"//") => inside = Inside::Line,
            Inside::Code if rest.starts_with(b"/*") => (inside, skip) = (Inside::Block(1), 2),
            Inside::Code if rest[0] == b'"' => inside = Inside::Text,
            Inside::Code if is_raw(bytes, at) => {
                let hashes = rest[1..].iter().take_while(|byte| **byte == b'#').count();
                (inside, skip) = (Inside::Raw(hashes), hashes + 2);
            }
            Inside::Code => {
                skip = character(rest).unwrap_or(1);
                keep = skip == 1;
            }
            Inside::Line if rest[0] == b'\n' => inside = Inside::Code,
            Inside::Block(depth) if rest.starts_with(b"/*") => (inside, skip) = (Inside::Block(depth + 1), 2),
            Inside::Block(depth) if rest.starts_with(b"*/") => {
                inside = if depth == 1 { Inside::Code } else { Inside::Block(depth - 1) };
                skip = 2;
            }
            Inside::Text if rest[0] == b'\\' => skip = 2,
            Inside::Text if rest[0] == b'"' => inside = Inside::Code,
            Inside::Raw(hashes) if rest[0] == b'"' && ends_raw(rest, hashes) => {
                (inside, skip) = (Inside::Code, hashes + 1);
            }
            _ => {}
        }
        let end = (at + skip).min(bytes.len());
        out.extend(bytes[at..end].iter().map(|byte| if keep || *byte == b'\n' { *byte } else { b' ' }));
        at = end;
    }
    // Only whole ASCII bytes were kept or blanked inside code; others lie in identifiers, which are ASCII here.
    String::from_utf8_lossy(&out).into_owned()
}

fn is_raw(bytes: &[u8], at: usize) -> bool {
    let before = at.checked_sub(1).and_then(|before| bytes.get(before));
    let starts =
        bytes[at] == b'r' && !before.is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
    starts && bytes[at + 1..].iter().find(|byte| **byte != b'#') == Some(&b'"')
}

fn ends_raw(rest: &[u8], hashes: usize) -> bool {
    rest.len() > hashes && rest[1..=hashes].iter().all(|byte| *byte == b'#')
}

/// The length of a character literal; `None` for a lifetime or anything else.
fn character(rest: &[u8]) -> Option<usize> {
    if rest[0] != b'\'' {
        return None;
    }
    let end = rest
        .iter()
        .take(12)
        .enumerate()
        .skip(2)
        .find(|(_, byte)| **byte == b'\'')
        .map(|(offset, _)| offset)?;
    let literal = rest.get(1) == Some(&b'\\') || end == 2 || rest.get(1).is_some_and(|byte| !byte.is_ascii());
    literal.then(|| if rest.get(1..3) == Some(b"\\'") { 4 } else { end + 1 })
}
