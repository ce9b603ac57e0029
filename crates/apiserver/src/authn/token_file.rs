//! The token file: CSV lines `token,user,uid,"group1,group2"`.

use super::{AuthnError, StaticToken};
use crate::identity::UserInfo;

/// Parses a token file. Skips blank lines and lines that start with `#`. Groups are optional.
///
/// # Errors
/// A line has fewer than three columns or unbalanced quotes.
pub fn parse_token_file(text: &str) -> Result<Vec<StaticToken>, AuthnError> {
    let mut out = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let fail = |why: &str| AuthnError::TokenFile { line: number + 1, why: why.into() };
        let columns = columns(line).ok_or_else(|| fail("a quote is not closed"))?;
        let [token, user, uid, rest @ ..] = columns.as_slice() else {
            return Err(fail("needs at least token, user and uid"));
        };
        if token.is_empty() || user.is_empty() {
            return Err(fail("token and user may not be empty"));
        }
        let groups = rest.first().map(String::as_str).unwrap_or_default();
        let groups = groups.split(',').map(str::trim).filter(|g| !g.is_empty()).map(Into::into).collect();
        out.push(StaticToken {
            token: token.clone(),
            user: UserInfo { name: user.clone(), uid: uid.clone(), groups, ..UserInfo::default() },
        });
    }
    Ok(out)
}

/// The columns of a CSV line; `""` inside quotes is a quote. `None` if quotes are unbalanced.
fn columns(line: &str) -> Option<Vec<String>> {
    let mut out = vec![String::new()];
    let mut quoted = false;
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        match (c, quoted) {
            ('"', true) if chars.peek() == Some(&'"') => {
                chars.next();
                out.last_mut()?.push('"');
            }
            ('"', _) => quoted = !quoted,
            (',', false) => out.push(String::new()),
            (c, _) => out.last_mut()?.push(c),
        }
    }
    (!quoted).then(|| out.iter().map(|c| c.trim().to_owned()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_061_token_files_are_read() {
        let tokens = parse_token_file("# c\n\nt1,u1,1,\"a, b\"\n t2 , u2 ,2\n").unwrap();
        assert_eq!(tokens.len(), 2);
        assert_eq!(tokens[0].user.groups, ["a", "b"]);
        assert_eq!((tokens[1].token.as_str(), tokens[1].user.name.as_str()), ("t2", "u2"));
        assert!(parse_token_file("a,b").is_err());
        assert!(parse_token_file("a,b,c,\"d").is_err());
        assert!(parse_token_file(",b,c").is_err());
    }
}
