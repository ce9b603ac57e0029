//! Parsing of expressions, with limits on their length and on the parser's stack.

use super::unary::without_pairs;

/// Most bytes of an expression.
const MAX_SOURCE: usize = 16 * 1024;
/// Most operators of an expression. The parser recurses for each of them.
const MAX_LINKS: usize = 4_000;
/// Enough stack to parse any expression of at most [`MAX_SOURCE`] bytes.
const READER_STACK: usize = 256 << 20;

/// Calls `read` to parse an expression, on a thread with a large stack unless the text is simple. `read` gets the text
/// with workarounds for the parser applied.
///
/// # Errors
/// The expression is too long, or `read` fails.
pub(crate) fn parse_guarded<T: Send>(
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
