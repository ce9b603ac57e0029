//! Sorts a Binding's errors by the objects and clusters that they are about (KS-094). Pure.

use std::collections::HashMap;

/// The errors of a Binding, by the objects and clusters that they are about.
#[derive(Default)]
pub(crate) struct Hindrances<'a> {
    objects: HashMap<&'a str, Vec<Trouble<'a>>>,
    clusters: HashMap<&'a str, &'a str>,
    everything: Option<&'a str>,
}

/// An error about one object, in one cluster or in all.
struct Trouble<'a> {
    cluster: Option<&'a str>,
    /// The cluster whose values a template was expanded with. The error holds up all clusters, and may be another one there.
    expanded_for: Option<&'a str>,
    line: &'a str,
}

impl<'a> Hindrances<'a> {
    /// Reads the errors. Cost: a look at each line.
    pub(crate) fn new(errors: &'a [String]) -> Self {
        let mut all = Self::default();
        for line in errors {
            let template = line.strip_prefix("template: ").and_then(|rest| rest.split_once('/'));
            if let Some((place, rest)) = template {
                // While a template fails, nothing new is delivered to any cluster (KS-096).
                all.everything.get_or_insert(line);
                if let Some((object, _)) = named(rest) {
                    all.objects.entry(object).or_default().push(Trouble {
                        cluster: None,
                        expanded_for: Some(place),
                        line,
                    });
                }
            } else if let Some((cluster, _)) =
                line.strip_prefix("destination ").and_then(|rest| rest.split_once(": "))
            {
                all.clusters.entry(cluster).or_insert(line);
            } else if line.starts_with("the workload can't be read") || is_rest(line) {
                // Errors that are left out may be about any object.
                all.everything.get_or_insert(line);
            } else if let Some((cluster, _)) = in_the_way(line) {
                all.clusters.entry(cluster).or_insert(line);
            } else if let Some((object, rest)) = named(line).filter(|(_, rest)| rest.starts_with(": ")) {
                let cluster = rest.rsplit_once(" in ").map(|(_, cluster)| cluster);
                all.objects.entry(object).or_default().push(Trouble { cluster, expanded_for: None, line });
            }
        }
        all
    }

    /// Returns why the present form of an object cannot be delivered to a cluster; `object` is its name in errors.
    pub(crate) fn of_object(&self, object: &str, cluster: &str) -> Option<&'a str> {
        let here = |trouble: &&Trouble<'_>| trouble.cluster.is_none_or(|place| place == cluster);
        let all = || self.objects.get(object).into_iter().flatten().filter(here);
        let own = all().find(|trouble| trouble.expanded_for.is_none_or(|place| place == cluster));
        own.or_else(|| all().next()).map(|trouble| trouble.line)
    }

    /// Returns why an object waits that is in no envelope for a cluster, in words for the row of this object and cluster.
    pub(crate) fn of_waiting(&self, object: &str, cluster: &str) -> Option<String> {
        if let Some(line) = self.of_object(object, cluster) {
            let elsewhere = format!("template: {cluster}/");
            return Some(if line.starts_with("template: ") && !line.starts_with(&elsewhere) {
                format!("held up by its template in another cluster: {line}")
            } else {
                line.to_owned()
            });
        }
        let of_cluster = self.clusters.get(cluster).map(|line| (*line).to_owned());
        let everything = self.everything.map(|line| {
            let of_another = line.starts_with("template: ");
            if of_another { format!("held up by another object: {line}") } else { line.to_owned() }
        });
        of_cluster.or(everything)
    }

    /// Returns why nothing new is delivered to a cluster.
    pub(crate) fn of_cluster(&self, cluster: &str) -> Option<&'a str> {
        self.clusters.get(cluster).copied().or(self.everything)
    }
}

/// `and 5 more errors`.
fn is_rest(line: &str) -> bool {
    line.strip_prefix("and ").is_some_and(|rest| rest.contains(" more error"))
}

/// `ManifestWork CLUSTER/NAME is in the way: …` (KS-098): cluster, and the rest.
fn in_the_way(line: &str) -> Option<(&str, &str)> {
    let (what, _) = line.split_once(" is in the way: ")?;
    what.split_once(' ')?.1.split_once('/')
}

/// `Kind.group(namespace/name)`, and what comes after it.
fn named(text: &str) -> Option<(&str, &str)> {
    let end = text.find(')')? + 1;
    let (object, rest) = text.split_at_checked(end)?;
    let kind = object.split_once('(')?.0;
    (!kind.is_empty() && !kind.contains(' ')).then_some((object, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SP-119, KS-126: the row of an object in a cluster says what is wrong there, or what else holds the object up.
    #[test]
    fn sp_119_rows_of_template_errors() {
        let lines = [
            "template: atlas/ConfigMap(shop/site).data.a:1:2: no entry for key \"x\"".to_owned(),
            "template: boreas/ConfigMap(shop/site).data.a:1:2: no entry for key \"y\"".to_owned(),
        ];
        let all = Hindrances::new(&lines);
        let row = |object: &str, cluster: &str| all.of_waiting(object, cluster).unwrap();
        assert_eq!(row("ConfigMap(shop/site)", "atlas"), lines[0]);
        assert_eq!(row("ConfigMap(shop/site)", "boreas"), lines[1]);
        assert!(
            row("ConfigMap(shop/site)", "cygnus").starts_with("held up by its template in another cluster: ")
        );
        assert!(row("Namespace(shop)", "atlas").starts_with("held up by another object: template: "));
    }

    /// SP-119: errors as transports write them (KS-088, KS-093, KS-126, KS-141, KS-147).
    #[test]
    fn sp_119_whom_an_error_is_about() {
        let lines = |all: &[&str]| all.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
        let single = [
            "ConfigMap(shop/large): size 600000 exceeds the maximum 512000",
            "Rocket.space.example(saturn): nesting of 118 levels exceeds the maximum 116 in atlas",
            "destination nowhere: namespaces \"nowhere\" not found",
            "ConfigMap(shop/both) is also delivered to atlas by Binding b of WDS w2",
            "ManifestWork cygnus/b-wds1-0 is in the way: it belongs to no Binding",
        ];
        let errors = lines(&single);
        let all = Hindrances::new(&errors);
        for (object, line) in [
            ("ConfigMap(shop/large)", Some(0)),
            ("Rocket.space.example(saturn)", Some(1)),
            ("ConfigMap(shop/both)", None),
            ("ConfigMap(shop/other)", None),
        ] {
            let line = line.and_then(|at: usize| single.get(at)).copied();
            assert_eq!(all.of_object(object, "atlas"), line, "{object}");
        }
        assert_eq!(all.of_object("Rocket.space.example(saturn)", "boreas"), None);
        let told = [("nowhere", Some(single[2])), ("cygnus", Some(single[4])), ("atlas", None)];
        assert_eq!(told.map(|(cluster, _)| all.of_cluster(cluster)), told.map(|(_, line)| line));

        for (line, object) in [
            ("template: atlas/ConfigMap(shop/site).data.url:1:9: executing", Some("ConfigMap(shop/site)")),
            (
                "template: atlas/Role.rbac.example(n/{{.a}}): it and x would both be x there",
                Some("Role.rbac.example(n/{{.a}})"),
            ),
            ("the workload can't be read, so nothing is changed: configmaps in shop: refused", None),
            ("and 5 more errors", None),
        ] {
            let errors = lines(&[line]);
            let all = Hindrances::new(&errors);
            assert_eq!(all.of_cluster("atlas"), Some(line), "nothing new is delivered");
            let shown = all.of_object(object.unwrap_or("ConfigMap(shop/site)"), "boreas");
            assert_eq!(shown, object.map(|_| line));
        }
    }
}
