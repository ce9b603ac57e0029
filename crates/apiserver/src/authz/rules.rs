//! Policy rules: what one grants, and whether some cover others.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use machinery::field::quote;
use serde::{Deserialize, Deserializer, Serialize};

use super::attributes::Attributes;

/// A `PolicyRule` of `rbac.authorization.k8s.io/v1`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Rule {
    #[serde(deserialize_with = "nullable")]
    pub verbs: Vec<String>,
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub api_groups: Vec<String>,
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<String>,
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub resource_names: Vec<String>,
    #[serde(
        rename = "nonResourceURLs",
        deserialize_with = "nullable",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub non_resource_urls: Vec<String>,
}

/// A list that may be `null`, as Go writes empty ones.
pub(crate) fn nullable<'de, D: Deserializer<'de>, T: Deserialize<'de>>(d: D) -> Result<Vec<T>, D::Error> {
    Option::<Vec<T>>::deserialize(d).map(Option::unwrap_or_default)
}

fn has(list: &[String], wanted: &str) -> bool {
    list.iter().any(|one| one == wanted)
}

fn has_or_all(list: &[String], wanted: &str) -> bool {
    list.iter().any(|one| one == "*" || one == wanted)
}

impl Rule {
    /// All rights there are, as two rules.
    pub fn everything() -> [Self; 2] {
        let star = || vec!["*".to_owned()];
        [
            Self { verbs: star(), api_groups: star(), resources: star(), ..Self::default() },
            Self { verbs: star(), non_resource_urls: star(), ..Self::default() },
        ]
    }

    /// Whether this rule alone grants the request.
    pub fn allows(&self, a: &Attributes<'_>) -> bool {
        if !has_or_all(&self.verbs, a.verb) {
            return false;
        }
        if !a.resource_request {
            return self.non_resource_urls.iter().any(|url| url_covers(url, a.path));
        }
        has_or_all(&self.api_groups, a.group)
            && self.resources.iter().any(|r| resource_matches(r, a.resource, a.subresource))
            && (self.resource_names.is_empty() || has(&self.resource_names, a.name))
    }

    /// Whether everything `other` grants, this grants. `other` may list several of each.
    fn covers(&self, other: &Self) -> bool {
        other.verbs.iter().all(|v| has_or_all(&self.verbs, v))
            && other.api_groups.iter().all(|g| has_or_all(&self.api_groups, g))
            && other.resources.iter().all(|r| self.covers_resource(r))
            && other
                .non_resource_urls
                .iter()
                .all(|u| self.non_resource_urls.iter().any(|own| url_covers(own, u)))
            && (self.resource_names.is_empty()
                || (!other.resource_names.is_empty()
                    && other.resource_names.iter().all(|n| has(&self.resource_names, n))))
    }

    fn covers_resource(&self, resource: &str) -> bool {
        let any_sub = resource.split_once('/').map(|(_, sub)| format!("*/{sub}"));
        self.resources.iter().any(|own| own == "*" || own == resource || Some(own) == any_sub.as_ref())
    }

    /// The same rights as rules of one verb, one group, one resource (or URL), at most one name.
    fn split(&self) -> Vec<Self> {
        let names: Vec<Vec<String>> = if self.resource_names.is_empty() {
            vec![Vec::new()]
        } else {
            self.resource_names.iter().map(|n| vec![n.clone()]).collect()
        };
        let mut out = Vec::new();
        for group in &self.api_groups {
            for resource in &self.resources {
                for verb in &self.verbs {
                    for name in &names {
                        out.push(Self {
                            verbs: vec![verb.clone()],
                            api_groups: vec![group.clone()],
                            resources: vec![resource.clone()],
                            resource_names: name.clone(),
                            ..Self::default()
                        });
                    }
                }
            }
        }
        for url in &self.non_resource_urls {
            for verb in &self.verbs {
                out.push(Self {
                    verbs: vec![verb.clone()],
                    non_resource_urls: vec![url.clone()],
                    ..Self::default()
                });
            }
        }
        out
    }

    /// `{APIGroups:[""], Resources:["pods"], Verbs:["get"]}`
    fn compact(&self) -> String {
        let parts: Vec<String> = [
            ("APIGroups", &self.api_groups),
            ("Resources", &self.resources),
            ("NonResourceURLs", &self.non_resource_urls),
            ("ResourceNames", &self.resource_names),
            ("Verbs", &self.verbs),
        ]
        .into_iter()
        .filter(|(_, list)| !list.is_empty())
        .map(|(name, list)| format!("{name}:{}", quoted_list(list)))
        .collect();
        format!("{{{}}}", parts.join(", "))
    }
}

/// `["a" "b"]`, Go's way to quote a list.
pub(crate) fn quoted_list(list: &[String]) -> String {
    let mut out = String::from("[");
    for (i, one) in list.iter().enumerate() {
        // Writing to a string cannot fail.
        let _ = write!(out, "{}{}", if i == 0 { "" } else { " " }, quote(one));
    }
    out.push(']');
    out
}

fn resource_matches(rule: &str, resource: &str, subresource: &str) -> bool {
    if rule == "*" {
        return true;
    }
    if subresource.is_empty() {
        return rule == resource;
    }
    rule.split_once('/').is_some_and(|(r, sub)| sub == subresource && (r == "*" || r == resource))
}

/// `/api*` covers `/api` and all below; `*` covers all.
fn url_covers(rule: &str, path: &str) -> bool {
    rule == "*"
        || rule == path
        || rule.strip_suffix('*').is_some_and(|prefix| path.starts_with(prefix.trim_end_matches('*')))
}

/// The rights in `wanted` that `held` does not cover, split.
pub(crate) fn missing(held: &[Rule], wanted: &[Rule]) -> Vec<Rule> {
    wanted.iter().flat_map(Rule::split).filter(|one| !held.iter().any(|own| own.covers(one))).collect()
}

/// Rules of the same group, resource and name joined into one with all their verbs.
pub(crate) fn join(rules: Vec<Rule>) -> Vec<Rule> {
    let mut out: Vec<Rule> = Vec::new();
    for mut rule in rules {
        let same = out.iter_mut().find(|o| {
            !rule.resources.is_empty()
                && o.api_groups == rule.api_groups
                && o.resources == rule.resources
                && o.resource_names == rule.resource_names
        });
        match same {
            Some(joined) => joined.verbs.append(&mut rule.verbs),
            None => out.push(rule),
        }
    }
    out
}

/// The text that lists missing rights: one per line, sorted.
pub(crate) fn describe(missing: Vec<Rule>) -> String {
    let lines: BTreeSet<String> = join(missing).iter().map(Rule::compact).collect();
    lines.into_iter().collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(verbs: &[&str], groups: &[&str], resources: &[&str], names: &[&str]) -> Rule {
        let own = |list: &[&str]| list.iter().map(ToString::to_string).collect();
        Rule {
            verbs: own(verbs),
            api_groups: own(groups),
            resources: own(resources),
            resource_names: own(names),
            non_resource_urls: vec![],
        }
    }

    fn get<'a>(resource: &'a str, subresource: &'a str, name: &'a str) -> Attributes<'a> {
        Attributes {
            verb: "get",
            resource,
            subresource,
            name,
            resource_request: true,
            ..Attributes::default()
        }
    }

    #[test]
    fn as_063_rules_match_resources_subresources_and_names() {
        assert!(rule(&["get"], &[""], &["pods"], &[]).allows(&get("pods", "", "x")));
        assert!(!rule(&["get"], &[""], &["pods"], &[]).allows(&get("pods", "log", "x")));
        assert!(rule(&["get"], &[""], &["pods/log"], &[]).allows(&get("pods", "log", "x")));
        assert!(rule(&["get"], &["*"], &["*/log"], &[]).allows(&get("pods", "log", "x")));
        assert!(rule(&["*"], &["*"], &["*"], &[]).allows(&get("pods", "log", "x")));
        assert!(rule(&["get"], &[""], &["pods"], &["x"]).allows(&get("pods", "", "x")));
        assert!(!rule(&["get"], &[""], &["pods"], &["x"]).allows(&get("pods", "", "")));
        assert!(!rule(&["get"], &["apps"], &["pods"], &[]).allows(&get("pods", "", "")));
    }

    #[test]
    fn as_063_urls_match_exactly_or_by_prefix() {
        assert!(url_covers("/api/*", "/api/v1"));
        assert!(url_covers("/api*", "/apis"));
        assert!(!url_covers("/api", "/api/v1"));
        assert!(url_covers("*", "/x"));
    }

    #[test]
    fn as_064_missing_rights_are_named_one_by_one() {
        let held = [rule(&["get"], &[""], &["configmaps"], &[])];
        let wanted = [rule(&["get", "list"], &[""], &["configmaps", "secrets"], &[])];
        assert_eq!(
            describe(missing(&held, &wanted)),
            "{APIGroups:[\"\"], Resources:[\"configmaps\"], Verbs:[\"list\"]}\n\
             {APIGroups:[\"\"], Resources:[\"secrets\"], Verbs:[\"get\" \"list\"]}"
        );
        assert_eq!(
            describe(missing(&held, &Rule::everything())),
            "{APIGroups:[\"*\"], Resources:[\"*\"], Verbs:[\"*\"]}\n{NonResourceURLs:[\"*\"], Verbs:[\"*\"]}"
        );
        let named = [rule(&["get"], &[""], &["configmaps"], &["a"])];
        assert!(missing(&held, &named).is_empty());
        assert_eq!(missing(&named, &held).len(), 1);
    }
}
