//! Values as text.

use kube_cel::cel::Value as Cel;

/// The CEL text form of a value; `None` if the type has none, or for bytes that are not UTF-8.
pub(super) fn text(value: &Cel) -> Option<String> {
    Some(match value {
        Cel::String(text) => text.to_string(),
        Cel::Bool(value) => value.to_string(),
        Cel::Int(value) => value.to_string(),
        Cel::UInt(value) => value.to_string(),
        Cel::Float(value) => crate::number::text(*value),
        Cel::Bytes(bytes) => String::from_utf8(bytes.to_vec()).ok()?,
        Cel::Timestamp(time) => {
            let fraction = fraction(time.timestamp_subsec_nanos());
            let zone = time.format("%:z").to_string().replace("+00:00", "Z");
            format!("{}{fraction}{zone}", time.format("%Y-%m-%dT%H:%M:%S"))
        }
        Cel::Duration(duration) => seconds(duration.num_seconds(), duration.subsec_nanos()),
        _ => return None,
    })
}

/// Nanoseconds as a decimal fraction without trailing zeros.
fn fraction(nanos: u32) -> String {
    format!(".{nanos:09}").trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A duration as text, in seconds.
pub(super) fn seconds(whole: i64, nanos: i32) -> String {
    if nanos == 0 {
        return format!("{whole}s");
    }
    let sign = if whole < 0 || nanos < 0 { "-" } else { "" };
    let fraction = format!("{:09}", nanos.unsigned_abs());
    format!("{sign}{}.{}s", whole.unsigned_abs(), fraction.trim_end_matches('0'))
}
