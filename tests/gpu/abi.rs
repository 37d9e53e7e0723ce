//! The C header agrees with the Rust structs.

use std::mem::{align_of, offset_of, size_of};
use std::process::Command;

use stfs::dtype::Dtype;
use stfs::dtype::ElementType::Block;
use stfs::dtype::ggml::from_number;
use stfs::ioctl::{self, GpuDevice, GpuEntry, GpuIo};

macro_rules! layout {
    ($out:ident, $c:literal, $t:ty, [$($field:ident),* $(,)?]) => {
        $out.push((format!("sizeof(struct {})", $c), size_of::<$t>() as u64));
        $out.push((format!("_Alignof(struct {})", $c), align_of::<$t>() as u64));
        $($out.push((
            format!("offsetof(struct {}, {})", $c, stringify!($field)),
            offset_of!($t, $field) as u64,
        ));)*
    };
}

/// C expressions and the values that Rust gives them.
fn expected() -> Vec<(String, u64)> {
    let mut all = Vec::new();
    layout!(
        all,
        "stfs_gpu_io",
        GpuIo,
        [
            abi_size,
            abi_version,
            op_flags,
            rsvd0,
            device,
            timeout_ms,
            want_uuid,
            want_generation,
            rsvd_in,
            size,
            version,
            state,
            flags,
            generation,
            alloc_id,
            nbytes,
            done_bytes,
            base_offset,
            alloc_bytes,
            daemon_ptr,
            dev_uuid,
            device_ordinal,
            dtype,
            ndim,
            cu_error,
            shape,
            strides,
            handle_kind,
            handle_len,
            handle,
            leases,
            exporter_pid,
            rsvd_out,
        ]
    );
    layout!(
        all,
        "stfs_gpu_device",
        GpuDevice,
        [
            abi_size,
            abi_version,
            index,
            count,
            uuid,
            ordinal,
            flags,
            free,
            total,
            cap,
            name,
        ]
    );
    layout!(
        all,
        "stfs_gpu_entry",
        GpuEntry,
        [
            abi_size,
            abi_version,
            index,
            count,
            state,
            flags,
            leases,
            device_ordinal,
            nbytes,
            done_bytes,
            alloc_id,
            path,
        ]
    );
    let constants = [
        ("UPLOAD", ioctl::UPLOAD),
        ("QUERY", ioctl::QUERY),
        ("RELEASE", ioctl::RELEASE),
        ("DEVICES", ioctl::DEVICES),
        ("LIST", ioctl::LIST),
        ("ABI_VERSION", ioctl::ABI_VERSION),
        ("EVICT", ioctl::EVICT),
        ("AUTO_FREE", ioctl::AUTO_FREE),
        ("PIN", ioctl::PIN),
        ("ABSENT", ioctl::ABSENT),
        ("LOADING", ioctl::LOADING),
        ("RESIDENT", ioctl::RESIDENT),
        ("FAILED", ioctl::FAILED),
        ("HANDLE_NONE", ioctl::HANDLE_NONE),
        ("HANDLE_CUDA_IPC", ioctl::HANDLE_CUDA_IPC),
        ("HANDLE_VMM_FD", ioctl::HANDLE_VMM_FD),
        ("DEVICE_CAN_EXPORT", ioctl::DEVICE_CAN_EXPORT),
    ];
    for (name, value) in constants {
        all.push((format!("STFS_GPU_{name}"), value.into()));
    }
    all.push(("STFS_DTYPE_BYTES".into(), 0));
    for dtype in Dtype::all() {
        all.push((format!("STFS_DTYPE_{}", dtype.name()), dtype as u64));
    }
    for number in (0..64).filter(|&number| matches!(from_number(number), Some(Block(_)))) {
        let abi = from_number(number).unwrap().abi();
        all.push((format!("STFS_DTYPE_GGML + {number}"), abi.into()));
    }
    all
}

#[test]
fn the_c_header_agrees_with_rust() {
    let expected = expected();
    let checks: String = expected
        .iter()
        .map(|(expression, _)| {
            format!(
                "  printf(\"%s %llu\\n\", \"{expression}\", (unsigned long long)({expression}));\n"
            )
        })
        .collect();
    let program = format!(
        "#include <stdio.h>\n#include <stddef.h>\n#include \"stfs.h\"\nint main(void) {{\n{checks}  return 0;\n}}\n"
    );
    let dir = tempfile::tempdir().unwrap();
    let (source, binary) = (dir.path().join("abi.c"), dir.path().join("abi"));
    std::fs::write(&source, program).unwrap();
    let compiled = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-I"])
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/include"))
        .arg("-o")
        .arg(&binary)
        .arg(&source)
        .output()
        .expect("NO C COMPILER: this test needs 'cc' (apt install gcc), and must not be skipped");
    let errors = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "{errors}");
    let output = Command::new(&binary).output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let told: Vec<(String, u64)> = printed
        .lines()
        .map(|line| {
            let (expression, value) = line.rsplit_once(' ').unwrap();
            (expression.to_string(), value.parse().unwrap())
        })
        .collect();
    assert_eq!(told, expected);
}
