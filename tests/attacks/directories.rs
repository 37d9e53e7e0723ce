//! Directories: missing, duplicate and irregular files, and where an index points.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use serde_json::json;
use stfs::catalog::{OpenOptions, check};

use crate::common::{Dir, good, open, refused, refused_files, shard};

const INDEX: &str = "model.safetensors.index.json";

fn index(map: serde_json::Value) -> Vec<u8> {
    json!({"metadata": {"total_size": 8}, "weight_map": map})
        .to_string()
        .into_bytes()
}

#[test]
fn directories_without_a_model_say_what_was_looked_for() {
    let looked = [
        "holds no model",
        "model.safetensors",
        "*.safetensors.index.json",
        "*.gguf",
        "<stem>.bin",
        "pytorch_model.bin",
        "*.ckpt",
    ];
    refused_files(&[], &looked);
    refused_files(&[("config.json", b"{}"), ("README.md", b"")], &looked);
    refused_files(&[("weights.bin", b"x")], &["weights.bin has no manifest"]);
    for name in ["pytorch_model.bin", "model.pt", "consolidated.00.pth"] {
        refused_files(&[(name, b"x")], &[name, "is not a PyTorch checkpoint"]);
    }
    let half = "model.safetensors.incomplete";
    refused_files(&[(half, b"x")], &[half, "incomplete download"]);
    let dir = Dir::new();
    refused(&dir.join("absent"), &["absent", "No such file"]);
    std::fs::create_dir(dir.join("unet")).unwrap();
    std::fs::write(dir.join("unet/model.safetensors"), good(&["a"])).unwrap();
    refused(dir.path(), &["unet", "mount one by its path"]);
}

#[test]
fn one_tensor_in_two_files_needs_an_index() {
    let files: [(&str, &[u8]); 2] = [
        ("a-00001.safetensors", &good(&["t", "u"])),
        ("a-00002.safetensors", &good(&["t"])),
    ];
    let said = [
        "'t'",
        "a-00001.safetensors",
        "a-00002.safetensors",
        "remove one",
    ];
    refused_files(&files, &said);
}

#[test]
fn problems_are_listed_in_the_same_order_in_every_run() {
    let names: Vec<String> = (0..40).map(|i| format!("t{i}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let shard = good(&names);
    let dir = Dir::of(&[("a.safetensors", &shard), ("b.safetensors", &shard)]);
    let first = stfs::catalog::check(dir.path()).unwrap();
    assert_eq!(first.len(), 40);
    for _ in 0..5 {
        assert_eq!(stfs::catalog::check(dir.path()).unwrap(), first);
    }
}

#[test]
fn an_index_names_plain_files_in_the_directory() {
    let passwd = [
        "../../etc/passwd",
        "/etc/passwd",
        "a/b.safetensors",
        "..",
        ".",
        "",
        "a\0b",
        "a\\b",
    ];
    for name in passwd {
        let index = index(json!({"t": name}));
        let said = [INDEX, "tensor 't'", "not a plain file name"];
        refused_files(&[(INDEX, &index)], &said);
    }
    let number = index(json!({"t": 7}));
    refused_files(
        &[(INDEX, &number)],
        &[INDEX, "tensor 't'", "not a file name"],
    );
}

#[test]
fn indexes_that_are_none() {
    refused_files(&[(INDEX, b"{")], &[INDEX, "not JSON"]);
    refused_files(&[(INDEX, b"")], &[INDEX, "not JSON"]);
    for text in ["{}", "[]", r#"{"weight_map":[]}"#] {
        refused_files(
            &[(INDEX, text.as_bytes())],
            &[INDEX, "no 'weight_map' object"],
        );
    }
    let pointer = b"version https://git-lfs.github.com/spec/v1\nsize 9\n";
    refused_files(&[(INDEX, pointer)], &[INDEX, "git lfs pull"]);
    let two: [(&str, &[u8]); 2] = [
        ("a.safetensors.index.json", b"{}"),
        ("b.safetensors.index.json", b"{}"),
    ];
    refused_files(
        &two,
        &[
            "several indexes",
            "a.safetensors.index.json",
            "b.safetensors.index.json",
        ],
    );
}

#[test]
fn shards_that_an_index_names_and_nobody_has() {
    let one = index(json!({"t": "s-1.safetensors", "u": "s-2.safetensors"}));
    let first = good(&["t"]);
    let files: [(&str, &[u8]); 2] = [(INDEX, &one), ("s-1.safetensors", &first)];
    let said = ["s-2.safetensors", "is missing", INDEX, "--allow-missing"];
    refused_files(&files, &said);
    let half: [(&str, &[u8]); 3] = [files[0], files[1], ("s-2.safetensors.incomplete", b"x")];
    refused_files(
        &half,
        &["s-2.safetensors", ".incomplete", "let the download finish"],
    );
    // The shard exists, but lacks the tensor or is cut short.
    let other = good(&["v"]);
    let wrong: [(&str, &[u8]); 3] = [files[0], files[1], ("s-2.safetensors", &other)];
    refused_files(&wrong, &["s-2.safetensors", "'u'", "different versions"]);
    let whole = good(&["u"]);
    let cut: [(&str, &[u8]); 3] = [
        files[0],
        files[1],
        ("s-2.safetensors", &whole[..whole.len() - 1]),
    ];
    refused_files(
        &cut,
        &[
            "s-2.safetensors",
            "tensor 'u'",
            "needs 4 bytes of data, has 3",
        ],
    );
    for files in [&files[..], &half, &wrong, &cut] {
        let dir = Dir::of(files);
        let catalog = open(
            dir.path(),
            OpenOptions {
                allow_missing: true,
            },
        )
        .unwrap();
        assert!(catalog.find("t").is_some() && catalog.find("u").is_none());
    }
}

/// What an interrupted hub download leaves before any weights have arrived.
#[test]
fn unfinished_downloads_are_called_so() {
    let said = ["download is unfinished", "hf download"];
    for (dir, half) in [
        ("model", "model/.cache/huggingface/download/x.incomplete"),
        ("models--o--n", "models--o--n/blobs/1234.incomplete"),
        (
            "models--o--n/snapshots/rev",
            "models--o--n/blobs/1234.incomplete",
        ),
    ] {
        let parent = Dir::new();
        let half = parent.join(half);
        std::fs::create_dir_all(parent.join(dir)).unwrap();
        refused(&parent.join(dir), &["holds no model"]);
        std::fs::create_dir_all(half.parent().unwrap()).unwrap();
        std::fs::write(&half, b"x").unwrap();
        refused(
            &parent.join(dir),
            &[&said[..], &["incomplete is there"]].concat(),
        );
        let index = index(json!({"t": "1.safetensors"}));
        std::fs::write(parent.join(dir).join(INDEX), index).unwrap();
        refused(&parent.join(dir), &[&said[..], &["1.safetensors"]].concat());
    }
    // A link whose blob is missing, opened through its directory and by its own path.
    let dir = Dir::new();
    let link = dir.join("model.safetensors");
    symlink("../../blobs/1234", &link).unwrap();
    for model in [dir.path(), &link] {
        refused(
            model,
            &[&said[..], &["a link to ../../blobs/1234"]].concat(),
        );
    }
}

/// On foreign disks, macOS writes such a file beside each file.
#[test]
fn resource_forks_are_no_shards() {
    let dir = Dir::of(&[
        ("weights.safetensors", &good(&["a"])),
        ("._weights.safetensors", b"\0\x05\x16\x07"),
        ("._model.safetensors.index.json", b"\0\x05\x16\x07"),
    ]);
    let catalog = open(dir.path(), OpenOptions::default()).unwrap();
    assert_eq!(catalog.files.len(), 1);
    assert!(check(dir.path()).unwrap().is_empty());
}

#[test]
fn names_that_stand_for_no_regular_file() {
    let dir = Dir::new();
    dir.fifo("model.safetensors");
    refused(dir.path(), &["model.safetensors", "not a regular file"]);
    refused(
        &dir.join("model.safetensors"),
        &["model.safetensors", "not a regular file"],
    );

    let dir = Dir::new();
    std::fs::create_dir(dir.join("model.safetensors")).unwrap();
    refused(dir.path(), &["holds no model"]);

    let dir = Dir::of(&[(INDEX, &index(json!({"t": "s.safetensors"})))]);
    std::fs::create_dir(dir.join("s.safetensors")).unwrap();
    refused(dir.path(), &["s.safetensors", "not a regular file"]);

    let dir = Dir::new();
    dir.fifo(INDEX);
    refused(dir.path(), &[INDEX, "not a regular file"]);

    let dir = Dir::new();
    symlink("/nowhere/at/all", dir.join("model.safetensors")).unwrap();
    refused(dir.path(), &["model.safetensors", "No such file"]);
    let dir = Dir::new();
    symlink("model.safetensors", dir.join("model.safetensors")).unwrap();
    refused(dir.path(), &["model.safetensors", "symbolic links"]);
    let dir = Dir::new();
    symlink("/dev/zero", dir.join("model.safetensors")).unwrap();
    refused(dir.path(), &["model.safetensors", "not a regular file"]);

    // A link to a shard is a shard: hub caches are made of them.
    let dir = Dir::of(&[("blob", &good(&["t"]))]);
    symlink("blob", dir.join("model.safetensors")).unwrap();
    assert!(
        open(dir.path(), OpenOptions::default())
            .unwrap()
            .find("t")
            .is_some()
    );
    // Configs that are not regular files count as absent.
    dir.fifo("config.json");
    assert!(
        open(dir.path(), OpenOptions::default())
            .unwrap()
            .configs
            .config
            .is_none()
    );
}

#[test]
fn hub_caches_whose_reference_leads_nowhere() {
    let cache = |reference: Option<&str>| {
        let dir = Dir::new();
        let root = dir.join("models--org--name");
        std::fs::create_dir_all(root.join("snapshots/abc")).unwrap();
        std::fs::create_dir_all(root.join("refs")).unwrap();
        if let Some(text) = reference {
            std::fs::write(root.join("refs/main"), text).unwrap();
        }
        (dir, root)
    };
    let (_dir, root) = cache(None);
    refused(&root, &["refs/main cannot be read", "snapshots/<revision>"]);
    for text in ["../../../etc", "..", "", "a/b", "/etc"] {
        let (_dir, root) = cache(Some(text));
        refused(&root, &["refs/main", "does not name a revision"]);
    }
    let (_dir, root) = cache(Some("def\n"));
    refused(
        &root,
        &[
            "revision def",
            "snapshots/def is missing",
            "download the model again",
        ],
    );
    let (_dir, root) = cache(Some("abc"));
    refused(&root, &["snapshots/abc", "holds no model"]);
}

#[test]
fn files_of_no_model() {
    let dir = Dir::of(&[
        ("a.json", b"{}"),
        ("b.txt", b"hello"),
        ("c.safetensors.incomplete", b"x"),
        ("d.index.json", b"{}"),
    ]);
    refused(&dir.join("a.json"), &["a.json", "neither", "manifest"]);
    refused(&dir.join("b.txt"), &["b.txt", "give a directory"]);
    refused(
        &dir.join("c.safetensors.incomplete"),
        &["incomplete download"],
    );
    refused(&dir.join("d.index.json"), &["d.index.json", "weight_map"]);
    dir.fifo("e.json");
    refused(&dir.join("e.json"), &["e.json", "not a regular file"]);
}

/// Runs `f` as a user that owns nothing, so that permissions apply even if root runs the tests.
fn as_nobody(f: impl FnOnce() + Send) {
    const NOBODY: libc::uid_t = 65534;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // SAFETY: it takes no pointers. The raw call, unlike libc's function, changes the
            // calling thread alone, and that thread ends with `f`.
            let changed = unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) };
            // SAFETY: it takes no pointers and cannot fail.
            let uid = unsafe { libc::geteuid() };
            assert!(changed == 0 || uid != 0, "root that cannot become nobody");
            f();
        });
    });
}

#[test]
fn what_may_not_be_read_is_said_so() {
    let dir = Dir::of(&[("s.safetensors", &good(&["t"]))]);
    let mode = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(dir.path(), 0o755);
    mode(&dir.join("s.safetensors"), 0);
    // In this thread, because a new one would be root again.
    let refused = |model: &Path, parts: &[&str]| {
        let error = stfs::catalog::Catalog::open(model, OpenOptions::default())
            .err()
            .unwrap();
        assert_eq!(error.errno(), libc::EACCES);
        for part in parts {
            assert!(error.to_string().contains(part), "no '{part}' in: {error}");
        }
    };
    as_nobody(|| refused(dir.path(), &["s.safetensors", "Permission denied"]));
    std::fs::create_dir(dir.join("closed")).unwrap();
    mode(&dir.join("closed"), 0);
    as_nobody(|| refused(&dir.join("closed"), &["closed", "Permission denied"]));
    mode(&dir.join("closed"), 0o755);
}

#[test]
fn a_shard_that_shrinks_after_it_was_opened_is_an_error_of_that_read() {
    use stfs::view::{StoredBytes, View};
    let header = r#"{"t":{"dtype":"U8","shape":[8192],"data_offsets":[0,8192]}}"#;
    let dir = Dir::of(&[("model.safetensors", &shard(header, 8192))]);
    let catalog = open(dir.path(), OpenOptions::default()).unwrap();
    let view = StoredBytes(catalog.extent(catalog.find("t").unwrap()).unwrap());
    let file = std::fs::File::options()
        .write(true)
        .open(dir.join("model.safetensors"))
        .unwrap();
    file.set_len(100).unwrap();
    let error = view.read_at(0, &mut [0; 8192]).unwrap_err();
    assert_eq!(error.errno(), libc::EIO);
    for part in ["model.safetensors", "truncated", "has 100"] {
        assert!(error.to_string().contains(part), "{error}");
    }
}
