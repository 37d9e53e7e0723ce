//! What the names of the closed table mean, and that other names mean nothing.

use super::*;

/// A pickle of protocol 2 of these parts, which leave one value on the stack.
pub(super) fn pickle(parts: &[&[u8]]) -> Vec<u8> {
    [b"\x80\x02", parts.concat().as_slice(), b"."].concat()
}

/// A reference to a storage of four floats, as torch writes it.
const STORAGE: &[u8] = b"(U\x07storagectorch\nFloatStorage\nU\x010U\x03cpuK\x04tQ";
/// What follows it in the arguments of `_rebuild_tensor_v2`: offset, size, stride, two more.
const REST: &[u8] = b"K\x01K\x02K\x03\x86K\x03K\x01\x86\x89N";
const SHOWN: &str = "tensor:<storage:float32 '0' cpu 4> 1 (2 3) (3 1)";

fn shown() -> String {
    SHOWN.replace("'0'", "0")
}

/// A tensor of `_rebuild_tensor_v2`.
fn tensor() -> Vec<u8> {
    [
        b"ctorch._utils\n_rebuild_tensor_v2\n(".as_slice(),
        STORAGE,
        REST,
        b"tR",
    ]
    .concat()
}

#[test]
fn the_functions_of_torch_make_strided_tensors() {
    let strides: &[u8] = b"K\x01K\x02K\x03\x86K\x03K\x01\x86";
    for (function, rest, dtype) in [
        ("_rebuild_tensor", b"t".as_slice(), ""),
        ("_rebuild_tensor_v2", b"\x89Nt", ""),
        ("_rebuild_tensor_v2", b"\x89N}t", ""),
        ("_rebuild_tensor_v2", b"\x89N}U\x04conj\x89st", ""),
        ("_rebuild_tensor_v3", b"\x89Nctorch\nuint16\nt", " uint16"),
        ("_rebuild_tensor_v3", b"\x89Nctorch\nuint16\nNt", " uint16"),
    ] {
        let name = format!("ctorch._utils\n{function}\n(");
        let pickle = pickle(&[name.as_bytes(), STORAGE, strides, rest, b"R"]);
        assert_eq!(value(&pickle), shown() + dtype, "{function}");
    }
}

#[test]
fn parameters_are_their_data_and_a_class_is_noted() {
    let tensor = tensor();
    for function in [
        "torch._utils\n_rebuild_parameter",
        "torch._utils\n_rebuild_parameter_with_state",
        "torch.nn.parameter\nParameter",
        "torch.nn.parameter\nBuffer",
    ] {
        let name = format!("c{function}\n(");
        let pickle = pickle(&[name.as_bytes(), &tensor, b"\x88}tR"]);
        assert_eq!(value(&pickle), shown(), "{function}");
    }
    for (class, noted) in [
        ("torch\nTensor", ""),
        ("torch.nn.parameter\nParameter", ""),
        ("torch.nn.parameter\nBuffer", ""),
        ("mine\nMyTensor", " mine.MyTensor"),
    ] {
        let pickle = pickle(&[
            b"ctorch._tensor\n_rebuild_from_type_v2\n(ctorch._utils\n_rebuild_tensor_v2\nc",
            class.as_bytes(),
            b"\n(",
            STORAGE,
            REST,
            b"t}tR",
        ]);
        assert_eq!(value(&pickle), shown() + noted, "{class}");
    }
}

#[test]
fn a_devices_tensor_is_its_data_if_the_dtype_is_the_same() {
    let name: &[u8] = b"ctorch._utils\n_rebuild_device_tensor_from_cpu_tensor\n(";
    let same = pickle(&[name, &tensor(), b"ctorch\nfloat32\nU\x04xla:\x89tR"]);
    assert_eq!(value(&same), shown());
    let other = pickle(&[name, &tensor(), b"ctorch\nbfloat16\nU\x04xla:\x89tR"]);
    assert_eq!(
        value(&other),
        "left out: is stored as float32, but is torch.bfloat16 on its device"
    );
}

#[test]
fn tensors_that_are_left_out_have_a_reason() {
    let quantized: &[u8] = b"(U\x07storagectorch\nQUInt8Storage\nU\x010U\x03cpuK\x04tQK\x00K\x04\x85K\x01\x85(ctorch\nper_tensor_affine\nG?\xe0\0\0\0\0\0\0K\x03t\x89NtR";
    for (function, arguments, why) in [
        (
            "_rebuild_sparse_tensor",
            b"ctorch.serialization\n_get_layout\nU\x10torch.sparse_coo\x85RNtR".as_slice(),
            "is sparse (COO)",
        ),
        (
            "_rebuild_sparse_tensor",
            b"ctorch.serialization\n_get_layout\nU\x10torch.sparse_bsc\x85RNtR",
            "is sparse (BSC)",
        ),
        (
            "_rebuild_qtensor",
            quantized,
            "is quantized (torch.quint8, per_tensor_affine)",
        ),
        ("_rebuild_nested_tensor", b"NtR", "is nested"),
        (
            "_rebuild_meta_tensor_no_storage",
            b"ctorch\nfloat32\n)t)\x89tR",
            "",
        ),
        (
            "_rebuild_meta_tensor_no_storage",
            b"ctorch\nfloat32\n))\x89tR",
            "is on the meta device: has no data",
        ),
        (
            "_rebuild_wrapper_subclass",
            b"ctorch.distributed.tensor\nDTensor\nctorch\nfloat32\nNNNNN\x89tR",
            "is an object of the wrapper subclass torch.distributed.tensor.DTensor",
        ),
        (
            "_rebuild_xla_tensor",
            b"NNN\x89tR",
            "is a numpy array of another device's data",
        ),
    ] {
        if why.is_empty() {
            continue;
        }
        let name = format!("ctorch._utils\n{function}\n(");
        let pickle = pickle(&[name.as_bytes(), arguments]);
        assert_eq!(value(&pickle), format!("left out: {why}"), "{function}");
    }
    for (metadata, why) in [
        (
            b"}U\x04conj\x88s".as_slice(),
            "is lazily conjugated (metadata conj)",
        ),
        (b"}U\x03neg\x88s", "is lazily negated (metadata neg)"),
    ] {
        let name = b"ctorch._utils\n_rebuild_tensor_v2\n(";
        let pickle = pickle(&[name, STORAGE, REST, metadata, b"tR"]);
        assert_eq!(value(&pickle), format!("left out: {why}"));
    }
    let unknown = pickle(&[
        b"ctorch._utils\n_rebuild_tensor_v3\n(",
        STORAGE,
        REST,
        b"ctorch\nint4\ntR",
    ]);
    assert_eq!(
        value(&unknown),
        "left out: has the dtype torch.int4, which stfs does not know"
    );
}

#[test]
fn wrong_arguments_are_said_of_the_tensor() {
    for (arguments, problem) in [
        (
            b"t".as_slice(),
            "is rebuilt by _rebuild_tensor_v2 with 0 arguments, which takes 6 or 7",
        ),
        (
            b"NNNNNNNNt",
            "is rebuilt by _rebuild_tensor_v2 with 8 arguments, which takes 6 or 7",
        ),
        (b"]NNNNNt", "is rebuilt from a list, not from a storage"),
        (
            b"cmine\nThing\n)RNNNNNt",
            "is rebuilt from an object of the class mine.Thing, not from a storage",
        ),
    ] {
        let name = b"ctorch._utils\n_rebuild_tensor_v2\n(";
        let pickle = pickle(&[name, arguments, b"R"]);
        assert_eq!(value(&pickle), format!("malformed: {problem}"));
    }
    let parameter = pickle(&[b"ctorch._utils\n_rebuild_parameter\n)R"]);
    assert_eq!(value(&parameter), "malformed: is a parameter without data");
}

#[test]
fn persistent_ids_are_storages_or_classes() {
    for (id, shown) in [
        (
            b"(U\x07storagectorch\nHalfStorage\nX\x02\0\0\x0012U\x06cuda:0M\x00\x01tQ".as_slice(),
            "storage:float16 12 cuda:0 256",
        ),
        (
            b"(U\x07storagectorch.cuda\nByteStorage\nU\x010U\x03cpuK\x04tQ",
            "storage:uint8 0 cpu 4",
        ),
        (
            b"(U\x07storagectorch.storage\nUntypedStorage\nU\x010U\x03cpuK\x04tQ",
            "storage:untyped 0 cpu 4",
        ),
        (
            b"(U\x07storagectorch\nFloatStorage\nU\x010U\x03cpuK\x04NtQ",
            "storage:float32 0 cpu 4",
        ),
        (
            b"(U\x07storagectorch\nFloatStorage\nU\x010U\x03cpuK\x04(U\x019K\x01K\x02ttQ",
            "storage:float32 0 cpu 4 window 1 2",
        ),
        (
            b"(U\x06modulecmine\nNet\nU\x07mine.pyU\x03...tQ",
            "name:mine.Net",
        ),
    ] {
        assert_eq!(value(&pickle(&[id])), shown);
    }
    for (id, problem) in [
        (
            b"NQ".as_slice(),
            "has None as a persistent id, not a storage",
        ),
        (
            b"U\x010Q",
            "has the text '0' as a persistent id, not a storage",
        ),
        (
            b"(U\x05otherNtQ",
            "has a persistent id of the kind 'other', not a storage",
        ),
        (
            b"(U\x07storageNtQ",
            "has a persistent id of 2 parts that is not a storage",
        ),
        (
            b"(U\x07storagectorch\nFooStorage\nU\x010U\x03cpuK\x04tQ",
            "refers to a storage of the class torch.FooStorage, which PyTorch does not have",
        ),
        (
            b"(U\x07storagectorch\nFloatStorage\nK\x00U\x03cpuK\x04tQ",
            "refers to a storage whose key is 0",
        ),
        (
            b"(U\x07storagectorch\nFloatStorage\nU\x010U\x03cpuJ\xff\xff\xff\xfftQ",
            "refers to a storage whose number of elements is -1",
        ),
        (
            b"(U\x07storagectorch\nFloatStorage\nU\x010U\x03cpuK\x04U\x01xtQ",
            "refers to a storage whose window is the text 'x'",
        ),
    ] {
        let bytes = pickle(&[id]);
        let at = id.len() + 1;
        assert_eq!(
            problems(&bytes),
            [format!(
                "its pickle is damaged: BINPERSID at byte {at} of data.pkl {problem}"
            )]
        );
    }
}

#[test]
fn texts_that_many_tensors_may_share_are_short() {
    let text = |n: usize, of: &str| {
        let length = (n as u32).to_le_bytes();
        [b"X", length.as_slice(), of.repeat(n / of.len()).as_bytes()].concat()
    };
    let storage = |key: &[u8], location: &[u8]| {
        let class = b"(U\x07storagectorch\nFloatStorage\n";
        [class.as_slice(), key, location, b"K\x04tQ"].concat()
    };
    let (short, long) = (text(2, "ab"), text(60_000, "é"));
    let key = value(&pickle(&[&storage(&text(256, "k"), &short)]));
    assert_eq!(key, format!("storage:float32 {} ab 4", "k".repeat(256)));
    for n in [257, 70_000] {
        let found = problems(&pickle(&[&storage(&text(n, "k"), &short)]));
        let key = format!("refers to a storage whose key has {n} bytes, at most 256 are read");
        assert!(found.len() == 1 && found[0].ends_with(&key), "{found:?}");
    }
    let location = value(&pickle(&[&storage(&short, &long)]));
    assert_eq!(location, format!("storage:float32 ab {} 4", "é".repeat(80)));
    let class = pickle(&[
        b"ctorch._tensor\n_rebuild_from_type_v2\n(ctorch._utils\n_rebuild_tensor_v2\ncmine\n",
        &b"C".repeat(60_000),
        b"\n(",
        STORAGE,
        REST,
        b"t}tR",
    ]);
    let noted = format!("{} mine.{}", shown(), "C".repeat(75));
    assert_eq!(value(&class), noted);
    // The end of a long text is not looked for.
    let layout = pickle(&[
        b"ctorch._utils\n_rebuild_sparse_tensor\n(ctorch.serialization\n_get_layout\n",
        &text(60_000, "x_coo"),
        b"\x85RNtR",
    ]);
    assert_eq!(value(&layout), "left out: is sparse");
}

#[test]
fn any_other_name_is_an_inert_object() {
    for (pickled, shown) in [
        (b"cmine\nNet\n)R".as_slice(), "object:mine.Net"),
        (
            b"cmine\nNet\n)\x81}U\x01aK\x01sb",
            "object:mine.Net state {'61':1}",
        ),
        (
            b"cmine\nNet\nK\x01\x85}\x92",
            "object:mine.Net arguments (1)",
        ),
        (
            b"cmine\nQueue\n)R(K\x01K\x02e",
            "object:mine.Queue contents [1 2]",
        ),
        (b"cmine\nQueue\n)RK\x01a", "object:mine.Queue contents [1]"),
        (
            b"cmine\nQueue\n)R(K\x01K\x02u",
            "object:mine.Queue contents [1 2]",
        ),
        (
            b"cmine\nQueue\n)R(K\x01K\x02\x90",
            "object:mine.Queue contents [1 2]",
        ),
        (b"(imine\nNet\n", "object:mine.Net"),
        (b"(cmine\nNet\nK\x01o", "object:mine.Net arguments (1)"),
        (b"cmine\nmake\n)R)R", "object:mine.make"),
        (
            b"ccopy_reg\n_reconstructor\ncmine\nNet\nc__builtin__\nobject\nN\x87R",
            "object:mine.Net",
        ),
        (
            b"ccopy_reg\n__newobj__\ncmine\nNet\nK\x01\x86R",
            "object:mine.Net arguments (1)",
        ),
        (b"ctorch\nfloat32\n", "name:torch.float32"),
        (b"c__builtin__\nint\n", "name:builtins.int"),
        (b"\x8c\x04mine\x8c\x05Net.f\x93", "name:mine.Net.f"),
    ] {
        assert_eq!(value(&pickle(&[pickled])), shown);
    }
    let names = pickle(&[b"(cmine\nB\ncmine\nA\ncmine\nB\nctorch\nSize\nt"]);
    let names = run(&names);
    let names: Vec<&str> = names.unknown_names().collect();
    assert_eq!(names, ["mine.A", "mine.B"]);
}

#[test]
fn values_without_a_use_have_words() {
    for (pickled, words) in [
        (
            b"c_codecs\nencode\nU\x01aU\x06utf-16\x86R".as_slice(),
            "bytes",
        ),
        (b"c__builtin__\ncomplex\n)R", "a complex number"),
        (b"C\x01a", "bytes"),
    ] {
        let pickle = run(&pickle(&[pickled]));
        assert_eq!(pickle.describe(pickle.root().unwrap()), words);
    }
}
