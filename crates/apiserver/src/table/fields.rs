//! Access to fields, and formats of cells.

use std::collections::BTreeMap;

use jiff::Timestamp;
use machinery::quantity::Quantity;
use serde_json::Value;

pub(super) const NONE: &str = "<none>";
pub(super) const UNSET: &str = "<unset>";
pub(super) const UNKNOWN: &str = "<unknown>";

/// An object, and the time for computing ages.
pub(super) struct PrintedObject<'a> {
    object: &'a Value,
    now: Timestamp,
}

impl<'a> PrintedObject<'a> {
    pub(super) fn new(object: &'a Value, now: Timestamp) -> Self {
        Self { object, now }
    }

    /// A part of the object.
    pub(super) fn at(&self, part: &'a Value) -> Self {
        Self { object: part, now: self.now }
    }

    pub(super) fn get(&self, pointer: &str) -> Option<&'a Value> {
        self.object.pointer(pointer).filter(|v| !v.is_null())
    }

    pub(super) fn has(&self, pointer: &str) -> bool {
        self.get(pointer).is_some()
    }

    pub(super) fn text(&self, pointer: &str) -> &'a str {
        self.get(pointer).and_then(Value::as_str).unwrap_or_default()
    }

    /// The text at a pointer, or `otherwise` if it is empty.
    pub(super) fn text_or(&self, pointer: &str, otherwise: &'a str) -> &'a str {
        Some(self.text(pointer)).filter(|t| !t.is_empty()).unwrap_or(otherwise)
    }

    pub(super) fn int(&self, pointer: &str) -> i64 {
        self.get(pointer).and_then(Value::as_i64).unwrap_or_default()
    }

    pub(super) fn flag(&self, pointer: &str) -> bool {
        self.get(pointer).and_then(Value::as_bool).unwrap_or_default()
    }

    pub(super) fn list(&self, pointer: &str) -> &'a [Value] {
        self.get(pointer).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
    }

    /// The elements of a list.
    pub(super) fn each(&self, pointer: &str) -> impl Iterator<Item = PrintedObject<'a>> + use<'a> {
        let now = self.now;
        self.list(pointer).iter().map(move |object| PrintedObject { object, now })
    }

    /// Number of entries of a list or map.
    pub(super) fn count(&self, pointer: &str) -> usize {
        match self.get(pointer) {
            Some(Value::Array(list)) => list.len(),
            Some(Value::Object(map)) => map.len(),
            _ => 0,
        }
    }

    /// The strings of a list, or one field of each element.
    pub(super) fn texts(&self, list: &str, field: &str) -> Vec<&'a str> {
        self.list(list).iter().filter_map(|e| e.pointer(field)?.as_str()).collect()
    }

    pub(super) fn quantity(&self, pointer: &str) -> String {
        let parsed = self.get(pointer).and_then(|v| Quantity::from_json(v).ok());
        parsed.map_or_else(|| "0".to_owned(), |q| q.to_string())
    }

    /// An integer or a string.
    pub(super) fn int_or_text(&self, pointer: &str) -> Option<String> {
        match self.get(pointer)? {
            Value::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        }
    }

    /// The name, with a mark for default classes.
    pub(super) fn name_cell(&self, group: &str, plural: &str) -> Value {
        let name = self.text("/metadata/name");
        let annotations = |key: &str| {
            let all = self.get("/metadata/annotations");
            all.and_then(|a| a.get(key)).and_then(Value::as_str) == Some("true")
        };
        let default = match (group, plural) {
            ("storage.k8s.io", "storageclasses") => {
                annotations("storageclass.kubernetes.io/is-default-class")
                    || annotations("storageclass.beta.kubernetes.io/is-default-class")
            }
            _ => false,
        };
        if default { format!("{name} (default)").into() } else { name.into() }
    }

    /// Time since creation.
    pub(super) fn age(&self) -> String {
        self.since("/metadata/creationTimestamp")
    }

    /// Time since the moment in a field.
    pub(super) fn since(&self, pointer: &str) -> String {
        match self.time(pointer) {
            Some(time) => human_duration(self.now, time),
            None => UNKNOWN.to_owned(),
        }
    }

    pub(super) fn time(&self, pointer: &str) -> Option<Timestamp> {
        self.text(pointer).parse().ok()
    }

    pub(super) fn now(&self) -> Timestamp {
        self.now
    }

    /// A map of strings as `a=b,c=d`; `<none>` if empty.
    pub(super) fn labels(&self, pointer: &str) -> String {
        let text = map_text(self.get(pointer));
        if text.is_empty() { NONE.to_owned() } else { text }
    }

    /// A label selector as text; empty if it selects everything.
    pub(super) fn selector(&self, pointer: &str) -> String {
        self.get(pointer).map(selector_text).unwrap_or_default()
    }

    /// The status of a condition.
    pub(super) fn condition(&self, r#type: &str) -> Option<&'a str> {
        let found = self.list("/status/conditions").iter().find(|c| c["type"] == r#type)?;
        found.get("status")?.as_str()
    }
}

fn map_text(map: Option<&Value>) -> String {
    let map = map.and_then(Value::as_object).into_iter().flatten();
    let pairs: Vec<String> = map.map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or_default())).collect();
    pairs.join(",")
}

fn selector_text(selector: &Value) -> String {
    let mut parts: BTreeMap<(String, usize), String> = BTreeMap::new();
    let labels = selector.get("matchLabels").and_then(Value::as_object).into_iter().flatten();
    for (key, value) in labels {
        parts.insert((key.clone(), 0), format!("{key}={}", value.as_str().unwrap_or_default()));
    }
    let expressions = selector.get("matchExpressions").and_then(Value::as_array).into_iter().flatten();
    for (i, e) in expressions.enumerate() {
        let key = e.get("key").and_then(Value::as_str).unwrap_or_default();
        let values = e.get("values").and_then(Value::as_array).into_iter().flatten();
        let mut values: Vec<&str> = values.filter_map(Value::as_str).collect();
        values.sort_unstable();
        let values = values.join(",");
        let text = match e.get("operator").and_then(Value::as_str).unwrap_or_default() {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "Exists" => key.to_owned(),
            "DoesNotExist" => format!("!{key}"),
            _ => continue,
        };
        parts.insert((key.to_owned(), i + 1), text);
    }
    parts.into_values().collect::<Vec<_>>().join(",")
}

/// The first `max` elements, and how many more there are.
pub(super) fn first_of(all: &[String], max: usize, empty: &str) -> String {
    if all.is_empty() {
        return empty.to_owned();
    }
    let shown = all.get(..max).unwrap_or(all).join(",");
    match all.len().saturating_sub(max) {
        0 => shown,
        more => format!("{shown} + {more} more..."),
    }
}

/// The time from `then` to `now`, as kubectl prints ages.
pub(super) fn human_duration(now: Timestamp, then: Timestamp) -> String {
    human_seconds(now.duration_since(then).as_secs())
}

pub(super) fn human_seconds(seconds: i64) -> String {
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    let days = hours / 24;
    let two = |a: i64, unit: &str, b: i64, small: &str| {
        if b == 0 { format!("{a}{unit}") } else { format!("{a}{unit}{b}{small}") }
    };
    match () {
        // Clocks may differ a little.
        () if seconds < -1 => "<invalid>".to_owned(),
        () if seconds < 0 => "0s".to_owned(),
        () if seconds < 120 => format!("{seconds}s"),
        () if minutes < 10 => two(minutes, "m", seconds % 60, "s"),
        () if minutes < 180 => format!("{minutes}m"),
        () if hours < 8 => two(hours, "h", minutes % 60, "m"),
        () if hours < 48 => format!("{hours}h"),
        () if hours < 24 * 8 => two(days, "d", hours % 24, "h"),
        () if days < 365 * 2 => format!("{days}d"),
        () if days < 365 * 8 => two(days / 365, "y", days % 365, "d"),
        () => format!("{}y", days / 365),
    }
}
