//! Rolling updates and scaling of Deployments: how many pods each ReplicaSet may have.

use serde_json::Value;

use super::object::{age, annotation, generation, number, replicas, set};
use super::sets::{DESIRED, MAXIMUM, Sets, is_recreate};

/// `maxSurge` and `maxUnavailable` as numbers of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RolloutLimits {
    pub(super) surge: i64,
    pub(super) unavailable: i64,
}

/// An absolute number, or a percentage of `of`.
fn absolute_or_percent(value: Option<&Value>, of: i64, round_up: bool) -> i64 {
    match value {
        Some(Value::Number(number)) => number.as_i64().unwrap_or_default(),
        Some(Value::String(text)) => {
            let percent: i64 = text.trim_end_matches('%').parse().unwrap_or_default();
            let scaled = percent.saturating_mul(of);
            if round_up { scaled.saturating_add(99) / 100 } else { scaled / 100 }
        }
        _ => 0,
    }
}

pub(super) fn margins(deployment: &Value) -> RolloutLimits {
    let of = replicas(deployment);
    if is_recreate(deployment) {
        return RolloutLimits { surge: 0, unavailable: 0 };
    }
    let field = |field: &str| deployment.pointer(&format!("/spec/strategy/rollingUpdate/{field}"));
    let surge = absolute_or_percent(field("maxSurge"), of, true);
    let unavailable = absolute_or_percent(field("maxUnavailable"), of, false);
    // If both are zero, an update could not begin.
    let unavailable = if surge == 0 && unavailable == 0 { 1 } else { unavailable };
    RolloutLimits { surge, unavailable: unavailable.min(of) }
}

/// Whether the ReplicaSet has observed its latest spec and reached that number of pods.
pub(super) fn is_settled(set: &Value) -> bool {
    number(set, "/status/observedGeneration") >= generation(set)
}

fn available(set: &Value) -> i64 {
    number(set, "/status/availableReplicas").min(replicas(set))
}

fn total(sets: &Sets) -> i64 {
    sets.all().map(replicas).sum()
}

/// Records the Deployment's size in annotations of a ReplicaSet, so that a later scaling is noticed and distributed.
pub(super) fn record_size(deployment: &Value, set_: &mut Value) {
    let (wanted, margins) = (replicas(deployment), margins(deployment));
    for (key, number) in [(DESIRED, wanted), (MAXIMUM, wanted + margins.surge)] {
        set(set_, &["metadata", "annotations"], key, number.to_string());
    }
}

fn resize(deployment: &Value, set_: &mut Value, size: i64) {
    if replicas(set_) != size {
        set(set_, &["spec"], "replicas", size);
    }
    record_size(deployment, set_);
}

/// Whether the Deployment's size differs from the size recorded in its ReplicaSets.
pub(super) fn is_scaling(deployment: &Value, sets: &Sets) -> bool {
    sets.all().filter(|set| replicas(set) > 0).any(|set| {
        annotation(set, DESIRED).parse::<i64>().is_ok_and(|desired| desired != replicas(deployment))
    })
}

/// With the strategy `Recreate`, whether the old pods are gone.
pub(super) fn may_create(deployment: &Value, sets: &Sets) -> bool {
    !is_recreate(deployment) || old_are_gone(sets)
}

fn old_are_gone(sets: &Sets) -> bool {
    sets.old.iter().all(|set| replicas(set) == 0 && number(set, "/status/replicas") == 0 && is_settled(set))
}

/// The size of a new ReplicaSet. While others still have surplus pods, the available room is not known.
pub(super) fn first_size(deployment: &Value, sets: &Sets) -> i64 {
    match (is_recreate(deployment), sets.all().all(is_settled)) {
        (true, _) => replicas(deployment),
        (false, true) => with_surge(deployment, sets, 0),
        (false, false) => 0,
    }
}

/// `size` plus the pods that the surge allows.
fn with_surge(deployment: &Value, sets: &Sets, size: i64) -> i64 {
    let wanted = replicas(deployment);
    let room = (wanted + margins(deployment).surge - total(sets)).max(0);
    size + room.min(wanted - size).max(0)
}

/// Computes the next step of a rolling update.
pub(super) fn roll(deployment: &Value, sets: &mut Sets) {
    if is_recreate(deployment) {
        recreate(deployment, sets);
        return;
    }
    let Some(size) = sets.new.as_ref().map(replicas) else { return };
    let wanted = replicas(deployment);
    let next = if size > wanted { wanted } else { with_surge(deployment, sets, size) };
    if next != size {
        if let Some(new) = &mut sets.new {
            resize(deployment, new, next);
        }
        return;
    }
    shrink_old(deployment, sets);
}

fn recreate(deployment: &Value, sets: &mut Sets) {
    let gone = old_are_gone(sets);
    for old in sets.old.iter_mut().filter(|set| replicas(set) > 0) {
        resize(deployment, old, 0);
    }
    if let Some(new) = sets.new.as_mut().filter(|new| gone && replicas(new) != replicas(deployment)) {
        resize(deployment, new, replicas(deployment));
    }
}

/// Scales down old ReplicaSets as far as the minimum of available pods allows: first unavailable pods, then others.
fn shrink_old(deployment: &Value, sets: &mut Sets) {
    let minimum = replicas(deployment) - margins(deployment).unavailable;
    let starting: i64 = sets.new.iter().map(|new| replicas(new) - available(new)).sum();
    let mut budget = total(sets) - minimum - starting;
    for old in &mut sets.old {
        let idle = (replicas(old) - available(old)).min(budget).max(0);
        if idle > 0 {
            budget -= idle;
            let size = replicas(old) - idle;
            resize(deployment, old, size);
        }
    }
    let working: i64 = sets.all().map(available).sum();
    budget = budget.min(working - minimum);
    for old in &mut sets.old {
        let spare = replicas(old).min(budget).max(0);
        if spare > 0 {
            budget -= spare;
            let size = replicas(old) - spare;
            resize(deployment, old, size);
        }
    }
}

/// Scales without an update: the only active ReplicaSet, or several in proportion.
pub(super) fn scale(deployment: &Value, sets: &mut Sets) {
    let wanted = replicas(deployment);
    let active = sets.all().filter(|set| replicas(set) > 0).count();
    if active <= 1 {
        let has_active = active == 1;
        let latest_old = sets.new.is_none().then(|| sets.old.len().saturating_sub(1));
        let mut only = None;
        for (index, set) in sets.all_mut().enumerate() {
            let chosen =
                if has_active { replicas(set) > 0 } else { latest_old.is_none_or(|last| last == index) };
            if chosen {
                // Without an active ReplicaSet, the last or current one counts.
                only = Some(set);
            }
        }
        if let Some(only) = only {
            resize(deployment, only, wanted);
        }
        return;
    }
    let saturated = sets.new.as_ref().is_some_and(|new| {
        replicas(new) == wanted
            && annotation(new, DESIRED) == wanted.to_string()
            && number(new, "/status/availableReplicas") == wanted
    });
    if saturated {
        for old in sets.old.iter_mut().filter(|set| replicas(set) > 0) {
            resize(deployment, old, 0);
        }
    } else if is_recreate(deployment) {
        for set in sets.all_mut().filter(|set| replicas(set) > 0) {
            record_size(deployment, set);
        }
    } else {
        share_out(deployment, sets);
    }
}

/// Distributes a change of size over the active ReplicaSets in proportion to their sizes.
fn share_out(deployment: &Value, sets: &mut Sets) {
    let wanted = replicas(deployment);
    let maximum = if wanted > 0 { wanted + margins(deployment).surge } else { 0 };
    let mut active: Vec<&mut Value> = sets.all_mut().filter(|set| replicas(set) > 0).collect();
    let add = maximum - active.iter().map(|set| replicas(set)).sum::<i64>();
    // The largest first. Of equal ones the newest grows first and the oldest shrinks first.
    active.sort_by(|a, b| {
        let by_age = if add > 0 { age(b).cmp(&age(a)) } else { age(a).cmp(&age(b)) };
        replicas(b).cmp(&replicas(a)).then(by_age)
    });
    let mut added = 0;
    let mut sizes: Vec<i64> = Vec::with_capacity(active.len());
    for set in &active {
        let absolute_or_percent = if add == added { 0 } else { proportion(deployment, set, wanted, maximum) };
        let absolute_or_percent =
            if add > 0 { absolute_or_percent.min(add - added) } else { absolute_or_percent.max(add - added) };
        added += absolute_or_percent;
        sizes.push(replicas(set) + absolute_or_percent);
    }
    if let Some(first) = sizes.first_mut() {
        *first = (*first + add - added).max(0);
    }
    for (set, size) in active.into_iter().zip(sizes) {
        resize(deployment, set, size);
    }
}

fn proportion(deployment: &Value, set: &Value, wanted: i64, maximum: i64) -> i64 {
    if wanted == 0 {
        return -replicas(set);
    }
    let recorded = annotation(set, MAXIMUM).parse::<i64>().ok().filter(|recorded| *recorded > 0);
    let before = recorded.unwrap_or_else(|| number(deployment, "/status/replicas"));
    if before == 0 {
        return 0;
    }
    let scaled = replicas(set).saturating_mul(maximum);
    // Rounded to the nearest integer.
    (2 * scaled + before) / (2 * before) - replicas(set)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn deployment(replicas: i64, surge: Value, unavailable: Value) -> Value {
        json!({"metadata": {"name": "web"}, "spec": {"replicas": replicas,
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}}})
    }

    fn set_of(name: &str, size: i64, available: i64, maximum: i64) -> Value {
        json!({"metadata": {"name": name, "generation": 1, "annotations": {MAXIMUM: maximum.to_string()}},
            "spec": {"replicas": size},
            "status": {"observedGeneration": 1, "replicas": size, "availableReplicas": available}})
    }

    #[test]
    fn margins_round_the_surge_up_and_the_rest_down() {
        for (replicas, surge, unavailable, expected) in [
            (10, json!("25%"), json!("25%"), (3, 2)),
            (1, json!("25%"), json!("25%"), (1, 0)),
            (3, json!(0), json!("25%"), (0, 1)),
            (2, json!(5), json!(9), (5, 2)),
            (0, json!("25%"), json!("25%"), (0, 0)),
        ] {
            let found = margins(&deployment(replicas, surge, unavailable));
            assert_eq!((found.surge, found.unavailable), expected, "{replicas}");
        }
    }

    #[test]
    fn steps_of_a_roll() {
        // (old, old available, new, new available) -> (old, new)
        for (old, old_ok, new, new_ok, expected) in [
            (10, 10, 0, 0, (10, 3)),
            (10, 10, 3, 0, (8, 3)),
            (8, 8, 3, 0, (8, 5)),
            (8, 8, 5, 0, (8, 5)),
            (8, 8, 5, 5, (3, 5)),
            // Unavailable pods are removed first, and do not reduce availability.
            (10, 4, 3, 3, (5, 3)),
        ] {
            let deployment = deployment(10, json!(3), json!(2));
            let mut sets =
                Sets { new: Some(set_of("new", new, new_ok, 13)), old: vec![set_of("old", old, old_ok, 13)] };
            roll(&deployment, &mut sets);
            let sizes = (sets.old.first().map_or(0, replicas), sets.new.as_ref().map_or(0, replicas));
            assert_eq!(sizes, expected, "{old}/{old_ok} {new}/{new_ok}");
        }
    }

    #[test]
    fn scaling_in_the_middle_of_a_roll_is_shared_out() {
        let mut sets = Sets { new: Some(set_of("new", 5, 0, 13)), old: vec![set_of("old", 8, 8, 13)] };
        scale(&deployment(20, json!(3), json!(2)), &mut sets);
        let sizes: Vec<i64> = sets.all().map(replicas).collect();
        assert_eq!(sizes, [14, 9]);
        let mut sets = Sets { new: Some(set_of("new", 5, 0, 13)), old: vec![set_of("old", 8, 8, 13)] };
        scale(&deployment(0, json!(3), json!(2)), &mut sets);
        assert!(sets.all().all(|set| replicas(set) == 0));
    }
}
