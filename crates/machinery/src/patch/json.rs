//! JSON patch (RFC 6902) with limits: the result stays parseable, and copies cannot multiply.

use json_patch::{PatchOperation, jsonptr::PointerBuf};
use serde_json::Value;

use super::PatchError;
use crate::json::{DEPTH_MAX, depth, type_name};

/// Most operations of one patch.
pub const JSON_OPERATIONS_MAX: usize = 10_000;
/// Most bytes that the copies of one patch may add.
const COPIED_MAX: usize = 3 * 1024 * 1024;
/// Most values that are visited for moves deeper into the document, because each may make it too deep. Moved values
/// come from the document, so a small patch can move many.
const MOVED_MAX: usize = 10_000_000;

/// Most elements of lists that make room for an insertion, or close the gap of a removal. A small patch can do that to a long
/// list many times.
const SHIFTED_MAX: usize = 50_000_000;

/// The cost of the operations so far.
#[derive(Default)]
struct Cost {
    /// Copied bytes.
    copied: usize,
    /// Visited values.
    moved: usize,
    /// Shifted elements of lists.
    shifted: usize,
}

/// Applies a JSON patch. If an operation fails, the document is unchanged.
///
/// # Errors
/// The patch is malformed, does not fit the document, or exceeds a limit.
pub fn json(doc: &Value, ops: &Value) -> Result<Value, PatchError> {
    let mut out = doc.clone();
    let mut cost = Cost::default();
    for raw in operations(ops)? {
        let operation = resolve(read(raw)?, &out);
        check(&operation, &out, &mut cost)?;
        // Operations change a copy, so a failure needs no undo.
        json_patch::patch_unsafe(&mut out, std::slice::from_ref(&operation))
            .map_err(|e| PatchError::Failed(describe(&operation, &e)))?;
    }
    Ok(out)
}

fn operations(ops: &Value) -> Result<&[Value], PatchError> {
    let mistyped = |value: &Value, wanted: &str| {
        let text = format!(
            "error decoding patch: json: cannot unmarshal {} into Go value of type {wanted}",
            type_name(value)
        );
        PatchError::Malformed(text)
    };
    let list = match ops {
        // As in Go, `null` decodes to an empty list.
        Value::Null => return Ok(&[]),
        Value::Array(list) => list,
        other => return Err(mistyped(other, "[]handlers.jsonPatchOp")),
    };
    if let Some(wrong) = list.iter().find(|op| !op.is_object()) {
        return Err(mistyped(wrong, "handlers.jsonPatchOp"));
    }
    if list.len() > JSON_OPERATIONS_MAX {
        let text = format!(
            "The allowed maximum operations in a JSON patch is {JSON_OPERATIONS_MAX}, got {}",
            list.len()
        );
        return Err(PatchError::TooLarge(text));
    }
    Ok(list)
}

fn read(raw: &Value) -> Result<PatchOperation, PatchError> {
    serde_json::from_value(raw.clone()).map_err(|e| {
        let kind = raw.get("op").and_then(Value::as_str).unwrap_or_default();
        let known = matches!(kind, "add" | "remove" | "replace" | "move" | "copy" | "test");
        PatchError::Failed(if known { e.to_string() } else { format!("Unexpected kind: {kind}") })
    })
}

/// Replaces negative indexes, which count from the end of a list, by positive ones.
fn resolve(mut operation: PatchOperation, doc: &Value) -> PatchOperation {
    match &mut operation {
        PatchOperation::Add(op) => op.path = resolved(&op.path, doc, true),
        PatchOperation::Remove(op) => op.path = resolved(&op.path, doc, false),
        PatchOperation::Replace(op) => {
            op.path = resolved(&op.path, doc, false);
            // Kubernetes' library adds a member that is to be replaced and is not there.
            let parent = op.path.parent().and_then(|parent| parent.resolve(doc).ok());
            if parent.is_some_and(Value::is_object) && op.path.resolve(doc).is_err() {
                let (path, value) = (op.path.clone(), op.value.take());
                return PatchOperation::Add(json_patch::AddOperation { path, value });
            }
        }
        PatchOperation::Test(op) => op.path = resolved(&op.path, doc, false),
        PatchOperation::Move(op) => {
            op.from = resolved(&op.from, doc, false);
            op.path = resolved(&op.path, doc, true);
        }
        PatchOperation::Copy(op) => {
            op.from = resolved(&op.from, doc, false);
            op.path = resolved(&op.path, doc, true);
        }
    }
    operation
}

fn resolved(path: &PointerBuf, doc: &Value, inserting: bool) -> PointerBuf {
    if !path.as_str().contains("/-") {
        return path.clone();
    }
    let mut out = PointerBuf::new();
    let mut at = Some(doc);
    let last = path.count().saturating_sub(1);
    for (i, token) in path.tokens().enumerate() {
        let list = at.and_then(Value::as_array);
        let back = token.decoded().strip_prefix('-').and_then(|n| n.parse::<usize>().ok());
        let index = list.zip(back).and_then(|(list, back)| {
            let len = if inserting && i == last { list.len() + 1 } else { list.len() };
            len.checked_sub(back)
        });
        let token = index.map_or_else(|| token.decoded().into_owned(), |index| index.to_string());
        at = at.and_then(|value| match value {
            Value::Array(list) => token.parse::<usize>().ok().and_then(|i| list.get(i)),
            other => other.get(&token),
        });
        out.push_back(token.as_str());
    }
    out
}

/// Refuses an operation that makes the document too large or too deep, or costs too much.
fn check(operation: &PatchOperation, doc: &Value, cost: &mut Cost) -> Result<(), PatchError> {
    cost.shifted += shifted(operation, doc);
    if cost.shifted > SHIFTED_MAX {
        return Err(PatchError::TooLarge(format!(
            "Unable to change the list, the accumulated number of shifted elements is {}, exceeding the limit {SHIFTED_MAX}",
            cost.shifted
        )));
    }
    let (path, value) = match operation {
        PatchOperation::Add(op) => (&op.path, Some(&op.value)),
        PatchOperation::Replace(op) => (&op.path, Some(&op.value)),
        // A move to the same or a lower depth.
        PatchOperation::Move(op) if op.path.count() <= op.from.count() => return Ok(()),
        PatchOperation::Move(op) => {
            let value = op.from.resolve(doc).ok();
            cost.moved += value.map_or(0, size);
            if cost.moved > MOVED_MAX {
                return Err(PatchError::TooLarge(format!(
                    "Unable to complete the move, the accumulated number of moved values is {}, exceeding the limit \
                     {MOVED_MAX}",
                    cost.moved
                )));
            }
            (&op.path, value)
        }
        PatchOperation::Copy(op) => {
            let source = op.from.resolve(doc).ok();
            cost.copied += source.map_or(0, |value| value.to_string().len());
            if cost.copied > COPIED_MAX {
                return Err(PatchError::TooLarge(format!(
                    "Unable to complete the copy, the accumulated size increase of copy is {}, exceeding the limit \
                     {COPIED_MAX}",
                    cost.copied
                )));
            }
            (&op.path, source)
        }
        PatchOperation::Remove(_) | PatchOperation::Test(_) => return Ok(()),
    };
    if path.count() + value.map_or(0, depth) > DEPTH_MAX {
        return Err(PatchError::Failed("exceeded max depth".to_owned()));
    }
    Ok(())
}

/// How many elements of lists the operation shifts.
fn shifted(operation: &PatchOperation, doc: &Value) -> usize {
    let behind = |path: &PointerBuf| {
        let list = path.parent().and_then(|parent| parent.resolve(doc).ok()).and_then(Value::as_array);
        let index = path.last().and_then(|token| token.decoded().parse::<usize>().ok());
        list.zip(index).map_or(0, |(list, index)| list.len().saturating_sub(index))
    };
    match operation {
        PatchOperation::Add(op) => behind(&op.path),
        PatchOperation::Remove(op) => behind(&op.path),
        PatchOperation::Copy(op) => behind(&op.path),
        PatchOperation::Move(op) => behind(&op.from) + behind(&op.path),
        PatchOperation::Replace(_) | PatchOperation::Test(_) => 0,
    }
}

/// The number of values in a value, including itself.
fn size(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(size).sum(),
        Value::Object(map) => map.values().map(size).sum::<usize>(),
        _ => 0,
    }
}

fn describe(operation: &PatchOperation, error: &json_patch::PatchError) -> String {
    let (verb, path) = match operation {
        PatchOperation::Test(op) => return format!("testing value {} failed: test failed", op.path),
        PatchOperation::Add(op) => ("add", &op.path),
        PatchOperation::Remove(op) => ("remove", &op.path),
        PatchOperation::Replace(op) => ("replace", &op.path),
        PatchOperation::Move(op) => ("move", &op.path),
        PatchOperation::Copy(op) => ("copy", &op.path),
    };
    format!(
        "{verb} operation does not apply: doc is missing path: {}: {}",
        crate::field::quote(path.as_str()),
        error.kind
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn as_032_json_patch_operations() {
        let doc = json!({"data": {"x": "1", "y": "2"}, "metadata": {"annotations": {"golden.test/x": "1"}}});
        let ops = json!([
            {"op": "add", "path": "/data/z", "value": "9"}, {"op": "replace", "path": "/data/x", "value": "8"},
            {"op": "remove", "path": "/data/y"}, {"op": "copy", "from": "/data/z", "path": "/data/c"},
            {"op": "move", "from": "/data/x", "path": "/data/m"}, {"op": "test", "path": "/data/m", "value": "8"},
            {"op": "add", "path": "/metadata/annotations/til~0de", "value": "x"},
            {"op": "replace", "path": "/metadata/annotations/golden.test~1x", "value": "3"}
        ]);
        assert_eq!(
            json(&doc, &ops),
            Ok(json!({"data": {"c": "9", "m": "8", "z": "9"},
                "metadata": {"annotations": {"golden.test/x": "3", "til~de": "x"}}}))
        );
    }

    #[test]
    fn as_032_json_patch_lists() {
        let on = |op: Value| json(&json!({"l": [1, 2, 3]}), &json!([op]));
        assert_eq!(on(json!({"op": "add", "path": "/l/-", "value": 4})), Ok(json!({"l": [1, 2, 3, 4]})));
        assert_eq!(on(json!({"op": "add", "path": "/l/1", "value": 9})), Ok(json!({"l": [1, 9, 2, 3]})));
        assert_eq!(on(json!({"op": "remove", "path": "/l/-1"})), Ok(json!({"l": [1, 2]})));
        assert_eq!(on(json!({"op": "add", "path": "/l/-1", "value": 4})), Ok(json!({"l": [1, 2, 3, 4]})));
        assert!(on(json!({"op": "add", "path": "/l/7", "value": 9})).is_err());
        assert!(on(json!({"op": "remove", "path": "/l/-9"})).is_err());
    }

    #[test]
    fn as_032_json_patch_errors() {
        let on = |ops: Value| json(&json!({"a": "1"}), &ops);
        let malformed =
            |t: &str| Err(PatchError::Malformed(format!("error decoding patch: json: cannot unmarshal {t}")));
        assert_eq!(on(json!({})), malformed("object into Go value of type []handlers.jsonPatchOp"));
        assert_eq!(on(json!([1])), malformed("number into Go value of type handlers.jsonPatchOp"));
        assert_eq!(on(Value::Null), Ok(json!({"a": "1"})));
        for (op, text) in [
            (json!({"op": "test", "path": "/a", "value": "2"}), "testing value /a failed: test failed"),
            (json!({"op": "jump", "path": "/a"}), "Unexpected kind: jump"),
        ] {
            assert_eq!(on(json!([op])), Err(PatchError::Failed(text.to_owned())));
        }
        assert_eq!(on(json!([{"op": "replace", "path": "/b", "value": 1}])), Ok(json!({"a": "1", "b": 1})));
        for op in [
            json!({"op": "remove", "path": "/b"}),
            json!({"op": "replace", "path": "/b/c", "value": 1}),
            json!({"op": "add", "path": "/b/c", "value": 1}),
            json!({"op": "move", "from": "/b", "path": "/c"}),
            json!({"op": "copy", "from": "/b", "path": "/c"}),
            json!({"op": "add", "value": 1}),
        ] {
            assert!(matches!(on(json!([op])), Err(PatchError::Failed(_))), "{op}");
        }
    }

    #[test]
    fn as_032_json_patch_limits() {
        let many: Vec<Value> = vec![json!({"op": "test", "path": "/a", "value": 1}); JSON_OPERATIONS_MAX + 1];
        assert_eq!(
            json(&json!({"a": 1}), &Value::from(many)),
            Err(PatchError::TooLarge(
                "The allowed maximum operations in a JSON patch is 10000, got 10001".to_owned()
            ))
        );
        let nest = json!({"op": "copy", "from": "", "path": "/a"});
        let deep = json(&json!({"a": {}}), &Value::from(vec![nest; 200]));
        assert!(matches!(deep, Err(PatchError::Failed(_))));
        let double: Vec<Value> =
            (0..40).map(|i| json!({"op": "copy", "from": "", "path": format!("/{i}")})).collect();
        assert!(json(&json!({"a": "x".repeat(1000)}), &Value::from(double)).is_err());
    }

    /// Insertions and removals at the beginning of a long list shift all of it each time.
    #[test]
    fn as_032_json_patch_does_not_shift_without_end() {
        let doc = json!({"l": vec![0; 20_000]});
        let (at_front, at_end) = (json!("/l/0"), json!("/l/-"));
        for (op, path, fits) in [
            ("add", &at_front, false),
            ("remove", &at_front, false),
            ("copy", &at_front, false),
            ("move", &at_front, false),
            ("replace", &at_front, true),
            ("add", &at_end, true),
            ("copy", &at_end, true),
        ] {
            let ops = vec![json!({"op": op, "from": "/l/1", "path": path, "value": 1}); 4000];
            let done = json(&doc, &Value::from(ops));
            let too_large = matches!(&done, Err(PatchError::TooLarge(why)) if why.contains("shifted"));
            assert!(if fits { done.is_ok() } else { too_large }, "{op} {path}: {:?}", done.err());
        }
    }

    proptest! {
        #[test]
        fn any_operations_apply_or_fail(
            doc in super::super::tests::values(),
            ops in prop::collection::vec((
                prop::sample::select(vec!["add", "remove", "replace", "move", "copy", "test"]),
                "(/([a-d]|-?[0-3]|-|~0|~1|~)){0,3}|.{0,4}", "(/([a-d]|[0-3])){0,2}", super::super::tests::values()), 0..6)
        ) {
            let ops: Vec<Value> = ops.into_iter()
                .map(|(op, path, from, value)| json!({"op": op, "path": path, "from": from, "value": value}))
                .collect();
            let _ = json(&doc, &Value::from(ops));
        }
    }
}
