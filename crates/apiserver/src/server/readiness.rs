//! What `/healthz`, `/livez` and `/readyz` check.

use std::sync::atomic::Ordering;

use super::ApiServer;
use crate::health::Check;

impl ApiServer {
    /// Whether `/readyz` answers 200.
    pub fn ready(&self) -> bool {
        self.checks().iter().all(|check| check.healthy)
    }

    /// All checks of `/readyz` as one check called `name`.
    pub fn readiness(&self, name: impl Into<String>) -> Check {
        let failed: Vec<Check> = self.checks().into_iter().filter(|check| !check.healthy).collect();
        let reason =
            failed.iter().find_map(|check| Some(format!("{}: {}", check.name, check.reason.as_ref()?)));
        Check { name: name.into(), healthy: failed.is_empty(), reason }
    }

    /// All checks, for `/readyz` and `/healthz`.
    fn checks(&self) -> Vec<Check> {
        let draining = self.draining.load(Ordering::Acquire) || self.state.stop.is_cancelled();
        let follower_health = self.follower_health.is_up();
        let checks = vec![
            Check::new("ping", true),
            Check::new("log", true),
            Check::of("etcd", self.state.config.store.check().err().map(|error| one_line(&error))),
            Check::new("informer-sync", follower_health),
            Check::new("poststarthook/start-apiextensions-controllers", follower_health),
            Check::new("poststarthook/rbac/bootstrap-roles", self.prepared.load(Ordering::Acquire)),
            Check::new("shutdown", !draining),
        ];
        self.failing_checks.observe(&checks);
        checks
    }

    /// The checks of a health endpoint (spec 1.2). For `/livez`, a server that is shutting down is alive, and a
    /// failing check counts only after a while.
    pub(super) fn checks_of(&self, path: &str) -> Vec<Check> {
        let mut checks = self.checks();
        if path.starts_with("/livez") {
            checks.retain(|check| !matches!(check.name.as_str(), "informer-sync" | "shutdown"));
            self.failing_checks.ignore_recent(&mut checks);
        }
        checks
    }
}

fn one_line(error: &dyn std::error::Error) -> String {
    error.to_string().lines().collect::<Vec<_>>().join("; ")
}
