//! The closed table of names: what a call of each means. Any other name means nothing and can do
//! nothing.

use std::collections::HashMap;
use std::sync::LazyLock;

use crate::catalog::container::pytorch::dtype::TorchDtype;

/// What a name means.
#[derive(Debug, Clone, Copy)]
pub(super) enum Meaning {
    /// A mapping: empty, or of the pairs in the argument at this place.
    Mapping(usize),
    Set,
    List,
    Tuple,
    Bytes,
    Complex,
    /// `_codecs.encode`: bytes, as Python 3 writes them in protocols 0 to 2.
    Encode,
    /// A class of storages; `None` if they are untyped.
    StorageClass(Option<&'static TorchDtype>),
    Dtype(&'static TorchDtype),
    /// A tensor.
    Tensor(Tensor),
    /// `f(args)` of the arguments f, class, args, state.
    FromType,
    /// `copyreg`'s functions: an object of the class that is the first argument.
    Construct,
    /// An inert object that is part of a tensor that is left out, or a class of tensors.
    Inert,
}

/// What a function makes a tensor of.
#[derive(Debug, Clone, Copy)]
pub(super) enum Tensor {
    /// A storage and strides, by the version of the function.
    Strided(u8),
    /// The first argument.
    First,
    /// The first argument, if the second is its dtype.
    Device,
    Sparse,
    Quantized,
    Nested,
    Meta,
    Wrapper,
    /// Data in a numpy array.
    Numpy,
}

/// A name of the table.
pub(super) struct Known {
    /// `module.name`.
    pub name: String,
    /// What it means.
    pub meaning: Meaning,
}

#[rustfmt::skip]
const FUNCTIONS: &[(&str, Meaning)] = &[
    ("collections.OrderedDict",                              Meaning::Mapping(0)),
    ("collections.Counter",                                  Meaning::Mapping(0)),
    ("collections.defaultdict",                              Meaning::Mapping(1)),
    ("builtins.dict",                                        Meaning::Mapping(0)),
    ("builtins.set",                                         Meaning::Set),
    ("builtins.frozenset",                                   Meaning::Set),
    ("builtins.list",                                        Meaning::List),
    ("builtins.tuple",                                       Meaning::Tuple),
    ("builtins.bytearray",                                   Meaning::Bytes),
    ("builtins.bytes",                                       Meaning::Bytes),
    ("builtins.complex",                                     Meaning::Complex),
    ("builtins.object",                                      Meaning::Inert),
    ("torch.Size",                                           Meaning::Tuple),
    ("_codecs.encode",                                       Meaning::Encode),
    ("copyreg._reconstructor",                               Meaning::Construct),
    ("copyreg.__newobj__",                                   Meaning::Construct),
    ("copyreg.__newobj_ex__",                                Meaning::Construct),
    ("torch.storage.UntypedStorage",                         Meaning::StorageClass(None)),
    ("torch.storage._UntypedStorage",                        Meaning::StorageClass(None)),
    ("torch.UntypedStorage",                                 Meaning::StorageClass(None)),
    ("torch._utils._rebuild_tensor",                         Meaning::Tensor(Tensor::Strided(1))),
    ("torch._utils._rebuild_tensor_v2",                      Meaning::Tensor(Tensor::Strided(2))),
    ("torch._utils._rebuild_tensor_v3",                      Meaning::Tensor(Tensor::Strided(3))),
    ("torch._utils._rebuild_parameter",                      Meaning::Tensor(Tensor::First)),
    ("torch._utils._rebuild_parameter_with_state",           Meaning::Tensor(Tensor::First)),
    ("torch.nn.parameter.Parameter",                         Meaning::Tensor(Tensor::First)),
    ("torch.nn.parameter.Buffer",                            Meaning::Tensor(Tensor::First)),
    ("torch._tensor._rebuild_from_type_v2",                  Meaning::FromType),
    ("torch._utils._rebuild_device_tensor_from_cpu_tensor",  Meaning::Tensor(Tensor::Device)),
    ("torch._utils._rebuild_sparse_tensor",                  Meaning::Tensor(Tensor::Sparse)),
    ("torch._utils._rebuild_qtensor",                        Meaning::Tensor(Tensor::Quantized)),
    ("torch._utils._rebuild_nested_tensor",                  Meaning::Tensor(Tensor::Nested)),
    ("torch._utils._rebuild_meta_tensor_no_storage",         Meaning::Tensor(Tensor::Meta)),
    ("torch._utils._rebuild_wrapper_subclass",               Meaning::Tensor(Tensor::Wrapper)),
    ("torch._utils._rebuild_device_tensor_from_numpy",       Meaning::Tensor(Tensor::Numpy)),
    ("torch._utils._rebuild_xla_tensor",                     Meaning::Tensor(Tensor::Numpy)),
    ("torch.Tensor",                                         Meaning::Inert),
    ("torch.serialization._get_layout",                      Meaning::Inert),
    ("torch.per_tensor_affine",                              Meaning::Inert),
    ("torch.per_tensor_symmetric",                           Meaning::Inert),
    ("torch.per_channel_affine",                             Meaning::Inert),
    ("torch.per_channel_symmetric",                          Meaning::Inert),
    ("torch.per_channel_affine_float_qparams",               Meaning::Inert),
];

/// The classes of tensors that are not noted.
pub(super) const TENSOR_CLASSES: [&str; 3] = [
    "torch.Tensor",
    "torch.nn.parameter.Parameter",
    "torch.nn.parameter.Buffer",
];

/// The table: the functions above, dtypes and storage classes.
static TABLE: LazyLock<Vec<Known>> = LazyLock::new(|| {
    let functions = FUNCTIONS.iter().map(|(name, meaning)| Known {
        name: (*name).into(),
        meaning: *meaning,
    });
    let dtypes = TorchDtype::all().flat_map(|dtype| {
        let classes = dtype.storage.into_iter().flat_map(move |class| {
            ["torch", "torch.cuda"].map(|module| Known {
                name: format!("{module}.{class}Storage"),
                meaning: Meaning::StorageClass(Some(dtype)),
            })
        });
        let itself = Known {
            name: format!("torch.{}", dtype.name),
            meaning: Meaning::Dtype(dtype),
        };
        classes.chain([itself])
    });
    functions.chain(dtypes).collect()
});

static PLACES: LazyLock<HashMap<&'static str, u16>> = LazyLock::new(|| {
    let places = TABLE.iter().zip(0..);
    places
        .map(|(known, place)| (known.name.as_str(), place))
        .collect()
});

/// The place of a name that is not in the table.
pub(super) const UNKNOWN: u16 = u16::MAX;

/// The place of a name in the table.
pub(super) fn find(name: &str) -> Option<u16> {
    PLACES.get(name).copied()
}

/// The name at a place of the table.
pub(super) fn at(place: u16) -> Option<&'static Known> {
    TABLE.get(usize::from(place))
}

/// Python 2's name of a module, as Python 3 calls it.
pub(super) fn module(module: &str) -> &str {
    match module {
        "__builtin__" => "builtins",
        "copy_reg" => "copyreg",
        other => other,
    }
}
