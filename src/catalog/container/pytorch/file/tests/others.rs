use super::writer::Zip;
use super::*;
use crate::catalog::container::pytorch::file::detect::{self, Head, Other};
use crate::error::Location;

#[test]
fn archives_of_something_else_are_refused_as_what_they_are() {
    type Case<'a> = (&'a [(&'a str, &'a [u8])], Other, &'a [&'a str]);
    let cases: [Case; 8] = [
        (
            &[("m/data.pkl", b""), ("m/constants.pkl", b"")],
            Other::TorchScript,
            &[
                "TorchScript",
                "torch.save(torch.jit.load(F).state_dict(), G)",
            ],
        ),
        (
            &[("m/data.pkl", b""), ("m/code/x.py", b"")],
            Other::TorchScript,
            &["TorchScript"],
        ),
        (
            &[("m/archive_format", b"pt2")],
            Other::Export,
            &["torch.export"],
        ),
        (
            &[("m/models/model.json", b"{}")],
            Other::Export,
            &["torch.export"],
        ),
        (
            &[("m/.data/extern_modules", b"")],
            Other::Package,
            &["torch.package"],
        ),
        (&[("x.npy", b""), ("y.npy", b"")], Other::Npz, &[".npz"]),
        (
            &[("word/document.xml", b"")],
            Other::Zip,
            &["is a ZIP archive"],
        ),
        (
            &[("data.pkl", b"")],
            Other::Zip,
            &["no member is called NAME/data.pkl"],
        ),
    ];
    for (members, other, parts) in cases {
        let bytes = Zip::new(members).bytes();
        has(&refusal(&bytes), parts);
        assert_eq!(detect::other(&*object(&bytes)).unwrap(), Some(other));
        assert!(!detect::is_checkpoint(&*object(&bytes)).unwrap());
    }
    has(&refusal(&Zip::default().bytes()), &["is a ZIP archive"]);
}

#[test]
fn a_checkpoint_may_have_members_beside_its_own() {
    let beside = [
        ("n/code/x.py", &b""[..]),
        ("n/constants.pkl", b""),
        ("x.npy", b""),
    ];
    let bytes = Zip::checkpoint(&beside).bytes();
    assert_eq!(detect::other(&*object(&bytes)).unwrap(), None);
    assert!(open(&bytes).is_ok());
}

#[test]
fn the_first_bytes_decide() {
    let magic = b"\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19\x2e";
    let of = |parts: &[&[u8]]| Head::of(&parts.concat());
    assert_eq!(of(&[b"\x80\x02", magic]), Some(Head::Legacy));
    assert_eq!(of(&[b"\x80\x04\x95", &[0; 8], magic]), Some(Head::Legacy));
    assert_eq!(of(&[b"L119547037146038801333356L\n."]), Some(Head::Legacy));
    assert_eq!(of(&[b"\x80\x02}q\0."]), Some(Head::Pickle));
    assert_eq!(of(&[b"\x80\x05\x95", &[0; 8], b"}."]), Some(Head::Pickle));
    assert_eq!(of(&[b"cos\nsystem\n(S'x'\ntR."]), Some(Head::Pickle));
    assert_eq!(of(&[b"cats\ndogs\n and mice"]), None);
    assert_eq!(of(&[b"PK\x03\x04"]), Some(Head::Zip));
    assert_eq!(of(&[&[0; 257], b"ustar"]), Some(Head::Tar));
    // A safetensors file whose header has 640 bytes.
    assert_eq!(of(&[b"\x80\x02\0\0\0\0\0\0{\"a\""]), None);
    for other in [
        &b""[..],
        b"\x80",
        b"\x80\x02",
        b"GGUF",
        b"version https://git-lfs",
    ] {
        assert_eq!(Head::of(other), None);
    }
    assert!(Head::Legacy.may_be_checkpoint() && !Head::Pickle.may_be_checkpoint());
}

#[test]
fn other_files_are_named() {
    has(
        &refusal(b"\x80\x04\x95\x02\0\0\0\0\0\0\0}."),
        &["is a pickle, but not of torch.save"],
    );
    let tar = [&[b'x'; 257][..], b"ustar\0", &[0; 300]].concat();
    has(&refusal(&tar), &["is a tar archive"]);
    has(&refusal(b""), &["is empty"]);
    has(&refusal(b"<!DOCTYPE html><html>"), &["is an HTML page"]);
    has(
        &refusal(b"version https://git-lfs.github.com/spec/v1\nsize 12\n"),
        &["Git LFS pointer"],
    );
    has(
        &refusal(b"nothing of the kind"),
        &["is not a PyTorch checkpoint"],
    );
}

#[test]
fn hostile_pickles_of_other_files_come_first() {
    let script = [
        ("m/data.pkl", super::pickles::PAYLOAD),
        ("m/constants.pkl", b""),
    ];
    let plain = b"cos\nsystem\n(S'touch /tmp/x'\ntR.";
    for bytes in [&Zip::new(&script).bytes()[..], plain] {
        has(&refusal(bytes), &["is hostile", "touch /tmp/x"]);
    }
}

#[test]
fn a_distributed_checkpoint_is_a_directory_with_pieces() {
    let at = Location::from(std::path::Path::new("dir"));
    let error = detect::of_directory(&at, [".metadata", "__0_0.distcp"]).unwrap();
    has(&error.to_string(), &["dir: ", "dcp_to_torch DIR OUT.pt"]);
    assert!(detect::of_directory(&at, [".metadata", "x.pt"]).is_none());
}
