//! The syntax of cron schedules and names of time zones.

const MONTHS: &[&str] = &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const DAYS: &[&str] = &["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

/// Checks a schedule.
///
/// # Errors
/// The text of the parser that Kubernetes uses.
pub(super) fn check(schedule: &str) -> Result<(), String> {
    if let Some(descriptor) = schedule.strip_prefix('@') {
        return match descriptor {
            "yearly" | "annually" | "monthly" | "weekly" | "daily" | "midnight" | "hourly" => Ok(()),
            other if other.strip_prefix("every ").is_some_and(is_duration) => Ok(()),
            other if other.starts_with("every ") => Err(format!(
                "failed to parse duration {schedule}: time: invalid duration \"{}\"",
                &other[6..]
            )),
            _ => Err(format!("unrecognized descriptor: {schedule}")),
        };
    }
    let fields: Vec<&str> = schedule.split_whitespace().collect();
    let [minute, hour, day, month, weekday] = fields.as_slice() else {
        return Err(format!("expected exactly 5 fields, found {}: [{}]", fields.len(), fields.join(" ")));
    };
    field(minute, 0, 59, &[])?;
    field(hour, 0, 23, &[])?;
    field(day, 1, 31, &[])?;
    field(month, 1, 12, MONTHS)?;
    field(weekday, 0, 6, DAYS)
}

fn field(text: &str, min: u32, max: u32, names: &[&str]) -> Result<(), String> {
    text.split(',').filter(|part| !part.is_empty()).try_for_each(|part| range(part, min, max, names))
}

fn range(text: &str, min: u32, max: u32, names: &[&str]) -> Result<(), String> {
    let mut halves = text.split('/');
    let (bounds, step) = (halves.next().unwrap_or_default(), halves.next());
    if halves.next().is_some() {
        return Err(format!("too many slashes: {text}"));
    }
    let (low, high) = if bounds == "*" || bounds == "?" {
        (min, max)
    } else {
        let mut ends = bounds.split('-');
        let low = number(ends.next().unwrap_or_default(), min, names)?;
        let high = match ends.next() {
            Some(end) => number(end, min, names)?,
            None if step.is_some() => max,
            None => low,
        };
        if ends.next().is_some() {
            return Err(format!("too many hyphens: {text}"));
        }
        (low, high)
    };
    if let Some(step) = step
        && number(step, 0, &[])? == 0
    {
        return Err(format!("step of range should be a positive number: {text}"));
    }
    if low < min {
        return Err(format!("beginning of range ({low}) below minimum ({min}): {text}"));
    }
    if high > max {
        return Err(format!("end of range ({high}) above maximum ({max}): {text}"));
    }
    if low > high {
        return Err(format!("beginning of range ({low}) beyond end of range ({high}): {text}"));
    }
    Ok(())
}

fn number(text: &str, first: u32, names: &[&str]) -> Result<u32, String> {
    let lower = text.to_ascii_lowercase();
    if let Some(i) = names.iter().position(|name| **name == *lower) {
        return Ok(first + i as u32);
    }
    text.parse().map_err(|_| {
        format!("failed to parse int from {text}: strconv.Atoi: parsing \"{text}\": invalid syntax")
    })
}

fn is_duration(text: &str) -> bool {
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
        let unit = ["ns", "us", "µs", "ms", "s", "m", "h"].iter().find_map(|u| digits.strip_prefix(u));
        match unit {
            Some(after) if digits.len() < rest.len() => rest = after,
            _ => return false,
        }
    }
    !text.is_empty()
}

/// Whether a zone has the form of an IANA name. The program that runs the CronJob has the database of zones.
pub(super) fn zone_exists(zone: &str) -> bool {
    const AREAS: &[&str] = &[
        "Africa",
        "America",
        "Antarctica",
        "Arctic",
        "Asia",
        "Atlantic",
        "Australia",
        "Brazil",
        "Canada",
        "Chile",
        "Etc",
        "Europe",
        "Indian",
        "Mexico",
        "Pacific",
        "US",
    ];
    const SINGLE: &[&str] = &[
        "CET",
        "CST6CDT",
        "Cuba",
        "EET",
        "EST",
        "EST5EDT",
        "Egypt",
        "Eire",
        "GB",
        "GB-Eire",
        "GMT",
        "GMT0",
        "GMT+0",
        "GMT-0",
        "Greenwich",
        "HST",
        "Hongkong",
        "Iceland",
        "Iran",
        "Israel",
        "Jamaica",
        "Japan",
        "Kwajalein",
        "Libya",
        "MET",
        "MST",
        "MST7MDT",
        "NZ",
        "NZ-CHAT",
        "Navajo",
        "PRC",
        "PST8PDT",
        "Poland",
        "Portugal",
        "ROC",
        "ROK",
        "Singapore",
        "Turkey",
        "UCT",
        "UTC",
        "Universal",
        "W-SU",
        "WET",
        "Zulu",
    ];
    match zone.split_once('/') {
        Some((area, place)) => {
            AREAS.contains(&area)
                && !place.is_empty()
                && place.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-+/".contains(&b))
        }
        None => SINGLE.contains(&zone),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_017_schedules() {
        for good in ["*/5 * * * *", "0 0 1,15 * mon-fri", "@daily", "@every 1h30m", "0-30/10 2 * jan *"] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        assert_eq!(check("never"), Err("expected exactly 5 fields, found 1: [never]".into()));
        assert!(check("61 * * * *").is_err());
        assert!(check("@noon").is_err());
    }

    #[test]
    fn as_017_zones() {
        assert!(zone_exists("Europe/Berlin"));
        assert!(zone_exists("UTC"));
        assert!(!zone_exists("Mars/Base"));
    }
}
