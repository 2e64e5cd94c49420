use super::*;

fn parse(text: &str) -> Result<Vec<Extent>> {
    Extent::parse(text.as_bytes())
}

#[test]
fn maps_are_read_line_by_line() {
    let two = [
        Extent { first: 0, lower: 1000, count: 1 },
        Extent { first: 1, lower: 100_000, count: 65_536 },
    ];
    assert_eq!(parse("0 1000 1\n 1   100000\t65536 \n").unwrap(), two);
    assert_eq!(parse("0 1000 1\n1 100000 65536").unwrap(), two);
    for bad in [
        "",
        "\n",
        "0",
        "0 0",
        "0 0 0",
        "0 0 1 1",
        "0 0 1\n\n1 1 1",
        "-1 0 1",
        "+0 0 1",
        "4294967295 0 1",
        "0 4294967295 1",
        "0 0 4294967296",
        "2 0 4294967295",
        // They overlap, inside or outside.
        "0 0 10\n9 20 1",
        "0 0 10\n20 9 1",
        "5 50 1\n0 0 10",
    ] {
        assert_eq!(parse(bad), Err(Errno::EINVAL), "{bad:?}");
    }
    let many = |n: u32| (0..n).map(|id| alloc::format!("{id} {id} 1\n")).collect::<String>();
    assert_eq!(parse(&many(340)).unwrap().len(), 340);
    assert_eq!(parse(&many(341)), Err(Errno::EINVAL));
}

#[test]
fn ids_lead_through_all_namespaces() {
    let outer = UserNs::default().within((1000, 1000), false).unwrap();
    assert_eq!((outer.uid_of(0), outer.uid_in(1000)), (Err(Errno::EINVAL), None));
    outer.set_map(Ids::Users, parse("0 1000 1\n1 5000 100").unwrap()).unwrap();
    let inner = outer.within((1000, 1000), false).unwrap();
    // Each range must lie in one of its parent's.
    assert_eq!(inner.set_map(Ids::Users, parse("0 0 2").unwrap()), Err(Errno::EPERM));
    assert_eq!(inner.set_map(Ids::Users, parse("7 101 1").unwrap()), Err(Errno::EPERM));
    inner.set_map(Ids::Users, parse("7 10 5").unwrap()).unwrap();
    assert_eq!(inner.set_map(Ids::Users, parse("1 1 1").unwrap()), Err(Errno::EPERM));
    assert_eq!((inner.uid_of(8), inner.uid_in(5010)), (Ok(5010), Some(8)));
    assert_eq!((inner.uid_of(6), inner.uid_in(1000)), (Err(Errno::EINVAL), None));
    assert!(outer.is_root(1000) && !outer.is_root(0) && !inner.is_root(1000));
    assert!(UserNs::default().is_root(0) && UserNs::default().uid_in(u32::MAX).is_none());
    assert!(outer.contains(&inner) && !inner.contains(&outer) && inner.contains(&inner));
    let line = |a: u32, b: u32, c: u32| alloc::format!("{a:10} {b:10} {c:10}\n");
    assert_eq!(inner.map_text(Ids::Users, &UserNs::default()), line(7, 5009, 5));
    assert_eq!(inner.map_text(Ids::Users, &inner), line(7, 10, 5));
    assert_eq!(outer.map_text(Ids::Users, &inner), line(0, u32::MAX, 1) + &line(1, u32::MAX, 100));
    let whole = UserNs::default();
    assert_eq!(whole.map_text(Ids::Groups, &whole), line(0, 0, u32::MAX));
}

#[test]
fn setgroups_is_refused_for_good_before_groups_are_mapped() {
    let outer = UserNs::default().within((1, 1), false).unwrap();
    assert!(!outer.allows_setgroups());
    outer.set_setgroups(true).unwrap();
    outer.set_setgroups(false).unwrap();
    assert_eq!(outer.set_setgroups(true), Err(Errno::EPERM));
    outer.set_map(Ids::Groups, parse("0 1 1").unwrap()).unwrap();
    assert!(outer.denies_setgroups() && !outer.allows_setgroups());
    assert!(outer.within((1, 1), false).unwrap().denies_setgroups());
    let other = UserNs::default().within((1, 1), false).unwrap();
    other.set_map(Ids::Groups, parse("0 1 1").unwrap()).unwrap();
    assert!(other.allows_setgroups());
    assert_eq!(other.set_setgroups(false), Err(Errno::EPERM));
}

#[test]
fn there_are_only_so_many_and_so_deep() {
    let first = UserNs::default().within((70, 70), false).unwrap();
    first.set_most(2);
    let one = first.within((71, 1), false).unwrap();
    let two = first.within((71, 1), false).unwrap();
    assert!(first.within((71, 1), false).is_err());
    // Those in it count for who made it.
    assert!(one.within((5, 5), false).is_err());
    drop(two);
    let within = one.within((5, 5), false).unwrap();
    assert!(first.within((71, 1), false).is_err() && first.within((72, 1), false).is_ok());
    drop((one, within));
    assert!(first.made.lock().is_empty());
    first.set_most(100);
    let deepest = (1..MAX_LEVEL).fold(first, |at, _| at.within((70, 70), false).unwrap());
    assert!(deepest.within((70, 70), false).is_err());
}
