//! Writes ZIP archives as Python's zipfile and as torch does.

use std::ops::Range;

/// What an archive is made of.
#[derive(Clone, Default)]
pub struct Zip {
    members: Vec<Member>,
    /// What follows the end record.
    pub after: Vec<u8>,
}

/// A member. The central directory has the same numbers unless they are changed in the bytes.
#[derive(Clone)]
pub struct Member {
    pub name: Vec<u8>,
    pub bytes: Vec<u8>,
    pub method: u16,
    /// Whether the sizes follow the bytes, as torch writes them.
    pub descriptor: bool,
    /// The extra field of the local header.
    pub extra: Vec<u8>,
    /// Whether sizes and places have 64 bits.
    pub large: bool,
}

/// An archive, and where its parts are.
pub struct Written {
    pub bytes: Vec<u8>,
    /// Where each member's local header is.
    pub local: Vec<usize>,
    /// Where each member's bytes are.
    pub data: Vec<Range<usize>>,
    /// Where each member's central entry is.
    pub central: Vec<usize>,
    pub end: usize,
}

impl Zip {
    /// Members as Python stores them.
    pub fn new(members: &[(&str, &[u8])]) -> Zip {
        let mut zip = Zip::default();
        for (name, bytes) in members {
            zip.add(name, bytes);
        }
        zip
    }

    /// A small checkpoint without tensors, `extra` members at its end.
    pub fn checkpoint(extra: &[(&str, &[u8])]) -> Zip {
        let mut members: Vec<(&str, &[u8])> =
            vec![("m/data.pkl", b"\x80\x02}."), ("m/version", b"3\n")];
        members.extend(extra);
        Zip::new(&members)
    }

    pub fn add(&mut self, name: &str, bytes: &[u8]) -> &mut Member {
        self.members.push(Member {
            name: name.into(),
            bytes: bytes.into(),
            method: 0,
            descriptor: false,
            extra: Vec::new(),
            large: false,
        });
        self.members.last_mut().unwrap()
    }

    pub fn member(&mut self, number: usize) -> &mut Member {
        &mut self.members[number]
    }

    /// The same members as torch writes them.
    pub fn like_torch(mut self) -> Zip {
        let mut at = 0;
        for member in &mut self.members {
            let begins = at + 30 + member.name.len() + 4;
            let padding = begins.next_multiple_of(64) - begins;
            member.extra = [b"FB", &(padding as u16).to_le_bytes()[..]].concat();
            member.extra.resize(4 + padding, b'Z');
            member.descriptor = true;
            at = begins + padding + member.bytes.len() + 16;
        }
        self
    }

    pub fn write(&self) -> Written {
        let mut out = Written {
            bytes: Vec::new(),
            local: Vec::new(),
            data: Vec::new(),
            central: Vec::new(),
            end: 0,
        };
        for member in &self.members {
            out.local.push(out.bytes.len());
            let mut extra = member.extra.clone();
            let size = member.bytes.len() as u32;
            let (mut crc, mut sizes) = (crc32(&member.bytes), [size, size]);
            if member.large {
                extra.extend([1, 0, 16, 0]);
                extra.extend([u64::from(size); 2].map(u64::to_le_bytes).concat());
                sizes = [u32::MAX; 2];
            }
            if member.descriptor {
                (crc, sizes) = (0, [0, 0]);
            }
            out.bytes.extend(b"PK\x03\x04");
            out.common(member, crc, sizes, extra.len());
            out.bytes.extend(&member.name);
            out.bytes.extend(&extra);
            let start = out.bytes.len();
            out.bytes.extend(&member.bytes);
            out.data.push(start..out.bytes.len());
            if member.descriptor {
                out.bytes.extend(b"PK\x07\x08");
                let numbers = [crc32(&member.bytes), size, size];
                out.bytes.extend(numbers.map(u32::to_le_bytes).concat());
            }
        }
        let directory = out.bytes.len();
        for (number, member) in self.members.iter().enumerate() {
            out.central_entry(number, member);
        }
        out.end_records(directory, self.members.len(), self.large());
        out.bytes.extend(&self.after);
        out
    }

    fn large(&self) -> bool {
        self.members.iter().any(|member| member.large)
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.write().bytes
    }
}

impl Written {
    /// The fields that both headers have, after signature and versions.
    fn common(&mut self, member: &Member, crc: u32, sizes: [u32; 2], extra: usize) {
        let flags = if member.descriptor { 0x808u16 } else { 0 };
        // Version 2.0, and the first day of 1980.
        for short in [20, flags, member.method, 0, 0x21] {
            self.bytes.extend(short.to_le_bytes());
        }
        self.bytes.extend(crc.to_le_bytes());
        self.bytes.extend(sizes.map(u32::to_le_bytes).concat());
        self.bytes.extend((member.name.len() as u16).to_le_bytes());
        self.bytes.extend((extra as u16).to_le_bytes());
    }

    fn central_entry(&mut self, number: usize, member: &Member) {
        self.central.push(self.bytes.len());
        let (size, place) = (member.bytes.len() as u32, self.local[number] as u32);
        let (mut sizes, mut at, mut extra) = ([size; 2], place, Vec::new());
        if member.large {
            let numbers = [size, size, place].map(|n| u64::from(n).to_le_bytes());
            extra.extend([1, 0, 24, 0]);
            extra.extend(numbers.concat());
            (sizes, at) = ([u32::MAX; 2], u32::MAX);
        }
        self.bytes.extend(b"PK\x01\x02\x14\x03");
        self.common(member, crc32(&member.bytes), sizes, extra.len());
        // No comment, disk 0, no attributes but those of Unix.
        self.bytes.extend([0; 6]);
        self.bytes.extend((0o600u32 << 16).to_le_bytes());
        self.bytes.extend(at.to_le_bytes());
        self.bytes.extend(&member.name);
        self.bytes.extend(&extra);
    }

    fn end_records(&mut self, directory: usize, entries: usize, large: bool) {
        let size = self.bytes.len() - directory;
        let mut short = (entries as u16, size as u32, directory as u32);
        if large {
            let at = self.bytes.len() as u64;
            self.bytes.extend(b"PK\x06\x06");
            self.bytes.extend(44u64.to_le_bytes());
            self.bytes.extend([45, 0, 45, 0]);
            self.bytes.extend([0; 8]);
            for number in [entries, entries, size, directory] {
                self.bytes.extend((number as u64).to_le_bytes());
            }
            self.bytes.extend(b"PK\x06\x07\0\0\0\0");
            self.bytes.extend(at.to_le_bytes());
            self.bytes.extend(1u32.to_le_bytes());
            short = (u16::MAX, u32::MAX, u32::MAX);
        }
        self.end = self.bytes.len();
        self.bytes.extend(b"PK\x05\x06\0\0\0\0");
        self.bytes
            .extend([short.0; 2].map(u16::to_le_bytes).concat());
        self.bytes.extend(short.1.to_le_bytes());
        self.bytes.extend(short.2.to_le_bytes());
        self.bytes.extend([0; 2]);
    }

    /// The archive with the bytes at `at` replaced.
    pub fn with(&self, at: usize, bytes: &[u8]) -> Vec<u8> {
        let mut changed = self.bytes.clone();
        changed[at..at + bytes.len()].copy_from_slice(bytes);
        changed
    }
}

/// Bit by bit: independent of the library's.
pub fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| (crc >> 1) ^ (0xedb88320 * (crc & 1));
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), step)
    })
}

#[test]
fn writes_the_bytes_that_python_writes() {
    // zipfile.ZipFile(f, 'w').writestr(zipfile.ZipInfo(name), bytes) of Python 3.11, twice.
    let python = "504b0304140000000000000021003db7de8904000000040000000a0000006d2f646174612e706b6c80027d2e504b030414000000000000002100d19e67550200000002000000090000006d2f76657273696f6e330a504b01021403140000000000000021003db7de8904000000040000000a00000000000000000000008001000000006d2f646174612e706b6c504b0102140314000000000000002100d19e6755020000000200000009000000000000000000000080012c0000006d2f76657273696f6e504b050600000000020002006f000000550000000000";
    let ours = Zip::checkpoint(&[]).bytes();
    let hex: String = ours.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, python);
}
