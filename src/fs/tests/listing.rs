//! What a listing waits for.

use super::*;

#[test]
fn a_listing_gives_what_it_has_and_waits_for_the_rest() {
    let m = mount();
    let fs = &m.fs;
    let list = |ino, from| at_once(|| fs.readdir(ino, from, true, Names::default()));
    let names = |n: &Names| n.all.iter().map(|e| e.1.clone()).collect::<Vec<_>>();
    let Answer::Ready((first, Ok(()))) = list(ROOT, 0) else {
        panic!("the dots are ready at once");
    };
    assert_eq!(names(&first), [".", ".."]);
    let rest = list(ROOT, 2);
    assert!(!is_ready(&rest));
    let (rest, listed) = rest.wait(fs);
    listed.unwrap();
    let want = [
        "model.json",
        "index.json",
        "tensors",
        "npy",
        "preview",
        "tree",
        "export",
        "files",
    ];
    assert_eq!(names(&rest), want);
    let positions: Vec<u64> = rest.all.iter().map(|e| e.0).collect();
    assert_eq!(positions, (3..11).collect::<Vec<_>>());
    let Answer::Ready((all, Ok(()))) = list(ROOT, 0) else {
        panic!("now it is known");
    };
    assert_eq!(names(&all)[2..], want);
    let tree = Node::Top(Top::Tree).ino();
    assert!(!is_ready(&list(tree, 2)));
    let (entries, listed) = list(tree, 2).wait(fs);
    listed.unwrap();
    assert!(!entries.all.is_empty() && is_ready(&list(tree, 2)));
    let file = m.ino(&["model.json"]);
    let refused = list(file, 0).wait(fs).1.unwrap_err();
    assert_eq!(refused.errno(), libc::ENOTDIR);
}

/// What makes a file may read a source that stalls.
#[test]
fn a_listing_generates_no_file() {
    let m = mount();
    let fs = &m.fs;
    let list = |dir: Top| fs.readdir(Node::Top(dir).ino(), 2, true, Names::default());
    // The first waits for the facts that the existence of files depends on.
    for (dir, known) in [
        (
            Top::Root,
            &["tensors", "npy", "preview", "tree", "export", "files"][..],
        ),
        (Top::Export, &[]),
    ] {
        let (entries, listed) = list(dir).wait(fs);
        listed.unwrap();
        assert_eq!(entries.known, known, "{dir:?}");
        assert!(entries.all.len() > known.len());
        let Answer::Ready((again, Ok(()))) = at_once(|| list(dir)) else {
            panic!("{dir:?} needs nothing more");
        };
        assert_eq!(again.all.len(), entries.all.len());
    }
    // A size that was asked for is known.
    m.ino(&["model.json"]);
    let (entries, _) = list(Top::Root).wait(fs);
    assert_eq!(entries.known[0], "model.json");
}
