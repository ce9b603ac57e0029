//! Components of timestamps and durations (KS-176).

use jiff::civil::Weekday;
use jiff::tz::{Offset, TimeZone};
use jiff::{Timestamp, Zoned};
use kube_cel::cel::extractors::{Arguments, This};
use kube_cel::cel::{Context, ExecutionError, ResolveResult, Value as Cel};

use super::runtime_type::no_overload;

/// A method that returns a component of a timestamp. Of a duration it returns the whole duration in that unit.
struct Part {
    name: &'static str,
    of_time: fn(&Zoned) -> i64,
    /// Milliseconds per unit, if durations have the method.
    unit: Option<i64>,
}

const fn date(name: &'static str, of_time: fn(&Zoned) -> i64) -> Part {
    Part { name, of_time, unit: None }
}

const fn clock(name: &'static str, unit: i64, of_time: fn(&Zoned) -> i64) -> Part {
    Part { name, of_time, unit: Some(unit) }
}

const PARTS: [Part; 10] = [
    date("getFullYear", |time| time.year().into()),
    date("getMonth", |time| i64::from(time.month()) - 1),
    date("getDate", |time| time.day().into()),
    date("getDayOfMonth", |time| i64::from(time.day()) - 1),
    date("getDayOfWeek", |time| time.weekday().since(Weekday::Sunday).into()),
    date("getDayOfYear", |time| i64::from(time.day_of_year()) - 1),
    clock("getHours", 3_600_000, |time| time.hour().into()),
    clock("getMinutes", 60_000, |time| time.minute().into()),
    clock("getSeconds", 1_000, |time| time.second().into()),
    clock("getMilliseconds", 1, |time| time.millisecond().into()),
];

pub(super) fn register(context: &mut Context) {
    for part in PARTS {
        context.add_function(part.name, move |This(of): This<Cel>, Arguments(args): Arguments| {
            part.of(&of, &args)
        });
    }
}

impl Part {
    fn of(&self, value: &Cel, args: &[Cel]) -> ResolveResult {
        let refused = |why: &str| ExecutionError::function_error(self.name, why);
        match (value, args, self.unit) {
            (Cel::Timestamp(time), [] | [Cel::String(_)], _) => {
                let zone = match args {
                    [Cel::String(zone)] => zone.as_str(),
                    _ => "UTC",
                };
                let zone = time_zone(zone).ok_or_else(|| refused(&format!("unknown time zone {zone}")))?;
                let nanos = i32::try_from(time.timestamp_subsec_nanos()).unwrap_or_default();
                let time =
                    Timestamp::new(time.timestamp(), nanos).map_err(|_| refused("timestamp overflow"))?;
                Ok(Cel::Int((self.of_time)(&time.to_zoned(zone))))
            }
            (Cel::Duration(duration), [], Some(unit)) => Ok(Cel::Int(duration.num_milliseconds() / unit)),
            _ => Err(no_overload(self.name, value)),
        }
    }
}

/// A time zone by its name, if the machine knows it, or by its offset from UTC (`-02:30`).
fn time_zone(name: &str) -> Option<TimeZone> {
    let Some((hours, minutes)) = name.split_once(':') else {
        return if matches!(name, "" | "UTC") { Some(TimeZone::UTC) } else { TimeZone::get(name).ok() };
    };
    let (hours, minutes): (i32, i32) = (hours.parse().ok()?, minutes.parse().ok()?);
    let minutes = if name.starts_with('-') { -minutes } else { minutes };
    let seconds = hours.checked_mul(60)?.checked_add(minutes)?.checked_mul(60)?;
    Offset::from_seconds(seconds).ok().map(TimeZone::fixed)
}
