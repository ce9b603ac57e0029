//! Taints of clusters, and the tolerations of a Placement.

use std::time::Duration;

use apis::ocm::cluster::Taint;
use k8s_openapi::{api::core::v1::Toleration, jiff::Timestamp};

use super::candidates::Misconfigured;

/// Name of the plugin in messages.
const PLUGIN: &str = "TaintToleration";

/// Checks the tolerations of a Placement.
///
/// # Errors
///
/// A toleration without key is not for all keys, or one for all values has a value.
pub fn check(tolerations: &[Toleration]) -> Result<(), Misconfigured> {
    for toleration in tolerations {
        let exists = toleration.operator.as_deref() == Some("Exists");
        if text(toleration.key.as_ref()).is_empty() && !exists {
            return Err(Misconfigured::new(PLUGIN, "If the key is empty, operator must be Exists."));
        }
        if exists && !text(toleration.value.as_ref()).is_empty() {
            return Err(Misconfigured::new(PLUGIN, "If the operator is Exists, the value should be empty."));
        }
    }
    Ok(())
}

fn text(value: Option<&String>) -> &str {
    value.map(String::as_str).unwrap_or_default()
}

/// Whether a cluster can be selected in spite of its taints.
pub struct Tolerance {
    /// It can.
    pub fits: bool,
    /// The cluster has a taint that makes other clusters preferable.
    pub unloved: bool,
    /// Time until a toleration ends.
    pub until: Option<Duration>,
}

/// Compares taints with tolerations. `selected`: the cluster is selected at present.
pub fn tolerated(taints: &[Taint], tolerations: &[Toleration], selected: bool, now: Timestamp) -> Tolerance {
    let mut answer = Tolerance { fits: true, unloved: false, until: None };
    for taint in taints {
        let covering = tolerations.iter().filter(|t| covers(t, taint));
        match covering.map(|t| holds(t, taint, now)).max().unwrap_or(Holds::No) {
            Holds::Forever => {}
            Holds::For(left) => answer.until = [answer.until, Some(left)].into_iter().flatten().min(),
            Holds::No => match taint.effect.as_str() {
                "PreferNoSelect" => answer.unloved = true,
                "NoSelectIfNew" => answer.fits &= selected,
                _ => answer.fits = false,
            },
        }
    }
    answer
}

fn covers(toleration: &Toleration, taint: &Taint) -> bool {
    let (key, value) = (text(toleration.key.as_ref()), text(toleration.value.as_ref()));
    let effect = text(toleration.effect.as_ref());
    if !effect.is_empty() && effect != taint.effect {
        return false;
    }
    match text(toleration.operator.as_ref()) {
        "Exists" => key.is_empty() || key == taint.key,
        "" | "Equal" => key == taint.key && value == taint.value,
        _ => false,
    }
}

/// How long a toleration holds, in ascending order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Holds {
    No,
    For(Duration),
    Forever,
}

fn holds(toleration: &Toleration, taint: &Taint, now: Timestamp) -> Holds {
    let (Some(seconds), Some(added)) = (toleration.toleration_seconds, taint.time_added.as_ref()) else {
        return Holds::Forever;
    };
    let left = added.0.as_second().saturating_add(seconds).saturating_sub(now.as_second());
    match u64::try_from(left) {
        Ok(left) if left > 0 => Holds::For(Duration::from_secs(left)),
        _ => Holds::No,
    }
}
