//! The objects that a demo delivers: the built-in application or the user's files.

use std::fs;
use std::path::{Path, PathBuf};

use kube::api::DynamicObject;
use serde_json::Value;

use crate::exit::{Exit, Failure, OrFail};

/// The built-in application and its policies.
const APPLICATION: &str = include_str!("application.yaml");

/// Group of the policies.
pub(crate) const CONTROL_GROUP: &str = "control.kubestellar.io";

/// Manifests in the order they are applied.
#[derive(Debug, Default)]
pub(crate) struct Manifests {
    /// Namespaces and CustomResourceDefinitions first, then the rest as written.
    pub(crate) workload: Vec<DynamicObject>,
    /// StatusCollectors and CustomTransforms: they stay in the WDS, and are there before what they are about.
    pub(crate) rules: Vec<DynamicObject>,
    pub(crate) policies: Vec<DynamicObject>,
}

impl Manifests {
    pub(crate) fn built_in() -> Result<Self, Failure> {
        Self::parse(&[(PathBuf::from("built-in application"), APPLICATION.to_owned())])
    }

    /// Reads all `*.yaml`, `*.yml` and `*.json` files of a directory, or one file.
    pub(crate) fn read(path: &Path) -> Result<Self, Failure> {
        let what = || format!("reading {}", path.display());
        let mut files = vec![path.to_owned()];
        if fs::metadata(path).or_fail(what())?.is_dir() {
            let entries = fs::read_dir(path).or_fail(what())?;
            files = entries.map(|e| e.map(|e| e.path())).collect::<Result<_, _>>().or_fail(what())?;
            files.retain(|f| {
                f.extension().is_some_and(|e| ["yaml", "yml", "json"].iter().any(|known| e == *known))
            });
            files.sort();
        }
        let texts: Vec<(PathBuf, String)> = files
            .into_iter()
            .map(|f| fs::read_to_string(&f).or_fail(format!("reading {}", f.display())).map(|text| (f, text)))
            .collect::<Result<_, _>>()?;
        Self::parse(&texts)
    }

    fn parse(texts: &[(PathBuf, String)]) -> Result<Self, Failure> {
        let mut all = Self::default();
        for (file, text) in texts {
            let what = || format!("reading {}", file.display());
            let documents: Vec<Value> = serde_saphyr::from_multiple(text).or_fail(what())?;
            for document in documents.into_iter().flat_map(unlist) {
                all.add(document, &what())?;
            }
        }
        if all.policies.is_empty() {
            return Err(Failure::new(
                Exit::Usage,
                "reading the manifests",
                "there is no BindingPolicy among them",
            )
            .hint("a policy says which objects go to which clusters"));
        }
        all.workload.sort_by_key(|o| match kind(o) {
            "Namespace" => 0,
            "CustomResourceDefinition" => 1,
            _ => 2,
        });
        Ok(all)
    }

    fn add(&mut self, document: Value, what: &str) -> Result<(), Failure> {
        if document.is_null() {
            return Ok(());
        }
        let object: DynamicObject = serde_json::from_value(document).or_fail(what)?;
        let types = object.types.as_ref();
        if types.is_none_or(|t| t.kind.is_empty() || t.api_version.is_empty())
            || object.metadata.name.is_none()
        {
            return Err(Failure::new(Exit::Usage, what, "an object lacks apiVersion, kind or metadata.name"));
        }
        let group = types.and_then(|types| types.api_version.split_once('/')).map_or("", |(group, _)| group);
        let list = match kind(&object) {
            "BindingPolicy" if group == CONTROL_GROUP => &mut self.policies,
            "StatusCollector" | "CustomTransform" if group == CONTROL_GROUP => &mut self.rules,
            _ => &mut self.workload,
        };
        list.push(object);
        Ok(())
    }
}

/// The items of a `List`, or the object itself.
fn unlist(document: Value) -> Vec<Value> {
    match document.get("items").and_then(Value::as_array) {
        Some(items) if document.get("kind").and_then(Value::as_str).is_some_and(|k| k.ends_with("List")) => {
            items.clone()
        }
        _ => vec![document],
    }
}

pub(crate) fn kind(object: &DynamicObject) -> &str {
    object.types.as_ref().map_or("", |t| t.kind.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_application_has_what_the_demo_promises() {
        let manifests = Manifests::built_in().unwrap();
        let kinds: Vec<&str> = manifests.workload.iter().map(kind).collect();
        assert_eq!(kinds[0], "Namespace");
        for wanted in ["ConfigMap", "Deployment", "Service"] {
            assert!(kinds.contains(&wanted), "{wanted} missing");
        }
        assert_eq!(manifests.policies.len(), 2);
    }

    /// SP-129: what belongs to a policy is applied, and is not taken for something to deliver.
    #[test]
    fn sp_129_rules_are_not_delivered() {
        let dir = tempfile::tempdir().unwrap();
        let of = |kind: &str| {
            format!("apiVersion: {CONTROL_GROUP}/v1alpha1\nkind: {kind}\nmetadata: {{name: a}}\n---\n")
        };
        let text = ["StatusCollector", "CustomTransform", "BindingPolicy"].map(of).join("");
        let foreign = "apiVersion: example.com/v1\nkind: StatusCollector\nmetadata: {name: a}\n";
        fs::write(dir.path().join("a.yaml"), text + foreign).unwrap();
        let manifests = Manifests::read(dir.path()).unwrap();
        assert_eq!((manifests.rules.len(), manifests.policies.len(), manifests.workload.len()), (2, 1, 1));
    }

    #[test]
    fn files_without_policy_or_name_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.yaml");
        fs::write(&file, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n").unwrap();
        assert_eq!(Manifests::read(dir.path()).unwrap_err().exit, Exit::Usage);
        fs::write(&file, "apiVersion: v1\nkind: ConfigMap\n").unwrap();
        assert!(Manifests::read(&file).unwrap_err().why.contains("metadata.name"));
    }
}
