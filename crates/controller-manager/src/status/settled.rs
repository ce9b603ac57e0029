//! Remembers which objects need no write.

use std::collections::HashMap;

use parking_lot::Mutex;

use super::decision::{Reported, executing_count};
use crate::{binding::world::Request, identity::ObjectId};

/// For each object the inputs of its last plan that needed no write, and the object's version then. As long
/// as both are the same there is nothing to do, and the object need not be read. So the event of an own write
/// costs no request.
#[derive(Default)]
pub(super) struct SettledObjects(Mutex<HashMap<ObjectId, Settled>>);

struct Settled {
    version: Box<str>,
    wanted: PlanInputs,
}

/// All inputs of a plan except the object itself.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PlanInputs {
    reported: Reported,
    count: Option<String>,
}

impl PlanInputs {
    pub(super) fn new(request: &Request, reported: &Reported) -> Self {
        Self { reported: reported.clone(), count: executing_count(request) }
    }
}

impl SettledObjects {
    /// Returns whether the object in this version needs no write for these inputs.
    pub(super) fn is(&self, id: &ObjectId, version: &str, wanted: &PlanInputs) -> bool {
        let known = self.0.lock();
        known.get(id).is_some_and(|it| *it.version == *version && it.wanted == *wanted)
    }

    /// Notes that the object in this version needs no write for these inputs.
    pub(super) fn put(&self, id: &ObjectId, version: &str, wanted: PlanInputs) {
        self.0.lock().insert(id.clone(), Settled { version: version.into(), wanted });
    }

    /// Forgets an object that is gone or whose status is not requested.
    pub(super) fn forget(&self, id: &ObjectId) {
        self.0.lock().remove(id);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::identity::GroupResource;

    /// KS-156: as long as neither the object nor the inputs change there is nothing to do.
    #[test]
    fn ks_156_another_version_and_another_wish_are_looked_at() {
        let settled = SettledObjects::default();
        let id = ObjectId::new(Arc::new(GroupResource::new("apps", "deployments")), "n", "web");
        let clusters = |names: &[&str]| Request {
            singleton: true,
            clusters: names.iter().map(|name| (*name).into()).collect(),
            ..Request::default()
        };
        let copied = |replicas| Reported::Copied(Arc::new(json!({"replicas": replicas})));
        let wanted = PlanInputs::new(&clusters(&["a"]), &copied(1));
        assert!(!settled.is(&id, "7", &wanted));
        settled.put(&id, "7", wanted.clone());
        assert!(settled.is(&id, "7", &wanted));
        assert!(
            settled.is(&id, "7", &PlanInputs::new(&clusters(&["b"]), &copied(1))),
            "the same from elsewhere"
        );
        assert!(!settled.is(&id, "8", &wanted));
        assert!(!settled.is(&id, "7", &PlanInputs::new(&clusters(&["a"]), &copied(2))));
        assert!(!settled.is(&id, "7", &PlanInputs::new(&clusters(&["a", "b"]), &copied(1))));
        settled.forget(&id);
        assert!(!settled.is(&id, "7", &wanted));
    }
}
