//! Indents JSON text without parsing it, so that keys keep their order.

/// `json` with two spaces per level, as Go's `MarshalIndent` prints it. The input must be well-formed and compact.
pub fn indent(json: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(json.len() * 2);
    let mut depth = 0usize;
    let mut bytes = json.iter().copied().peekable();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => {
                out.push(byte);
                copy_string(&mut bytes, &mut out);
            }
            b'{' | b'[' => {
                out.push(byte);
                if let Some(&close @ (b'}' | b']')) = bytes.peek() {
                    out.push(close);
                    bytes.next();
                } else {
                    depth += 1;
                    new_line(&mut out, depth);
                }
            }
            b'}' | b']' => {
                depth = depth.saturating_sub(1);
                new_line(&mut out, depth);
                out.push(byte);
            }
            b',' => {
                out.push(byte);
                new_line(&mut out, depth);
            }
            b':' => out.extend_from_slice(b": "),
            b' ' | b'\n' | b'\r' | b'\t' => {}
            other => out.push(other),
        }
    }
    out
}

fn copy_string(bytes: &mut impl Iterator<Item = u8>, out: &mut Vec<u8>) {
    let mut escaped = false;
    for byte in bytes {
        out.push(byte);
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return,
            _ => {}
        }
    }
}

fn new_line(out: &mut Vec<u8>, depth: usize) {
    out.push(b'\n');
    for _ in 0..depth {
        out.extend_from_slice(b"  ");
    }
}

#[cfg(test)]
mod tests {
    /// AS-003: the indented form of a body.
    #[test]
    fn as_a_020_indents_like_go() {
        let text = super::indent(br#"{"a":[1,{"b":"x\"{,:"}],"c":{},"d":[]}"#);
        let expected = "{\n  \"a\": [\n    1,\n    {\n      \"b\": \"x\\\"{,:\"\n    }\n  ],\n  \"c\": {},\n  \"d\": []\n}";
        assert_eq!(String::from_utf8_lossy(&text), expected);
    }
}
