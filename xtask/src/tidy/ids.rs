//! Requirement ids in code must be in docs/spec, so that everybody can look them up.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::source::{Crate, read};

const SPECS: &[(&str, &str)] = &[
    ("KS", "kubestellar.md"),
    ("OCM", "ocm.md"),
    ("AS", "apiserver.md"),
    ("SP", "spaces.md"),
    ("MC", "metacontroller.md"),
];

/// One line for each id in code that no specification has.
///
/// # Errors
/// A specification that cannot be read.
pub(crate) fn check(root: &Path, crates: &[Crate]) -> anyhow::Result<Vec<String>> {
    let mut known = BTreeSet::new();
    for (_, page) in SPECS {
        known.extend(spread(&read(&root.join("docs/spec").join(page))?));
    }
    let mut found: BTreeMap<String, String> = BTreeMap::new();
    for file in crates.iter().flat_map(|one| one.files.iter().chain(&one.tests)) {
        let unknown = ids(&file.text).into_iter().chain(names(&file.text)).filter(|id| !known.contains(id));
        for id in unknown {
            found.entry(id).or_insert_with(|| file.path.display().to_string());
        }
    }
    Ok(found.into_iter().map(|(id, file)| format!("{file}: docs/spec has no {id}")).collect())
}

/// The ids of a specification, with ranges (`KS-085…KS-099`, `KS-085 to 099`) written out.
fn spread(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (family, number, rest) in occurrences(text, '-') {
        found.insert(id(family, number));
        let rest = ["…", "...", "..", "–", " to ", "-"].iter().find_map(|sign| rest.strip_prefix(sign));
        let last =
            rest.map(|rest| rest.strip_prefix(&format!("{family}-")).unwrap_or(rest)).and_then(leading);
        if let Some(last) = last.filter(|last| (number..number + 200).contains(last)) {
            found.extend((number..=last).map(|number| id(family, number)));
        }
    }
    found
}

/// Ids in comments: `KS-061`.
fn ids(text: &str) -> BTreeSet<String> {
    occurrences(text, '-').map(|(family, number, _)| id(family, number)).collect()
}

/// Ids in names of functions: `fn ks_061_...`.
fn names(text: &str) -> BTreeSet<String> {
    let functions = text.match_indices("fn ").filter_map(|(start, _)| {
        let name = text[start + 3..].split('(').next()?;
        let upper = name.to_ascii_uppercase();
        let (family, rest) = upper.split_once('_')?;
        let family = SPECS.iter().find(|(known, _)| *known == family)?.0;
        Some(id(family, leading(rest)?))
    });
    functions.collect()
}

fn id(family: &str, number: u32) -> String {
    format!("{family}-{number:03}")
}

/// The number that three digits make at the start of a text.
fn leading(text: &str) -> Option<u32> {
    let digits = text.get(..3)?;
    let more = text[3..].starts_with(|c: char| c.is_ascii_digit());
    digits.parse().ok().filter(|_| !more && digits.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Family and number of every id with what follows it.
fn occurrences(text: &str, sign: char) -> impl Iterator<Item = (&'static str, u32, &str)> {
    SPECS.iter().flat_map(move |&(family, _)| {
        let wanted = format!("{family}{sign}");
        let starts: Vec<usize> = text.match_indices(&wanted).map(|(start, _)| start).collect();
        starts.into_iter().filter_map(move |start| {
            let whole = !text[..start].ends_with(|c: char| c.is_alphanumeric());
            let behind = &text[start + family.len() + sign.len_utf8()..];
            let number = leading(behind).filter(|_| whole)?;
            Some((family, number, &behind[3..]))
        })
    })
}
