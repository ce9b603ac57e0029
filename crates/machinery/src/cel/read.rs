//! Parsing of expressions, with limits on their length and on the stack that the parser uses.

use super::unary::without_pairs;

/// Longer rules are refused.
const MAX_SOURCE: usize = 16 * 1024;
/// What reads an expression calls itself once or more for each of these, nested or in a row.
const MAX_LINKS: usize = 4_000;
/// Enough to read any expression that is not too long.
const READER_STACK: usize = 256 << 20;

/// Reads an expression by `read`, which may go deep: on a thread of its own unless the text is simple. `read` gets the
/// text as the reader understands it right.
pub(crate) fn guarded<T: Send>(
    source: &str,
    read: impl FnOnce(&str) -> Result<T, String> + Send,
) -> Result<T, String> {
    if source.len() > MAX_SOURCE {
        return Err(format!("expression is longer than {MAX_SOURCE} bytes"));
    }
    let links = source.bytes().filter(|byte| !byte.is_ascii_alphanumeric() && *byte != b' ').count();
    if links > MAX_LINKS {
        return Err(format!("expression has more than {MAX_LINKS} operators"));
    }
    let source = &*without_pairs(source);
    if links < 24 {
        return read(source);
    }
    std::thread::scope(|scope| {
        let reader =
            std::thread::Builder::new().stack_size(READER_STACK).spawn_scoped(scope, || read(source));
        let reader = reader.map_err(|error| error.to_string())?;
        reader.join().unwrap_or_else(|_| Err("the expression can't be read".to_owned()))
    })
}
