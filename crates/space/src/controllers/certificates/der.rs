//! The DER encoding that certificates need. Subject, public key and alternative names are copied from the request byte
//! for byte, because a subject may have several organisations, which name the groups.

/// Tag, length, content.
pub(super) fn element(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let mut out = Vec::with_capacity(length + 6);
    out.push(tag);
    if length < 0x80 {
        out.push(length as u8);
    } else {
        let bytes = length.to_be_bytes();
        let bytes: Vec<u8> = bytes.into_iter().skip_while(|byte| *byte == 0).collect();
        out.push(0x80 | bytes.len() as u8);
        out.extend_from_slice(&bytes);
    }
    for part in parts {
        out.extend_from_slice(part);
    }
    out
}

pub(super) fn sequence(parts: &[&[u8]]) -> Vec<u8> {
    element(0x30, parts)
}

/// A positive integer.
pub(super) fn integer(bytes: &[u8]) -> Vec<u8> {
    let padding: &[u8] = if bytes.first().is_some_and(|first| first & 0x80 != 0) { &[0] } else { &[] };
    element(0x02, &[padding, bytes])
}

pub(super) fn octets(content: &[u8]) -> Vec<u8> {
    element(0x04, &[content])
}

/// A bit string of whole bytes.
pub(super) fn bits(content: &[u8]) -> Vec<u8> {
    element(0x03, &[&[0], content])
}

/// A time as RFC 5280 requires it: UTCTime up to 2049, GeneralizedTime from 2050.
pub(super) fn time(seconds: i64) -> Vec<u8> {
    let moment = jiff::Timestamp::from_second(seconds).unwrap_or(jiff::Timestamp::MAX);
    let year = moment.to_zoned(jiff::tz::TimeZone::UTC).year();
    if year < 2050 {
        element(0x17, &[moment.strftime("%y%m%d%H%M%SZ").to_string().as_bytes()])
    } else {
        element(0x18, &[moment.strftime("%Y%m%d%H%M%SZ").to_string().as_bytes()])
    }
}

/// Extension `id-ce` with this number.
pub(super) fn extension(number: u8, critical: bool, content: &[u8]) -> Vec<u8> {
    let id = element(0x06, &[&[0x55, 0x1d, number]]);
    let content = octets(content);
    if critical { sequence(&[&id, &[0x01, 0x01, 0xff], &content]) } else { sequence(&[&id, &content]) }
}
