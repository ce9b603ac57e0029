//! The few DER elements that requests and certificates consist of. Pure.

/// Tag of a sequence.
pub const SEQUENCE: u8 = 0x30;
/// Tag of a bit string.
pub const BITS: u8 = 0x03;

/// One element.
pub fn element(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let mut out = vec![tag];
    if length < 0x80 {
        out.push(length as u8);
    } else {
        let bytes: Vec<u8> = length.to_be_bytes().into_iter().skip_while(|byte| *byte == 0).collect();
        out.push(0x80 | bytes.len() as u8);
        out.extend(bytes);
    }
    for part in parts {
        out.extend_from_slice(part);
    }
    out
}

/// A sequence of elements.
pub fn sequence(parts: &[&[u8]]) -> Vec<u8> {
    element(SEQUENCE, parts)
}

/// PEM.
pub fn armour(what: &str, der: &[u8]) -> String {
    use base64::Engine as _;
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    let mut out = format!("-----BEGIN {what}-----\n");
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let (line, more) = rest.split_at(rest.len().min(64));
        out.push_str(line);
        out.push('\n');
        rest = more;
    }
    out.push_str(&format!("-----END {what}-----\n"));
    out
}
