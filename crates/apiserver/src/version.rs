//! `/version` (spec 1.1).

use serde_json::{Value, json};

/// The version by which clients enable features.
pub const GIT_VERSION: &str = "v1.36.0+kubestellar";

/// The body of `/version`.
pub fn info() -> Value {
    json!({
        "major": "1", "minor": "36",
        "emulationMajor": "1", "emulationMinor": "36",
        "minCompatibilityMajor": "1", "minCompatibilityMinor": "35",
        "gitVersion": GIT_VERSION, "gitCommit": "0000000000000000000000000000000000000000", "gitTreeState": "clean",
        "buildDate": "2026-01-01T00:00:00Z", "goVersion": "rust", "compiler": "rustc", "platform": "linux/amd64",
    })
}
