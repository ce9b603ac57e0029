//! Runs the hooks of a ControlPlane whose space answers.

use std::collections::BTreeMap;
use std::sync::Arc;

use apis::tenancy::{ControlPlane, PostCreateHook};
use runtime::{Next, Source};
use serde_json::{Value, json};

use crate::hooks::apply::{Applied, Target};
use crate::hooks::builtin::{self, Wanted};
use crate::hooks::readiness::{State, makes_pods};
use crate::hooks::render::{Budget, RenderError, check_all, render};
use crate::hooks::{self, Outcome, Use, Vars};
use crate::its::{Candidate, ITS_NAME, NoIts, choose};
use crate::manager::Manager;
use crate::names::{APPLY_TO, REAPPLIED, REAPPLY, SYSTEM_LABEL};
use crate::spaces::{Component, ComponentState, Spaces};

/// Message about objects that would make pods where nothing runs them (SP-068).
const NO_PODS: &str =
    "this host runs no pods; use a built-in component, apply-to: space, or a real hosting cluster";

/// The hooks after a pass.
pub(crate) struct Ran {
    pub(crate) outcomes: Vec<(String, Outcome)>,
    pub(crate) next: Next,
}

impl Manager {
    /// Runs all hooks. A failure of one does not keep the others from running (SP-020).
    pub(crate) async fn run_hooks(&self, plane: ControlPlane) -> Result<Ran, kube::Error> {
        let name = plane.metadata.name.clone().unwrap_or_default();
        self.remember(&name, |one| (one.wants_its, one.awaits_objects) = (false, false));
        let again = reapply(&plane);
        let (mut outcomes, mut labels) = (Vec::new(), BTreeMap::new());
        let mut next = Next::OnChange;
        for one in hooks::uses(&plane.spec) {
            let hook = self.hooks.get("", one.hook);
            let outcome = self.run_hook(&plane, &one, hook.as_ref(), again.is_some(), &mut labels).await;
            let interrupted = outcome == Outcome::Interrupted;
            match &outcome {
                Outcome::Failed { .. } => next = Next::Retry,
                Outcome::Missing { .. } => self.remember(&name, |one| one.wants_its = true),
                Outcome::NotReady { .. } => self.remember(&name, |one| one.awaits_objects = true),
                Outcome::Done { .. } | Outcome::Interrupted => {}
            }
            outcomes.push((one.hook.to_owned(), outcome));
            if interrupted {
                return Ok(Ran { outcomes, next: Next::OnChange });
            }
        }
        labels.remove(SYSTEM_LABEL);
        let failed = |(_, outcome): &(String, Outcome)| matches!(outcome, Outcome::Failed { .. });
        let done = again.filter(|_| !outcomes.iter().any(failed));
        self.propagate(&plane, labels, done).await?;
        Ok(Ran { outcomes, next })
    }

    /// Copies the labels of hooks to the ControlPlane (SP-019), and notes that a request to run them again was handled.
    async fn propagate(
        &self,
        plane: &ControlPlane,
        labels: BTreeMap<String, String>,
        reapplied: Option<String>,
    ) -> Result<(), kube::Error> {
        let known = plane.metadata.labels.as_ref();
        let has = |(key, value): (&String, &String)| known.is_some_and(|all| all.get(key) == Some(value));
        if labels.iter().all(has) && reapplied.is_none() {
            return Ok(());
        }
        let mut patch = json!({"metadata": {"uid": plane.metadata.uid, "labels": labels}});
        if let Some(value) = reapplied {
            patch["metadata"]["annotations"] = json!({REAPPLIED: value});
        }
        self.patch_plane(plane, &patch).await.map(drop)
    }

    async fn run_hook(
        &self,
        plane: &ControlPlane,
        one: &Use<'_>,
        hook: Option<&Arc<PostCreateHook>>,
        again: bool,
        labels: &mut BTreeMap<String, String>,
    ) -> Outcome {
        let spaces = self.config.spaces.as_deref();
        let annotations = hook.and_then(|hook| hook.metadata.annotations.as_ref());
        let components = match builtin::of(annotations, one.hook, spaces.is_some()) {
            Ok(components) => components,
            Err(error) => return Outcome::Failed { why: error.to_string() },
        };
        let vars = hooks::vars(plane, one, hook.map(Arc::as_ref));
        let own_labels = || hook.and_then(|hook| hook.metadata.labels.clone()).unwrap_or_default();
        let outcome = match (components, spaces) {
            (Some(components), Some(spaces)) => {
                let outcome = self.run_components(plane, spaces, &components, &vars).await;
                if !matches!(outcome, Outcome::Failed { .. }) {
                    labels.extend(builtin::labels(&components));
                    labels.extend(own_labels());
                }
                return outcome;
            }
            (Some(_), None) => Outcome::Failed {
                why:
                    "it is a built-in component, and this process runs none; start it as a process of its own"
                        .into(),
            },
            (None, _) => match hook {
                None => Outcome::Failed { why: "post create hook not found".into() },
                Some(hook) => self.apply_hook(plane, one, hook, vars, again).await,
            },
        };
        if matches!(outcome, Outcome::Done { .. }) {
            labels.extend(own_labels());
        }
        outcome
    }

    async fn run_components(
        &self,
        plane: &ControlPlane,
        spaces: &dyn Spaces,
        wanted: &[Wanted],
        vars: &Vars,
    ) -> Outcome {
        let name = plane.metadata.name.as_deref().unwrap_or_default();
        let mut waiting = Vec::new();
        for one in wanted {
            let component = match self.component(*one, vars) {
                Ok(component) => component,
                Err(NoIts::Missing(why)) => return Outcome::Missing { why },
                Err(NoIts::Unusable(why)) => return Outcome::Failed { why },
            };
            match spaces.run(name, &component).await {
                Ok(ComponentState { ready: true, .. }) => {}
                Ok(ComponentState { last_error, .. }) => {
                    let why = last_error.map(|error| format!(": {error}")).unwrap_or_default();
                    waiting.push(format!("{component} is not ready{why}"));
                }
                Err(error) => return Outcome::Failed { why: error.to_string() },
            }
        }
        if waiting.is_empty() {
            Outcome::Done { remark: String::new() }
        } else {
            Outcome::NotReady { why: waiting.join(", ") }
        }
    }

    fn component(&self, wanted: Wanted, vars: &Vars) -> Result<Component, NoIts> {
        let its = || {
            let candidates: Vec<Candidate> =
                self.planes.list().iter().map(|one| Candidate::of(one)).collect();
            choose(vars.get(ITS_NAME).map(String::as_str).unwrap_or_default(), &candidates)
        };
        Ok(match wanted {
            Wanted::OcmHub => Component::OcmHub,
            Wanted::StatusAddon => Component::StatusAddon,
            Wanted::ControllerManager => Component::ControllerManager { its: its()? },
            Wanted::TransportController => Component::TransportController { its: its()? },
        })
    }

    async fn apply_hook(
        &self,
        plane: &ControlPlane,
        one: &Use<'_>,
        hook: &Arc<PostCreateHook>,
        vars: Vars,
        again: bool,
    ) -> Outcome {
        let known =
            plane.status.as_ref().is_some_and(|status| status.post_create_hooks.contains_key(one.hook));
        let waits = plane.spec.wait_for_post_create_hooks.unwrap_or_default();
        let is_applied = known && !again;
        if is_applied && !waits {
            return Outcome::Done { remark: String::new() };
        }
        match self.apply_templates(plane, hook, vars, is_applied, waits).await {
            Ok(outcome) => outcome,
            Err(why) => Outcome::Failed { why },
        }
    }

    /// Applies the templates unless they are applied already, and looks at the objects if anybody waits for them. All templates
    /// are checked before the first object is applied. One object is in memory at a time.
    async fn apply_templates(
        &self,
        plane: &ControlPlane,
        hook: &Arc<PostCreateHook>,
        vars: Vars,
        is_applied: bool,
        waits: bool,
    ) -> Result<Outcome, String> {
        let target = self.target(plane, hook).await?;
        let vars = Arc::new(vars);
        let (all, known) = (hook.clone(), vars.clone());
        rendering(move || check_all(&all.spec.templates, &known)).await?;
        let (mut not_ready, mut without_pods) = (Vec::new(), Vec::new());
        for index in 0..hook.spec.templates.len() {
            if self.is_going(plane) {
                return Ok(Outcome::Interrupted);
            }
            let (all, known) = (hook.clone(), vars.clone());
            let mut object = rendering(move || {
                let template = all.spec.templates.get(index).unwrap_or(&Value::Null);
                render(index, template, &known, &mut Budget::of_a_hook())
            })
            .await?;
            let at = target.place(&mut object).await.map_err(|error| error.to_string())?;
            if !is_applied {
                target.apply(&at, &object).await.map_err(|error| error.to_string())?;
            }
            if self.config.spaces.is_some() && makes_pods(&object) {
                without_pods.push(at.shown());
                continue;
            }
            if waits {
                self.follow(&at);
                match target.state(&at).await.map_err(|error| error.to_string())? {
                    State::Ready => {}
                    State::NotReady => not_ready.push(format!("{} is not ready", at.shown())),
                    State::Failed(why) => return Err(format!("{} failed: {why}", at.shown())),
                }
            }
        }
        if !not_ready.is_empty() {
            return Ok(Outcome::NotReady { why: not_ready.join(", ") });
        }
        let remark = if without_pods.is_empty() {
            String::new()
        } else {
            format!("{}: {NO_PODS}", without_pods.join(", "))
        };
        Ok(Outcome::Done { remark })
    }

    /// Returns whether a ControlPlane is being deleted, or gone. Costs no request.
    fn is_going(&self, plane: &ControlPlane) -> bool {
        let known = self.planes.get("", plane.metadata.name.as_deref().unwrap_or_default());
        known.is_none_or(|known| {
            known.metadata.uid != plane.metadata.uid || known.metadata.deletion_timestamp.is_some()
        })
    }

    async fn target(&self, plane: &ControlPlane, hook: &PostCreateHook) -> Result<Target, String> {
        let name = plane.metadata.name.as_deref().unwrap_or_default();
        let annotations = hook.metadata.annotations.as_ref();
        match annotations.and_then(|all| all.get(APPLY_TO)).map(String::as_str) {
            None | Some("host") => Ok(Target::hosting(&self.rest, &self.mapper, plane)),
            Some("space") => match &self.config.spaces {
                Some(spaces) => {
                    spaces.client(name).await.map(Target::space).map_err(|error| error.to_string())
                }
                None => Err(format!("annotation {APPLY_TO}: this process runs no embedded spaces")),
            },
            Some(other) => Err(format!("annotation {APPLY_TO} is {other:?}; known are host and space")),
        }
    }

    /// Follows the kind of an object, so that a change of it causes a pass.
    fn follow(&self, at: &Applied) {
        self.awaited.start(Source::all(at.mapped.gvr.clone()).metadata());
    }
}

/// Runs a rendering on a thread that may be busy for a while.
async fn rendering<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, RenderError> + Send + 'static,
) -> Result<T, String> {
    let rendered = tokio::task::spawn_blocking(work).await.map_err(|error| error.to_string())?;
    rendered.map_err(|error| error.to_string())
}

/// The value of the annotation that asks for all hooks to be run once more, if it was not handled yet (SP-021).
fn reapply(plane: &ControlPlane) -> Option<String> {
    let annotations = plane.metadata.annotations.as_ref()?;
    let asked = annotations.get(REAPPLY)?;
    (annotations.get(REAPPLIED) != Some(asked)).then(|| asked.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SP-021: a request is handled once.
    #[test]
    fn sp_021_another_value_of_the_annotation_runs_hooks_again() {
        let with = |annotations: serde_json::Value| {
            let plane =
                json!({"metadata": {"name": "a", "annotations": annotations}, "spec": {"type": "k8s"}});
            reapply(&serde_json::from_value(plane).unwrap())
        };
        assert_eq!(with(json!({})), None);
        assert_eq!(with(json!({REAPPLY: "1"})), Some("1".into()));
        assert_eq!(with(json!({REAPPLY: "1", REAPPLIED: "1"})), None);
        assert_eq!(with(json!({REAPPLY: "2", REAPPLIED: "1"})), Some("2".into()));
    }
}
