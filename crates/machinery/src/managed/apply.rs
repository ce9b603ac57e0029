//! Server-side apply (AS-035).

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::entries::{Entry, Managers, empty_object, never_owned};
use super::set::PathSet;
use super::typed::Types;
use super::{ApplyError, Conflict, Operation, Writer, check, compare, take_managed_fields, update};
use crate::field::TEXT_MAX;
use crate::schema::Schema;

/// The manager of fields that nobody owned before the first apply.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";
/// The field manager of kubectl, which takes over from client-side apply.
const KUBECTL: &str = "kubectl";
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Merges an applied configuration (AS-035; spec 5.6). `live` is `None` if the object does not exist. The result has
/// the new managedFields. Built-in objects are decoded again but neither normalised nor defaulted; after doing that,
/// call [`super::keep_times`] and compare with the live object to see whether anything must be written.
///
/// The caller has checked apiVersion, kind and name of the body, and that it has no managedFields.
///
/// # Errors
/// [`ApplyError::Conflict`] without `force`; [`ApplyError::Type`] if the body does not fit the schema.
pub fn apply(
    schema: &Schema,
    live: Option<&Value>,
    applied: &Value,
    writer: &Writer,
    force: bool,
) -> Result<Value, ApplyError> {
    let types = Types(schema.graph());
    check::check(types, Some(schema.id()), applied).map_err(|fault| {
        ApplyError::Type(format!("failed to create typed patch object ({}): {fault}", describe(applied)))
    })?;
    let mut object = live.cloned().unwrap_or_else(|| empty_object(schema, applied));
    let mut managers = take_managed_fields(&mut object).and_then(|f| Managers::parse(&f)).unwrap_or_default();
    if managers.0.is_empty() && live.is_some() {
        let before =
            Writer { manager: BEFORE_FIRST_APPLY.to_owned(), operation: Operation::Update, ..writer.clone() };
        let comparison = compare(schema, &empty_object(schema, &object), &object, &writer.ignored());
        update(&mut managers, comparison, &before);
    }
    let step = Step { schema, types, live: &object, applied, writer };
    let (mut merged, managers) = match step.run(managers.clone(), force) {
        Err(conflicts) if writer.manager == KUBECTL => step.run_as_kubectl(managers, conflicts)?,
        other => other.map_err(|conflicts| conflict_error(&conflicts))?,
    };
    if writer.manager == KUBECTL {
        refresh_last_applied(&mut merged, applied);
    }
    managers.write(&mut merged);
    if !schema.is_custom() {
        schema.decode(&mut merged).map_err(|e| ApplyError::Type(e.to_string()))?;
    }
    Ok(merged)
}

/// Conflicting fields by manager.
type Conflicts = Vec<(Entry, PathSet)>;

struct Step<'a> {
    schema: &'a Schema,
    types: Types<'a>,
    live: &'a Value,
    applied: &'a Value,
    writer: &'a Writer,
}

impl Step<'_> {
    fn run(&self, mut managers: Managers, force: bool) -> Result<(Value, Managers), Conflicts> {
        let root = Some(self.schema.id());
        let ignored = self.writer.ignored();
        let merged = self.types.merge(root, Some(self.live), Some(self.applied)).unwrap_or(Value::Null);
        let mut set = self.types.field_set(root, self.applied);
        set.subtract_deep(&ignored);
        let mut own = Entry::new(self.writer, set);
        let last = match managers.position(&own) {
            Some(at) => {
                let last = managers.0.remove(at);
                own.time = last.time;
                Some(last.set)
            }
            None => None,
        };
        let merged = match last {
            Some(last) if !last.is_empty() => self.prune(merged, &last, &own.set, &managers),
            _ => merged,
        };
        let comparison = compare(self.schema, self.live, &merged, &ignored);
        let mut changed = comparison.modified;
        changed.extend(&comparison.added);
        let mut conflicts = Conflicts::new();
        for entry in &managers.0 {
            let contested = entry.set.intersection(&changed);
            if !contested.is_empty() {
                conflicts.push((entry.clone(), contested));
            }
        }
        if !force && !conflicts.is_empty() {
            return Err(conflicts);
        }
        for entry in &mut managers.0 {
            entry.set.subtract(&changed);
            entry.set.subtract(&comparison.removed);
        }
        if merged != *self.live {
            own.time = self.writer.time();
        }
        own.set.subtract(never_owned());
        managers.0.push(own);
        managers.drop_empty();
        Ok((merged, managers))
    }

    /// Removes the fields that the manager applied the last time, does not apply now, and nobody else owns.
    fn prune(&self, merged: Value, last: &PathSet, own: &PathSet, others: &Managers) -> Value {
        let root = Some(self.schema.id());
        let graph = self.types.0;
        let named = |set: &PathSet| set.with_named_fields(graph, root);
        let empty = || Value::Object(Map::new());
        let last = named(last);
        let pruned = self.types.remove(root, &merged, &last).unwrap_or_else(empty);
        let mut owned = own.clone();
        for entry in &others.0 {
            owned.extend(&entry.set);
        }
        let there = named(&self.types.field_set(root, &merged));
        // First restore what anyone owns …
        let mut keep = named(&self.types.field_set(root, &pruned));
        keep.extend(&named(&owned));
        let mut gone = there.clone();
        gone.subtract(&keep);
        let pruned = self.types.remove(root, &merged, &gone).unwrap_or_else(empty);
        // … then what the manager has not applied.
        let mut gone = there;
        gone.subtract(&named(&self.types.field_set(root, &pruned)));
        let gone = gone.intersection(&last);
        self.types.remove(root, &merged, &gone).unwrap_or_else(empty)
    }

    /// Lets kubectl take over what it owned through client-side apply: the fields of its annotation that still have
    /// the same values.
    fn run_as_kubectl(
        &self,
        managers: Managers,
        conflicts: Conflicts,
    ) -> Result<(Value, Managers), ApplyError> {
        let Some(allowed) = self.last_applied_set() else { return Err(conflict_error(&conflicts)) };
        let rest: Conflicts = conflicts
            .into_iter()
            .map(|(entry, mut set)| {
                set.subtract(&allowed);
                (entry, set)
            })
            .filter(|(_, set)| !set.is_empty())
            .collect();
        if !rest.is_empty() {
            return Err(conflict_error(&rest));
        }
        self.run(managers, true).map_err(|conflicts| conflict_error(&conflicts))
    }

    fn last_applied_set(&self) -> Option<PathSet> {
        let text = last_applied(self.live)?;
        let config: Value = serde_json::from_str(text).ok()?;
        if config.get("apiVersion").and_then(Value::as_str) != Some(self.writer.api_version.as_str()) {
            return None;
        }
        let root = Some(self.schema.id());
        check::check(self.types, root, &config).ok()?;
        let mut set = self.types.field_set(root, &config);
        let comparison = self.types.compare(root, &config, self.live);
        for changed in [&comparison.modified, &comparison.added, &comparison.removed] {
            set.subtract(changed);
        }
        Some(set)
    }
}

fn last_applied(object: &Value) -> Option<&str> {
    let annotations = object.get("metadata")?.get("annotations")?;
    annotations.get(LAST_APPLIED)?.as_str().filter(|text| !text.is_empty())
}

/// Updates the annotation of client-side apply, if the object has it.
fn refresh_last_applied(merged: &mut Value, applied: &Value) {
    if last_applied(merged).is_none() {
        return;
    }
    let mut config = applied.clone();
    if let Some(annotations) = config.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
        annotations.remove(LAST_APPLIED);
    }
    if let Some(slot) = merged.get_mut("metadata").and_then(|m| m.get_mut("annotations"))
        && let Some(annotations) = slot.as_object_mut()
    {
        annotations.insert(LAST_APPLIED.to_owned(), Value::String(format!("{config}\n")));
    }
}

/// `namespace/name; group/version, Kind=Kind`, as far as the body has them.
fn describe(object: &Value) -> String {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let version = text("/apiVersion");
    let version = if version.contains('/') { version.to_owned() } else { format!("/{version}") };
    format!("{}/{}; {version}, Kind={}", text("/metadata/namespace"), text("/metadata/name"), text("/kind"))
}

fn conflict_error(conflicts: &Conflicts) -> ApplyError {
    let mut by_manager: BTreeMap<String, (String, Vec<String>)> = BTreeMap::new();
    let mut room = TEXT_MAX;
    for (entry, set) in conflicts {
        let slot = by_manager.entry(entry.identity()).or_insert_with(|| (entry.print(), Vec::new()));
        slot.1.extend(set.paths(&mut room));
    }
    let causes: Vec<Conflict> = by_manager
        .values()
        .flat_map(|(name, paths)| {
            paths
                .iter()
                .map(move |path| Conflict { message: format!("conflict with {name}"), field: path.clone() })
        })
        .collect();
    let message = match causes.as_slice() {
        [only] => format!("Apply failed with 1 conflict: {}: {}", only.message, only.field),
        many => {
            let lines: Vec<String> = by_manager
                .values()
                .flat_map(|(name, paths)| {
                    std::iter::once(format!("conflicts with {name}:"))
                        .chain(paths.iter().map(|path| format!("- {path}")))
                })
                .collect();
            format!("Apply failed with {} conflicts: {}", many.len(), lines.join("\n"))
        }
    };
    ApplyError::Conflict { message, causes }
}
