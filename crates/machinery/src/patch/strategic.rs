//! Strategic merge patch (AS-033): a merge patch that merges some lists by a key.
//!
//! In a list that merges without a given order, elements of the patch come before other elements, except that an
//! element that the server has before an element of the patch stays before it.
//!
//! Cost: n log n in the sizes of object and patch. Elements are looked up by hash, because clients control the size of
//! both lists.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::{PatchError, print::GoValue};
use crate::schema::Schema;

const MARKER: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_FROM: &str = "$deleteFromPrimitiveList";
const SET_ORDER: &str = "$setElementOrder";

/// The properties of a type that strategic merge needs.
pub trait PatchSchema: Sized {
    /// The type of a member: of a declared field, or of the values of a map.
    fn member(&self, name: &str) -> Option<Self>;
    /// The type of the elements of a list.
    fn items(&self) -> Option<Self>;
    /// `merge`, `replace`, `retainKeys` or several with commas.
    fn patch_strategy(&self) -> Option<&str>;
    /// The member that identifies elements of a merging list.
    fn patch_merge_key(&self) -> Option<&str>;
}

impl PatchSchema for Schema {
    fn member(&self, name: &str) -> Option<Self> {
        self.field(name).or_else(|| self.additional())
    }

    fn items(&self) -> Option<Self> {
        Schema::items(self)
    }

    fn patch_strategy(&self) -> Option<&str> {
        Schema::patch_strategy(self)
    }

    fn patch_merge_key(&self) -> Option<&str> {
        Schema::patch_merge_key(self)
    }
}

/// Applies a strategic merge patch to an object of a built-in kind.
///
/// # Errors
/// The patch is malformed or does not fit the object.
pub fn strategic(doc: &Value, patch: &Value, schema: &Schema) -> Result<Value, PatchError> {
    strategic_with(doc, patch, schema)
}

/// [`strategic`] with any description of types.
///
/// # Errors
/// As for [`strategic`].
pub fn strategic_with<S: PatchSchema>(doc: &Value, patch: &Value, schema: &S) -> Result<Value, PatchError> {
    let Value::Object(patch) = patch else {
        return Err(PatchError::Malformed("invalid JSON document".to_owned()));
    };
    let mut out = doc.as_object().cloned().unwrap_or_default();
    if merge_map(&mut out, patch, Some(schema))? == After::Removed {
        out.clear();
    }
    Ok(Value::Object(out))
}

/// What happens to a map after a patch has been merged into it.
#[derive(PartialEq, Eq)]
enum After {
    Kept,
    Removed,
}

/// How a value merges.
struct Strategy<'a> {
    merge: bool,
    replace: bool,
    key: Option<&'a str>,
}

impl<'a> Strategy<'a> {
    fn of<S: PatchSchema>(schema: Option<&'a S>) -> Self {
        let named = schema.and_then(PatchSchema::patch_strategy).unwrap_or_default();
        let has = |name| named.split(',').any(|s| s.trim() == name);
        let key = schema.and_then(PatchSchema::patch_merge_key).filter(|k| !k.is_empty());
        Self { merge: has("merge"), replace: has("replace"), key }
    }
}

fn merge_map<S: PatchSchema>(
    original: &mut Map<String, Value>,
    patch: &Map<String, Value>,
    schema: Option<&S>,
) -> Result<After, PatchError> {
    match patch.get(MARKER).map(|d| d.as_str().unwrap_or_default()) {
        None | Some("merge") => {}
        Some("replace") => {
            *original = cleaned_members(patch);
            return Ok(After::Kept);
        }
        Some("delete") => return Ok(After::Removed),
        Some(_) => return Err(unknown_directive(patch)),
    }
    retain_keys(original, patch)?;
    let ordered = merge_ordered_lists(original, patch, schema)?;
    for (key, value) in patch {
        if key == MARKER
            || key == RETAIN_KEYS
            || ordered.contains(key.as_str())
            || suffix(key, SET_ORDER).is_some()
        {
            continue;
        }
        if let Some(list) = suffix(key, DELETE_FROM) {
            delete_from_list(original, list, value)?;
        } else if value.is_null() {
            original.remove(key);
        } else {
            merge_member(original, key, value, schema.and_then(|s| s.member(key)))?;
        }
    }
    Ok(After::Kept)
}

fn merge_member<S: PatchSchema>(
    original: &mut Map<String, Value>,
    key: &str,
    patch: &Value,
    schema: Option<S>,
) -> Result<(), PatchError> {
    let strategy = Strategy::of(schema.as_ref());
    match (original.get_mut(key), patch) {
        (Some(Value::Object(old)), Value::Object(new)) if !strategy.replace => {
            if merge_map(old, new, schema.as_ref())? == After::Removed {
                original.remove(key);
            }
        }
        (Some(Value::Array(old)), Value::Array(new)) if strategy.merge => {
            let merged = merge_list(old, new, strategy.key, schema.as_ref())?;
            *old = merged;
        }
        // A list that does not merge is replaced by the patch as it stands, directives included.
        (Some(Value::Array(old)), Value::Array(new)) => old.clone_from(new),
        _ => match without_directives(patch) {
            Some(value) => {
                original.insert(key.to_owned(), value);
            }
            None => {
                original.remove(key);
            }
        },
    }
    Ok(())
}

/// Applies `$retainKeys`: drops all members that it does not name. The patch may only have members that it names.
fn retain_keys(original: &mut Map<String, Value>, patch: &Map<String, Value>) -> Result<(), PatchError> {
    let Some(retained) = patch.get(RETAIN_KEYS) else { return Ok(()) };
    let bad = || PatchError::Malformed("invalid patch format of retainKeys".to_owned());
    let retained = retained.as_array().ok_or_else(bad)?;
    let retained: HashSet<&str> = retained.iter().filter_map(Value::as_str).collect();
    let named = |key: &str| retained.contains(key);
    let is_directive = |key: &str| {
        key == MARKER
            || key == RETAIN_KEYS
            || suffix(key, DELETE_FROM).is_some()
            || suffix(key, SET_ORDER).is_some()
    };
    if patch.iter().any(|(k, v)| !v.is_null() && !is_directive(k) && !named(k)) {
        return Err(bad());
    }
    original.retain(|key, _| named(key));
    Ok(())
}

/// Merges lists for which the patch gives an order. Returns their names, because they need no further merge.
fn merge_ordered_lists<'p, S: PatchSchema>(
    original: &mut Map<String, Value>,
    patch: &'p Map<String, Value>,
    schema: Option<&S>,
) -> Result<HashSet<&'p str>, PatchError> {
    let mut done = HashSet::new();
    for (directive, order) in patch {
        let Some(name) = suffix(directive, SET_ORDER) else { continue };
        let bad = || PatchError::Malformed("invalid patch format of setElementOrder list".to_owned());
        let order = order.as_array().ok_or_else(bad)?;
        let member = schema.and_then(|s| s.member(name));
        let strategy = Strategy::of(member.as_ref());
        let new = match patch.get(name) {
            None => None,
            Some(Value::Array(list)) => Some(list.as_slice()),
            // An explicit null deletes the list, with or without an order.
            Some(Value::Null) => continue,
            Some(_) => return Err(bad()),
        };
        let old = original.get(name).and_then(Value::as_array).cloned();
        check_order(new.unwrap_or_default(), order, strategy.key)?;
        let merged = match (&old, new) {
            (None, None) => continue,
            (Some(old), None) => old.clone(),
            (None, Some(new)) => cleaned_items(new),
            (Some(old), Some(new)) if strategy.merge => merge_list(old, new, strategy.key, member.as_ref())?,
            (Some(_), Some(new)) => cleaned_items(new),
        };
        let merged = in_order(merged, order, &old.unwrap_or_default(), strategy.key);
        original.insert(name.to_owned(), Value::Array(merged));
        done.insert(name);
    }
    Ok(done)
}

/// Checks that the elements of the patch are in the order list, in that order.
fn check_order(patch: &[Value], order: &[Value], key: Option<&str>) -> Result<(), PatchError> {
    if patch.is_empty() || order.is_empty() {
        return Ok(());
    }
    let mut wanted = order.iter();
    let fits =
        patch.iter().filter(|v| v.get(MARKER).is_none()).all(|item| wanted.any(|o| same(item, o, key)));
    if fits {
        return Ok(());
    }
    Err(PatchError::Malformed(format!(
        "The order in patch list:\n{}\n doesn't match {SET_ORDER} list:\n{}\n",
        GoValue(&Value::from(patch)),
        GoValue(&Value::from(order))
    )))
}

fn merge_list<S: PatchSchema>(
    original: &[Value],
    patch: &[Value],
    key: Option<&str>,
    schema: Option<&S>,
) -> Result<Vec<Value>, PatchError> {
    if original.iter().chain(patch).any(Value::is_array) {
        return Err(PatchError::Failed("lists of lists are not supported".to_owned()));
    }
    if !original.iter().chain(patch).any(Value::is_object) {
        let mut seen = HashSet::new();
        let merged = original.iter().chain(patch).filter(|value| seen.insert(*value)).cloned().collect();
        return Ok(in_order(merged, patch, original, None));
    }
    let Some(key) = key else {
        return Err(PatchError::Failed("cannot merge lists without merge key".to_owned()));
    };
    let items = schema.and_then(PatchSchema::items);
    let (left, changes) = list_directives(original, patch, key)?;
    // A deleted element leaves an empty slot, so that indexes stay valid.
    let mut merged: Vec<Option<Value>> = left.into_iter().map(Some).collect();
    let mut places: HashMap<Value, usize> = HashMap::with_capacity(merged.len());
    for (at, item) in merged.iter().enumerate() {
        if let Some(id) = item.as_ref().and_then(|item| item.get(key)) {
            places.entry(id.clone()).or_insert(at);
        }
    }
    for change in &changes {
        let id = change.get(key).ok_or_else(|| no_merge_key(change, key))?;
        let place = places.get(id).copied();
        match place.and_then(|at| merged.get_mut(at)) {
            Some(slot @ Some(Value::Object(_))) => {
                let Some(Value::Object(found)) = slot else { continue };
                if merge_map(found, change, items.as_ref())? == After::Removed {
                    *slot = None;
                }
            }
            _ => {
                places.insert(id.clone(), merged.len());
                merged.push(Some(Value::Object(cleaned_members(change))));
            }
        }
    }
    let merged = merged.into_iter().flatten().collect();
    let changes: Vec<Value> = changes.into_iter().cloned().map(Value::Object).collect();
    Ok(in_order(merged, &changes, original, Some(key)))
}

/// Elements of a patch list that are merged or added.
type Changes<'p> = Vec<&'p Map<String, Value>>;

/// Applies the elements of a patch list that are directives. Returns the remaining list, and the other elements.
fn list_directives<'p>(
    original: &[Value],
    patch: &'p [Value],
    key: &str,
) -> Result<(Vec<Value>, Changes<'p>), PatchError> {
    let mut deleted = HashSet::new();
    let mut changes = Vec::new();
    let mut replace = false;
    for item in patch {
        let Value::Object(map) = item else {
            let text = format!("expected a map, but received {}", GoValue(item));
            return Err(PatchError::Malformed(text));
        };
        match map.get(MARKER).map(|d| d.as_str().unwrap_or_default()) {
            None => changes.push(map),
            Some("merge") => {
                return Err(PatchError::Directive(
                    "merging lists cannot yet be specified in the patch".to_owned(),
                ));
            }
            Some("replace") => replace = true,
            Some("delete") => {
                let id = map.get(key).ok_or_else(|| no_merge_key(map, key))?;
                deleted.insert(id);
            }
            Some(_) => return Err(unknown_directive(map)),
        }
    }
    if replace {
        let items = changes.into_iter().map(|map| Value::Object(cleaned_members(map))).collect();
        return Ok((items, Vec::new()));
    }
    let is_left = |item: &&Value| item.get(key).is_none_or(|id| !deleted.contains(id));
    Ok((original.iter().filter(is_left).cloned().collect(), changes))
}

fn delete_from_list(original: &mut Map<String, Value>, list: &str, values: &Value) -> Result<(), PatchError> {
    let bad = || PatchError::Malformed("invalid patch format of primitive list".to_owned());
    let values = values.as_array().ok_or_else(bad)?;
    if let Some(Value::Array(items)) = original.get_mut(list) {
        let values: HashSet<&Value> = values.iter().collect();
        items.retain(|item| !values.contains(item));
    }
    Ok(())
}

/// Sorts the elements that `order` names in that order. Other elements keep their positions relative to them.
pub(super) fn in_order(
    merged: Vec<Value>,
    order: &[Value],
    server: &[Value],
    key: Option<&str>,
) -> Vec<Value> {
    let (ordered, served) = (IndexByIdentity::of(order, key), IndexByIdentity::of(server, key));
    let mut named = Vec::new();
    let mut others = Vec::new();
    for item in merged {
        let here = served.find(&item);
        match ordered.find(&item) {
            Some(place) => named.push((place, here, item)),
            None => others.push((here, item)),
        }
    }
    named.sort_by_key(|(place, ..)| *place);
    others.sort_by_key(|(here, _)| *here);
    let mut out = Vec::with_capacity(named.len() + others.len());
    let mut others = others.into_iter().peekable();
    for (_, limit, item) in named {
        while let Some((_, other)) =
            others.next_if(|(here, _)| limit.is_some_and(|limit| here.is_some_and(|here| here < limit)))
        {
            out.push(other);
        }
        out.push(item);
    }
    out.extend(others.map(|(_, other)| other));
    out
}

/// The identity of a list element: its merge key, or the element itself if there is none.
fn identity<'v>(item: &'v Value, key: Option<&str>) -> Option<&'v Value> {
    key.map_or(Some(item), |key| item.get(key))
}

fn same(a: &Value, b: &Value, key: Option<&str>) -> bool {
    identity(a, key).is_some_and(|id| identity(b, key) == Some(id))
}

/// The indexes of list elements by identity. Of equal elements the first counts.
struct IndexByIdentity<'v> {
    by_id: HashMap<&'v Value, usize>,
    key: Option<&'v str>,
}

impl<'v> IndexByIdentity<'v> {
    fn of(list: &'v [Value], key: Option<&'v str>) -> Self {
        let mut by_id = HashMap::with_capacity(list.len());
        for (at, item) in list.iter().enumerate() {
            if let Some(id) = identity(item, key) {
                by_id.entry(id).or_insert(at);
            }
        }
        Self { by_id, key }
    }

    fn find(&self, item: &Value) -> Option<usize> {
        self.by_id.get(identity(item, self.key)?).copied()
    }
}

fn suffix<'a>(key: &'a str, directive: &str) -> Option<&'a str> {
    key.strip_prefix(directive)?.strip_prefix('/')
}

/// A part of a patch as it is stored where nothing exists to merge with: without nulls and directives. `None` if a
/// directive deletes it.
fn without_directives(value: &Value) -> Option<Value> {
    match value {
        Value::Object(map) => match map.get(MARKER) {
            None => Some(Value::Object(cleaned_members(map))),
            Some(directive) => (directive == "replace").then(|| Value::Object(cleaned_members(map))),
        },
        Value::Array(items) => Some(Value::Array(cleaned_items(items))),
        other => Some(other.clone()),
    }
}

fn cleaned_members(map: &Map<String, Value>) -> Map<String, Value> {
    map.iter()
        .filter(|(key, value)| {
            let directive = *key == MARKER
                || *key == RETAIN_KEYS
                || suffix(key, DELETE_FROM).is_some()
                || suffix(key, SET_ORDER).is_some();
            !directive && !value.is_null()
        })
        .filter_map(|(key, value)| without_directives(value).map(|v| (key.clone(), v)))
        .collect()
}

fn cleaned_items(items: &[Value]) -> Vec<Value> {
    let is_directive = |item: &Value| item.get(MARKER).is_some_and(|d| d != "merge");
    let item = |item: &Value| match item {
        Value::Object(map) => Some(Value::Object(cleaned_members(map))),
        other => without_directives(other),
    };
    items.iter().filter(|i| !is_directive(i)).filter_map(item).collect()
}

fn no_merge_key(map: &Map<String, Value>, key: &str) -> PatchError {
    let printed = Value::Object(map.clone());
    PatchError::Directive(format!("map: {} does not contain declared merge key: {key}", GoValue(&printed)))
}

fn unknown_directive(map: &Map<String, Value>) -> PatchError {
    let directive = map.get(MARKER).cloned().unwrap_or_default();
    let printed = Value::Object(map.clone());
    // Go prints the directive as a string, whatever it is.
    let shown = match &directive {
        Value::Number(n) if n.is_f64() => format!("%!s(float64={n})"),
        Value::Number(n) => format!("%!s(int64={n})"),
        Value::Bool(b) => format!("%!s(bool={b})"),
        other => GoValue(other).to_string(),
    };
    PatchError::Directive(format!("unknown patch type: {shown} in map: {}", GoValue(&printed)))
}
