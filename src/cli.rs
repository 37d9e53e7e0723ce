//! Flags and help, without I/O. One definition feeds the parser, the help, the man page and the
//! completions.

use std::path::PathBuf;
use std::sync::LazyLock;

use clap::builder::PossibleValue;
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::gpu::Access;
use crate::layout::TensorFile;

/// A model's tensors, as files.
#[derive(Debug, Parser)]
#[command(
    name = "stfs",
    version,
    about,
    max_term_width = 100,
    propagate_version = true
)]
#[command(
    long_about = "Mounts a machine-learning model as a file system: every tensor is a directory with raw, f32 and meta.json, and has a .npy file under npy/. Nothing is converted or copied in advance: bytes come from the model's files when they are read."
)]
pub struct Cli {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Mount a model: every tensor a file
    Mount(MountArgs),
    /// Unmount a model, even if its daemon has died
    #[command(visible_alias = "unmount")]
    Umount(UmountArgs),
    /// List this machine's stfs mounts
    Mounts(MountsArgs),
    /// Show what a model is on one screen, without mounting
    Info(InfoArgs),
    /// List a model's tensors, without mounting
    Ls(LsArgs),
    /// Write a tensor to standard output, without mounting
    Cat(CatArgs),
    /// Show a picture of a tensor in the terminal, without mounting
    Show(TensorArgs),
    /// Print statistics of every weight, without mounting
    Stat(StatArgs),
    /// Check a model's files and quantized layers, and list every problem
    #[command(
        long_about = "Checks headers, indexes, manifests and quantized layers, and lists every problem with its file, not just the first. Exit status: 0 no problems, 1 problems found, 2 error (could not check)."
    )]
    Verify(VerifyArgs),
    /// Compare the weights of two models, without mounting
    #[command(
        long_about = "Compares the weights that a float model has: stored floats, and dequantized weights under the float weights' names. If dtypes or formats differ, weights are compared by value; a NaN equals a NaN. Exit status: 0 the same, 1 different, 2 error (could not compare)."
    )]
    Diff(DiffArgs),
    /// Load tensors into GPU memory that any process on this machine can use
    #[command(subcommand)]
    Gpu(GpuCommand),
    /// Print shell completions
    Completions(CompletionsArgs),
    /// Print the manual page
    Man,
}

/// The model, and how to open it.
#[derive(Debug, Clone, Args)]
pub struct ModelArgs {
    /// A model directory, a .safetensors or .gguf file, a PyTorch checkpoint (.bin, .pt, .pth, .ckpt; FILE#KEY.PATH for a part of it), an .index.json file, a manifest .json or its .bin, or a recipe (.toml)
    pub model: PathBuf,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub options: ModelFlags,
}

/// Flags of every command that opens a model.
#[derive(Debug, Clone, Default, Args)]
pub struct ModelFlags {
    /// Leave out fused, stacked, dequantized and tied tensors
    #[arg(long)]
    pub no_synthetic: bool,
    /// Serve the part of a download that has arrived
    #[arg(long)]
    pub allow_missing: bool,
    /// Give a parameter of a recipe another value: a number, or an expression (may be repeated)
    #[arg(long, value_name = "NAME=VALUE", value_parser = setting)]
    pub set: Vec<Setting>,
}

/// A parameter of a recipe, and the value that it is given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// The parameter's name.
    pub name: String,
    /// Its value, as it was given.
    pub value: String,
}

/// A setting as it is given: `NAME=VALUE`.
///
/// # Errors
/// It has another form.
pub fn setting(text: &str) -> Result<Setting, String> {
    match text.split_once('=') {
        Some((name, value)) if !name.trim().is_empty() && !value.trim().is_empty() => Ok(Setting {
            name: name.trim().into(),
            value: value.trim().into(),
        }),
        _ => Err(format!("'{text}' is not NAME=VALUE, as in rank=1")),
    }
}

/// Flags of `mount`.
#[derive(Debug, Clone, Args)]
pub struct MountArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub model: ModelArgs,
    /// Directory to mount on; created if it does not exist
    pub mountpoint: PathBuf,
    /// Stay in the foreground and log to standard error
    #[arg(short = 'f', long)]
    pub foreground: bool,
    /// Check the options without mounting (mount(8) -f)
    #[arg(long, hide = true)]
    pub fake: bool,
    /// Let other users see the mount (file permissions still count)
    #[arg(long)]
    pub allow_other: bool,
    /// Request threads; a read from a cold disk occupies one
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: u16,
    /// Who may load tensors into GPU memory: nobody, the mount's owner and root, everyone who can read the files
    #[arg(long, value_name = "off|owner|all", default_value_t)]
    pub gpu: Access,
    /// Keep at most this many bytes resident on each GPU (K, M, G: powers of 1024; 0: no limit)
    #[arg(long, value_name = "BYTES", value_parser = crate::text::parse_bytes)]
    pub gpu_limit: Option<u64>,
    /// Log to this file instead of syslog
    #[arg(long, value_name = "FILE")]
    pub log_file: Option<PathBuf>,
    /// Give up, once mounted, all that serving does not need: privileges, other files, programs, the network
    #[arg(long, value_name = "on|off", default_value = "on", action = clap::ArgAction::Set, value_parser = on_or_off)]
    pub sandbox: bool,
    /// Leave a core dump after a crash, and let debuggers attach; a dump holds weights
    #[arg(long)]
    pub core_dumps: bool,
    /// Log more
    #[arg(short, long)]
    pub verbose: bool,
    /// Options as mount(8) passes them: ro, allow_other, threads=N, no_synthetic, set=NAME=VALUE, sandbox=off, …
    #[arg(short = 'o', value_name = "OPTIONS", value_delimiter = ',')]
    pub options: Vec<String>,
}

/// A switch that is given as a word.
///
/// # Errors
/// It is another word.
pub fn on_or_off(word: &str) -> Result<bool, String> {
    match word {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("'{word}' is neither on nor off")),
    }
}

/// Flags of `umount`.
#[derive(Debug, Clone, Args)]
pub struct UmountArgs {
    /// The mountpoint, or a model that is mounted once
    pub mountpoint: PathBuf,
    /// Detach now, even if files are open; the mount ends when they are closed
    #[arg(short, long)]
    pub lazy: bool,
}

/// Flags of `mounts`.
#[derive(Debug, Clone, Args)]
pub struct MountsArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Flags of `info`.
#[derive(Debug, Clone, Args)]
pub struct InfoArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub model: ModelArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Flags of `ls`.
#[derive(Debug, Clone, Args)]
pub struct LsArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub model: ModelArgs,
    /// Only tensors whose names match; * matches dots and slashes too
    pub glob: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Nest at the dots, with parameters and bytes summed and identical layers folded
    #[arg(long, conflicts_with = "why")]
    pub tree: bool,
    /// List the tensors that do not exist although their parts suggest them, with the reason
    #[arg(long)]
    pub why: bool,
    /// List the rules of a recipe: line, number of matches, and what became of the first one
    #[arg(long, conflicts_with_all = ["why", "tree", "glob"])]
    pub rules: bool,
}

/// A tensor of a model: the flags of `show`.
#[derive(Debug, Clone, Args)]
pub struct TensorArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub model: ModelArgs,
    /// The tensor's name
    pub tensor: String,
}

/// Flags of `cat`.
#[derive(Debug, Clone, Args)]
pub struct CatArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub of: TensorArgs,
    /// Which view of the tensor to write
    #[arg(long, value_enum, default_value_t = ViewName(TensorFile::Raw))]
    pub view: ViewName,
}

/// A file of a tensor, by the name that `--view` has for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ViewName(pub TensorFile);

impl ValueEnum for ViewName {
    fn value_variants<'a>() -> &'a [Self] {
        static ALL: LazyLock<Vec<ViewName>> =
            LazyLock::new(|| TensorFile::all().map(|row| ViewName(row.file)).collect());
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let row = self.0.row();
        Some(PossibleValue::new(row.view_name).help(row.help))
    }
}

/// The commands of `gpu`.
#[derive(Debug, Subcommand)]
pub enum GpuCommand {
    /// Load tensors into GPU memory, where they stay until they are released
    Upload(GpuUploadArgs),
    /// Free GPU memory, unless another process holds a lease on it
    Release(GpuReleaseArgs),
    /// List what is in GPU memory
    Status(GpuStatusArgs),
}

/// Flags of `gpu upload`.
#[derive(Debug, Clone, Args)]
pub struct GpuUploadArgs {
    /// Files or directories in a mount: tensors/NAME, its raw or f32, an npy or export file, or
    /// tensors itself for the whole model in one piece
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// The GPU, as the driver numbers them; the first by default
    #[arg(long, value_name = "N", default_value_t = -1, hide_default_value = true, allow_negative_numbers = true)]
    pub device: i32,
    /// Never evict it for --gpu-limit (the mount's owner and root only)
    #[arg(long)]
    pub pin: bool,
}

/// Flags of `gpu release`.
#[derive(Debug, Clone, Args)]
pub struct GpuReleaseArgs {
    /// The paths that were given to upload
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Only on this GPU
    #[arg(long, value_name = "N")]
    pub device: Option<i32>,
}

/// Flags of `gpu status`.
#[derive(Debug, Clone, Args)]
pub struct GpuStatusArgs {
    /// The mountpoint, or anything in the mount
    pub mountpoint: PathBuf,
    /// List the GPUs instead (this starts CUDA in the mount's daemon)
    #[arg(long)]
    pub devices: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Flags of `stat`.
#[derive(Debug, Clone, Args)]
pub struct StatArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub model: ModelArgs,
    /// Only weights whose names match; * matches dots and slashes too
    pub glob: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Exit with 1 if any weight contains a NaN or an infinity (2: could not check)
    #[arg(long)]
    pub check: bool,
}

/// Flags of `verify`.
#[derive(Debug, Clone, Args)]
pub struct VerifyArgs {
    /// A model directory, a .safetensors or .gguf file, a PyTorch checkpoint (.bin, .pt, .pth, .ckpt; FILE#KEY.PATH for a part of it), an .index.json file, a manifest .json or its .bin, or a recipe (.toml)
    pub model: PathBuf,
    /// Give a parameter of a recipe another value: a number, or an expression (may be repeated)
    #[arg(long, value_name = "NAME=VALUE", value_parser = setting)]
    pub set: Vec<Setting>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Write the SHA-256 of every stored tensor to this file, or compare with it if it exists;
    /// 'sha256sum -c' reads it, with the mountpoint as working directory
    #[arg(long, value_name = "FILE")]
    pub checksum: Option<PathBuf>,
}

/// Flags of `diff`.
#[derive(Debug, Clone, Args)]
pub struct DiffArgs {
    /// The old model
    pub a: PathBuf,
    /// The new model
    pub b: PathBuf,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub options: ModelFlags,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Flags of `completions`.
#[derive(Debug, Clone, Args)]
pub struct CompletionsArgs {
    /// The shell
    pub shell: clap_complete::Shell,
}
