//! How fast the views are read that recipes make: in order from the page cache, beside a copy in memory of as
//! many bytes, measured in the same round; and 4 KiB at random, with the bytes of the sources that it takes. The
//! time is the thread's own, so that a busy machine distorts it less.
//!
//! Then `bf16` and `f32` of quantized layers through a mount, counted in values. (The bench `dequant` has both of every
//! format, without a mount.)
//!
//! `cargo bench --bench recipes [-- NAME…]`; a view is a line of [`CASES`], a layer one of [`LAYERS`].

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::Read;
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use safetensors::tensor::{Dtype as D, TensorView, serialize_to_file};

use stfs::catalog::{Extent, LocalFile};
use stfs::dtype::Dtype;
use stfs::view::{
    Arithmetic, Cast, Concat, Gathered, Narrow, Operand, Product, SharedView, Slice, StoredBytes,
    StridedLayout, Swap, View,
};

#[path = "common/clock.rs"]
mod clock;

use clock::{cpu, in_order, median};

/// Rows and columns of every matrix here.
const SIZE: u64 = 4096;
const ROUNDS: usize = 9;
/// Random reads of a round.
const PAGES: usize = 9;
/// Bytes that the reader requests at a time: as the kernel does for a reader in order.
const REQUEST: usize = 128 << 10;
const MIB: u64 = 1 << 20;

/// A name, and the view over a file.
type Case = (&'static str, fn(&Sources) -> SharedView);

#[rustfmt::skip]
const CASES: &[Case] = &[
    ("untouched BF16",                |s| s.bytes(0, 2)),
    ("half of axis 0",                |s| Arc::new(Slice::new(s.bytes(0, 2), 0, SIZE * SIZE))),
    ("quarter of axis 1",             |s| s.gathered(2, &[SIZE, SIZE / 4], &[SIZE, 1])),
    ("joined along axis 1",           |s| Arc::new(Concat::new(vec![s.bytes(0, 2), s.bytes(1, 2)], SIZE))),
    ("heads permuted (RoPE)",         |s| s.gathered(2, &[32, 64, 2, SIZE], &[128 * SIZE, SIZE, 64 * SIZE, 1])),
    ("transposed BF16",               |s| s.gathered(2, &[SIZE, SIZE], &[1, SIZE])),
    ("F32 as BF16",                   |s| Narrow::view(s.bytes(0, 4), Dtype::BF16).expect("casts")),
    ("F32 as F16",                    |s| Narrow::view(s.bytes(0, 4), Dtype::F16).expect("casts")),
    ("F32 as F8_E4M3",                |s| Narrow::view(s.bytes(0, 4), Dtype::F8_E4M3).expect("casts")),
    ("F32 as F8_E5M2",                |s| Narrow::view(s.bytes(0, 4), Dtype::F8_E5M2).expect("casts")),
    ("BF16 as F32",                   |s| s.values(0)),
    ("BF16 as F16",                   |s| Narrow::view(s.values(0), Dtype::F16).expect("casts")),
    ("BF16 + 1",                      |s| of(Arithmetic::Add, s.values(0), Operand::Number(1.0))),
    ("merge of two BF16, as F32",     |s| s.merged()),
    ("merge of two BF16, as BF16",    |s| Narrow::view(s.merged(), Dtype::BF16).expect("casts")),
    ("task vector, as F32",           |s| s.task_vector()),
    ("product of rank 16",            |s| s.product(16)),
    ("LoRA of rank 16, as F32",       |s| s.adapted(16)),
    ("LoRA of rank 16, as BF16",      |s| Narrow::view(s.adapted(16), Dtype::BF16).expect("casts")),
    ("LoRA of rank 64, as BF16",      |s| Narrow::view(s.adapted(64), Dtype::BF16).expect("casts")),
    ("LoRA of rank 256, as BF16",     |s| Narrow::view(s.adapted(256), Dtype::BF16).expect("casts")),
];

/// A tensor of a layer: its name behind the layer's, dtype, shape, and the byte that fills it.
type Part = (&'static str, D, [usize; 2], u8);

/// A layer of [`SIZE`] outputs and inputs, by name.
#[rustfmt::skip]
const LAYERS: &[(&str, &[Part])] = &[
    ("gptq", &[("qweight", D::I32, [512, 4096], 0x5A), ("qzeros", D::I32, [32, 512], 0x77), ("scales", D::F16, [32, 4096], 0x2C)]),
    ("fp8", &[("weight", D::F8_E4M3, [4096, 4096], 0x35), ("weight_scale", D::F32, [4096, 1], 0x3C)]),
    ("awq", &[("qweight", D::I32, [4096, 512], 0x5A), ("qzeros", D::I32, [32, 512], 0x77), ("scales", D::F16, [32, 4096], 0x2C)]),
];

/// Counts what is read.
struct Counting(SharedView, Arc<AtomicU64>);

impl View for Counting {
    fn len(&self) -> u64 {
        self.0.len()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> stfs::Result<()> {
        self.1.fetch_add(buf.len() as u64, Ordering::Relaxed);
        self.0.read_at(offset, buf)
    }
    fn will_need(&self, ranges: &[Range<u64>]) {
        self.0.will_need(ranges);
    }
}

/// A file with a few matrices.
struct Sources<'a> {
    path: &'a Path,
    /// Bytes that were read of it.
    read: Arc<AtomicU64>,
}

impl Sources<'_> {
    fn view(&self, offset: u64, len: u64) -> SharedView {
        let file = LocalFile::open(self.path).expect("opens");
        let stored = StoredBytes(Extent { file, offset, len });
        Arc::new(Counting(Arc::new(stored), self.read.clone()))
    }

    /// Matrix `index`, of elements of `width` bytes.
    fn bytes(&self, index: u64, width: u64) -> SharedView {
        self.view(index * SIZE * SIZE * width, SIZE * SIZE * width)
    }

    /// Matrix `index` of BF16, as F32.
    fn values(&self, index: u64) -> SharedView {
        Cast::view(self.bytes(index, 2), Dtype::BF16).expect("has values")
    }

    fn gathered(&self, element: u32, shape: &[u64], strides: &[u64]) -> SharedView {
        let layout = StridedLayout {
            element,
            shape: shape.into(),
            strides: strides.into(),
            swap: Swap::Nothing,
        };
        Arc::new(Gathered::new(self.bytes(0, element.into()), layout))
    }

    /// `0.6 * a + 0.4 * b`
    fn merged(&self) -> SharedView {
        let [a, b] = [(0, 0.6), (1, 0.4)].map(|(index, weight)| {
            of(
                Arithmetic::Multiply,
                self.values(index),
                Operand::Number(weight),
            )
        });
        of(Arithmetic::Add, a, Operand::Values(b))
    }

    /// `a + 0.7 * (b - a)`
    fn task_vector(&self) -> SharedView {
        let difference = of(
            Arithmetic::Subtract,
            self.values(1),
            Operand::Values(self.values(0)),
        );
        let scaled = of(Arithmetic::Multiply, difference, Operand::Number(0.7));
        of(Arithmetic::Add, self.values(0), Operand::Values(scaled))
    }

    /// `B @ A`, of factors in BF16.
    fn product(&self, rank: u64) -> SharedView {
        let factor = |at: u64| {
            let bytes = self.view(at, SIZE * rank * 2);
            Cast::view(bytes, Dtype::BF16).expect("has values")
        };
        let (b, a) = (factor(2 * SIZE * SIZE), factor(3 * SIZE * SIZE));
        Product::view(b, a, SIZE, rank, SIZE).expect("matrices that fit")
    }

    /// `W + 2 * (B @ A)`
    fn adapted(&self, rank: u64) -> SharedView {
        let scaled = of(
            Arithmetic::Multiply,
            self.product(rank),
            Operand::Number(2.0),
        );
        of(Arithmetic::Add, self.values(0), Operand::Values(scaled))
    }
}

fn of(op: Arithmetic, a: SharedView, b: Operand) -> SharedView {
    op.view(Operand::Values(a), b).expect("shapes that fit")
}

/// GB/s of a copy in memory.
fn copy(buf: &mut [u8], from: &[u8]) -> f64 {
    let start = cpu();
    for piece in from.chunks(buf.len()) {
        std::hint::black_box(&mut *buf)[..piece.len()].copy_from_slice(piece);
    }
    from.len() as f64 / (cpu() - start) / 1e9
}

/// Microseconds of a read of 4 KiB, of a view that was not read before.
fn page(view: &dyn View, i: usize) -> f64 {
    let mut buf = [0; 4096];
    let at = i as u64 * 7_368_787 % (view.len() / 4096) * 4096;
    let start = cpu();
    view.read_at(at, &mut buf).expect("reads");
    (cpu() - start) * 1e6
}

/// A line of the table.
fn measure((name, make): &Case, sources: &Sources<'_>, memory: &[u8]) {
    let mut buf = vec![0; REQUEST];
    let taken = || sources.read.swap(0, Ordering::Relaxed) as f64;
    let (mut speed, mut of_copy, mut source) = (vec![], vec![], vec![]);
    let (mut pages, mut of_page) = (vec![], vec![]);
    let len = make(sources).len();
    for round in 0..ROUNDS {
        let copied = copy(&mut buf, memory);
        taken();
        let this = in_order(&*make(sources), &mut buf);
        source.push(taken());
        speed.push(this);
        of_copy.push(this / copied);
        for i in 0..PAGES {
            pages.push(page(&*make(sources), PAGES * round + i));
            of_page.push(taken());
        }
    }
    println!(
        "{name:<30}{:>6}{:>8.2}{:>8.2}{:>9.2}{:>9.1} KiB{:>8.0} us",
        len / MIB,
        median(&mut speed),
        median(&mut of_copy),
        median(&mut source) / len as f64,
        median(&mut of_page) / 1024.0,
        median(&mut pages),
    );
}

/// A mount that is unmounted when it is dropped.
struct Mounted(PathBuf);

impl Mounted {
    fn new(model: &Path, mountpoint: PathBuf) -> Mounted {
        stfs(&["mount".as_ref(), model.as_ref(), mountpoint.as_ref()]);
        Mounted(mountpoint)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        stfs(&["umount".as_ref(), "--lazy".as_ref(), self.0.as_ref()]);
    }
}

fn stfs(args: &[&OsStr]) {
    let done = Command::new(env!("CARGO_BIN_EXE_stfs")).args(args).status();
    assert!(done.expect("stfs runs").success(), "stfs {args:?}");
}

/// Values in a second of one reading of a file that the kernel keeps nothing of.
fn through_mount(file: &Path, width: usize) -> f64 {
    let mut open = OpenOptions::new();
    let mut file = open
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(file)
        .expect("opens");
    // Aligned to a page, as O_DIRECT requires.
    let mut memory = vec![0u8; MIB as usize + 4096];
    let skip = memory.as_ptr().align_offset(4096);
    let buf = &mut memory[skip..][..MIB as usize];
    let (start, mut total) = (Instant::now(), 0);
    while let n @ 1.. = file.read(buf).expect("reads") {
        total += n;
    }
    total as f64 / width as f64 / start.elapsed().as_secs_f64()
}

/// Mounts a model of some layers, and reads their casts.
fn layers(dir: &Path, chosen: &[&(&str, &[Part])]) {
    let tensors: Vec<(String, D, [usize; 2], Vec<u8>)> = chosen
        .iter()
        .flat_map(|(layer, parts)| {
            parts.iter().map(move |(name, dtype, shape, byte)| {
                let len = shape[0] * shape[1] * dtype.bitsize() / 8;
                (format!("{layer}.{name}"), *dtype, *shape, vec![*byte; len])
            })
        })
        .collect();
    let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
        let view = TensorView::new(*dtype, shape.to_vec(), bytes);
        (name, view.expect("shape and bytes agree"))
    });
    let (model, mountpoint) = (dir.join("model"), dir.join("mnt"));
    std::fs::create_dir(&model).expect("a directory");
    serialize_to_file(views, None, &model.join("model.safetensors")).expect("writes");
    let _mounted = Mounted::new(&model, mountpoint.clone());
    println!(
        "\n{:<30}{:>16}{:>16}{:>10}",
        "through a mount", "f32", "bf16", "ratio"
    );
    for (layer, _) in chosen {
        let at = |view: &str| mountpoint.join(format!("tensors/{layer}.weight/{view}"));
        let (mut wide, mut narrow, mut ratio) = (vec![], vec![], vec![]);
        for _ in 0..ROUNDS {
            let of_f32 = through_mount(&at("f32"), 4);
            let of_bf16 = through_mount(&at("bf16"), 2);
            wide.push(of_f32 / 1e9);
            narrow.push(of_bf16 / 1e9);
            ratio.push(of_bf16 / of_f32);
        }
        let [wide, narrow, ratio] = [wide, narrow, ratio].map(|mut all| median(&mut all));
        println!("{layer:<30}{wide:>8.2} G val/s{narrow:>8.2} G val/s{ratio:>10.2}");
    }
}

fn main() {
    let wanted: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| !a.starts_with('-'))
        .collect();
    let chosen = |name: &str| wanted.is_empty() || wanted.iter().any(|w| name.contains(w.as_str()));
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("storage");
    // Each four bytes are two BF16 near 1, and an F32 near 1.
    let words = (0..SIZE * SIZE).flat_map(|i| {
        let noise = i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
        [
            noise as u8,
            0x3F ^ (noise >> 16) as u8 & 0x80,
            (noise >> 8) as u8,
            0x3F,
        ]
    });
    std::fs::write(&path, words.collect::<Vec<u8>>()).expect("writes");
    let sources = Sources {
        path: &path,
        read: Arc::default(),
    };
    let memory = vec![1u8; 64 << 20];
    println!(
        "{SIZE} x {SIZE}; medians of {ROUNDS} rounds; source: bytes read of files for a byte of the result"
    );
    println!(
        "{:<30}{:>6}{:>8}{:>8}{:>9}{:>24}",
        "", "MiB", "GB/s", "/copy", "source", "4 KiB at random"
    );
    for case in CASES.iter().filter(|case| chosen(case.0)) {
        measure(case, &sources, &memory);
    }
    let some: Vec<_> = LAYERS.iter().filter(|layer| chosen(layer.0)).collect();
    if !some.is_empty() {
        layers(dir.path(), &some);
    }
}
