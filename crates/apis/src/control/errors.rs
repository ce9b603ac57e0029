//! Errors of a status, as many as a status can hold.

/// How much is told.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// So many lines, the one that counts the rest included.
    pub lines: usize,
    /// Bytes of all of them.
    pub bytes: usize,
}

/// What one writer tells in a status: those of others, conditions, and what else is in the object have to fit beside it.
const STATUS: Extent = Extent { lines: 1000, bytes: 256 * 1024 };
/// Bytes of one: the first stands in a condition's message as well, which takes 32 KiB.
const LINE_MAX: usize = 8 * 1024;

/// The first of `errors` as they are, long ones cut; when not all can be told, the last line says how many more there are. What
/// comes back goes through a second time unchanged. O(what is told).
pub fn bounded_errors(errors: Vec<String>) -> Vec<String> {
    bounded_errors_to(STATUS, errors, "")
}

/// As [`bounded_errors`], to an extent, with lines of at most 8 KiB; `prefix` is before the line that counts the rest.
pub fn bounded_errors_to(extent: Extent, mut errors: Vec<String>, prefix: &str) -> Vec<String> {
    let rest = |more: usize| {
        let s = if more == 1 { "" } else { "s" };
        format!("{prefix}and {more} more error{s}")
    };
    let (mut bytes, mut kept) = (0, 0);
    for error in errors.iter_mut().take(extent.lines) {
        cut(error);
        if bytes + error.len() > extent.bytes {
            break;
        }
        (bytes, kept) = (bytes + error.len(), kept + 1);
    }
    if kept == errors.len() {
        return errors;
    }
    // Makes room for the line that counts the rest.
    let room = rest(errors.len()).len();
    while kept > 0 && (kept == extent.lines || bytes + room > extent.bytes) {
        kept -= 1;
        bytes -= errors.get(kept).map_or(0, String::len);
    }
    let more = errors.len() - kept;
    errors.truncate(kept);
    errors.push(rest(more));
    errors
}

fn cut(line: &mut String) {
    const ELLIPSIS: &str = "...";
    if line.len() > LINE_MAX {
        line.truncate(line.floor_char_boundary(LINE_MAX - ELLIPSIS.len()));
        line.push_str(ELLIPSIS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(count: usize, length: usize) -> Vec<String> {
        (0..count).map(|n| format!("{n:06}{}", "ü".repeat(length / 2))).collect()
    }

    /// KS-013: few errors are told as they are; of many, or of long ones, as much as a status can hold, and how many more.
    #[test]
    fn ks_013_errors_are_bounded() {
        for (count, length, told, last) in [
            (0, 10, 0, None),
            (STATUS.lines, 10, STATUS.lines, None),
            (STATUS.lines + 1, 10, STATUS.lines, Some("and 2 more errors")),
            (20_000, 100, STATUS.lines, Some("and 19001 more errors")),
            (3, 9000, 3, None),
            (100, 9000, 33, Some("and 68 more errors")),
        ] {
            let all = lines(count, length);
            let bounded = bounded_errors(all.clone());
            assert_eq!(bounded.len(), told, "{count} of {length}");
            assert!(bounded.iter().map(String::len).sum::<usize>() <= STATUS.bytes);
            assert!(bounded.iter().all(|line| line.len() <= LINE_MAX));
            match last {
                None => assert!(
                    bounded.iter().zip(&all).all(|(told, line)| line.starts_with(told.trim_end_matches('.')))
                ),
                Some(last) => assert_eq!(bounded.last().map(String::as_str), Some(last)),
            }
            assert_eq!(super::bounded_errors(bounded.clone()), bounded, "a second time");
        }
    }
}
