//! Limits the errors in a status to what a status can hold.

/// Limits of a list of errors.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Most lines, including the one that counts the rest.
    pub lines: usize,
    /// Most bytes of all lines.
    pub bytes: usize,
}

/// The limits for one writer of a status: the errors of other writers, the conditions and the other fields of
/// the object must fit as well.
const STATUS: Extent = Extent { lines: 1000, bytes: 256 * 1024 };
/// Most bytes of one line. The first line is also the message of a condition, which may have 32 KiB.
const LINE_MAX: usize = 8 * 1024;

/// Returns the first errors, with long lines cut. If not all fit, the last line gives the number of the
/// others. The result passes through a second time unchanged. Cost: O(size of the result).
pub fn bounded_errors(errors: Vec<String>) -> Vec<String> {
    bounded_errors_to(STATUS, errors, "")
}

/// Like [`bounded_errors`], with other limits and lines of at most 8 KiB; `prefix` precedes the line that
/// counts the rest.
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
    // Leaves room for the line that counts the rest.
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

    /// KS-013: few errors are returned unchanged; of many or long ones, as many as a status can hold, with
    /// the number of the others.
    #[test]
    fn ks_013_errors_are_bounded() {
        for (count, length, reported, last) in [
            (0, 10, 0, None),
            (STATUS.lines, 10, STATUS.lines, None),
            (STATUS.lines + 1, 10, STATUS.lines, Some("and 2 more errors")),
            (20_000, 100, STATUS.lines, Some("and 19001 more errors")),
            (3, 9000, 3, None),
            (100, 9000, 33, Some("and 68 more errors")),
        ] {
            let all = lines(count, length);
            let bounded = bounded_errors(all.clone());
            assert_eq!(bounded.len(), reported, "{count} of {length}");
            assert!(bounded.iter().map(String::len).sum::<usize>() <= STATUS.bytes);
            assert!(bounded.iter().all(|line| line.len() <= LINE_MAX));
            match last {
                None => assert!(
                    bounded
                        .iter()
                        .zip(&all)
                        .all(|(reported, line)| line.starts_with(reported.trim_end_matches('.')))
                ),
                Some(last) => assert_eq!(bounded.last().map(String::as_str), Some(last)),
            }
            assert_eq!(super::bounded_errors(bounded.clone()), bounded, "a second time");
        }
    }
}
