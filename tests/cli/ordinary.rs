//! Users that are not root: they mount through fusermount3.

use crate::common::{ModelDir, Ran, T, tensor};
use crate::{as_root, small_model};

fn lines(ran: &Ran) -> Vec<&str> {
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{ran:?}");
    ran.out.lines().collect()
}

#[test]
fn mounts_reads_lists_and_unmounts() {
    let model = small_model();
    let ran = as_root(
        &model,
        r#"
        device 666
        cat > "$DIR/run" <<'END'
        set -eu
        test "$(id -u)" = 65534
        "$BIN/stfs" mount "$MODEL" "$DIR/m" > "$DIR/line"
        cut -c-20 "$DIR/line"
        wc -c < "$DIR/m/tensors/a.weight/raw"
        wc -c < "$DIR/m/tensors/a.weight/f32"
        findmnt -n -o FSTYPE,SOURCE "$DIR/m" | tr -s ' '
        "$BIN/stfs" mounts | grep -c " ok$"
        if touch "$DIR/m/x" 2> "$DIR/why"; then echo written; fi
        grep -o "Read-only file system" "$DIR/why"
        exec 3< "$DIR/m/model.json"
        "$BIN/stfs" umount "$DIR/m" 2>&1 | sed "s|$DIR/m|MOUNTPOINT|g" | grep -o "is in use.*umount --lazy"
        exec 3<&-
        "$BIN/stfs" umount "$DIR/m"
        ls "$DIR/m" | wc -l
        # What came to its end badly is unmounted, too, and mounted over.
        "$BIN/stfs" mount "$MODEL" "$DIR/m" > /dev/null
        pid=$(getfattr --absolute-names --only-values -n user.stfs.status "$DIR/m" | grep -o '"pid":[0-9]*' | cut -d: -f2)
        kill -9 $(cat /proc/$pid/task/$pid/children) && kill -9 $pid
        "$BIN/stfs" mount "$MODEL" "$DIR/m" 2>&1 > /dev/null | grep -o "stale stfs mount"
        pid=$(getfattr --absolute-names --only-values -n user.stfs.status "$DIR/m" | grep -o '"pid":[0-9]*' | cut -d: -f2)
        kill -9 $(cat /proc/$pid/task/$pid/children) && kill -9 $pid
        "$BIN/stfs" umount "$DIR/m"
        # A signal.
        "$BIN/stfs" mount "$MODEL" "$DIR/m" > /dev/null
        pid=$(getfattr --absolute-names --only-values -n user.stfs.status "$DIR/m" | grep -o '"pid":[0-9]*' | cut -d: -f2)
        kill "$pid"
        while kill -0 "$pid" 2> /dev/null && ! grep -q "^State:.*Z" "/proc/$pid/status" 2> /dev/null; do :; done
        ! mountpoint -q "$DIR/m" && echo unmounted
END
        nobody sh "$DIR/run"
        "#,
    );
    let source = format!("fuse.stfs {}", model.path().display());
    let in_use = "is in use; 'fuser -vm MOUNTPOINT' lists the processes, 'stfs umount --lazy";
    let want = [
        "stfs: 2 tensors, 35 ",
        "64",
        "128",
        &source,
        "1",
        "Read-only file system",
        in_use,
        "0",
        "stale stfs mount",
        "unmounted",
    ];
    assert_eq!(lines(&ran), want);
}

#[test]
fn a_path_with_commas_and_backslashes() {
    let model = small_model();
    let odd = model.join("a,b\\c d");
    std::fs::create_dir(&odd).unwrap();
    std::fs::rename(
        model.join("model.safetensors"),
        odd.join("model.safetensors"),
    )
    .unwrap();
    let ran = as_root(
        &model,
        r#"
        device 666
        nobody "$BIN/stfs" mount "$MODEL/a,b\\c d" "$DIR/m" > /dev/null
        nobody "$BIN/stfs" mounts --json | grep '"model".*a,b'
        nobody "$BIN/stfs" umount "$DIR/m"
        "#,
    );
    let want = format!("\"model\": {},", serde_json::json!(odd));
    // The mounts of tests beside this one are listed, too.
    assert!(lines(&ran).iter().any(|l| l.trim() == want), "{ran:?}");
}

#[test]
fn others_see_it_only_if_allowed() {
    let model = small_model();
    let ran = as_root(
        &model,
        r#"
        device 666
        : > "$DIR/fuse.conf"
        mount --bind "$DIR/fuse.conf" /etc/fuse.conf
        nobody "$BIN/stfs" mount "$MODEL" "$DIR/m" > /dev/null
        # Not even root, and stfs mounts reports what it can.
        cat "$DIR/m/model.json" > /dev/null 2> "$DIR/why" && echo seen
        grep -o "Permission denied" "$DIR/why"
        "$BIN/stfs" mounts | grep "$DIR/m" | awk '{print $3, $4, $5, $6}'
        "$BIN/stfs" umount "$DIR/m"
        if nobody "$BIN/stfs" mount --allow-other "$MODEL" "$DIR/m" 2> "$DIR/why"; then echo mounted; fi
        wc -l < "$DIR/why"
        grep -o "user_allow_other.*fuse.conf" "$DIR/why" | tail -1
        echo user_allow_other > "$DIR/fuse.conf"
        nobody "$BIN/stfs" mount --allow-other "$MODEL" "$DIR/m" > /dev/null
        setpriv --reuid=1234 --regid=1234 --clear-groups -- cat "$DIR/m/tensors/a.weight/raw" | wc -c
        nobody "$BIN/stfs" umount "$DIR/m"
        "#,
    );
    let got = lines(&ran);
    assert_eq!(got[..3], ["Permission denied", "- - - -", "1"], "{got:?}");
    assert!(got[3].starts_with("user_allow_other"), "{got:?}");
    assert_eq!(got[4..], ["64"], "{got:?}");
}

#[test]
fn permissions_of_the_source_count_under_allow_other() {
    let t = |n: &str| tensor(n, safetensors::Dtype::U8, &[7]);
    let all: [T; 2] = [t("open"), t("closed")];
    let model = ModelDir::sharded(&[("1.safetensors", &all[..1]), ("2.safetensors", &all[1..])]);
    let ran = as_root(
        &model,
        r#"
        chmod 644 "$MODEL"/*; chmod 600 "$MODEL/2.safetensors"
        "$BIN/stfs" mount --allow-other "$MODEL" "$DIR/m" > /dev/null
        nobody wc -c "$DIR/m/tensors/open/raw" | cut -d' ' -f1
        for f in tensors/closed/raw tensors/closed/f32 npy/closed.npy export/model.safetensors; do
            if nobody cat "$DIR/m/$f" > /dev/null 2> "$DIR/why"; then echo "read $f"; fi
            grep -o "Permission denied" "$DIR/why"
        done
        nobody ls "$DIR/m/tensors" | wc -l
        "$BIN/stfs" umount "$DIR/m"
        "#,
    );
    let denied = ["Permission denied"; 4];
    assert_eq!(lines(&ran), [&["7"][..], &denied, &["2"]].concat());
}
