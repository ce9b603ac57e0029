//! Policy rules: what a rule grants, and whether rules cover others.

use std::collections::{BTreeSet, HashMap, HashSet};
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

/// A list that may be `null`, as Go writes empty lists.
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
    /// All rights, as two rules.
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

    /// Whether this rule grants everything that `other` grants. `other` may list several verbs, groups and resources.
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

    /// The number of words of the rule.
    fn size(&self) -> usize {
        let lists =
            [&self.verbs, &self.api_groups, &self.resources, &self.resource_names, &self.non_resource_urls];
        lists.into_iter().map(Vec::len).sum()
    }

    /// The number of single rights that the rule grants: one verb, one group, one resource (or URL), at most one name
    /// each.
    fn count(&self) -> usize {
        let names = self.resource_names.len().max(1);
        let of_resources = [self.api_groups.len(), self.resources.len(), self.verbs.len(), names]
            .into_iter()
            .fold(1, usize::saturating_mul);
        of_resources.saturating_add(self.non_resource_urls.len().saturating_mul(self.verbs.len()))
    }

    /// The same rights as rules with one verb, one group, one resource (or URL) and at most one name each.
    fn split(&self) -> impl Iterator<Item = Self> {
        let all = self.resource_names.iter().map(|name| vec![name.clone()]);
        let names: Vec<Vec<String>> =
            if self.resource_names.is_empty() { vec![Vec::new()] } else { all.collect() };
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
        out.into_iter()
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

/// `["a" "b"]`, as Go quotes a list.
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

/// `/api*` covers `/api` and all paths below; `*` covers all paths.
fn url_covers(rule: &str, path: &str) -> bool {
    rule == "*"
        || rule == path
        || rule.strip_suffix('*').is_some_and(|prefix| path.starts_with(prefix.trim_end_matches('*')))
}

/// Most single rights of a role or binding that are compared with the writer's rights, and most comparisons for that.
/// A rule grants as many rights as the product of its lists.
const RIGHTS_MAX: usize = 100_000;
const COMPARISONS_MAX: usize = 10_000_000;

/// The rights are too many to compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the rules grant too many single rights to compare them with those held (at most {RIGHTS_MAX})")]
pub(crate) struct TooMany;

/// The single rights in `wanted` that `held` does not cover.
///
/// # Errors
/// More than [`RIGHTS_MAX`] rights or comparisons.
pub(crate) fn missing_rights(held: &[Rule], wanted: &[Rule]) -> Result<Vec<Rule>, TooMany> {
    let held = RuleIndex::of(held);
    let mut comparisons = 0;
    let mut rights = 0;
    let mut out = Vec::new();
    for rule in wanted {
        // A rule that is covered as a whole need not be split. The few rules that grant everything are checked first.
        if held.unlimited.iter().any(|own| own.covers(rule)) {
            continue;
        }
        rights = usize::saturating_add(rights, rule.count());
        if rights > RIGHTS_MAX {
            return Err(TooMany);
        }
        for one in rule.split() {
            if !held.covers(&one, &mut comparisons)? {
                out.push(one);
            }
        }
    }
    Ok(out)
}

/// Held rules by resource, so that a right is compared only with rules that may cover it.
struct RuleIndex<'r> {
    by_resource: HashMap<&'r str, Vec<&'r Rule>>,
    of_urls: Vec<&'r Rule>,
    /// Rules about all resources of all groups, or about all URLs.
    unlimited: Vec<&'r Rule>,
}

impl<'r> RuleIndex<'r> {
    fn of(rules: &'r [Rule]) -> Self {
        let mut out = Self { by_resource: HashMap::new(), of_urls: Vec::new(), unlimited: Vec::new() };
        for rule in rules {
            for resource in rule.resources.iter().collect::<HashSet<_>>() {
                out.by_resource.entry(resource).or_default().push(rule);
            }
            if !rule.non_resource_urls.is_empty() {
                out.of_urls.push(rule);
            }
            let all = |list: &[String]| list.iter().any(|one| one == "*");
            if (all(&rule.resources) && all(&rule.api_groups)) || all(&rule.non_resource_urls) {
                out.unlimited.push(rule);
            }
        }
        out
    }

    /// Whether one of the rules covers a single right.
    fn covers(&self, one: &Rule, comparisons: &mut usize) -> Result<bool, TooMany> {
        let about = |resource: &str| self.by_resource.get(resource).into_iter().flatten();
        let any_sub =
            one.resources.first().and_then(|r| r.split_once('/')).map(|(_, sub)| format!("*/{sub}"));
        let candidates = one
            .resources
            .first()
            .into_iter()
            .flat_map(|resource| about(resource))
            .chain(any_sub.iter().flat_map(|resource| about(resource)))
            .chain(about("*"));
        let of_urls = self.of_urls.iter().filter(|_| !one.non_resource_urls.is_empty());
        for own in candidates.chain(of_urls) {
            *comparisons += own.size();
            if *comparisons > COMPARISONS_MAX {
                return Err(TooMany);
            }
            if own.covers(one) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Joins rules of the same group, resource and name into one rule with all their verbs.
pub(crate) fn join(rules: Vec<Rule>) -> Vec<Rule> {
    let mut out: Vec<Rule> = Vec::new();
    let mut places = HashMap::new();
    for mut rule in rules {
        if rule.resources.is_empty() {
            out.push(rule);
            continue;
        }
        let about = (rule.api_groups.clone(), rule.resources.clone(), rule.resource_names.clone());
        let place = *places.entry(about).or_insert(out.len());
        match out.get_mut(place) {
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
            describe(missing_rights(&held, &wanted).unwrap()),
            "{APIGroups:[\"\"], Resources:[\"configmaps\"], Verbs:[\"list\"]}\n\
             {APIGroups:[\"\"], Resources:[\"secrets\"], Verbs:[\"get\" \"list\"]}"
        );
        assert_eq!(
            describe(missing_rights(&held, &Rule::everything()).unwrap()),
            "{APIGroups:[\"*\"], Resources:[\"*\"], Verbs:[\"*\"]}\n{NonResourceURLs:[\"*\"], Verbs:[\"*\"]}"
        );
        let named = [rule(&["get"], &[""], &["configmaps"], &["a"])];
        assert_eq!(missing_rights(&held, &named), Ok(vec![]));
        assert_eq!(missing_rights(&named, &held).map(|rules| rules.len()), Ok(1));
    }

    /// AS-064: a rule with too many rights to compare is refused without being expanded.
    #[test]
    fn as_064_rules_of_countless_rights_are_refused() {
        let many = |prefix: &str| (0..2000).map(|n| format!("{prefix}{n}")).collect::<Vec<_>>();
        let wanted = [Rule {
            verbs: many("v"),
            api_groups: many("g"),
            resources: many("r"),
            resource_names: many("n"),
            non_resource_urls: vec![],
        }];
        let held = [rule(&["get"], &[""], &["configmaps"], &[])];
        assert_eq!(missing_rights(&held, &wanted), Err(TooMany));
        assert_eq!(missing_rights(&Rule::everything(), &wanted), Ok(vec![]));
    }

    /// AS-064: rules about subresources of all resources, and about all resources, cover a right.
    #[test]
    fn as_064_rights_are_found_under_every_name_of_a_resource() {
        let wanted = [rule(&["get"], &[""], &["pods/log"], &[])];
        for held in ["pods/log", "*/log", "*"] {
            assert_eq!(missing_rights(&[rule(&["get"], &[""], &[held], &[])], &wanted), Ok(vec![]), "{held}");
        }
        assert_eq!(
            missing_rights(&[rule(&["get"], &[""], &["*/x", "pods"], &[])], &wanted).map(|m| m.len()),
            Ok(1)
        );
    }
}
