//! Revisions of templates: hashes, and the ControllerRevisions of StatefulSets and DaemonSets.

use serde_json::{Value, json};

use super::object::{Kind, Write, generation, label, name, namespace, number, owner_reference, set, text};

/// Label with the hash of the template, on a ReplicaSet and its pods.
pub(super) const HASH: &str = "pod-template-hash";

/// A short hash of a template. It must be stable across runs and versions, because names contain it.
pub(super) fn hash(template: &Value, collisions: i64) -> String {
    // FNV-1a, 32 bits, in the alphabet of Kubernetes, which has no vowels.
    const LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
    let mut sum: u32 = 0x811c_9dc5;
    let mut feed = |bytes: &[u8]| {
        for byte in bytes {
            sum = (sum ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
        }
    };
    feed(normalised(template).to_string().as_bytes());
    if collisions > 0 {
        feed(&collisions.to_le_bytes());
    }
    let letter = |digit: u8| LETTERS.get(usize::from(digit) % LETTERS.len()).copied().map_or('x', char::from);
    sum.to_string().bytes().map(letter).collect()
}

/// A template without fields that have no effect.
pub(super) fn normalised(template: &Value) -> Value {
    let mut template = template.clone();
    if let Some(metadata) = template.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("creationTimestamp");
        if let Some(labels) = metadata.get_mut("labels").and_then(Value::as_object_mut) {
            labels.remove(HASH);
        }
        metadata.retain(|_, value| !value.is_null() && value.as_object().is_none_or(|map| !map.is_empty()));
    }
    template
}

/// The revisions of a StatefulSet or DaemonSet.
pub(super) struct Revisions {
    /// Name of the revision of the current template.
    pub(super) update: String,
    /// Writes that create this revision, or make it the newest.
    pub(super) writes: Vec<Write>,
}

/// The label of a ControllerRevision with its hash.
fn hash_label(kind: Kind) -> &'static str {
    if kind == Kind::StatefulSet { "controller.kubernetes.io/hash" } else { "controller-revision-hash" }
}

/// The hash in the name of a revision.
pub(super) fn hash_of<'a>(revision: &'a str, owner: &Value) -> &'a str {
    revision.strip_prefix(name(owner)).and_then(|rest| rest.strip_prefix('-')).unwrap_or(revision)
}

fn data(template: &Value) -> Value {
    let mut template = normalised(template);
    set(&mut template, &[], "$patch", "replace");
    json!({"spec": {"template": template}})
}

/// The template of a revision.
pub(super) fn template(revision: &Value) -> Option<Value> {
    let mut template = revision.pointer("/data/spec/template")?.clone();
    template.as_object_mut()?.remove("$patch");
    Some(template)
}

/// Finds or creates the revision of the current template. `known` are the revisions that the set controls.
pub(super) fn sync(owner: &Value, kind: Kind, known: &[Value]) -> Revisions {
    let current = owner.pointer("/spec/template").cloned().unwrap_or_default();
    let wanted = data(&current);
    let newest = known.iter().map(|one| number(one, "/revision")).max().unwrap_or_default();
    let equal = known.iter().filter(|one| one.get("data") == Some(&wanted));
    if let Some(found) = equal.max_by_key(|one| number(one, "/revision")) {
        let mut writes = Vec::new();
        // A rollback makes an old revision the newest.
        if number(found, "/revision") < newest {
            let mut renewed = found.clone();
            set(&mut renewed, &[], "revision", newest + 1);
            writes.push(Write::Update(Kind::ControllerRevision, renewed));
        }
        return Revisions { update: name(found).to_owned(), writes };
    }
    let hash = hash(&current, number(owner, "/status/collisionCount"));
    let update = format!("{}-{hash}", name(owner));
    let mut revision = json!({
        "apiVersion": "apps/v1", "kind": "ControllerRevision",
        "metadata": {
            "name": update, "namespace": namespace(owner),
            "labels": current.pointer("/metadata/labels").cloned().unwrap_or_else(|| json!({})),
            "ownerReferences": [owner_reference(owner, kind)],
        },
        "data": wanted, "revision": newest + 1,
    });
    set(&mut revision, &["metadata", "labels"], hash_label(kind), hash);
    if kind == Kind::DaemonSet {
        let generation = generation(owner).to_string();
        set(
            &mut revision,
            &["metadata", "annotations"],
            "deprecated.daemonset.template.generation",
            generation,
        );
    }
    Revisions { update, writes: vec![Write::Create(Kind::ControllerRevision, revision)] }
}

/// Unused revisions beyond the history limit.
pub(super) fn surplus(owner: &Value, known: &[Value], in_use: impl Fn(&Value) -> bool) -> Vec<Write> {
    let limit = owner.pointer("/spec/revisionHistoryLimit").and_then(Value::as_i64).unwrap_or(10);
    let mut idle: Vec<&Value> = known.iter().filter(|one| !in_use(one)).collect();
    idle.sort_by_key(|one| number(one, "/revision"));
    let surplus = idle.len().saturating_sub(usize::try_from(limit).unwrap_or(usize::MAX));
    idle.into_iter().take(surplus).map(delete).collect()
}

fn delete(revision: &Value) -> Write {
    Write::Delete {
        kind: Kind::ControllerRevision,
        namespace: namespace(revision).to_owned(),
        name: name(revision).to_owned(),
        uid: text(revision, "/metadata/uid").to_owned(),
        at_once: false,
    }
}

/// Whether a pod with this revision label was created from the revision.
pub(super) fn made_from(pod_label: &str, revision: &Value) -> bool {
    !pod_label.is_empty()
        && (pod_label == name(revision) || pod_label == label(revision, "controller-revision-hash"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_tells_templates_apart_and_ignores_what_means_nothing() {
        let one = json!({"metadata": {"labels": {"app": "a"}}, "spec": {"containers": []}});
        let same = json!({"metadata": {"creationTimestamp": null, "labels": {"app": "a", "pod-template-hash": "x"}},
            "spec": {"containers": []}});
        let other = json!({"metadata": {"labels": {"app": "b"}}, "spec": {"containers": []}});
        assert_eq!(hash(&one, 0), hash(&same, 0));
        assert_ne!(hash(&one, 0), hash(&other, 0));
        assert_ne!(hash(&one, 0), hash(&one, 1));
        let letters = hash(&one, 0);
        assert!(letters.len() <= 10 && letters.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit()));
    }

    #[test]
    fn going_back_to_a_template_renews_its_revision() {
        let set = |image: &str| {
            json!({"metadata": {"name": "db", "namespace": "n", "uid": "u"},
            "spec": {"template": {"metadata": {"labels": {"app": "db"}}, "spec": {"image": image}}}})
        };
        let made = |writes: &[Write]| match writes {
            [Write::Create(Kind::ControllerRevision, one)] => one.clone(),
            other => panic!("{other:?}"),
        };
        let first = made(&sync(&set("a"), Kind::StatefulSet, &[]).writes);
        assert_eq!(first["revision"], 1);
        let second = made(&sync(&set("b"), Kind::StatefulSet, std::slice::from_ref(&first)).writes);
        assert_eq!(second["revision"], 2);
        let back = sync(&set("a"), Kind::StatefulSet, &[first.clone(), second]);
        assert_eq!(back.update, name(&first));
        assert!(matches!(&back.writes[..], [Write::Update(_, one)] if one["revision"] == 3));
        assert_eq!(template(&first), Some(normalised(&set("a")["spec"]["template"])));
    }
}
