//! The table as text: read, written and compared.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::PathBuf;

use super::routes::{Place, VERBS};

/// What one person may do with one route.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Grant {
    elsewhere: BTreeSet<char>,
    own: BTreeSet<char>,
    everywhere: BTreeSet<char>,
}

impl Grant {
    pub(super) fn add(&mut self, verb: char, place: Place) {
        self.set(place).insert(verb);
    }

    fn set(&mut self, place: Place) -> &mut BTreeSet<char> {
        match place {
            Place::Own => &mut self.own,
            Place::Elsewhere => &mut self.elsewhere,
            Place::Everywhere => &mut self.everywhere,
        }
    }

    pub(super) fn allows(&self, verb: char, place: Place) -> bool {
        match place {
            Place::Own => self.own.contains(&verb),
            Place::Elsewhere => self.elsewhere.contains(&verb),
            Place::Everywhere => self.everywhere.contains(&verb),
        }
    }

    /// The verbs that count outside the own place.
    pub(super) fn elsewhere(&self) -> impl Iterator<Item = char> {
        self.elsewhere.union(&self.everywhere).copied()
    }

    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// `gl(wup)`: the letters in parentheses count in the own place only; `[lw]` those in all namespaces only. Reads in another
    /// namespace and in all of them go together.
    fn text(&self) -> String {
        let some = |wanted: &dyn Fn(char) -> bool| -> String {
            VERBS.iter().map(|(letter, _)| *letter).filter(|letter| wanted(*letter)).collect()
        };
        let wide = some(&|v| self.elsewhere.contains(&v));
        let own = some(&|v| self.own.contains(&v) && !self.elsewhere.contains(&v));
        let odd = some(&|v| {
            "lw".contains(v)
                && self.everywhere.contains(&v) != self.elsewhere.contains(&v)
                && !self.everywhere.is_empty()
        });
        let mut text = wide;
        if !own.is_empty() {
            let _ = write!(text, "({own})");
        }
        if !odd.is_empty() {
            let _ = write!(text, "[{odd}]");
        }
        text
    }

    fn parse(text: &str) -> Self {
        let mut grant = Self::default();
        let mut inside = false;
        for letter in text.chars() {
            match letter {
                '(' => inside = true,
                ')' => inside = false,
                letter => {
                    grant.own.insert(letter);
                    if !inside {
                        grant.elsewhere.insert(letter);
                        grant.everywhere.insert(letter);
                    }
                }
            }
        }
        grant
    }
}

/// What one person may do, by route.
pub(super) type Grants = BTreeMap<String, Grant>;

/// A file of `testdata/rights/`.
#[derive(Default)]
pub(super) struct Table {
    /// Scope and verbs of each route.
    pub(super) routes: BTreeMap<String, String>,
    /// Paths outside the resources.
    pub(super) documents: Vec<String>,
    /// What each person may do, by title.
    pub(super) people: Vec<(String, Grants)>,
}

const HEAD: &str = "\
# Who may do what in this space. Checked by the tests in crates/kubestellar/src/server/installation/rights.rs;
# whatever is not listed is refused, and the tests ask for it.
#
# g get, l list, w watch, c create, u update, p patch, d delete, x deletecollection.
# (In parentheses: only in the own namespace, or only on the cluster-scoped object with the own name.)
# \"The same as\" compares rights, each in the own place.
";

impl Table {
    fn file(kind: &str) -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../testdata/rights").join(format!("{kind}.txt"))
    }

    pub(super) fn read(kind: &str) -> Self {
        let text = std::fs::read_to_string(Self::file(kind)).unwrap_or_default();
        let mut table = Self::default();
        let mut section = "";
        for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
            let Some(entry) = line.strip_prefix("  ") else {
                section = line;
                if let Some(title) = line.strip_prefix("may: ") {
                    let (title, like) = title.split_once(" -- the same as ").unwrap_or((title, ""));
                    let grants = table.people.iter().find(|(known, _)| known == like);
                    let grants = grants.map(|(_, grants)| grants.clone()).unwrap_or_default();
                    table.people.push((title.to_owned(), grants));
                }
                continue;
            };
            let mut words = entry.split_whitespace();
            let (what, group) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
            for word in words {
                let key = format!("{group} {word}");
                match (section, table.people.last_mut()) {
                    ("served", _) if group == "paths" => table.documents.push(word.to_owned()),
                    ("served", _) => drop(table.routes.insert(key, what.to_owned())),
                    (_, Some((_, grants))) => drop(grants.insert(key, Grant::parse(what))),
                    _ => {}
                }
            }
        }
        table
    }

    pub(super) fn write(&self, kind: &str) {
        let mut text = format!("{HEAD}\nserved\n");
        let documents = self.documents.iter().map(|path| (format!("paths {path}"), "-".to_owned()));
        lines(&mut text, &self.routes.clone().into_iter().chain(documents).collect());
        for (index, (title, grants)) in self.people.iter().enumerate() {
            let same = self.people[..index].iter().find(|(_, other)| texts(other) == texts(grants));
            if let Some((like, _)) = same {
                let _ = writeln!(text, "\nmay: {title} -- the same as {like}");
            } else {
                let _ = writeln!(text, "\nmay: {title}");
                lines(&mut text, &texts(grants));
            }
        }
        std::fs::write(Self::file(kind), text).expect("testdata/rights");
    }

    pub(super) fn grant(&self, person: &str, route: &str) -> Grant {
        let found = self.people.iter().find(|(title, _)| title == person);
        found.and_then(|(_, grants)| grants.get(route)).cloned().unwrap_or_default()
    }

    /// What differs, a line each.
    pub(super) fn differences(&self, found: &Self, kind: &str) -> String {
        let mut out = String::new();
        compare(&mut out, kind, "route", &self.routes, &found.routes);
        let set = |all: &[String]| all.iter().map(|path| (path.clone(), String::new())).collect();
        compare(&mut out, kind, "document", &set(&self.documents), &set(&found.documents));
        let people = |table: &Self| table.people.iter().map(|(t, _)| (t.clone(), String::new())).collect();
        compare(&mut out, kind, "person", &people(self), &people(found));
        for (title, grants) in &found.people {
            let expected = self.people.iter().find(|(known, _)| known == title);
            let expected = expected.map(|(_, grants)| texts(grants)).unwrap_or_default();
            compare(&mut out, kind, title, &expected, &texts(grants));
        }
        out
    }
}

/// Length of a line of the table.
const WIDTH: usize = 120;

/// Writes entries; those with the same letters in the same group and version share lines.
fn lines(out: &mut String, entries: &BTreeMap<String, String>) {
    let mut together: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for (key, letters) in entries {
        let (group, name) = key.split_once(' ').unwrap_or((key, ""));
        together.entry((group, letters)).or_default().push(name);
    }
    for ((group, letters), names) in together {
        let head = format!("  {letters:20} {group}");
        let mut line = head.clone();
        for name in names {
            if line.len() + name.len() > WIDTH && line != head {
                let _ = writeln!(out, "{line}");
                line.clone_from(&head);
            }
            let _ = write!(line, " {name}");
        }
        let _ = writeln!(out, "{line}");
    }
}

/// Paths outside the resources, where all of discovery counts as one if all of it is there.
pub(super) fn documents(readable: Vec<String>, all: &[String]) -> Vec<String> {
    let discovery = |path: &String| path.starts_with("/api");
    let whole = readable.iter().filter(|path| discovery(path)).count()
        == all.iter().filter(|path| discovery(path)).count();
    let mut out: Vec<String> = readable.into_iter().filter(|path| !whole || !discovery(path)).collect();
    if whole {
        out.insert(0, "/api*".to_owned());
    }
    out
}

fn texts(grants: &Grants) -> BTreeMap<String, String> {
    grants.iter().map(|(key, grant)| (key.clone(), grant.text())).collect()
}

fn compare(
    out: &mut String,
    kind: &str,
    what: &str,
    wanted: &BTreeMap<String, String>,
    found: &BTreeMap<String, String>,
) {
    for key in wanted.keys().chain(found.keys()).collect::<BTreeSet<_>>() {
        let show =
            |side: &BTreeMap<String, String>| side.get(key).map_or("nothing".into(), |v| format!("{v:?}"));
        if wanted.get(key) != found.get(key) {
            let _ = writeln!(out, "{kind}: {what}: {key}: expected {}, found {}", show(wanted), show(found));
        }
    }
}
