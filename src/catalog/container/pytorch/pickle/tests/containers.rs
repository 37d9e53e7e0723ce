//! Mappings and lists, as the pickles of Python 2 and 3 fill them.

use super::meaning::pickle;
use super::*;

#[test]
fn mappings_of_pythons_2_and_3() {
    for (pickled, shown) in [
        (b"ccollections\nOrderedDict\n)R".as_slice(), "{}"),
        (b"ccollections\nOrderedDict\n]]K\x01aK\x02aa\x85R", "{1:2}"),
        (b"ccollections\nOrderedDict\n)RK\x01K\x02s", "{1:2}"),
        (
            b"ccollections\nOrderedDict\n)RK\x01K\x02s}K\x03K\x04sb",
            "{1:2}",
        ),
        (b"c__builtin__\ndict\n}K\x01K\x02s\x85R", "{1:2}"),
        (
            b"ccollections\ndefaultdict\ncmine\nf\n\x85RK\x01K\x02s",
            "{1:2}",
        ),
        (b"(ccollections\nOrderedDict\noK\x01K\x02s", "{1:2}"),
        (b"(icollections\nOrderedDict\nK\x01K\x02s", "{1:2}"),
        (b"}K\x01K\x02sK\x01K\x03s", "{1:2 1:3}"),
    ] {
        assert_eq!(value(&pickle(&[pickled])), shown);
    }
    // A copy: what is set in one is not in the other.
    let copies = b"(}q\0K\x01K\x02sc__builtin__\ndict\nh\0\x85RK\x03K\x04sh\0K\x05K\x06st";
    assert_eq!(value(&pickle(&[copies])), "({1:2 5:6} {1:2 3:4} {1:2 5:6})");
}

#[test]
fn a_list_that_grows_in_turns_with_another_keeps_its_order() {
    let mut pickled = b"(]q\0]q\x01".to_vec();
    for i in 0..100 {
        pickled.extend([
            b'0',
            b'0',
            b'h',
            0,
            b'K',
            i,
            b'a',
            b'h',
            1,
            b'K',
            100 + i,
            b'a',
        ]);
    }
    pickled.extend(b"t");
    let first: Vec<String> = (0..100).map(|i| i.to_string()).collect();
    let second: Vec<String> = (100..200).map(|i| i.to_string()).collect();
    let expected = format!("([{}] [{}])", first.join(" "), second.join(" "));
    assert_eq!(value(&pickle(&[&pickled])), expected);
}
