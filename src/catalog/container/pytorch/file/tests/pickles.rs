//! Writes pickles as torch does, protocol 2.

/// A reference to a storage: its class, its key, and how many elements it has.
pub type Reference<'a> = (&'a str, &'a str, u32);

/// A payload: `posix.system('touch /tmp/x')`.
pub const PAYLOAD: &[u8] = b"\x80\x02cposix\nsystem\nX\x0c\0\0\0touch /tmp/x\x85R.";

fn text(out: &mut Vec<u8>, text: &str) {
    out.push(b'X');
    out.extend((text.len() as u32).to_le_bytes());
    out.extend(text.as_bytes());
}

/// A dict with these storages as its values.
pub fn object(references: &[Reference<'_>]) -> Vec<u8> {
    let mut out = b"\x80\x02}(".to_vec();
    for (i, (class, key, elements)) in references.iter().enumerate() {
        text(&mut out, &i.to_string());
        out.push(b'(');
        text(&mut out, "storage");
        out.extend(format!("ctorch\n{class}\n").as_bytes());
        text(&mut out, key);
        text(&mut out, "cpu");
        out.push(b'J');
        out.extend(elements.to_le_bytes());
        out.extend(b"tQ");
    }
    out.extend(b"u.");
    out
}

/// A list of keys.
pub fn keys(keys: &[&str]) -> Vec<u8> {
    let mut out = b"\x80\x02](".to_vec();
    keys.iter().for_each(|key| text(&mut out, key));
    out.extend(b"e.");
    out
}

/// The first three pickles of the format before torch 1.6.
pub const HEADERS: [&[u8]; 3] = [
    b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.",
    b"\x80\x02M\xe9\x03.",
    b"\x80\x02}(X\x10\0\0\0protocol_versionM\xe9\x03X\x0d\0\0\0little_endian\x89u.",
];

/// A file of that format, with these storages behind the lists: counts and bytes.
pub fn legacy(references: &[Reference<'_>], list: &[&str], storages: &[(u64, &[u8])]) -> Vec<u8> {
    let mut out = HEADERS.concat();
    out.extend(object(references));
    out.extend(keys(list));
    for (count, bytes) in storages {
        out.extend(count.to_le_bytes());
        out.extend(*bytes);
    }
    out
}
