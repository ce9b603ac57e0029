//! The wire format: tags, varints, lengths.

use super::error::ProtobufError;

/// Most nesting of unknown groups that is skipped. Kubernetes uses no groups.
const MAX_GROUPS: usize = 32;

/// The value of one field on the wire.
#[derive(Clone, Copy, Debug)]
pub(super) enum Payload<'a> {
    Varint(u64),
    Fixed64(u64),
    Bytes(&'a [u8]),
    /// 32-bit numbers and groups; no built-in kind has such a field.
    Other,
}

impl Payload<'_> {
    pub(super) fn wire_type(self) -> u8 {
        match self {
            Self::Varint(_) => 0,
            Self::Fixed64(_) => 1,
            Self::Bytes(_) => 2,
            Self::Other => 5,
        }
    }
}

/// Reads fields one after the other.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The next field's number and value; `None` at the end of the message.
    pub(super) fn next(&mut self) -> Result<Option<(u32, Payload<'a>)>, ProtobufError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let (number, wire) = self.tag()?;
        Ok(Some((number, self.payload(number, wire, 0)?)))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(super) fn varint(&mut self) -> Result<u64, ProtobufError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.rest.split_first().ok_or(ProtobufError::Eof)?;
            self.rest = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(ProtobufError::Overflow)
    }

    pub(super) fn fixed64(&mut self) -> Result<u64, ProtobufError> {
        let (head, rest) = self.rest.split_first_chunk::<8>().ok_or(ProtobufError::Eof)?;
        self.rest = rest;
        Ok(u64::from_le_bytes(*head))
    }

    fn tag(&mut self) -> Result<(u32, u8), ProtobufError> {
        let tag = self.varint()?;
        let wire = (tag & 7) as u8;
        let number = u32::try_from(tag >> 3).map_err(|_| ProtobufError::Overflow)?;
        if number == 0 {
            return Err(ProtobufError::Tag { number, wire });
        }
        Ok((number, wire))
    }

    fn payload(&mut self, number: u32, wire: u8, groups: usize) -> Result<Payload<'a>, ProtobufError> {
        match wire {
            0 => self.varint().map(Payload::Varint),
            1 => self.fixed64().map(Payload::Fixed64),
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| ProtobufError::Overflow)?;
                let (head, rest) = self.rest.split_at_checked(length).ok_or(ProtobufError::Eof)?;
                self.rest = rest;
                Ok(Payload::Bytes(head))
            }
            3 => self.skip_group(number, groups),
            5 => {
                let (_, rest) = self.rest.split_first_chunk::<4>().ok_or(ProtobufError::Eof)?;
                self.rest = rest;
                Ok(Payload::Other)
            }
            wire => Err(ProtobufError::Tag { number, wire }),
        }
    }

    fn skip_group(&mut self, group: u32, groups: usize) -> Result<Payload<'a>, ProtobufError> {
        const END: u8 = 4;
        if groups == MAX_GROUPS {
            return Err(ProtobufError::Deep);
        }
        loop {
            let (number, wire) = self.tag()?;
            if wire == END {
                return if number == group {
                    Ok(Payload::Other)
                } else {
                    Err(ProtobufError::Tag { number, wire })
                };
            }
            self.payload(number, wire, groups + 1)?;
        }
    }
}

/// Writes a message from its end to its beginning, so that the lengths of nested messages are known.
#[derive(Default)]
pub(super) struct Writer {
    reversed: Vec<u8>,
}

impl Writer {
    pub(super) fn raw(&mut self, bytes: &[u8]) {
        self.reversed.extend(bytes.iter().rev());
    }

    pub(super) fn varint(&mut self, mut value: u64) {
        let mut bytes = [0u8; 10];
        let mut used = 0;
        for slot in &mut bytes {
            used += 1;
            *slot = (value & 0x7f) as u8;
            value >>= 7;
            if value == 0 {
                break;
            }
            *slot |= 0x80;
        }
        self.raw(bytes.get(..used).unwrap_or_default());
    }

    fn tag(&mut self, number: u32, wire: u64) {
        self.varint(u64::from(number) << 3 | wire);
    }

    /// A whole field with a number as its value.
    pub(super) fn number(&mut self, number: u32, value: u64) {
        self.varint(value);
        self.tag(number, 0);
    }

    pub(super) fn fixed64(&mut self, number: u32, value: u64) {
        self.raw(&value.to_le_bytes());
        self.tag(number, 1);
    }

    /// A whole field with bytes as its value.
    pub(super) fn bytes(&mut self, number: u32, bytes: &[u8]) {
        let mark = self.mark();
        self.raw(bytes);
        self.close(mark, number);
    }

    /// The position where a nested message ends; to be passed to [`Writer::close`].
    pub(super) fn mark(&self) -> usize {
        self.reversed.len()
    }

    /// Makes everything written since the mark the value of a field.
    pub(super) fn close(&mut self, mark: usize, number: u32) {
        self.varint((self.reversed.len() - mark) as u64);
        self.tag(number, 2);
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        self.reversed.reverse();
        self.reversed
    }
}
