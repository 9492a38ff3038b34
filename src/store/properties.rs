//! Message properties as they are stored: `name \x01 value`, entries separated by `\x02`.
//!
//! 4.9 writes no separator behind the last entry, 5.x does; both are read. Nothing is escaped,
//! so a name or value that holds a separator cannot be stored and is refused by who adds it.

/// Between a name and its value.
pub const NAME_END: u8 = 1;
/// Behind an entry.
pub const ENTRY_END: u8 = 2;

pub const KEYS: &str = "KEYS";
pub const UNIQ_KEY: &str = "UNIQ_KEY";
pub const TAGS: &str = "TAGS";
pub const DELAY: &str = "DELAY";
pub const INNER_NUM: &str = "INNER_NUM";

/// The entries in stored order. An entry without a name or without a value does not count.
pub fn iter(properties: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    properties.split(|&b| b == ENTRY_END).filter_map(|entry| {
        let at = entry.iter().position(|&b| b == NAME_END)?;
        let (name, value) = (&entry[..at], &entry[at + 1..]);
        (!name.is_empty() && !value.is_empty()).then_some((name, value))
    })
}

/// The value of `name`. Of several the last one counts, as when Java fills its map.
pub fn get<'a>(properties: &'a [u8], name: &str) -> Option<&'a [u8]> {
    iter(properties)
        .filter(|(found, _)| *found == name.as_bytes())
        .last()
        .map(|(_, value)| value)
}

/// As `get`, for values that are text.
pub fn get_str<'a>(properties: &'a [u8], name: &str) -> Option<&'a str> {
    std::str::from_utf8(get(properties, name)?).ok()
}

/// Adds an entry behind what `properties` holds, in 4.9's style: no separator at the end.
pub fn push(properties: &mut Vec<u8>, name: &str, value: &str) {
    if properties.last().is_some_and(|&b| b != ENTRY_END) {
        properties.push(ENTRY_END);
    }
    properties.extend_from_slice(name.as_bytes());
    properties.push(NAME_END);
    properties.extend_from_slice(value.as_bytes());
}

/// `properties` without any entry called `name`; all other bytes stay as they are.
pub fn remove(properties: &[u8], name: &str) -> Vec<u8> {
    let mut kept = Vec::with_capacity(properties.len());
    for entry in properties.split_inclusive(|&b| b == ENTRY_END) {
        let named = entry
            .strip_prefix(name.as_bytes())
            .is_some_and(|rest| rest.first() == Some(&NAME_END));
        if !named {
            kept.extend_from_slice(entry);
        }
    }
    // What was followed by the removed last entry must not gain a final separator.
    if properties.last() != Some(&ENTRY_END) && kept.last() == Some(&ENTRY_END) {
        kept.pop();
    }
    kept
}

/// True if `text` can stand as a name or a value.
pub fn is_storable(text: &str) -> bool {
    !text
        .bytes()
        .any(|b| b == 0 || b == NAME_END || b == ENTRY_END)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_styles_are_read_and_empty_values_dropped() {
        for stored in [&b"a\x01b\x02TAGS\x01x"[..], b"a\x01b\x02TAGS\x01x\x02"] {
            let entries: Vec<_> = iter(stored).collect();
            assert_eq!(entries, [(&b"a"[..], &b"b"[..]), (b"TAGS", b"x")]);
        }
        assert_eq!(get(b"a\x01\x02b\x01c", "a"), None);
        assert_eq!(get(b"\x01v\x02noname", "noname"), None);
        assert_eq!(get(b"a\x011\x02a\x012", "a"), Some(&b"2"[..]));
        assert_eq!(get(b"a\x01b\x01c", "a"), Some(&b"b\x01c"[..]));
    }

    #[test]
    fn push_and_remove_leave_other_bytes_alone() {
        let mut properties = Vec::new();
        push(&mut properties, "a", "1");
        push(&mut properties, "WAIT", "true");
        push(&mut properties, "b", "2");
        assert_eq!(properties, b"a\x011\x02WAIT\x01true\x02b\x012");
        assert_eq!(remove(&properties, "WAIT"), b"a\x011\x02b\x012");
        assert_eq!(remove(b"a\x011\x02WAIT\x01x", "WAIT"), b"a\x011");
        assert_eq!(remove(b"a\x011\x02WAIT\x01x\x02", "WAIT"), b"a\x011\x02");
        assert_eq!(remove(b"WAITING\x011", "WAIT"), b"WAITING\x011");
        let mut five = b"a\x011\x02".to_vec();
        push(&mut five, "b", "2");
        assert_eq!(five, b"a\x011\x02b\x012");
    }
}
