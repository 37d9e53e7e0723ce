//! Writes GGUF files, right and wrong ones, byte by byte as the format's description has them. It
//! shares no code with the program.

// Each test program uses its own part of this.
#![allow(dead_code)]

/// ggml's number of F32.
pub const F32: u32 = 0;
/// ggml's number of Q4_0: 32 values in 18 bytes.
pub const Q4_0: u32 = 2;
/// ggml's number of Q8_0: 32 values in 34 bytes.
pub const Q8_0: u32 = 8;
/// ggml's number of Q4_K: 256 values in 144 bytes.
pub const Q4_K: u32 = 12;
/// ggml's number of I8.
pub const I8: u32 = 24;

/// A key's value.
#[derive(Clone, Debug)]
pub enum V {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    Str(String),
    /// Bytes that may be no text.
    Bytes(Vec<u8>),
    /// The number of the elements' type, and the elements.
    Array(u32, Vec<V>),
    U64(u64),
    I64(i64),
    F64(f64),
    /// Any number of a type, and any bytes of a value.
    Raw(u32, Vec<u8>),
}

/// A string.
pub fn s(text: impl Into<String>) -> V {
    V::Str(text.into())
}

/// An array of strings.
pub fn strings<T: Into<String>>(texts: impl IntoIterator<Item = T>) -> V {
    V::Array(8, texts.into_iter().map(s).collect())
}

impl V {
    fn number(&self) -> u32 {
        match self {
            V::U8(_) => 0,
            V::I8(_) => 1,
            V::U16(_) => 2,
            V::I16(_) => 3,
            V::U32(_) => 4,
            V::I32(_) => 5,
            V::F32(_) => 6,
            V::Bool(_) => 7,
            V::Str(_) | V::Bytes(_) => 8,
            V::Array(..) => 9,
            V::U64(_) => 10,
            V::I64(_) => 11,
            V::F64(_) => 12,
            V::Raw(number, _) => *number,
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        match self {
            V::U8(x) => out.extend(x.to_le_bytes()),
            V::I8(x) => out.extend(x.to_le_bytes()),
            V::U16(x) => out.extend(x.to_le_bytes()),
            V::I16(x) => out.extend(x.to_le_bytes()),
            V::U32(x) => out.extend(x.to_le_bytes()),
            V::I32(x) => out.extend(x.to_le_bytes()),
            V::F32(x) => out.extend(x.to_le_bytes()),
            V::Bool(x) => out.push(u8::from(*x)),
            V::Str(x) => string(out, x.as_bytes()),
            V::Bytes(x) => string(out, x),
            V::Array(kind, elements) => {
                out.extend(kind.to_le_bytes());
                out.extend((elements.len() as u64).to_le_bytes());
                elements.iter().for_each(|e| e.write(out));
            }
            V::U64(x) => out.extend(x.to_le_bytes()),
            V::I64(x) => out.extend(x.to_le_bytes()),
            V::F64(x) => out.extend(x.to_le_bytes()),
            V::Raw(_, bytes) => out.extend(bytes),
        }
    }
}

fn string(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend((bytes.len() as u64).to_le_bytes());
    out.extend(bytes);
}

/// A tensor's entry and its bytes.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub name: Vec<u8>,
    /// The dimensions in the file's order: the first is the innermost.
    pub ne: Vec<u64>,
    /// ggml's number of its type.
    pub kind: u32,
    /// Where the entry says it is. `None`: at the padded end of the one before.
    pub offset: Option<u64>,
    pub data: Vec<u8>,
}

/// A file to be written. What is not set is right.
#[derive(Clone, Debug)]
pub struct Gguf {
    pub magic: [u8; 4],
    pub version: u32,
    /// The counts that the file claims, if they are to be wrong.
    pub tensor_count: Option<u64>,
    pub key_count: Option<u64>,
    pub keys: Vec<(Vec<u8>, V)>,
    pub tensors: Vec<Tensor>,
    /// What the writer aligns to. The key must be added besides.
    pub alignment: u64,
}

impl Default for Gguf {
    fn default() -> Gguf {
        Gguf {
            magic: *b"GGUF",
            version: 3,
            tensor_count: None,
            key_count: None,
            keys: Vec::new(),
            tensors: Vec::new(),
            alignment: 32,
        }
    }
}

impl Gguf {
    /// A file without keys and tensors.
    pub fn new() -> Gguf {
        Gguf::default()
    }

    /// One tensor `t` of 32 F32 values, and the key of the architecture.
    pub fn small() -> Gguf {
        let data: Vec<u8> = (0..32).flat_map(|i| (i as f32).to_le_bytes()).collect();
        Gguf::new()
            .key("general.architecture", s("llama"))
            .tensor("t", &[32], F32, data)
    }

    /// With one more key.
    #[must_use]
    pub fn key(mut self, name: impl AsRef<[u8]>, value: V) -> Gguf {
        self.keys.push((name.as_ref().to_vec(), value));
        self
    }

    /// With one more tensor, behind the others.
    #[must_use]
    pub fn tensor(
        mut self,
        name: impl AsRef<[u8]>,
        ne: &[u64],
        kind: u32,
        data: impl Into<Vec<u8>>,
    ) -> Gguf {
        self.tensors.push(Tensor {
            name: name.as_ref().to_vec(),
            ne: ne.to_vec(),
            kind,
            offset: None,
            data: data.into(),
        });
        self
    }

    /// With the last tensor at this offset.
    #[must_use]
    pub fn at(mut self, offset: u64) -> Gguf {
        self.tensors.last_mut().unwrap().offset = Some(offset);
        self
    }

    /// With the keys of file `number` (from 0) of `count`, whose tensors are `tensors` in all.
    #[must_use]
    pub fn split(self, number: u16, count: u16, tensors: i32) -> Gguf {
        self.key("split.no", V::U16(number))
            .key("split.tensors.count", V::I32(tensors))
            .key("split.count", V::U16(count))
    }

    /// Everything before the padding of the data.
    pub fn header(&self) -> Vec<u8> {
        let mut out = self.magic.to_vec();
        out.extend(self.version.to_le_bytes());
        let (tensors, keys) = (self.tensors.len() as u64, self.keys.len() as u64);
        out.extend(self.tensor_count.unwrap_or(tensors).to_le_bytes());
        out.extend(self.key_count.unwrap_or(keys).to_le_bytes());
        for (name, value) in &self.keys {
            string(&mut out, name);
            out.extend(value.number().to_le_bytes());
            value.write(&mut out);
        }
        let mut next = 0u64;
        for tensor in &self.tensors {
            string(&mut out, &tensor.name);
            out.extend((tensor.ne.len() as u32).to_le_bytes());
            tensor.ne.iter().for_each(|d| out.extend(d.to_le_bytes()));
            out.extend(tensor.kind.to_le_bytes());
            let offset = tensor.offset.unwrap_or(next);
            out.extend(offset.to_le_bytes());
            let end = offset.saturating_add(tensor.data.len() as u64);
            next = end.checked_next_multiple_of(self.alignment).unwrap_or(0);
        }
        out
    }

    /// Where the data begins.
    pub fn data_start(&self) -> u64 {
        (self.header().len() as u64).next_multiple_of(self.alignment)
    }

    /// The whole file. The data of a tensor whose offset is absurd is left out.
    pub fn bytes(&self) -> Vec<u8> {
        let start = self.data_start();
        let mut out = self.header();
        out.resize(start as usize, 0);
        let mut next = 0u64;
        for tensor in &self.tensors {
            let offset = tensor.offset.unwrap_or(next);
            if offset > 1 << 20 {
                continue;
            }
            let end = offset + tensor.data.len() as u64;
            next = end.next_multiple_of(self.alignment);
            let len = out.len().max((start + next) as usize);
            out.resize(len, 0);
            out[(start + offset) as usize..(start + end) as usize].copy_from_slice(&tensor.data);
        }
        out
    }
}

/// The files of a split set with this prefix, one for each list of tensors, with the names that
/// llama.cpp gives them. `keys` are the first file's.
pub fn splits(prefix: &str, keys: &[(&str, V)], files: &[&[Tensor]]) -> Vec<(String, Gguf)> {
    let (count, tensors) = (files.len(), files.iter().map(|f| f.len()).sum::<usize>());
    let file = |(i, tensors_of): (usize, &&[Tensor])| {
        let mut file = Gguf::new();
        if i == 0 {
            for (key, value) in keys {
                file = file.key(key, value.clone());
            }
        }
        let mut file = file.split(i as u16, count as u16, tensors as i32);
        file.tensors = tensors_of.to_vec();
        let name = format!("{prefix}-{:05}-of-{count:05}.gguf", i + 1);
        (name, file)
    };
    files.iter().enumerate().map(file).collect()
}

/// An F32 tensor [n] whose values count up from `first`.
pub fn counting(name: &str, n: usize, first: f32) -> Tensor {
    Tensor {
        name: name.into(),
        ne: vec![n as u64],
        kind: F32,
        offset: None,
        data: (0..n)
            .flat_map(|i| (first + i as f32).to_le_bytes())
            .collect(),
    }
}
