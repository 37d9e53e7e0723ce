//! Checkpoints as `torch.save` writes them, made for a test: a pickle of protocol 2 in a ZIP archive of
//! stored members, or in the older format.

use safetensors::Dtype;

use super::T;

/// A Python value.
#[derive(Clone, Debug)]
pub enum Py {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    Tuple(Vec<Py>),
    List(Vec<Py>),
    Dict(Vec<(Py, Py)>),
    /// `module` and `name` of a class or function.
    Name(&'static str, &'static str),
    /// A function, and the tuple of its arguments.
    Call(Box<Py>, Vec<Py>),
    Tensor(Strided),
    /// Opcodes that leave one value on the stack.
    Opcodes(Vec<u8>),
}

/// A tensor in a storage.
#[derive(Clone, Debug)]
pub struct Strided {
    /// The storage's key.
    pub key: String,
    /// The storage's bytes.
    pub data: Vec<u8>,
    /// The class of the storage: `FloatStorage`.
    pub class: &'static str,
    /// How many bytes an element has.
    pub element: usize,
    pub offset: i64,
    pub shape: Vec<i64>,
    pub strides: Vec<i64>,
}

/// A string.
pub fn text(text: &str) -> Py {
    Py::Text(text.into())
}

/// A dict with string keys.
pub fn dict<'a>(entries: impl IntoIterator<Item = (&'a str, Py)>) -> Py {
    Py::Dict(entries.into_iter().map(|(k, v)| (text(k), v)).collect())
}

/// A call of `module.name`.
pub fn call(module: &'static str, name: &'static str, arguments: Vec<Py>) -> Py {
    Py::Call(Box::new(Py::Name(module, name)), arguments)
}

/// The state dict of these tensors, each in a storage of its own. The keys of the storages begin with
/// `prefix`, so that several dicts can be in one file.
pub fn state_dict(prefix: &str, tensors: &[T]) -> Py {
    let entry = |(i, t): (usize, &T)| (text(&t.name), contiguous(&format!("{prefix}{i}"), t));
    Py::Dict(tensors.iter().enumerate().map(entry).collect())
}

/// A contiguous tensor, alone in the storage `key`.
pub fn contiguous(key: &str, t: &T) -> Py {
    let shape: Vec<i64> = t.shape.iter().map(|&n| n as i64).collect();
    let mut strides = vec![1; shape.len()];
    for i in (1..shape.len()).rev() {
        strides[i - 1] = strides[i] * shape[i].max(1);
    }
    Py::Tensor(Strided {
        key: key.into(),
        data: t.data.clone(),
        class: class_of(t.dtype),
        element: t.dtype.bitsize() / 8,
        offset: 0,
        shape,
        strides,
    })
}

/// The class of a storage.
pub fn class_of(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::F64 => "DoubleStorage",
        Dtype::F32 => "FloatStorage",
        Dtype::F16 => "HalfStorage",
        Dtype::BF16 => "BFloat16Storage",
        Dtype::I64 => "LongStorage",
        Dtype::I32 => "IntStorage",
        Dtype::I16 => "ShortStorage",
        Dtype::I8 => "CharStorage",
        Dtype::U8 => "ByteStorage",
        Dtype::BOOL => "BoolStorage",
        Dtype::C64 => "ComplexFloatStorage",
        other => panic!("{other} has no storage class of its own"),
    }
}

/// A file with this state dict, as torch writes it since 1.6.
pub fn checkpoint(tensors: &[T]) -> Vec<u8> {
    zip_file(&state_dict("", tensors))
}

/// A file with this value, as torch writes it since 1.6.
pub fn zip_file(root: &Py) -> Vec<u8> {
    zip(&members(root))
}

/// The members of the archive of a value: name and bytes.
pub fn members(root: &Py) -> Vec<(String, Vec<u8>)> {
    let (pickle, storages) = Pickler::default().pickle(root);
    let member = |name: &str, data: &[u8]| (format!("archive/{name}"), data.to_vec());
    let mut members = vec![
        member("data.pkl", &pickle),
        member(".format_version", b"1"),
        member(".storage_alignment", b"64"),
        member("byteorder", b"little"),
    ];
    for s in storages {
        members.push(member(&format!("data/{}", s.key), &s.data));
    }
    members.push(member("version", b"3\n"));
    members.push(member(".data/serialization_id", &[b'1'; 40]));
    members
}

/// A file with this value in the format before 1.6: pickles one after another, then the storages.
pub fn legacy_file(root: &Py) -> Vec<u8> {
    let pickler = || Pickler {
        legacy: true,
        ..Pickler::default()
    };
    let (object, mut storages) = pickler().pickle(root);
    storages.sort_by(|a, b| a.key.cmp(&b.key));
    let sizes = [("short", 2), ("int", 4), ("long", 4)];
    let system = dict([
        ("protocol_version", Py::Int(1001)),
        ("little_endian", Py::Bool(true)),
        (
            "type_sizes",
            dict(sizes.map(|(name, n)| (name, Py::Int(n)))),
        ),
    ]);
    let keys = storages.iter().map(|s| text(&s.key)).collect();
    let mut out = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.".to_vec();
    out.extend(pickler().pickle(&Py::Int(1001)).0);
    out.extend(pickler().pickle(&system).0);
    out.extend(object);
    out.extend(pickler().pickle(&Py::List(keys)).0);
    for s in storages {
        out.extend((s.data.len() as u64 / s.element as u64).to_le_bytes());
        out.extend(&s.data);
    }
    out
}

/// Writes a pickle of protocol 2.
#[derive(Default)]
pub struct Pickler {
    out: Vec<u8>,
    /// The storages that were met, each key once.
    storages: Vec<Strided>,
    /// Whether references to storages are those of the older format.
    pub legacy: bool,
}

impl Pickler {
    /// The pickle of a value, and the storages in it.
    pub fn pickle(mut self, root: &Py) -> (Vec<u8>, Vec<Strided>) {
        self.out.extend([0x80, 2]);
        self.value(root);
        self.out.push(b'.');
        (self.out, self.storages)
    }

    fn value(&mut self, value: &Py) {
        match value {
            Py::None => self.out.push(b'N'),
            Py::Bool(yes) => self.out.push(if *yes { 0x88 } else { 0x89 }),
            Py::Int(n) => match i32::try_from(*n) {
                Ok(n) => self.opcode(b"J", n.to_le_bytes()),
                Err(_) => self.opcode(b"\x8a\x08", n.to_le_bytes()),
            },
            Py::Float(x) => self.opcode(b"G", x.to_be_bytes()),
            Py::Text(text) => {
                self.opcode(b"X", (text.len() as u32).to_le_bytes());
                self.out.extend(text.as_bytes());
            }
            Py::Tuple(items) => self.items(b"(", items, b't'),
            Py::List(items) => self.items(b"](", items, b'e'),
            Py::Dict(entries) => {
                let items: Vec<Py> = entries.iter().cloned().flat_map(|(k, v)| [k, v]).collect();
                self.items(b"}(", &items, b'u');
            }
            Py::Name(module, name) => self.opcode(b"c", format!("{module}\n{name}\n")),
            Py::Call(function, arguments) => {
                self.value(function);
                self.items(b"(", arguments, b't');
                self.out.push(b'R');
            }
            Py::Tensor(tensor) => self.tensor(tensor),
            Py::Opcodes(opcodes) => self.out.extend(opcodes),
        }
    }

    fn opcode(&mut self, opcode: &[u8], argument: impl AsRef<[u8]>) {
        self.out.extend(opcode);
        self.out.extend(argument.as_ref());
    }

    fn items(&mut self, begin: &[u8], items: &[Py], end: u8) {
        self.out.extend(begin);
        items.iter().for_each(|item| self.value(item));
        self.out.push(end);
    }

    fn tensor(&mut self, t: &Strided) {
        if self.storages.iter().all(|s| s.key != t.key) {
            self.storages.push(t.clone());
        }
        let mut storage = vec![
            text("storage"),
            Py::Name("torch", t.class),
            text(&t.key),
            text("cpu"),
            Py::Int((t.data.len() / t.element) as i64),
        ];
        if self.legacy {
            storage.push(Py::None);
        }
        self.out.extend(b"ctorch._utils\n_rebuild_tensor_v2\n(");
        self.items(b"(", &storage, b't');
        self.out.push(b'Q');
        let numbers = |numbers: &[i64]| Py::Tuple(numbers.iter().map(|&n| Py::Int(n)).collect());
        for argument in [
            Py::Int(t.offset),
            numbers(&t.shape),
            numbers(&t.strides),
            Py::Bool(false),
            call("collections", "OrderedDict", Vec::new()),
        ] {
            self.value(&argument);
        }
        self.out.extend(b"tR");
    }
}

/// A ZIP archive as torch writes it: the local headers have neither sizes nor checksums, which follow
/// the data, and each member's data begins at a multiple of 64.
pub fn zip(members: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut directory = Vec::new();
    for (name, data) in members {
        let offset = out.len() as u32;
        let flags: u16 = if data.is_empty() { 0x0800 } else { 0x0808 };
        let start = out.len() + 30 + name.len() + 4;
        let padding = start.next_multiple_of(64) - start;
        out.extend(b"PK\x03\x04\0\0");
        out.extend(flags.to_le_bytes());
        out.extend([0; 2 + 4 + 4 + 4 + 4]);
        out.extend((name.len() as u16).to_le_bytes());
        out.extend((padding as u16 + 4).to_le_bytes());
        out.extend(name.as_bytes());
        out.extend(b"FB");
        out.extend((padding as u16).to_le_bytes());
        out.extend(vec![b'Z'; padding]);
        out.extend(data);
        let (crc, len) = (crc32(data), data.len() as u32);
        if !data.is_empty() {
            out.extend(b"PK\x07\x08");
            [crc, len, len]
                .iter()
                .for_each(|n| out.extend(n.to_le_bytes()));
        }
        directory.extend(b"PK\x01\x02\0\0\0\0");
        directory.extend(flags.to_le_bytes());
        directory.extend([0; 2 + 4]);
        [crc, len, len]
            .iter()
            .for_each(|n| directory.extend(n.to_le_bytes()));
        directory.extend((name.len() as u16).to_le_bytes());
        directory.extend([0; 2 + 2 + 2 + 2 + 4]);
        directory.extend(offset.to_le_bytes());
        directory.extend(name.as_bytes());
    }
    let (at, count) = (out.len() as u32, members.len() as u16);
    out.extend(&directory);
    out.extend(b"PK\x05\x06\0\0\0\0");
    [count, count]
        .iter()
        .for_each(|n| out.extend(n.to_le_bytes()));
    [directory.len() as u32, at]
        .iter()
        .for_each(|n| out.extend(n.to_le_bytes()));
    out.extend([0; 2]);
    out
}

/// ZIP's checksum.
fn crc32(data: &[u8]) -> u32 {
    !data.iter().fold(!0, |crc: u32, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            let carry = crc & 1;
            (crc >> 1) ^ (0xEDB8_8320 * carry)
        })
    })
}
