//! The entries of an installation in the user's kubeconfig files (SP-093 to SP-098).

use std::collections::{HashMap, HashSet};
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use crate::datadir::write_atomically;
use crate::exit::{Exit, Failure, OrFail};

/// Name of the extension that marks a context as one of an installation.
pub(crate) const MARK: &str = "kubestellar.io";

/// One space as it appears in a kubeconfig.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// Name of the space: context `<space>`, cluster `<space>-cluster`, user `<space>-admin`.
    pub(crate) space: String,
    /// The `cluster` object: server, certificate-authority-data.
    pub(crate) cluster: Value,
    /// The `user` object: client-certificate-data, client-key-data.
    pub(crate) user: Value,
}

/// A context of an installation, with the names of what it refers to.
struct Ours {
    space: String,
    context: String,
    cluster: String,
    user: String,
}

/// The result of a merge, for messages to the user.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Merged {
    pub(crate) changed: bool,
    /// `(space, context)` of entries that got another name, because a foreign entry had the name.
    pub(crate) renamed: Vec<(String, String)>,
    /// The context that became the current one, if there was none.
    pub(crate) switched: Option<String>,
}

/// A kubeconfig file as a document. Foreign content stays unchanged.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Kubeconfig(Value);

impl Kubeconfig {
    pub(crate) fn empty() -> Self {
        Self(json!({
            "apiVersion": "v1", "kind": "Config", "preferences": {},
            "clusters": [], "contexts": [], "users": [], "current-context": "",
        }))
    }

    /// Parses the text of a file. Empty text is an empty file.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if text.trim().is_empty() {
            return Ok(Self::empty());
        }
        let value: Value = serde_saphyr::from_str(text).map_err(|e| e.to_string())?;
        if !value.is_object() {
            return Err("not a kubeconfig: the document is not a mapping".into());
        }
        for list in ["clusters", "contexts", "users"] {
            if !matches!(value.get(list), None | Some(Value::Null | Value::Array(_))) {
                return Err(format!("not a kubeconfig: {list} is not a list"));
            }
        }
        Ok(Self(value))
    }

    /// Reads a file. A missing file counts as empty.
    pub(crate) fn read(path: &Path) -> Result<Self, Failure> {
        let what = format!("reading the kubeconfig {}", path.display());
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(Failure::new(Exit::Failed, what, error)),
        };
        Self::parse(&text).map_err(|why| {
            Failure::new(Exit::Failed, what, why)
                .hint("mend the file, or leave it alone with --no-kubeconfig-merge")
        })
    }

    pub(crate) fn to_yaml(&self) -> Result<String, Failure> {
        serde_saphyr::to_string(&self.0).or_fail("writing the kubeconfig")
    }

    /// Adds or replaces the entries. If a foreign context has the name, it stays, and our context gets the suffix
    /// `-kubestellar`. The current context is set only if there is none.
    pub(crate) fn merge(&mut self, installation: &str, entries: &[Entry], current: Option<&str>) -> Merged {
        let before = self.0.clone();
        let mut merged = Merged::default();
        for entry in entries {
            let context = self.free_name(installation, &entry.space);
            if context != entry.space {
                merged.renamed.push((entry.space.clone(), context.clone()));
            }
            let (cluster, user) = (format!("{context}-cluster"), format!("{context}-admin"));
            self.put("clusters", &cluster, "cluster", entry.cluster.clone());
            self.put("users", &user, "user", entry.user.clone());
            let extension = json!([{ "name": MARK, "extension": { "installation": installation, "space": entry.space } }]);
            let value =
                json!({ "cluster": cluster, "user": user, "namespace": "default", "extensions": extension });
            self.put("contexts", &context, "context", value);
            if current == Some(entry.space.as_str()) && self.current().is_empty() {
                self.set("current-context", context.clone().into());
                merged.switched = Some(context);
            }
        }
        merged.changed = before != self.0;
        merged
    }

    /// Removes every context with the mark of this installation whose space is to go, and the cluster and user that no other
    /// context uses.
    pub(crate) fn remove(&mut self, installation: &str, goes: impl Fn(&str) -> bool) -> bool {
        let before = self.0.clone();
        for Ours { context, cluster, user, .. } in self.ours(installation, goes) {
            self.retain("contexts", &context);
            if !self.is_used("cluster", &cluster) {
                self.retain("clusters", &cluster);
            }
            if !self.is_used("user", &user) {
                self.retain("users", &user);
            }
            if self.current() == context {
                self.set("current-context", "".into());
            }
        }
        before != self.0
    }

    /// Gives the contexts that this installation has here already the present address and credentials of their spaces.
    fn renew(&mut self, installation: &str, entries: &[Entry]) -> bool {
        let before = self.0.clone();
        let now: HashMap<&str, &Entry> = entries.iter().map(|entry| (entry.space.as_str(), entry)).collect();
        for Ours { space, cluster, user, .. } in self.ours(installation, |space| now.contains_key(space)) {
            let Some(entry) = now.get(space.as_str()) else { continue };
            self.put("clusters", &cluster, "cluster", entry.cluster.clone());
            self.put("users", &user, "user", entry.user.clone());
        }
        before != self.0
    }

    /// The contexts of this installation for some spaces. A cluster or user that the user of the file put in place of ours is
    /// not named.
    fn ours(&self, installation: &str, wanted: impl Fn(&str) -> bool) -> Vec<Ours> {
        let found = self.list("contexts").iter().filter_map(|context| {
            let (id, space) = mark_of(context)?;
            let name = name_of(context)?;
            let part = |key: &str, suffix: &str| {
                let named = context.get("context")?.get(key)?.as_str()?;
                (named.starts_with(space) && named.ends_with(suffix)).then(|| named.to_owned())
            };
            (id == installation && wanted(space)).then(|| Ours {
                space: space.to_owned(),
                context: name.to_owned(),
                cluster: part("cluster", "-cluster").unwrap_or_else(|| format!("{name}-cluster")),
                user: part("user", "-admin").unwrap_or_else(|| format!("{name}-admin")),
            })
        });
        found.collect()
    }

    /// Returns whether a context refers to a cluster or user.
    fn is_used(&self, key: &str, name: &str) -> bool {
        let refers = |context: &Value| context.get("context")?.get(key)?.as_str().map(|named| named == name);
        self.list("contexts").iter().any(|context| refers(context) == Some(true))
    }

    /// Returns the entries of this installation from its own file.
    pub(crate) fn entries(&self, installation: &str) -> Vec<Entry> {
        let find = |list: &str, name: &str, key: &str| {
            let item = self.list(list).iter().find(|i| name_of(i) == Some(name))?;
            item.get(key).cloned()
        };
        let ours = self.list("contexts").iter().filter_map(|context| {
            let (id, space) = mark_of(context)?;
            let name = name_of(context)?;
            let cluster = find("clusters", &format!("{name}-cluster"), "cluster")?;
            let user = find("users", &format!("{name}-admin"), "user")?;
            (id == installation).then(|| Entry { space: space.to_owned(), cluster, user })
        });
        ours.collect()
    }

    fn current(&self) -> &str {
        self.0.get("current-context").and_then(Value::as_str).unwrap_or_default()
    }

    fn list(&self, key: &str) -> &[Value] {
        self.0.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }

    fn free_name(&self, installation: &str, space: &str) -> String {
        let mut name = space.to_owned();
        let taken = |name: &str| {
            self.list("contexts").iter().any(|c| {
                name_of(c) == Some(name)
                    && mark_of(c).is_none_or(|(id, of)| id != installation || of != space)
            })
        };
        let mut n = 1;
        while taken(&name) {
            name = if n == 1 { format!("{space}-kubestellar") } else { format!("{space}-kubestellar-{n}") };
            n += 1;
        }
        name
    }

    fn put(&mut self, list: &str, name: &str, key: &str, value: Value) {
        let Some(root) = self.0.as_object_mut() else { return };
        let slot = root.entry(list).or_insert_with(|| json!([]));
        if !slot.is_array() {
            *slot = json!([]);
        }
        let Some(items) = slot.as_array_mut() else { return };
        if let Some(existing) = items.iter_mut().find(|i| name_of(i) == Some(name)) {
            if let Some(map) = existing.as_object_mut() {
                overlay(map, key, value);
            }
        } else {
            items.push(json!({ "name": name, key: value }));
        }
    }

    fn retain(&mut self, list: &str, name: &str) {
        if let Some(items) = self.0.get_mut(list).and_then(Value::as_array_mut) {
            items.retain(|i| name_of(i) != Some(name));
        }
    }

    fn set(&mut self, key: &str, value: Value) {
        if let Some(root) = self.0.as_object_mut() {
            root.insert(key.into(), value);
        }
    }
}

/// Replaces the known keys of `map[key]`. Fields and extensions of other programs stay (SP-094).
fn overlay(map: &mut Map<String, Value>, key: &str, value: Value) {
    let slot = map.entry(key).or_insert_with(|| json!({}));
    let (Some(old), Value::Object(mut new)) = (slot.as_object_mut(), value) else { return };
    if let (Some(theirs), Some(ours)) = (
        old.get("extensions").and_then(Value::as_array),
        new.get_mut("extensions").and_then(Value::as_array_mut),
    ) {
        let foreign = theirs.iter().filter(|e| name_of(e) != Some(MARK)).cloned();
        let mut all: Vec<Value> = foreign.collect();
        all.append(ours);
        *ours = all;
    }
    old.append(&mut new);
}

fn name_of(item: &Value) -> Option<&str> {
    item.get("name").and_then(Value::as_str)
}

/// Returns `(installation, space)` of a context of an installation.
fn mark_of(context: &Value) -> Option<(&str, &str)> {
    let extensions = context.get("context")?.get("extensions")?.as_array()?;
    let mark = extensions.iter().find(|e| name_of(e) == Some(MARK))?.get("extension")?;
    Some((mark.get("installation")?.as_str()?, mark.get("space")?.as_str()?))
}

/// Returns the files that kubectl would use: `--kubeconfig`, else those of `$KUBECONFIG`, else the user's default.
pub(crate) fn files(asked: Option<&Path>) -> Result<Vec<PathBuf>, Failure> {
    if let Some(file) = asked {
        return Ok(vec![file.to_owned()]);
    }
    if let Some(list) = std::env::var_os("KUBECONFIG") {
        let files: Vec<PathBuf> =
            std::env::split_paths(&list).filter(|p| !p.as_os_str().is_empty()).collect();
        if !files.is_empty() {
            return Ok(files);
        }
    }
    let home = std::env::home_dir().filter(|h| !h.as_os_str().is_empty()).ok_or_else(|| {
        Failure::new(Exit::Usage, "finding the kubeconfig", "HOME is not set").hint("give --kubeconfig")
    })?;
    Ok(vec![home.join(".kube").join("config")])
}

/// Merges the entries into the user's files: an entry into the file that has it already, else into the first file.
pub(crate) fn merge_into(
    files: &[PathBuf],
    installation: &str,
    entries: &[Entry],
    current: Option<&str>,
) -> Result<Merged, Failure> {
    let mut total = Merged::default();
    let has_current = files.iter().map(|f| Kubeconfig::read(f)).collect::<Result<Vec<_>, _>>()?;
    let current = current.filter(|_| has_current.iter().all(|k| k.current().is_empty()));
    for (index, file) in files.iter().enumerate() {
        let here: Vec<Entry> = entries
            .iter()
            .filter(|e| owner(&has_current, installation, &e.space).unwrap_or(0) == index)
            .cloned()
            .collect();
        if here.is_empty() {
            continue;
        }
        let _lock = FileLock::take(file)?;
        let mut config = Kubeconfig::read(file)?;
        let merged = config.merge(installation, &here, current);
        if merged.changed {
            write_atomically(file, config.to_yaml()?.as_bytes(), 0o600)
                .or_fail(format!("writing the kubeconfig {}", file.display()))?;
        }
        total.changed |= merged.changed;
        total.renamed.extend(merged.renamed);
        total.switched = total.switched.or(merged.switched);
    }
    Ok(total)
}

/// Removes this installation's entries from the user's files.
pub(crate) fn remove_from(files: &[PathBuf], installation: &str) -> Result<(), Failure> {
    for file in files.iter().filter(|f| f.exists()) {
        edit(file, |config| config.remove(installation, |_| true))?;
    }
    Ok(())
}

/// Which spaces of an installation exist no more.
#[derive(Clone, Debug)]
pub(crate) enum Gone {
    /// These.
    Only(HashSet<String>),
    /// All except these.
    AllBut(HashSet<String>),
}

impl Gone {
    fn has(&self, space: &str) -> bool {
        match self {
            Self::Only(gone) => gone.contains(space),
            Self::AllBut(there) => !there.contains(space),
        }
    }
}

/// Removes the contexts of spaces that are gone from the user's files, and renews those of `entries`. Adds none. Returns what could
/// not be changed.
pub(crate) fn follow_in(
    files: &[PathBuf],
    installation: &str,
    entries: &[Entry],
    gone: &Gone,
) -> Vec<Failure> {
    let concerns = |file: &&PathBuf| {
        // A file that cannot be read is reported by `edit`.
        file.exists()
            && Kubeconfig::read(file)
                .map_or(true, |mut config| follow(&mut config, installation, entries, gone))
    };
    let change = |file: &PathBuf| edit(file, |config| follow(config, installation, entries, gone)).err();
    files.iter().filter(concerns).filter_map(change).collect()
}

fn follow(config: &mut Kubeconfig, installation: &str, entries: &[Entry], gone: &Gone) -> bool {
    let removed = config.remove(installation, |space| gone.has(space));
    config.renew(installation, entries) | removed
}

/// Changes a file under its lock; `change` says whether there is something to write.
fn edit(file: &Path, change: impl FnOnce(&mut Kubeconfig) -> bool) -> Result<(), Failure> {
    let _lock = FileLock::take(file)?;
    let mut config = Kubeconfig::read(file)?;
    if !change(&mut config) {
        return Ok(());
    }
    write_atomically(file, config.to_yaml()?.as_bytes(), 0o600)
        .or_fail(format!("writing the kubeconfig {}", file.display()))
}

fn owner(files: &[Kubeconfig], installation: &str, space: &str) -> Option<usize> {
    files.iter().position(|k| k.list("contexts").iter().any(|c| mark_of(c) == Some((installation, space))))
}

/// The lock file `<file>.lock`, which client-go uses, too.
struct FileLock(PathBuf);

/// Longest wait for another program that writes a kubeconfig, and the pause between two tries. There is nothing to wait on: the
/// lock is the existence of a file.
const LOCK_WAIT: (Duration, Duration) = (Duration::from_secs(2), Duration::from_millis(20));

impl FileLock {
    #[allow(clippy::disallowed_methods, reason = "nothing tells when another program removes its lock file")]
    fn take(file: &Path) -> Result<Self, Failure> {
        let mut lock = file.as_os_str().to_owned();
        lock.push(".lock");
        let lock = PathBuf::from(lock);
        let what = || format!("locking the kubeconfig {}", file.display());
        if let Some(dir) = lock.parent() {
            fs::create_dir_all(dir).or_fail(what())?;
        }
        let until = Instant::now() + LOCK_WAIT.0;
        loop {
            match OpenOptions::new().write(true).create_new(true).open(&lock) {
                Ok(_) => return Ok(Self(lock)),
                Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                    return Err(Failure::new(Exit::Failed, what(), error));
                }
                Err(_) if Instant::now() < until => std::thread::sleep(LOCK_WAIT.1),
                Err(_) => {
                    let why = format!("{} exists: another program is writing it", lock.display());
                    return Err(Failure::new(Exit::Conflict, what(), why)
                        .hint(format!("if none is, remove {}", lock.display())));
                }
            }
        }
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(space: &str) -> Entry {
        Entry { space: space.into(), cluster: json!({"server": "https://x"}), user: json!({"token": "t"}) }
    }

    fn foreign() -> Kubeconfig {
        Kubeconfig::parse(
            "apiVersion: v1\nkind: Config\ncurrent-context: mine\nextensions:\n- {name: other, extension: {a: 1}}\n\
             contexts:\n- {name: mine, context: {cluster: c, user: u, extra: 1}}\n- {name: its1, context: {cluster: c, user: u}}\n\
             clusters: [{name: c, cluster: {server: s}}]\nusers: [{name: u, user: {}}]\n",
        )
        .unwrap()
    }

    /// SP-094, SP-095, SP-097 (SP-A-07): foreign entries stay, a taken name gets a suffix, current stays.
    #[test]
    fn sp_095_foreign_entries_survive() {
        let before = foreign();
        let mut config = before.clone();
        let merged = config.merge("id", &[entry("its1"), entry("wds1")], Some("wds1"));
        assert_eq!(merged.renamed, vec![("its1".to_owned(), "its1-kubestellar".to_owned())]);
        assert_eq!(merged.switched, None);
        assert_eq!(config.list("contexts")[..2], before.list("contexts")[..]);
        assert_eq!(config.0["extensions"], before.0["extensions"]);
        let again = config.clone();
        let second = config.merge("id", &[entry("its1"), entry("wds1")], Some("wds1"));
        assert!(!second.changed && config == again, "merging twice changes nothing");
        assert!(config.remove("id", |_| true));
        assert_eq!(config, before);
    }

    /// SP-097: the current context is set when there is none.
    #[test]
    fn sp_097_current_context_set_when_absent() {
        let mut config = Kubeconfig::empty();
        let merged = config.merge("id", &[entry("its1"), entry("wds1")], Some("wds1"));
        assert_eq!(merged.switched.as_deref(), Some("wds1"));
        assert_eq!(config.current(), "wds1");
    }

    /// SP-094 (SP-A-08): what does not parse is an error and is never written.
    #[test]
    fn sp_094_broken_file_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config");
        fs::write(&file, "a: [b\n").unwrap();
        let refused = merge_into(std::slice::from_ref(&file), "id", &[entry("wds1")], None).unwrap_err();
        assert_eq!(refused.exit, Exit::Failed);
        assert_eq!(fs::read_to_string(&file).unwrap(), "a: [b\n");
    }

    /// SP-094: contexts of spaces that are gone go, those of spaces that were made again are renewed; entries of others stay, and
    /// nothing is added.
    #[test]
    fn sp_094_contexts_follow_their_spaces() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config");
        fs::write(&file, foreign().to_yaml().unwrap()).unwrap();
        let files = std::slice::from_ref(&file);
        let all = [entry("its1"), entry("wds1"), entry("cluster1")];
        merge_into(files, "id", &all, None).unwrap();
        merge_into(files, "other", &[entry("wds2")], None).unwrap();
        let fresh = Entry { user: json!({"token": "new"}), ..entry("wds1") };
        let gone = |names: &[&str]| Gone::Only(names.iter().map(|&name| name.to_owned()).collect());
        let failures = follow_in(files, "id", &[fresh.clone(), entry("wds3")], &gone(&["its1"]));
        assert!(failures.is_empty(), "{failures:?}");
        let seen = Kubeconfig::read(&file).unwrap();
        let contexts: Vec<_> = seen.list("contexts").iter().filter_map(name_of).collect();
        assert_eq!(contexts, ["mine", "its1", "wds1", "cluster1", "wds2"]);
        let token = |name: &str| {
            seen.list("users").iter().find(|u| name_of(u) == Some(name)).map(|u| &u["user"]["token"])
        };
        assert_eq!((token("wds1-admin"), token("cluster1-admin")), (Some(&json!("new")), Some(&json!("t"))));
        assert_eq!(token("its1-kubestellar-admin"), None);

        let there = Gone::AllBut(["wds1".to_owned()].into());
        assert!(follow_in(files, "id", &[fresh], &there).is_empty());
        let seen = Kubeconfig::read(&file).unwrap();
        let contexts: Vec<_> = seen.list("contexts").iter().filter_map(name_of).collect();
        assert_eq!(contexts, ["mine", "its1", "wds1", "wds2"]);
    }

    /// SP-093 (SP-A-09): with a list of files an entry is updated where it is, new ones go to the first.
    #[test]
    fn sp_093_entry_goes_where_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        merge_into(std::slice::from_ref(&b), "id", &[entry("wds1")], None).unwrap();
        merge_into(&[a.clone(), b.clone()], "id", &[entry("wds1"), entry("its1")], None).unwrap();
        let names = |f: &Path| {
            Kubeconfig::read(f)
                .unwrap()
                .list("contexts")
                .iter()
                .filter_map(name_of)
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        assert_eq!(names(&a), ["its1"]);
        assert_eq!(names(&b), ["wds1"]);
    }
}
