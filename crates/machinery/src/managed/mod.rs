//! Field ownership: managedFields of plain writes and server-side apply.

mod apply;
mod check;
mod entries;
mod set;
mod stored;
#[cfg(test)]
mod tests;
mod typed;
mod writer;

use serde_json::Value;

pub use apply::apply;
pub use writer::{Operation, Writer};

use crate::schema::Schema;
use entries::{Entry, Managers, empty_object, never_owned};
use set::PathSet;
use stored::StoredEntries;
use typed::{Comparison, Types};

/// One conflicting field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// `conflict with "m1"` …
    pub message: String,
    /// `.data.x`
    pub field: String,
}

/// Why an apply failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// 409 Conflict; the causes have reason FieldManagerConflict.
    #[error("{message}")]
    Conflict { message: String, causes: Vec<Conflict> },
    /// 500: the body does not fit the schema.
    #[error("{0}")]
    Type(String),
}

/// Records a plain write in `new.metadata.managedFields` (AS-034; spec 5.5). `live` is the stored object, `None` on
/// create. Both are decoded, defaulted and normalised. Strategies and admission run later, so nobody owns the fields
/// that they set (allocated addresses, protecting finalizers, generated labels). `new` has the managedFields that the
/// client sent; an explicit `[]` clears them. A write without changes keeps the entries and their times.
///
/// Costs a comparison of the two objects plus the size of the change. If the client sends other entries than the
/// stored ones, all entries are parsed and encoded.
pub fn track_update(schema: &Schema, live: Option<&Value>, new: &mut Value, writer: &Writer) {
    let sent = take_managed_fields(new);
    let stored = live.and_then(|live| Some((live, live.pointer("/metadata/managedFields")?)));
    if let Some((live, fields)) = stored
        && StoredEntries::is_open_to(fields, writer)
    {
        let same = sent.as_ref().is_some_and(|sent| sent == fields);
        if same || sent.is_none() || !writer.subresource.is_empty() {
            let comparison = compare(schema, live, new, &writer.ignored());
            let mut stored = StoredEntries::new(sent.filter(|_| same).unwrap_or_else(|| fields.clone()));
            stored.update(comparison, writer);
            stored.write(new);
            return;
        }
    }
    track_by_sets(schema, live, new, sent, writer);
}

/// [`track_update`] with any entries.
fn track_by_sets(
    schema: &Schema,
    live: Option<&Value>,
    new: &mut Value,
    sent: Option<Value>,
    writer: &Writer,
) {
    let stored = || live.and_then(Managers::of).unwrap_or_default();
    let mut managers = match sent {
        Some(sent) if writer.subresource.is_empty() => {
            if is_reset(&sent) {
                Managers::default()
            } else {
                match Managers::parse(&sent) {
                    Some(managers) if !managers.0.is_empty() => managers,
                    _ => stored(),
                }
            }
        }
        _ => stored(),
    };
    // Changing an object without owners does not add one.
    if managers.0.is_empty() && live.is_some() {
        return;
    }
    let from;
    let old = if let Some(live) = live {
        live
    } else {
        from = empty_object(schema, new);
        &from
    };
    let comparison = compare(schema, old, new, &writer.ignored());
    update(&mut managers, comparison, writer);
    managers.cap();
    managers.write(new);
}

/// Restores the times of entries if they are the only change of a write, so that nothing has to be written (AS-034).
pub fn keep_times(live: &Value, new: &mut Value) {
    let same = |a: &Value, b: &Value| {
        let without = |v: &Value| {
            let mut v = v.clone();
            if let Some(entry) = v.as_object_mut() {
                entry.remove("time");
            }
            v
        };
        without(a) == without(b)
    };
    let entries = |v: &Value| v.pointer("/metadata/managedFields").and_then(Value::as_array).cloned();
    let (Some(before), Some(after)) = (entries(live), entries(new)) else { return };
    if before == after || before.len() != after.len() || !before.iter().zip(&after).all(|(a, b)| same(a, b)) {
        return;
    }
    let rest_equal = {
        let (Some(a), Some(b)) = (live.as_object(), new.as_object()) else { return };
        let meta_equal = match (a.get("metadata"), b.get("metadata")) {
            (Some(Value::Object(x)), Some(Value::Object(y))) => {
                x.len() == y.len() && x.iter().all(|(k, v)| k == "managedFields" || y.get(k) == Some(v))
            }
            _ => false,
        };
        meta_equal && a.len() == b.len() && a.iter().all(|(k, v)| k == "metadata" || b.get(k) == Some(v))
    };
    if rest_equal && let Some(slot) = new.pointer_mut("/metadata/managedFields") {
        *slot = Value::Array(before);
    }
}

/// The difference of two objects, without managedFields and without the fields that the endpoint does not own.
fn compare(schema: &Schema, old: &Value, new: &Value, ignored: &PathSet) -> Comparison {
    let mut comparison = Types(schema.graph()).compare(Some(schema.id()), old, new);
    for set in [&mut comparison.removed, &mut comparison.modified, &mut comparison.added] {
        set.subtract_deep(ignored);
        set.subtract(managed_fields_path());
    }
    comparison
}

fn managed_fields_path() -> &'static PathSet {
    static PATH: std::sync::OnceLock<PathSet> = std::sync::OnceLock::new();
    PATH.get_or_init(|| PathSet::of_fields(["metadata.managedFields"]))
}

/// Moves changed fields to the writer, and removes removed fields from all entries.
fn update(managers: &mut Managers, comparison: Comparison, writer: &Writer) {
    let Comparison { removed, modified, added } = comparison;
    let mut taken = modified;
    taken.extend(&added);
    for entry in &mut managers.0 {
        entry.set.subtract(&taken);
        entry.set.subtract(&removed);
    }
    taken.subtract(never_owned());
    if !taken.is_empty() {
        let own = Entry::new(writer, taken);
        match managers.position(&own) {
            Some(at) => {
                if let Some(entry) = managers.0.get_mut(at) {
                    entry.set.extend(&own.set);
                    entry.time = writer.time();
                }
            }
            None => managers.0.push(Entry { time: writer.time(), ..own }),
        }
    }
    managers.drop_empty();
}

fn take_managed_fields(object: &mut Value) -> Option<Value> {
    object.get_mut("metadata")?.as_object_mut()?.remove("managedFields").filter(|v| !v.is_null())
}

/// Whether the client clears all entries: `[]` or `[{}]`.
fn is_reset(fields: &Value) -> bool {
    match fields.as_array().map(Vec::as_slice) {
        Some([]) => true,
        Some([Value::Object(only)]) => only.is_empty(),
        _ => false,
    }
}
