//! How one version of an object is written to the disk.
//!
//! Length-prefixed (u32, little endian) collection, namespace, name, uid; the number of labels (u32), keys and values of
//! the labels (length-prefixed); then the object's JSON text up to the end.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::{Collection, Entry, Key, Meta, Revision};

/// Writes `entry` to the end of `out`.
pub(crate) fn encode(entry: &Entry, out: &mut Vec<u8>) {
    for text in [entry.key.collection.as_str(), &entry.key.namespace, &entry.key.name, &entry.meta.uid] {
        put(out, text);
    }
    out.extend_from_slice(&(entry.meta.labels.len() as u32).to_le_bytes());
    for (key, value) in &entry.meta.labels {
        put(out, key);
        put(out, value);
    }
    out.extend_from_slice(&entry.value);
}

fn put(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&(text.len() as u32).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

/// `None` when the bytes are not a record.
pub(crate) fn decode(revision: Revision, bytes: &[u8]) -> Option<Entry> {
    let mut rest = bytes;
    let collection = take(&mut rest)?;
    let (group, plural) = collection.split_once('/')?;
    let key = Key {
        collection: Collection::new(group, plural),
        namespace: take(&mut rest)?.into(),
        name: take(&mut rest)?.into(),
    };
    let uid = take(&mut rest)?.into();
    let mut labels = BTreeMap::new();
    for _ in 0..number(&mut rest)? {
        labels.insert(take(&mut rest)?.into(), take(&mut rest)?.into());
    }
    Some(Entry { key, revision, value: Bytes::copy_from_slice(rest), meta: Meta { uid, labels } })
}

fn number(rest: &mut &[u8]) -> Option<u32> {
    let (head, tail) = rest.split_first_chunk::<4>()?;
    *rest = tail;
    Some(u32::from_le_bytes(*head))
}

fn take<'a>(rest: &mut &'a [u8]) -> Option<&'a str> {
    let length = number(rest)? as usize;
    let (head, tail) = rest.split_at_checked(length)?;
    *rest = tail;
    std::str::from_utf8(head).ok()
}
