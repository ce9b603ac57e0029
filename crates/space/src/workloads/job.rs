//! Jobs: their pods succeed at once.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::object::{
    Kind, Plan, Pod, Write, condition, conditions, field, flag, is_deleting, name, namespace, number,
    pod_from, set, status_write, text, uid,
};

const INDEX: &str = "batch.kubernetes.io/job-completion-index";

struct Job<'a> {
    object: &'a Value,
    pods: &'a [Pod],
    node: &'a str,
    now: &'a str,
}

/// The next writes, and when the Job is to be deleted. `pods` are those that the Job controls.
pub(super) fn decide(object: &Value, pods: &[Pod], node: &str, now: &str) -> Plan {
    let job = Job { object, pods, node, now };
    if is_deleting(object) {
        return Plan::default();
    }
    if job.is_finished() {
        return job.expire();
    }
    let mut writes = job.adjust();
    writes.extend(job.status());
    writes.into()
}

impl Job<'_> {
    fn has(&self, kind: &str) -> bool {
        condition(&conditions(self.object), kind).is_some_and(|found| field(found, "status") == "True")
    }

    fn is_finished(&self) -> bool {
        self.has("Complete") || self.has("Failed")
    }

    fn is_suspended(&self) -> bool {
        flag(self.object, "/spec/suspend")
    }

    fn is_indexed(&self) -> bool {
        text(self.object, "/spec/completionMode") == "Indexed"
    }

    /// The number of required successes. Without it the first success ends the Job.
    fn completions(&self) -> Option<i64> {
        self.object.pointer("/spec/completions").and_then(Value::as_i64)
    }

    fn parallelism(&self) -> i64 {
        self.object.pointer("/spec/parallelism").and_then(Value::as_i64).unwrap_or(1)
    }

    fn active(&self) -> Vec<&Pod> {
        self.pods.iter().filter(|pod| pod.active()).collect()
    }

    fn count(&self, phase: &str) -> i64 {
        self.pods.iter().filter(|pod| pod.status.phase == phase).count() as i64
    }

    /// Completed indexes, including those of deleted pods.
    fn done(&self) -> BTreeSet<i64> {
        let mut done = parse_ranges(text(self.object, "/status/completedIndexes"));
        let succeeded = self.pods.iter().filter(|pod| pod.status.phase == "Succeeded");
        done.extend(succeeded.filter_map(index));
        done
    }

    fn succeeded(&self) -> i64 {
        if self.is_indexed() {
            return self.done().len() as i64;
        }
        // Successes stay counted when their pods are deleted.
        self.count("Succeeded").max(number(self.object, "/status/succeeded"))
    }

    fn failed(&self) -> i64 {
        self.count("Failed").max(number(self.object, "/status/failed"))
    }

    fn is_complete(&self) -> bool {
        match self.completions() {
            Some(wanted) => self.succeeded() >= wanted,
            None => self.succeeded() > 0 && self.active().is_empty(),
        }
    }

    fn is_hopeless(&self) -> bool {
        let limit = self.object.pointer("/spec/backoffLimit").and_then(Value::as_i64);
        self.failed() > limit.unwrap_or(6)
    }

    fn adjust(&self) -> Vec<Write> {
        let active = self.active();
        if self.is_suspended() || self.is_complete() || self.is_hopeless() {
            return active.iter().map(|pod| pod.delete()).collect();
        }
        let left = match self.completions() {
            Some(wanted) => wanted - self.succeeded(),
            None if self.succeeded() > 0 => 0,
            None => i64::MAX,
        };
        let wanted = usize::try_from(self.parallelism().min(left)).unwrap_or_default();
        if active.len() > wanted {
            return active.iter().skip(wanted).map(|pod| pod.delete()).collect();
        }
        let missing = wanted - active.len();
        if !self.is_indexed() {
            return std::iter::repeat_with(|| self.make(None)).take(missing).collect();
        }
        let mut taken = self.done();
        taken.extend(active.iter().filter_map(|pod| index(pod)));
        let free = (0..self.completions().unwrap_or_default()).filter(|index| !taken.contains(index));
        free.take(missing).map(|index| self.make(Some(index))).collect()
    }

    fn make(&self, index: Option<i64>) -> Write {
        let template = self.object.pointer("/spec/template").unwrap_or(&Value::Null);
        let job = name(self.object);
        let Some(index) = index else {
            let pod = pod_from(self.object, Kind::Job, template, &format!("{job}-"), &[], self.node);
            return Write::Create(Kind::Pod, pod);
        };
        let text = index.to_string();
        let labels = [(INDEX, text.as_str())];
        let pod_name = format!("{job}-{index}-");
        let mut pod = pod_from(self.object, Kind::Job, template, &pod_name, &labels, self.node);
        set(&mut pod, &["metadata", "annotations"], INDEX, text.as_str());
        set(&mut pod, &["spec"], "hostname", format!("{job}-{index}"));
        Write::Create(Kind::Pod, pod)
    }

    fn status(&self) -> Option<Write> {
        let mut status = Map::new();
        let mut all = conditions(self.object);
        let started = text(self.object, "/status/startTime");
        let resumed = condition(&all, "Suspended").is_some_and(|one| field(one, "status") == "True");
        if self.is_suspended() {
            self.put(&mut all, "Suspended", "True", "JobSuspended", "Job suspended");
        } else {
            if resumed {
                self.put(&mut all, "Suspended", "False", "JobResumed", "Job resumed");
            }
            let since = if started.is_empty() || resumed { self.now } else { started };
            status.insert("startTime".into(), since.into());
        }
        let (complete, hopeless) = (self.is_complete(), self.is_hopeless());
        let active = if complete || hopeless || self.is_suspended() { Vec::new() } else { self.active() };
        for (key, count) in
            [("active", active.len() as i64), ("succeeded", self.succeeded()), ("failed", self.failed())]
        {
            if count > 0 {
                status.insert(key.into(), count.into());
            }
        }
        let indexes = self.done();
        if self.is_indexed() {
            status.insert("completedIndexes".into(), format_ranges(&indexes).into());
        }
        status.insert("ready".into(), active.iter().filter(|pod| pod.ready()).count().into());
        let going = self.pods.iter().filter(|pod| pod.metadata.deleting() && !pod.finished()).count();
        status.insert("terminating".into(), if complete || hopeless { 0 } else { going }.into());
        status.insert("uncountedTerminatedPods".into(), json!({}));
        if complete && !self.is_suspended() {
            let message = "Reached expected number of succeeded pods";
            self.put(&mut all, "SuccessCriteriaMet", "True", "CompletionsReached", message);
            self.put(&mut all, "Complete", "True", "CompletionsReached", message);
            status.insert("completionTime".into(), self.now.into());
        } else if hopeless {
            let message = "Job has reached the specified backoff limit";
            self.put(&mut all, "FailureTarget", "True", "BackoffLimitExceeded", message);
            self.put(&mut all, "Failed", "True", "BackoffLimitExceeded", message);
        }
        if !all.is_empty() {
            status.insert("conditions".into(), all.into());
        }
        status_write(Kind::Job, self.object, status.into())
    }

    fn put(&self, all: &mut Vec<Value>, kind: &str, status: &str, reason: &str, message: &str) {
        if condition(all, kind).is_some_and(|old| field(old, "status") == status) {
            return;
        }
        all.retain(|one| field(one, "type") != kind);
        all.push(json!({
            "type": kind, "status": status, "reason": reason, "message": message,
            "lastProbeTime": self.now, "lastTransitionTime": self.now,
        }));
    }

    /// Deletes a finished Job after its `ttlSecondsAfterFinished`.
    fn expire(&self) -> Plan {
        let all = conditions(self.object);
        let end = condition(&all, "Complete").or_else(|| condition(&all, "Failed"));
        let (Some(ttl), Some(end), Ok(now)) = (
            self.object.pointer("/spec/ttlSecondsAfterFinished").and_then(Value::as_i64),
            end.and_then(|end| field(end, "lastTransitionTime").parse::<Timestamp>().ok()),
            self.now.parse::<Timestamp>(),
        ) else {
            return Plan::default();
        };
        let left = end.as_second().saturating_add(ttl).saturating_sub(now.as_second());
        if left > 0 {
            return Plan { writes: Vec::new(), again: Some(Duration::from_secs(left.unsigned_abs())) };
        }
        let delete = Write::Delete {
            kind: Kind::Job,
            namespace: namespace(self.object).to_owned(),
            name: name(self.object).to_owned(),
            uid: uid(self.object).to_owned(),
            at_once: false,
        };
        vec![delete].into()
    }
}

fn index(pod: &Pod) -> Option<i64> {
    pod.metadata.annotations.get(INDEX)?.parse().ok()
}

/// `1,3-5,7`
fn parse_ranges(text: &str) -> BTreeSet<i64> {
    const MOST: i64 = 100_000;
    let mut all = BTreeSet::new();
    for part in text.split(',') {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(from), Ok(to)) = (from.parse::<i64>(), to.parse::<i64>()) {
            all.extend(from.max(0)..=to.min(MOST));
        }
    }
    all
}

fn format_ranges(all: &BTreeSet<i64>) -> String {
    let mut ranges: Vec<(i64, i64)> = Vec::new();
    for index in all {
        match ranges.last_mut() {
            Some((_, to)) if *to + 1 == *index => *to = *index,
            _ => ranges.push((*index, *index)),
        }
    }
    let write = |(from, to): &(i64, i64)| match to - from {
        0 => from.to_string(),
        1 => format!("{from},{to}"),
        _ => format!("{from}-{to}"),
    };
    ranges.iter().map(write).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: &str = "2026-01-01T00:01:00Z";

    fn job(spec: Value, status: Value) -> Value {
        json!({"metadata": {"name": "once", "namespace": "n", "uid": "u"}, "spec": spec, "status": status})
    }

    fn pod(phase: &str, index: i64) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": format!("p{index}"), "namespace": "n", "uid": "p",
            "annotations": {INDEX: index.to_string()}}, "status": {"phase": phase}}))
        .expect("a pod")
    }

    fn status_of(plan: &Plan) -> Option<&Value> {
        plan.writes.iter().find_map(|write| match write {
            Write::Status(_, object) => object.get("status"),
            _ => None,
        })
    }

    #[test]
    fn indexes_are_written_as_ranges() {
        for (indexes, text) in
            [(vec![], ""), (vec![0], "0"), (vec![0, 1], "0,1"), (vec![0, 1, 2, 5], "0-2,5")]
        {
            let all: BTreeSet<i64> = indexes.into_iter().collect();
            assert_eq!(format_ranges(&all), text);
            assert_eq!(parse_ranges(text), all);
        }
    }

    #[test]
    fn a_complete_job_says_so_in_the_words_of_a_real_one() {
        let object =
            job(json!({"completions": 2, "parallelism": 1}), json!({"startTime": "2026-01-01T00:00:00Z"}));
        let plan = decide(&object, &[pod("Succeeded", 0), pod("Succeeded", 1)], "node", NOW);
        let condition = |kind: &str| {
            json!({"type": kind, "status": "True", "reason": "CompletionsReached",
                "message": "Reached expected number of succeeded pods", "lastProbeTime": NOW, "lastTransitionTime": NOW})
        };
        let wanted = json!({"startTime": "2026-01-01T00:00:00Z", "completionTime": NOW, "succeeded": 2, "ready": 0,
            "terminating": 0, "uncountedTerminatedPods": {},
            "conditions": [condition("SuccessCriteriaMet"), condition("Complete")]});
        assert_eq!(status_of(&plan), Some(&wanted));
        assert_eq!(plan.writes.len(), 1);
        let done = job(json!({"completions": 2}), wanted);
        assert_eq!(decide(&done, &[], "node", NOW), Plan::default());
    }

    #[test]
    fn a_suspended_job_has_no_pods_and_starts_anew_when_resumed() {
        let object = job(json!({"completions": 1, "suspend": true}), json!({}));
        let plan = decide(&object, &[pod("Running", 0)], "node", NOW);
        assert!(plan.writes.iter().any(|write| matches!(write, Write::Delete { .. })));
        let status = status_of(&plan).expect("a status").clone();
        assert_eq!(status["conditions"][0]["reason"], "JobSuspended");
        assert!(status.get("startTime").is_none());
        let resumed = decide(&job(json!({"completions": 1}), status), &[], "node", "2026-01-01T00:02:00Z");
        let status = status_of(&resumed).expect("a status");
        assert_eq!(status["conditions"][0]["reason"], "JobResumed");
        assert_eq!(status["startTime"], "2026-01-01T00:02:00Z");
        assert!(resumed.writes.iter().any(|write| matches!(write, Write::Create(Kind::Pod, _))));
    }

    #[test]
    fn an_indexed_job_makes_each_index_once() {
        let spec = json!({"completions": 5, "parallelism": 2, "completionMode": "Indexed"});
        let object = job(spec, json!({"completedIndexes": "0,1"}));
        let plan = decide(&object, &[pod("Running", 3)], "node", NOW);
        let made: Vec<&str> = plan
            .writes
            .iter()
            .filter_map(|write| match write {
                Write::Create(_, pod) => Some(text(pod, "/metadata/generateName")),
                _ => None,
            })
            .collect();
        assert_eq!(made, ["once-2-"]);
        assert_eq!(status_of(&plan).map(|status| &status["completedIndexes"]), Some(&json!("0,1")));
    }

    #[test]
    fn failures_beyond_the_limit_end_a_job() {
        let object = job(json!({"completions": 1, "backoffLimit": 0}), json!({}));
        let plan = decide(&object, &[pod("Failed", 0)], "node", NOW);
        let status = status_of(&plan).expect("a status");
        assert_eq!(status["conditions"][1]["type"], "Failed");
        assert_eq!(status["conditions"][1]["reason"], "BackoffLimitExceeded");
        assert_eq!(plan.writes.len(), 1, "no pod is made any more");
    }

    #[test]
    fn a_job_goes_when_its_time_is_up() {
        let ended = |at: &str| json!({"conditions": [{"type": "Complete", "status": "True", "lastTransitionTime": at}]});
        let spec = json!({"completions": 1, "ttlSecondsAfterFinished": 30});
        let plan = decide(&job(spec.clone(), ended("2026-01-01T00:00:50Z")), &[], "node", NOW);
        assert_eq!(plan.again, Some(Duration::from_secs(20)));
        let plan = decide(&job(spec, ended("2026-01-01T00:00:30Z")), &[], "node", NOW);
        assert!(matches!(&plan.writes[..], [Write::Delete { kind: Kind::Job, .. }]));
    }
}
