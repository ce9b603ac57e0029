//! The output formats of `get status`. Pure: turns a delivery into text.

use apis::control::{BindingPolicy, BindingStatus};
use serde::Serialize;

use super::picture::{Cell, Object, State};
use crate::commands::status::age;
use crate::printer::table;

/// One policy's delivery.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Delivery {
    pub(crate) policy: String,
    pub(crate) wds: String,
    /// Status of the policy's conditions; None when they are not there yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) synced: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ready: Option<String>,
    pub(crate) errors: Vec<String>,
    /// Problems in other conditions of the policy: those of its StatusCollectors (KS-171).
    #[serde(skip)]
    complaints: Vec<String>,
    pub(crate) clusters: Vec<String>,
    pub(crate) objects: Vec<Row>,
    /// Whether the policy's status is about its present generation; `None` without a policy.
    #[serde(skip)]
    pub(crate) current: Option<bool>,
}

/// One object in all clusters.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    #[serde(flatten)]
    pub(crate) object: Object,
    pub(crate) clusters: Vec<Cell>,
}

impl Delivery {
    /// The errors of the policy's status. A Binding without a policy has only its own errors (KS-010).
    pub(crate) fn of(
        name: &str,
        wds: &str,
        policy: Option<&BindingPolicy>,
        binding: Option<&BindingStatus>,
    ) -> Self {
        let status = policy.and_then(|policy| policy.status.as_ref());
        let condition = |type_: &str| {
            let found = status?.conditions.iter().find(|it| it.type_ == type_)?;
            Some(found.status.clone())
        };
        let errors = status.map(|it| &it.errors).or(binding.map(|it| &it.errors));
        let others = status.into_iter().flat_map(|status| &status.conditions).filter(|it| {
            it.status == "False"
                && ![apis::condition::SYNCED, apis::condition::READY].contains(&it.type_.as_str())
        });
        Self {
            policy: name.to_owned(),
            wds: wds.to_owned(),
            synced: condition(apis::condition::SYNCED),
            ready: condition(apis::condition::READY),
            errors: errors.cloned().unwrap_or_default(),
            complaints: others.map(|it| format!("{} is False: {}", it.type_, it.message)).collect(),
            clusters: Vec::new(),
            objects: Vec::new(),
            current: policy.map(|policy| {
                let observed = status.map(|status| status.observed_generation);
                observed.is_some() && observed == policy.metadata.generation
            }),
        }
    }

    /// Returns whether every object is applied in every cluster without errors. The table is made from the Binding and its works,
    /// which may be older than the policy; the policy's status says whether they are up to date.
    pub(crate) fn is_done(&self) -> bool {
        let cells = self.objects.iter().flat_map(|row| &row.clusters);
        self.is_ready()
            && self.errors.is_empty()
            && cells.into_iter().all(|cell| cell.state == State::Applied)
    }

    /// Returns whether the controllers have processed the present policy (KS-008). Without a policy they have nothing to do.
    fn is_ready(&self) -> bool {
        self.current.is_none_or(|current| current && self.ready.as_deref() == Some("True"))
    }

    /// Returns the remarks below the table.
    pub(crate) fn remarks(&self) -> Vec<String> {
        let mut remarks: Vec<_> =
            self.errors.iter().map(|error| format!("policy {}: {error}", self.policy)).collect();
        let mut say = |remark: &str| remarks.push(format!("policy {}: {remark}", self.policy));
        if self.current == Some(false) {
            say("the controllers have not acted on it in its present form");
            return remarks;
        }
        if !self.is_ready() && self.errors.is_empty() {
            say("what it amounts to is not on its way to all clusters yet");
        }
        self.complaints.iter().for_each(|complaint| say(complaint));
        if self.clusters.is_empty() {
            say("no cluster matches");
        }
        if self.objects.is_empty() {
            say("no object matches");
        }
        remarks
    }

    /// Objects by clusters.
    pub(crate) fn matrix(&self) -> String {
        let names: Vec<String> = self.clusters.iter().map(|name| name.to_uppercase()).collect();
        let header: Vec<&str> = std::iter::once("OBJECT").chain(names.iter().map(String::as_str)).collect();
        let rows: Vec<Vec<String>> = self
            .objects
            .iter()
            .map(|row| {
                let cells = row.clusters.iter().map(short);
                std::iter::once(row.object.label()).chain(cells).collect()
            })
            .collect();
        let table = table(&header, &rows);
        let failures = self.failures();
        if failures.is_empty() { table } else { format!("{table}\n\n{}", failures.join("\n")) }
    }

    /// Returns the distinct messages of failed deliveries, each with one place and the number of further places.
    fn failures(&self) -> Vec<String> {
        let mut seen: Vec<(String, String, usize)> = Vec::new();
        for row in &self.objects {
            for cell in
                row.clusters.iter().filter(|cell| cell.state == State::Failed && !cell.message.is_empty())
            {
                let message = cell.message.split_whitespace().collect::<Vec<_>>().join(" ");
                match seen.iter_mut().find(|(known, ..)| *known == message) {
                    Some((.., more)) => *more += 1,
                    None => seen.push((message, format!("{} in {}", row.object.label(), cell.cluster), 0)),
                }
            }
        }
        let line = |(message, place, more): (String, String, usize)| match more {
            0 => format!("{place}: {message}"),
            more => format!("{place} and {more} more: {message}"),
        };
        seen.into_iter().map(line).collect()
    }

    /// A line for each object in each cluster; `now` in seconds since 1970.
    pub(crate) fn wide(&self, now: i64) -> String {
        let rows: Vec<Vec<String>> = self
            .objects
            .iter()
            .flat_map(|row| {
                row.clusters.iter().map(move |cell| {
                    let mut line = vec![row.object.label()];
                    line.extend(columns(cell, now));
                    line
                })
            })
            .collect();
        table(&["OBJECT", "CLUSTER", "APPLIED", "AVAILABLE", "REPORTED", "AGE", "MESSAGE"], &rows)
    }

    /// Arguments for kubectl.
    pub(crate) fn names(&self) -> String {
        self.objects.iter().map(|row| row.object.argument()).collect::<Vec<_>>().join("\n")
    }
}

/// Formats a cell: `Applied`, and the report of the cluster if there is one.
fn short(cell: &Cell) -> String {
    let mut text = cell.state.text().to_owned();
    if cell.state == State::Applied && cell.available.as_deref() == Some("False") {
        text.push_str(", missing");
    }
    if let Some(reported) = &cell.reported {
        text.push_str(&format!(", {reported}"));
    }
    text
}

/// A cell in full: cluster, applied, available, reported, age, message.
pub(crate) fn columns(cell: &Cell, now: i64) -> Vec<String> {
    let none = || "<none>".to_owned();
    let since = cell.since.as_ref().map(|since| {
        let seconds = now.saturating_sub(since.0.as_second()).max(0);
        age(std::time::Duration::from_secs(seconds.unsigned_abs()))
    });
    let message: Vec<_> = cell.message.split_whitespace().collect();
    vec![
        cell.cluster.clone(),
        cell.state.text().to_owned(),
        cell.available.clone().unwrap_or_else(none),
        cell.reported.clone().unwrap_or_else(none),
        since.unwrap_or_else(none),
        if message.is_empty() { none() } else { message.join(" ") },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(cluster: &str, state: State, reported: Option<&str>) -> Cell {
        Cell {
            cluster: cluster.into(),
            state,
            manifest_work: Some("w".into()),
            held_back: false,
            available: (state == State::Applied).then(|| "True".into()),
            reported: reported.map(Into::into),
            message: if state == State::Failed { "no\nrights".into() } else { String::new() },
            since: (state == State::Applied).then(|| {
                k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(
                    k8s_openapi::jiff::Timestamp::from_second(100).unwrap(),
                )
            }),
        }
    }

    fn delivery() -> Delivery {
        let object = |kind: &str, resource: &str, namespace: &str, name: &str| Object {
            kind: kind.into(),
            resource: resource.into(),
            namespace: namespace.into(),
            name: name.into(),
            version: "v1".into(),
            ..Object::default()
        };
        let mut delivery = Delivery::of("shop", "wds1", None, None);
        delivery.clusters = vec!["atlas".into(), "boreas".into()];
        delivery.objects = vec![
            Row {
                object: object("Deployment", "deployments", "shop", "web"),
                clusters: vec![
                    cell("atlas", State::Applied, Some("2/2 ready")),
                    cell("boreas", State::Failed, None),
                ],
            },
            Row {
                object: object("Namespace", "namespaces", "", "shop"),
                clusters: vec![cell("atlas", State::Applied, None), cell("boreas", State::Waiting, None)],
            },
        ];
        delivery
    }

    /// SP-119, SP-081: the matrix.
    #[test]
    fn sp_119_matrix() {
        let expected = "\
OBJECT                ATLAS                BOREAS
Deployment shop/web   Applied, 2/2 ready   Failed
Namespace shop        Applied              Waiting

Deployment shop/web in boreas: no rights";
        let mut delivery = delivery();
        assert_eq!(delivery.matrix(), expected);
        delivery.objects[1].clusters =
            vec![cell("atlas", State::Failed, None), cell("boreas", State::Failed, None)];
        assert_eq!(delivery.failures(), ["Deployment shop/web in boreas and 2 more: no rights"]);
    }

    #[test]
    fn sp_119_wide() {
        let expected = "\
OBJECT                CLUSTER   APPLIED   AVAILABLE   REPORTED    AGE      MESSAGE
Deployment shop/web   atlas     Applied   True        2/2 ready   20s      <none>
Deployment shop/web   boreas    Failed    <none>      <none>      <none>   no rights
Namespace shop        atlas     Applied   True        <none>      20s      <none>
Namespace shop        boreas    Waiting   <none>      <none>      <none>   <none>";
        assert_eq!(delivery().wide(120), expected);
        assert_eq!(delivery().names(), "deployments/web\nnamespaces/shop");
    }

    #[test]
    fn sp_119_done_and_remarks() {
        let mut delivery = delivery();
        assert!(!delivery.is_done() && delivery.remarks().is_empty());
        for cell in delivery.objects.iter_mut().flat_map(|row| &mut row.clusters) {
            cell.state = State::Applied;
        }
        assert!(delivery.is_done());
        delivery.errors.push("too large".into());
        delivery.clusters.clear();
        assert!(!delivery.is_done());
        assert_eq!(delivery.remarks(), ["policy shop: too large", "policy shop: no cluster matches"]);
    }

    /// SP-119: without a Binding, or with one that is behind the policy, nothing is done, whatever the table shows.
    #[test]
    fn sp_119_done_is_what_the_policy_says_is_done() {
        let policy = |generation: i64, status: serde_json::Value| -> BindingPolicy {
            let metadata = serde_json::json!({"name": "shop", "generation": generation});
            serde_json::from_value(serde_json::json!({"metadata": metadata, "spec": {}, "status": status}))
                .unwrap()
        };
        let status = |observed: i64, ready: &str| {
            let ready = serde_json::json!({"type": "Ready", "status": ready, "reason": "R", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z"});
            serde_json::json!({"observedGeneration": observed, "conditions": [ready]})
        };
        let mut uncollected = status(2, "True");
        let missing = serde_json::json!({"type": "StatusCollectorsAvailable", "status": "False", "reason": "Error",
            "message": "Missing StatusCollector(s) [count]", "lastTransitionTime": "2026-01-01T00:00:00Z"});
        uncollected["conditions"].as_array_mut().unwrap().push(missing);
        let uncollectable =
            "policy shop: StatusCollectorsAvailable is False: Missing StatusCollector(s) [count]";
        let unseen = "policy shop: the controllers have not acted on it in its present form";
        let unready = "policy shop: what it amounts to is not on its way to all clusters yet";
        let empty = ["policy shop: no cluster matches", "policy shop: no object matches"];
        let cases = [
            ("just made", policy(1, serde_json::Value::Null), false, vec![unseen]),
            ("changed since", policy(2, status(1, "True")), false, vec![unseen]),
            ("on its way", policy(2, status(2, "False")), false, vec![unready, empty[0], empty[1]]),
            ("done", policy(2, status(2, "True")), true, empty.to_vec()),
            ("nothing is collected", policy(2, uncollected), true, vec![uncollectable, empty[0], empty[1]]),
        ];
        for (why, policy, done, remarks) in cases {
            let shown = Delivery::of("shop", "wds1", Some(&policy), None);
            assert_eq!(
                (shown.is_done(), shown.remarks()),
                (done, remarks.into_iter().map(Into::into).collect()),
                "{why}"
            );
        }
        let mut applied = delivery();
        applied.objects.truncate(1);
        applied.objects[0].clusters.truncate(1);
        assert!(applied.is_done(), "a Binding without a policy (KS-010)");
        applied.current = Some(true);
        applied.ready = Some("False".into());
        assert!(!applied.is_done(), "older objects are applied everywhere");
    }

    #[test]
    fn sp_081_json_has_stable_keys() {
        let value = serde_json::to_value(delivery()).unwrap();
        let row = &value["objects"][0];
        assert_eq!(
            (&row["kind"], &row["resource"], &row["name"]),
            (&"Deployment".into(), &"deployments".into(), &"web".into())
        );
        assert_eq!(row["clusters"][0]["state"], "Applied");
        assert_eq!(row["clusters"][0]["reported"], "2/2 ready");
    }
}
