//! Differences of specs, as Kubernetes shows them when a field that cannot change is changed: a unified diff of the
//! internal form, indented by one space per level.

use serde_json::Value;

use super::value::at;

/// Lines of context around a change.
const CONTEXT: usize = 3;

/// The difference between two claim specs.
pub(super) fn claim_spec(old: &Value, new: &Value) -> String {
    unified(&claim_lines(old), &claim_lines(new))
}

fn claim_lines(spec: &Value) -> Vec<String> {
    let mut out = Printer::default();
    out.open("{");
    out.value("AccessModes", at(spec, "accessModes"), false);
    out.value("Selector", at(spec, "selector"), false);
    out.open("\"Resources\": {");
    out.value("Limits", at(spec, "resources.limits"), false);
    out.value("Requests", at(spec, "resources.requests"), true);
    out.close("},");
    out.value("VolumeName", &at(spec, "volumeName").as_str().unwrap_or_default().into(), false);
    out.value("StorageClassName", at(spec, "storageClassName"), false);
    out.value("VolumeMode", at(spec, "volumeMode"), false);
    out.value("DataSource", at(spec, "dataSource"), false);
    out.value("DataSourceRef", at(spec, "dataSourceRef"), false);
    out.value("VolumeAttributesClassName", at(spec, "volumeAttributesClassName"), true);
    out.close("}");
    out.lines
}

#[derive(Default)]
struct Printer {
    lines: Vec<String>,
    depth: usize,
}

impl Printer {
    fn line(&mut self, text: &str) {
        self.lines.push(format!("{}{text}", " ".repeat(self.depth)));
    }

    fn open(&mut self, text: &str) {
        self.line(text);
        self.depth += 1;
    }

    fn close(&mut self, text: &str) {
        self.depth = self.depth.saturating_sub(1);
        self.line(text);
    }

    fn value(&mut self, name: &str, value: &Value, last: bool) {
        let comma = if last { "" } else { "," };
        self.item(&format!("\"{name}\": "), value, comma);
    }

    fn item(&mut self, prefix: &str, value: &Value, comma: &str) {
        match value {
            Value::Array(items) if !items.is_empty() => {
                self.open(&format!("{prefix}["));
                for (i, item) in items.iter().enumerate() {
                    self.item("", item, if i + 1 < items.len() { "," } else { "" });
                }
                self.close(&format!("]{comma}"));
            }
            Value::Object(map) if !map.is_empty() => {
                self.open(&format!("{prefix}{{"));
                let count = map.len();
                for (i, (key, item)) in map.iter().enumerate() {
                    self.item(&format!("\"{key}\": "), item, if i + 1 < count { "," } else { "" });
                }
                self.close(&format!("}}{comma}"));
            }
            other => self.line(&format!("{prefix}{other}{comma}")),
        }
    }
}

/// One hunk from the first difference to the last, with context.
fn unified(old: &[String], new: &[String]) -> String {
    let same = old.iter().zip(new).take_while(|(a, b)| a == b).count();
    let tail = old
        .iter()
        .rev()
        .zip(new.iter().rev())
        .take_while(|(a, b)| a == b)
        .count()
        .min(old.len().min(new.len()) - same);
    let start = same.saturating_sub(CONTEXT);
    let (old_end, new_end) = (old.len() - tail, new.len() - tail);
    let after = tail.min(CONTEXT);
    let mut out = format!(
        "@@ -{},{} +{},{} @@\n",
        start + 1,
        old_end + after - start,
        start + 1,
        new_end + after - start
    );
    let mut add = |mark: char, lines: &[String]| {
        for line in lines {
            out.push(mark);
            out.push_str(line);
            out.push('\n');
        }
    };
    add(' ', old.get(start..same).unwrap_or_default());
    add('-', old.get(same..old_end).unwrap_or_default());
    add('+', new.get(same..new_end).unwrap_or_default());
    add(' ', old.get(old_end..old_end + after).unwrap_or_default());
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn as_017_claim_differences_print_as_recorded() {
        let old = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
            "volumeMode": "Filesystem"});
        let mut new = old.clone();
        if let Some(map) = new.as_object_mut() {
            map.insert("accessModes".into(), json!(["ReadOnlyMany"]));
        }
        assert_eq!(
            claim_spec(&old, &new),
            "@@ -1,6 +1,6 @@\n {\n  \"AccessModes\": [\n-  \"ReadWriteOnce\"\n+  \"ReadOnlyMany\"\n  ],\n  \"Selector\": null,\n  \"Resources\": {\n"
        );
    }
}
