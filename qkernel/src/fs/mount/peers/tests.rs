use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::*;

/// Something that can be in a group.
struct One {
    id: u32,
    propagation: Mutex<Propagation<One>>,
}

impl One {
    fn new(id: u32) -> Arc<One> {
        Arc::new(One { id, propagation: Mutex::default() })
    }
}

impl Peer for One {
    fn id(&self) -> u32 {
        self.id
    }

    fn propagation(&self) -> &Mutex<Propagation<Self>> {
        &self.propagation
    }
}

/// A shared one, and `count` in its group.
fn shared(first: u32, count: u32) -> Vec<Arc<One>> {
    let all: Vec<_> = (first..first + count).map(One::new).collect();
    make_shared(&all[0]);
    all[1..].iter().for_each(|one| join(one, &*all[0]));
    all
}

/// Whether it is in a group, and the number of the one it receives from.
fn state(one: &One) -> (Option<u32>, Option<u32>) {
    (group_of(one).map(|g| g.id), master_of(one).map(|g| g.id))
}

fn members(group: &PeerGroup<One>) -> String {
    let (mut id, mut out) = (0, String::new());
    while let Some((next, _)) = group.member_after(id) {
        out += &format!("{next} ");
        id = next;
    }
    let mut id = 0;
    while let Some((next, _)) = group.slave_after(id) {
        out += &format!("<{next} ");
        id = next;
    }
    out
}

#[test]
fn slaves_receive_from_the_group_that_they_left() {
    let all = shared(1, 3);
    let group = group_of(&*all[0]).expect("shared");
    make_slave(&all[1]);
    assert_eq!(state(&all[1]), (None, Some(group.id)));
    assert_eq!(members(&group), "1 3 <2 ");
    // As a group of its own, it still receives.
    make_shared(&all[1]);
    let second = group_of(&*all[1]).expect("shared");
    assert_eq!(state(&all[1]), (Some(second.id), Some(group.id)));
    assert_eq!((members(&group), members(&second)), ("1 3 ".into(), "2 ".into()));
    assert_eq!(group.group_after(0).map(|(id, _)| id), Some(second.id));
    make_private(&all[1], true);
    assert!(matches!(&*all[1].propagation.lock(), Propagation::Unbindable));
    assert!(group.group_after(0).is_none());
}

#[test]
fn a_slave_of_nobody_is_private() {
    let one = One::new(1);
    make_slave(&one);
    assert_eq!(state(&one), (None, None));
    make_shared(&one);
    make_slave(&one);
    assert_eq!(state(&one), (None, None), "it was alone");
    make_private(&one, true);
    make_slave(&one);
    assert!(matches!(&*one.propagation.lock(), Propagation::Unbindable));
}

#[test]
fn slaves_of_a_group_that_ends_become_those_of_its_master() {
    let top = shared(1, 1);
    let middle = One::new(2);
    follow(&middle, &*top[0], true);
    let (slave, group) = (One::new(3), One::new(4));
    follow(&slave, &*middle, false);
    follow(&group, &*middle, true);
    let first = group_of(&*top[0]).expect("shared");
    assert_ne!(state(&slave).1, Some(first.id));
    // The last member of the group in the middle goes.
    make_private(&middle, false);
    assert_eq!(state(&slave), (None, Some(first.id)));
    assert_eq!(state(&group).1, Some(first.id));
    assert_eq!(members(&first), "1 <3 ");
    drop(top);
}

#[test]
fn the_last_member_hands_its_slaves_on_when_it_becomes_a_slave() {
    let top = shared(1, 1);
    let middle = One::new(2);
    follow(&middle, &*top[0], true);
    let slave = One::new(3);
    follow(&slave, &*middle, false);
    make_slave(&middle);
    let first = group_of(&*top[0]).expect("shared");
    assert_eq!(state(&middle), (None, Some(first.id)));
    assert_eq!(state(&slave), (None, Some(first.id)));
}

/// A chain of masters of this length, from the top, and slaves of the last.
fn chain(length: u32, slaves: u32) -> (Vec<Arc<One>>, Vec<Arc<One>>) {
    let mut chain = shared(1, 1);
    for id in 2..=length {
        let next = One::new(id);
        follow(&next, &*chain[id as usize - 2], true);
        chain.push(next);
    }
    let last = &chain[length as usize - 1];
    let slaves: Vec<_> = (0..slaves).map(|i| One::new(length + 1 + i)).collect();
    slaves.iter().for_each(|slave| follow(slave, &**last, false));
    (chain, slaves)
}

#[test]
fn long_chains_end_at_once_and_without_recursion() {
    const LONG: u32 = 20_000;
    for from_the_end in [false, true] {
        let (mut chain, slaves) = chain(LONG, LONG);
        let first = group_of(&*chain[0]).expect("shared");
        let stays = chain.remove(0);
        if from_the_end {
            chain.reverse();
        }
        make_all_private(chain.iter().cloned());
        assert!(chain.iter().all(|one| state(one) == (None, None)));
        assert!(slaves.iter().all(|one| state(one) == (None, Some(first.id))));
        make_all_private(core::iter::once(stays));
        assert!(slaves.iter().all(|one| state(one) == (None, None)));
    }
}

#[test]
fn what_is_dropped_is_in_no_list() {
    let all = shared(1, 2);
    let group = group_of(&*all[0]).expect("shared");
    let state = mem::take(&mut *all[1].propagation.lock());
    forget(all[1].id, state);
    assert_eq!(members(&group), "1 ");
}
