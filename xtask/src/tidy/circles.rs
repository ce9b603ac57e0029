//! No circle between the files of a crate: a file may use what stands below it, never what uses it.
//!
//! A file uses another one when it names something of it by a path (`crate::a::B`, `super::b::C`, `a::D` of a child).
//! A `mod` line and a re-export (`pub use`) are no use; a path through a re-export leads to the file that has the item.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{Crate, File};

/// One line for each circle: its files and the names that tie them.
pub(crate) fn check(one: &Crate) -> Vec<String> {
    let tree = Tree::of(one);
    let uses = tree.uses();
    let describe = |circle: Vec<usize>| {
        let files: Vec<String> = circle.iter().map(|&at| tree.files[at].path.display().to_string()).collect();
        let ties: Vec<String> = circle.iter().flat_map(|&from| ties(&tree, &uses, from, &circle)).collect();
        format!("circle between files: {}\n{}", files.join(", "), ties.join("\n"))
    };
    strong_components(&uses).into_iter().map(describe).collect()
}

fn ties(
    tree: &Tree<'_>,
    uses: &[BTreeMap<usize, BTreeSet<String>>],
    from: usize,
    circle: &[usize],
) -> Vec<String> {
    let of = |at: usize| tree.files[at].path.display();
    let inside = uses[from].iter().filter(|(to, _)| circle.contains(to));
    inside
        .map(|(&to, names)| {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            format!("    {} uses {} of {}", of(from), names.join(", "), of(to))
        })
        .collect()
}

/// The modules of a crate, with what each file re-exports.
struct Tree<'a> {
    files: Vec<&'a File>,
    modules: BTreeMap<Vec<String>, usize>,
    /// Of each file: a name that it re-exports, and the path that the name stands for.
    exports: Vec<BTreeMap<String, Vec<String>>>,
    /// Of each file: modules whose names it re-exports with `*`.
    globs: Vec<Vec<Vec<String>>>,
}

impl<'a> Tree<'a> {
    fn of(one: &'a Crate) -> Self {
        let files: Vec<&File> = one.files.iter().filter(|file| !file.is_test()).collect();
        let modules = files.iter().enumerate().map(|(at, file)| (file.module.clone(), at)).collect();
        let mut tree = Tree { files, modules, exports: Vec::new(), globs: Vec::new() };
        for file in tree.files.clone() {
            let (mut named, mut all) = (BTreeMap::new(), Vec::new());
            for path in
                imports(&file.code).into_iter().filter(|import| import.exported).map(|import| import.path)
            {
                let Some(path) = tree.absolute(file, &path) else { continue };
                match path.split_last() {
                    Some((last, parents)) if last == "*" => all.push(parents.to_vec()),
                    Some((last, _)) => drop(named.insert(last.clone(), path)),
                    None => {}
                }
            }
            tree.exports.push(named);
            tree.globs.push(all);
        }
        tree
    }

    /// A path from the crate's root; `None` for one that leads out of the crate.
    fn absolute(&self, file: &File, path: &[String]) -> Option<Vec<String>> {
        let mut base = file.module.clone();
        let mut rest = path;
        match rest.first().map(String::as_str)? {
            "crate" => (base, rest) = (Vec::new(), &rest[1..]),
            "self" => rest = &rest[1..],
            "super" => {
                while let Some((_, others)) = rest.split_first().filter(|(first, _)| *first == "super") {
                    base.pop()?;
                    rest = others;
                }
            }
            child => {
                base.push(child.to_owned());
                self.modules.get(&base)?;
                rest = &rest[1..];
            }
        }
        base.extend(rest.iter().cloned());
        Some(base)
    }

    /// The file that has what an absolute path names, and the name.
    fn target(&self, path: &[String], depth: usize) -> Option<(usize, String)> {
        let (module, rest) = (0..=path.len()).rev().find_map(|end| {
            let at = self.modules.get(&path[..end])?;
            Some((*at, &path[end..]))
        })?;
        let Some(name) = rest.first() else { return Some((module, String::new())) };
        if depth < 8 {
            if let Some(stands_for) = self.exports[module].get(name) {
                let mut further = stands_for.clone();
                further.extend(rest[1..].iter().cloned());
                return self.target(&further, depth + 1);
            }
            for glob in &self.globs[module] {
                let mut further = glob.clone();
                further.extend(rest.iter().cloned());
                let (found, _) = self.target(&further, depth + 1)?;
                if defines(&self.files[found].code, name) {
                    return Some((found, name.clone()));
                }
            }
        }
        Some((module, name.clone()))
    }

    /// Of each file: the files that it uses, with the names.
    fn uses(&self) -> Vec<BTreeMap<usize, BTreeSet<String>>> {
        let of = |(at, file): (usize, &&File)| {
            let mut found: BTreeMap<usize, BTreeSet<String>> = BTreeMap::new();
            let imported =
                imports(&file.code).into_iter().filter(|import| !import.exported).map(|import| import.path);
            for path in imported.chain(inline(&file.code)) {
                let target = self.absolute(file, &path).and_then(|path| self.target(&path, 0));
                // A path that ends at a module names nothing of it yet: what follows is an inline path.
                if let Some((to, name)) = target.filter(|(to, name)| *to != at && !name.is_empty()) {
                    found.entry(to).or_default().insert(name);
                }
            }
            for (alias, path) in self.module_imports(file) {
                let users = inline_after(&file.code, &alias);
                for name in users {
                    let mut path = path.clone();
                    path.push(name);
                    if let Some((to, name)) = self.target(&path, 0).filter(|(to, _)| *to != at) {
                        found.entry(to).or_default().insert(name);
                    }
                }
            }
            found
        };
        self.files.iter().enumerate().map(of).collect()
    }

    /// Modules that a file imports by name: `use super::access;`.
    fn module_imports(&self, file: &File) -> Vec<(String, Vec<String>)> {
        let paths = imports(&file.code).into_iter().map(|import| import.path);
        let absolute = paths.filter_map(|path| self.absolute(file, &path));
        absolute
            .filter(|path| self.modules.contains_key(path))
            .filter_map(|path| Some((path.last()?.clone(), path)))
            .collect()
    }
}

fn defines(code: &str, name: &str) -> bool {
    ["fn", "struct", "enum", "trait", "const", "static", "type", "macro_rules!"]
        .iter()
        .any(|kind| code.contains(&format!("{kind} {name}")))
}

struct Import {
    exported: bool,
    path: Vec<String>,
}

/// The paths of all `use` items, with groups written out and aliases left aside.
fn imports(code: &str) -> Vec<Import> {
    let mut found = Vec::new();
    for (start, _) in code.match_indices("use ") {
        let line = code[..start].rsplit('\n').next().unwrap_or_default().trim();
        if !(line.is_empty() || line.starts_with("pub")) {
            continue;
        }
        let Some(length) = code[start..].find(';') else { continue };
        let tree = code[start + 4..start + length].trim();
        for path in spread(tree) {
            found.push(Import { exported: line.starts_with("pub"), path });
        }
    }
    found
}

/// `a::{b, c::d as e}` as `a::b` and `a::c::d`.
fn spread(tree: &str) -> Vec<Vec<String>> {
    let names = |text: &str| -> Vec<String> {
        let plain = text.split(" as ").next().unwrap_or_default();
        plain.split("::").map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
    };
    let Some(open) = tree.find('{') else { return vec![names(tree)] };
    let end = super::source::closing(tree, open);
    let prefix = names(&tree[..open]);
    let inner = tree.get(open + 1..end - 1).unwrap_or_default();
    split(inner)
        .into_iter()
        .flat_map(spread)
        .map(|rest| prefix.iter().cloned().chain(without_self(rest)).collect())
        .collect()
}

fn without_self(mut path: Vec<String>) -> Vec<String> {
    if path == ["self"] {
        path.clear();
    }
    path
}

/// The parts between commas that lie in no inner group.
fn split(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0_i32, 0);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            b',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts.into_iter().filter(|part| !part.trim().is_empty()).collect()
}

/// Paths that begin with `crate::`, `super::` or `self::` outside of `use` items.
fn inline(code: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for root in ["crate::", "super::", "self::"] {
        for (start, _) in code.match_indices(root) {
            if code[..start].ends_with(is_name) || code[..start].ends_with("::") {
                continue;
            }
            let statement = code[..start].rsplit([';', '}']).next().unwrap_or_default().trim_start();
            if !is_use(statement) {
                found.push(path_at(&code[start..]));
            }
        }
    }
    found
}

fn is_use(statement: &str) -> bool {
    statement.lines().last().is_some_and(|line| {
        let line = line.trim_start();
        line.starts_with("use ") || (line.starts_with("pub") && line.contains(" use "))
    }) || statement.split_whitespace().any(|word| word == "use")
}

/// Names that follow `alias::`.
fn inline_after(code: &str, alias: &str) -> BTreeSet<String> {
    let wanted = format!("{alias}::");
    let starts = code.match_indices(&wanted).map(|(start, _)| start);
    let whole = starts.filter(|&start| !code[..start].ends_with(is_name) && !code[..start].ends_with("::"));
    whole.filter_map(|start| path_at(&code[start..]).get(1).cloned()).collect()
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

fn path_at(text: &str) -> Vec<String> {
    let end = text.find(|c: char| !is_name(c) && c != ':').unwrap_or(text.len());
    text[..end]
        .split("::")
        .filter(|name| !name.is_empty() && !name.contains(':'))
        .map(str::to_owned)
        .collect()
}

/// Sets of more than one file each of which reaches all others (Tarjan), in the order of their files.
fn strong_components(uses: &[BTreeMap<usize, BTreeSet<String>>]) -> Vec<Vec<usize>> {
    let reach: Vec<BTreeSet<usize>> = (0..uses.len()).map(|from| reachable(uses, from)).collect();
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for from in 0..uses.len() {
        let circle: Vec<usize> =
            reach[from].iter().copied().filter(|to| reach[*to].contains(&from)).collect();
        if circle.len() > 1 && !seen.contains(&from) {
            seen.extend(circle.iter().copied());
            found.push(circle);
        }
    }
    found
}

fn reachable(uses: &[BTreeMap<usize, BTreeSet<String>>], from: usize) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    let mut open = vec![from];
    while let Some(at) = open.pop() {
        open.extend(uses[at].keys().copied().filter(|to| found.insert(*to)));
    }
    found
}
