//! The hub's admission of ManifestWorks (OCM-014, OCM-098). Pure.

use std::{collections::HashSet, io};

use apis::constants::WORK_GROUP;
use machinery::names;
use serde_json::Value;

use super::admission::Refusal;

/// Longest name: that of the AppliedManifestWork is longer by a dash and 64 hexadecimal digits.
const NAME_LIMIT: usize = 253 - 65;
/// How many of the largest manifests an error about the size names.
const NAMED: usize = 3;

/// The question that an admission decision may ask.
pub trait Ask {
    /// Returns whether the writer has a permission in a namespace: verb, group, resource, namespace, name.
    fn may_in(&self, verb: &str, group: &str, resource: &str, namespace: &str, name: &str) -> bool;
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// Checks a ManifestWork whose manifests have at most `limit` bytes together; OCM allows 500 KiB. `old` is the object that it replaces, `user` the writer. A
/// manifest that is not an object is left to the schema. Costs one more serialisation of the manifests, and
/// nothing if the spec is unchanged.
///
/// # Errors
///
/// Why the write is refused.
pub fn manifest_work(
    work: &Value,
    old: Option<&Value>,
    user: &str,
    limit: usize,
    ask: &dyn Ask,
) -> Result<(), Refusal> {
    let bad = |why: String| Err(Refusal::Bad(why));
    if old.is_some_and(|old| old.get("spec") == work.get("spec")) {
        return Ok(());
    }
    let name = text(work, "/metadata/name");
    if old.is_none() && name.len() > NAME_LIMIT {
        return bad(format!(
            "the name of a ManifestWork has at most {NAME_LIMIT} characters, or its AppliedManifestWork can't be named; \
             this one has {}",
            name.len()
        ));
    }
    let empty = Vec::new();
    let manifests = work.pointer("/spec/workload/manifests").and_then(Value::as_array).unwrap_or(&empty);
    if manifests.is_empty() {
        return bad("manifests should not be empty".into());
    }
    check_size(manifests, limit)?;
    check_names(manifests)?;
    check_executor(work, old, user, ask)
}

fn check_size(manifests: &[Value], limit: usize) -> Result<(), Refusal> {
    let mut sizes: Vec<(usize, &Value)> =
        manifests.iter().map(|manifest| (size(manifest), manifest)).collect();
    let total: usize = sizes.iter().map(|(size, _)| size).sum();
    if total <= limit {
        return Ok(());
    }
    sizes.sort_by_key(|(size, _)| std::cmp::Reverse(*size));
    let largest: Vec<String> = sizes
        .iter()
        .take(NAMED)
        .map(|(size, it)| format!("{} {} of {size}", text(it, "/kind"), place(it)))
        .collect();
    Err(Refusal::Bad(format!(
        "the size of manifests is {total} bytes which exceeds the {limit} limit; the largest: {}",
        largest.join(", ")
    )))
}

/// Returns the bytes of a manifest as OCM counts them: JSON within two protobuf messages.
fn size(manifest: &Value) -> usize {
    struct Counter(usize);
    impl io::Write for Counter {
        fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
            self.0 += buffer.len();
            Ok(buffer.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut counter = Counter(0);
    if serde_json::to_writer(&mut counter, manifest).is_err() {
        return usize::MAX / 2;
    }
    field(field(counter.0))
}

/// Returns the size of a protobuf field with this many bytes.
fn field(length: usize) -> usize {
    let bits = usize::BITS - (length | 1).leading_zeros();
    1 + bits.div_ceil(7) as usize + length
}

fn place(manifest: &Value) -> String {
    format!("{}/{}", text(manifest, "/metadata/namespace"), text(manifest, "/metadata/name"))
}

fn check_names(manifests: &[Value]) -> Result<(), Refusal> {
    let mut seen = HashSet::new();
    for manifest in manifests.iter().filter(|manifest| manifest.is_object()) {
        let (version, kind) = (text(manifest, "/apiVersion"), text(manifest, "/kind"));
        let name = text(manifest, "/metadata/name");
        if name.is_empty() {
            return Err(Refusal::Bad("name must be set in manifest".into()));
        }
        if !text(manifest, "/metadata/generateName").is_empty() {
            return Err(Refusal::Bad("generateName must not be set in manifest".into()));
        }
        if !seen.insert((version, kind, text(manifest, "/metadata/namespace"), name)) {
            return Err(Refusal::Bad(format!(
                "duplicate manifest for resource {} with resource type {version}.{kind}",
                place(manifest)
            )));
        }
    }
    Ok(())
}

/// A writer that names an executor needs the permission to act as it.
fn check_executor(work: &Value, old: Option<&Value>, user: &str, ask: &dyn Ask) -> Result<(), Refusal> {
    let of = |work: &Value| work.pointer("/spec/executor").filter(|it| !it.is_null()).cloned();
    let Some(executor) = of(work) else { return Ok(()) };
    if old.is_some_and(|old| of(old).as_ref() == Some(&executor)) {
        return Ok(());
    }
    let account = executor.pointer("/subject/serviceAccount").filter(|it| it.is_object());
    let Some(account) = account else {
        return Err(Refusal::Bad("executor service account can not be nil".into()));
    };
    let (of, name) = (text(account, "/namespace"), text(account, "/name"));
    if [of, name].iter().any(|part| !names::dns1123_subdomain(part).is_empty()) {
        // The schema reports what is wrong.
        return Ok(());
    }
    let mailbox = text(work, "/metadata/namespace");
    let subject = format!("system:serviceaccount:{of}:{name}");
    if ask.may_in("execute-as", WORK_GROUP, "manifestworks", mailbox, &subject) {
        return Ok(());
    }
    Err(Refusal::Bad(format!(
        "user {user} cannot manipulate the Manifestwork with executor {of}/{name} in namespace {mailbox}"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// OCM's limit.
    const SIZE_LIMIT: usize = 500 * 1024;

    struct Rights(&'static [&'static str]);

    impl Ask for Rights {
        fn may_in(&self, verb: &str, _: &str, resource: &str, namespace: &str, name: &str) -> bool {
            self.0.contains(&format!("{verb} {resource} {namespace} {name}").as_str())
        }
    }

    fn map(name: &str, bytes: usize) -> Value {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "sea"},
            "data": {"a": "x".repeat(bytes)}})
    }

    fn work(manifests: &[Value]) -> Value {
        json!({"metadata": {"name": "w", "namespace": "c1"}, "spec": {"workload": {"manifests": manifests}}})
    }

    fn admit(work: &Value, old: Option<&Value>) -> Result<(), String> {
        manifest_work(work, old, "u", SIZE_LIMIT, &Rights(&[])).map_err(|refusal| match refusal {
            Refusal::Bad(why) => why,
            Refusal::Forbidden(why) => panic!("403: {why}"),
        })
    }

    /// OCM-A-62: all of these are refused with 400 and OCM's texts.
    #[test]
    fn ocm_098_what_no_work_may_hold() {
        let refused = |work: &Value| admit(work, None).expect_err("refused");
        assert_eq!(refused(&work(&[])), "manifests should not be empty");
        assert_eq!(refused(&json!({"metadata": {"name": "w"}, "spec": {}})), "manifests should not be empty");
        let nameless = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "sea"}});
        assert_eq!(refused(&work(&[map("a", 1), nameless])), "name must be set in manifest");
        let mut generated = map("a", 1);
        generated["metadata"]["generateName"] = "a-".into();
        assert_eq!(refused(&work(&[generated])), "generateName must not be set in manifest");
        assert_eq!(
            refused(&work(&[map("a", 1), map("b", 1), map("a", 2)])),
            "duplicate manifest for resource sea/a with resource type v1.ConfigMap"
        );
        let mut elsewhere = map("a", 1);
        elsewhere["metadata"]["namespace"] = "lake".into();
        assert_eq!(admit(&work(&[map("a", 1), elsewhere, json!("odd")]), None), Ok(()));
        let mut long = work(&[map("a", 1)]);
        long["metadata"]["name"] = "n".repeat(188).into();
        assert_eq!(admit(&long, None), Ok(()));
        long["metadata"]["name"] = "n".repeat(189).into();
        assert!(refused(&long).starts_with("the name of a ManifestWork has at most 188 characters"));
    }

    /// OCM-A-62: the limit is OCM's, to the byte.
    #[test]
    fn ocm_098_the_size_of_a_work() {
        let empty = map("large", 0).to_string().len();
        // The two messages around half a MiB of JSON take four bytes each.
        let exact = work(&[map("large", SIZE_LIMIT - 8 - empty)]);
        assert_eq!(admit(&exact, None), Ok(()));
        let over = admit(&work(&[map("large", SIZE_LIMIT - 7 - empty)]), None).expect_err("too large");
        assert_eq!(
            over,
            "the size of manifests is 512001 bytes which exceeds the 512000 limit; the largest: ConfigMap sea/large of \
             512001"
        );
        for (length, bytes) in [(0, 2), (127, 129), (128, 131), (16_383, 16_386), (16_384, 16_388)] {
            assert_eq!(field(length), bytes, "{length}");
        }
    }

    #[test]
    fn ocm_098_only_a_changed_spec_is_looked_at() {
        let wrong = work(&[]);
        assert_eq!(admit(&wrong, Some(&wrong)), Ok(()), "its finalizer has to go");
        assert!(admit(&wrong, Some(&work(&[map("a", 1)]))).is_err());
    }

    /// OCM-A-59: a writer may name an executor that it may act as.
    #[test]
    fn ocm_098_executors() {
        let with = |account: Value| {
            let mut work = work(&[map("a", 1)]);
            work["spec"]["executor"] =
                json!({"subject": {"type": "ServiceAccount", "serviceAccount": account}});
            work
        };
        let named = with(json!({"namespace": "ops", "name": "deployer"}));
        let no = "user u cannot manipulate the Manifestwork with executor ops/deployer in namespace c1";
        assert_eq!(admit(&named, None), Err(no.into()));
        assert_eq!(admit(&with(json!(null)), None), Err("executor service account can not be nil".into()));
        let may = Rights(&["execute-as manifestworks c1 system:serviceaccount:ops:deployer"]);
        assert_eq!(manifest_work(&named, None, "u", SIZE_LIMIT, &may), Ok(()));
        let mut changed = named.clone();
        changed["spec"]["workload"]["manifests"] = json!([map("b", 1)]);
        assert_eq!(admit(&changed, Some(&named)), Ok(()), "the executor is the old one");
        assert_eq!(admit(&named, Some(&work(&[map("a", 1)]))), Err(no.into()));
        assert_eq!(admit(&work(&[map("a", 1)]), Some(&named)), Ok(()));
    }
}
