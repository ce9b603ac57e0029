//! The configuration of an add-on in a cluster, and its progress (4.7). Pure.

use std::collections::{BTreeMap, BTreeSet};

use apis::{
    constants::CONFIG_SPEC_HASH_ANNOTATION,
    ocm::{
        ClusterManagementAddOn, ManagedClusterAddOn, ManifestWork,
        addon::{
            AddOnConfig, ConfigReference, ConfigSpecHash, DefaultConfigReference, InstallConfigReference,
            InstallProgression,
        },
    },
};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::deploy::{MANIFEST_APPLIED, work_condition};
use ocm_shared::conditions::{self, condition};

/// Condition: the add-on has the configuration that it should use.
pub const CONFIGURED: &str = "Configured";
/// Condition: the progress of installation and configuration.
pub const PROGRESSING: &str = "Progressing";

/// Returns the digest of a configuration's spec: lower-case hex SHA-256 of its JSON with sorted keys.
pub fn hash(spec: &Value) -> String {
    use std::fmt::Write as _;
    Sha256::digest(spec.to_string()).iter().fold(String::with_capacity(64), |mut text, byte| {
        // Writing into a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Returns the configuration of an add-on in a cluster, one for each kind: the defaults, overridden by those
/// for its placements, overridden by those of the add-on itself.
///
/// # Errors
///
/// The name of a kind that the add-on does not support.
pub fn desired(
    owner: &ClusterManagementAddOn,
    addon: &ManagedClusterAddOn,
    in_placement: impl Fn(&str, &str) -> bool,
) -> Result<Vec<AddOnConfig>, String> {
    let supported = &owner.spec.supported_configs;
    let mut chosen: BTreeMap<(String, String), AddOnConfig> = BTreeMap::new();
    for kind in supported {
        if let Some(default) = &kind.default_config {
            chosen.insert(
                (kind.group.clone(), kind.resource.clone()),
                AddOnConfig {
                    group: kind.group.clone(),
                    resource: kind.resource.clone(),
                    namespace: default.namespace.clone(),
                    name: default.name.clone(),
                },
            );
        }
    }
    let strategies = owner.spec.install_strategy.iter().flat_map(|strategy| &strategy.placements);
    // Whether a cluster is in a placement costs a walk over the placement.
    let placed = strategies
        .filter(|p| !p.configs.is_empty() && in_placement(&p.namespace, &p.name))
        .flat_map(|p| &p.configs);
    for config in placed.chain(&addon.spec.configs) {
        if !supported.iter().any(|kind| kind.group == config.group && kind.resource == config.resource) {
            return Err(format!(
                "Configuration with gvr {}/{} is not supported for this addon",
                config.group, config.resource
            ));
        }
        chosen.insert((config.group.clone(), config.resource.clone()), config.clone());
    }
    Ok(chosen.into_values().collect())
}

/// Returns the references to the configuration, with digests. The last applied configuration is kept if its
/// kind is the same.
pub fn references(
    desired: &[AddOnConfig],
    old: &[ConfigReference],
    hash_of: impl Fn(&AddOnConfig) -> Option<String>,
) -> Vec<ConfigReference> {
    desired
        .iter()
        .map(|config| {
            let before = old.iter().find(|o| o.group == config.group && o.resource == config.resource);
            ConfigReference {
                group: config.group.clone(),
                resource: config.resource.clone(),
                namespace: config.namespace.clone(),
                name: config.name.clone(),
                desired_config: Some(ConfigSpecHash {
                    namespace: config.namespace.clone(),
                    name: config.name.clone(),
                    spec_hash: hash_of(config).unwrap_or_default(),
                }),
                last_applied_config: before.and_then(|b| b.last_applied_config.clone()),
                last_observed_generation: before.and_then(|b| b.last_observed_generation),
            }
        })
        .collect()
}

/// Returns the annotation of works about configuration.
pub fn hashes(references: &[ConfigReference]) -> BTreeMap<String, String> {
    references
        .iter()
        .filter_map(|r| {
            let desired = r.desired_config.as_ref().filter(|d| !d.spec_hash.is_empty())?;
            // Two slashes if there is no namespace.
            let place = format!("{}/{}", desired.namespace, desired.name);
            Some((format!("{}.{}/{place}", r.resource, r.group), desired.spec_hash.clone()))
        })
        .collect()
}

/// Returns the condition about the progress of an add-on's configuration. `deployed` is false for an add-on
/// that needs no works.
pub fn progress(
    conditions: &[Condition],
    references: &[ConfigReference],
    works: &[&ManifestWork],
    deployed: bool,
    now: Timestamp,
) -> (Condition, bool) {
    let tell =
        |status: &str, reason: &str, message: String| condition(PROGRESSING, status, reason, message, now);
    let done = || (tell("False", "Completed", "completed with no errors.".into()), true);
    if !deployed {
        return done();
    }
    if !conditions.iter().any(|c| c.type_ == MANIFEST_APPLIED) {
        return (
            tell("False", "WaitingForManifestApplied", "Waiting for ManifestApplied condition".into()),
            false,
        );
    }
    let going = |why: String| (tell("True", PROGRESSING, format!("progressing... {why}")), false);
    let wanted = hashes(references);
    for work in works {
        let name = work.metadata.name.as_deref().unwrap_or_default();
        let text = work.metadata.annotations.as_ref().and_then(|all| all.get(CONFIG_SPEC_HASH_ANNOTATION));
        let have: BTreeMap<String, String> =
            text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        if have != wanted {
            return going("mca and work configs mismatch".into());
        }
        for type_ in ["Applied", "Available"] {
            if work_condition(work, type_) != Some("True") {
                return going(format!("work {name} is not {}", type_.to_lowercase()));
            }
        }
    }
    done()
}

/// Returns the summary of one add-on over all clusters.
pub fn summary(
    owner: &ClusterManagementAddOn,
    addons: &[(BTreeSet<(String, String)>, &ManagedClusterAddOn)],
    hash_of: impl Fn(&AddOnConfig) -> Option<String>,
    now: Timestamp,
) -> (Vec<DefaultConfigReference>, Vec<InstallProgression>) {
    let reference = |config: &AddOnConfig| ConfigSpecHash {
        namespace: config.namespace.clone(),
        name: config.name.clone(),
        spec_hash: hash_of(config).unwrap_or_default(),
    };
    let defaults = default_configs(owner);
    let default_references = defaults
        .iter()
        .map(|c| DefaultConfigReference {
            group: c.group.clone(),
            resource: c.resource.clone(),
            desired_config: Some(reference(c)),
        })
        .collect();
    let old = owner.status.as_ref().map(|s| s.install_progressions.as_slice()).unwrap_or_default();
    let strategy = owner.spec.install_strategy.as_ref().filter(|s| s.type_ == "Placements");
    let progressions = strategy
        .iter()
        .flat_map(|s| &s.placements)
        .map(|placement| {
            let key = (placement.namespace.clone(), placement.name.clone());
            let mine: Vec<&ManagedClusterAddOn> =
                addons.iter().filter(|(places, _)| places.contains(&key)).map(|(_, addon)| *addon).collect();
            let before = old.iter().find(|p| (&p.namespace, &p.name) == (&key.0, &key.1));
            let (news, is_complete) = installed(&mine, now);
            let mut conditions = before.map(|p| p.conditions.clone()).unwrap_or_default();
            conditions::set(&mut conditions, news);
            let mut configs: BTreeMap<(&str, &str), &AddOnConfig> = BTreeMap::new();
            for config in defaults.iter().chain(&placement.configs) {
                configs.insert((config.group.as_str(), config.resource.as_str()), config);
            }
            let config_references = configs
                .values()
                .map(|config| config_progress(config, before, reference(config), is_complete))
                .collect();
            InstallProgression { namespace: key.0, name: key.1, config_references, conditions }
        })
        .collect();
    (default_references, progressions)
}

/// Returns the default configurations of an add-on.
fn default_configs(owner: &ClusterManagementAddOn) -> Vec<AddOnConfig> {
    let of_default = |kind: &apis::ocm::addon::ConfigMeta| {
        let default = kind.default_config.as_ref()?;
        Some(AddOnConfig {
            group: kind.group.clone(),
            resource: kind.resource.clone(),
            namespace: default.namespace.clone(),
            name: default.name.clone(),
        })
    };
    owner.spec.supported_configs.iter().filter_map(of_default).collect()
}

/// Returns the condition about the clusters of one Placement, and whether the add-on is complete in all of them.
fn installed(addons: &[&ManagedClusterAddOn], now: Timestamp) -> (Condition, bool) {
    let completed = addons.iter().filter(|addon| {
        let conditions = addon.status.as_ref().map(|s| s.conditions.as_slice()).unwrap_or_default();
        conditions.iter().any(|c| c.type_ == PROGRESSING && c.reason == "Completed")
    });
    let (completed, all) = (completed.count(), addons.len());
    let news = if completed == all {
        let message = format!("{completed}/{all} completed with no errors, 0 failed 0 timeout.");
        condition(PROGRESSING, "False", "Completed", message, now)
    } else {
        let message = format!("{}/{all} progressing..., 0 failed 0 timeout.", all - completed);
        condition(PROGRESSING, "True", PROGRESSING, message, now)
    };
    (news, completed == all)
}

/// Returns how far a configuration is in the clusters of one Placement. `before` is what was reported last.
fn config_progress(
    config: &AddOnConfig,
    before: Option<&InstallProgression>,
    desired: ConfigSpecHash,
    is_complete: bool,
) -> InstallConfigReference {
    let was = before.and_then(|p| {
        p.config_references.iter().find(|r| r.group == config.group && r.resource == config.resource)
    });
    let arrived = is_complete.then(|| desired.clone());
    InstallConfigReference {
        group: config.group.clone(),
        resource: config.resource.clone(),
        last_applied_config: arrived.clone().or_else(|| was.and_then(|w| w.last_applied_config.clone())),
        last_known_good_config: arrived.or_else(|| was.and_then(|w| w.last_known_good_config.clone())),
        desired_config: Some(desired),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const GROUP: &str = "addon.open-cluster-management.io";

    fn config(resource: &str, name: &str) -> Value {
        json!({"group": GROUP, "resource": resource, "namespace": "n", "name": name})
    }

    fn owner() -> ClusterManagementAddOn {
        serde_json::from_value(json!({"metadata": {"name": "a"}, "spec": {
            "supportedConfigs": [{"group": GROUP, "resource": "addondeploymentconfigs", "defaultConfig": {"namespace": "n", "name": "default"}}],
            "installStrategy": {"type": "Placements", "placements": [
                {"namespace": "n", "name": "edge", "configs": [config("addondeploymentconfigs", "placed")]},
                {"namespace": "n", "name": "core"}]}}}))
        .unwrap()
    }

    fn addon(configs: &Value) -> ManagedClusterAddOn {
        serde_json::from_value(
            json!({"metadata": {"name": "a", "namespace": "c1"}, "spec": {"configs": configs}}),
        )
        .unwrap()
    }

    /// OCM-113: the configuration closest to the cluster wins; an unsupported kind is reported.
    #[test]
    fn ocm_113_the_nearest_configuration_counts() {
        let chosen = |configs: Value, placement: &str| {
            desired(&owner(), &addon(&configs), |_, name| name == placement).map(|all| all[0].name.clone())
        };
        assert_eq!(chosen(json!([]), "core"), Ok("default".into()));
        assert_eq!(chosen(json!([]), "edge"), Ok("placed".into()));
        assert_eq!(chosen(json!([config("addondeploymentconfigs", "own")]), "edge"), Ok("own".into()));
        assert!(
            chosen(json!([config("addontemplates", "x")]), "core").unwrap_err().contains("not supported")
        );
    }

    #[test]
    fn ocm_116_the_hash_is_that_of_the_spec_alone() {
        assert_eq!(hash(&json!({"b": 1, "a": 2})), hash(&json!({"a": 2, "b": 1})));
        assert_eq!(hash(&json!({})), "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a");
        let all = desired(&owner(), &addon(&json!([])), |_, _| false).unwrap();
        let found = references(&all, &[], |_| Some("abc".into()));
        assert_eq!(
            hashes(&found),
            [(
                "addondeploymentconfigs.addon.open-cluster-management.io/n/default".to_owned(),
                "abc".to_owned()
            )]
            .into()
        );
        assert!(
            hashes(&references(&all, &[], |_| None)).is_empty(),
            "of one that is missing nothing is said"
        );
    }

    #[test]
    fn ocm_116_progress_ends_when_the_configuration_has_arrived() {
        let now = Timestamp::UNIX_EPOCH;
        let all = desired(&owner(), &addon(&json!([])), |_, _| false).unwrap();
        let wanted = references(&all, &[], |_| Some("abc".into()));
        let work = |hash: &str, available: &str| -> ManifestWork {
            let annotation =
                json!({"addondeploymentconfigs.addon.open-cluster-management.io/n/default": hash})
                    .to_string();
            let condition = |type_: &str, status: &str| json!({"type": type_, "status": status, "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
            serde_json::from_value(
                json!({"metadata": {"name": "w", "annotations": {CONFIG_SPEC_HASH_ANNOTATION: annotation}},
                "spec": {"workload": {"manifests": []}},
                "status": {"conditions": [condition("Applied", "True"), condition("Available", available)]}}),
            )
            .unwrap()
        };
        let applied = [condition(MANIFEST_APPLIED, "True", "R", "", now)];
        let say = |conditions: &[Condition], work: &ManifestWork, deployed: bool| {
            let (reported, done) = progress(conditions, &wanted, &[work], deployed, now);
            (reported.status, reported.reason, done)
        };
        let text = |a: &str, b: &str, c: bool| (a.to_owned(), b.to_owned(), c);
        assert_eq!(say(&[], &work("abc", "True"), true), text("False", "WaitingForManifestApplied", false));
        assert_eq!(say(&applied, &work("old", "True"), true), text("True", "Progressing", false));
        assert_eq!(say(&applied, &work("abc", "False"), true), text("True", "Progressing", false));
        assert_eq!(say(&applied, &work("abc", "True"), true), text("False", "Completed", true));
        assert_eq!(say(&[], &work("old", "False"), false), text("False", "Completed", true));
    }

    #[test]
    fn ocm_110_an_addon_says_how_far_its_placements_are() {
        let now = Timestamp::UNIX_EPOCH;
        let mut done = addon(&json!([]));
        done.status.get_or_insert_default().conditions =
            vec![condition(PROGRESSING, "False", "Completed", "", now)];
        let open = addon(&json!([]));
        let place = |name: &str| [("n".to_owned(), name.to_owned())].into();
        let (defaults, all) = summary(
            &owner(),
            &[(place("edge"), &done), (place("core"), &done), (place("core"), &open)],
            |_| Some("h".into()),
            now,
        );
        assert_eq!(defaults[0].desired_config.as_ref().map(|d| d.spec_hash.as_str()), Some("h"));
        assert_eq!(all[0].conditions[0].message, "1/1 completed with no errors, 0 failed 0 timeout.");
        assert_eq!(
            all[0].config_references[0].desired_config.as_ref().map(|d| d.name.as_str()),
            Some("placed")
        );
        assert_eq!(
            all[0].config_references[0].last_applied_config,
            all[0].config_references[0].desired_config
        );
        assert_eq!(all[1].conditions[0].message, "1/2 progressing..., 0 failed 0 timeout.");
        assert_eq!(all[1].config_references[0].last_applied_config, None);
    }
}
