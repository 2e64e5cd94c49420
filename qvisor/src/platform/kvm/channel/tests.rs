//! The kernel's driver against this device, over real guest memory.
#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use proptest::prelude::*;
use qlib::channel::{CALL_SLOTS, Driver, Hypercall, Params, Port};
use qlib::host::Op;
use qlib::phys::PhysMap;
use qlib::platform::{EVENT_CONTROL, EVENT_READY, EVENT_SPACE_GONE, EVENT_TIMER};

use super::*;
use crate::sandbox::memory::{Layout, RAM_UNIT};

const LAYOUT: ChannelLayout = ChannelLayout { start: Gpa(8 * PAGE_SIZE) };

fn memory() -> (Arc<GuestMemory>, PhysMap) {
    let memory =
        GuestMemory::new(Layout { base: None, ram_bytes: RAM_UNIT, window_bytes: 0 }).unwrap();
    // SAFETY: RAM is mapped there as long as `memory` lives, which the tests keep to their end;
    // they use it through the map only.
    let phys = unsafe { PhysMap::new(memory.base() as usize, memory.ram_bytes()) };
    (Arc::new(memory), phys)
}

/// What hypercalls there were.
#[derive(Default)]
struct Log {
    made: Cell<u32>,
    made_for_events: Cell<u32>,
    served: RefCell<Vec<HostCall>>,
    /// Interrupts that were asked for while the guest rang.
    interrupts: Cell<u32>,
}

#[derive(Clone)]
struct Hypercalls {
    channel: Arc<Channel>,
    log: Rc<Log>,
}

fn bump(counter: &Cell<u32>) {
    counter.set(counter.get() + 1);
}

impl Hypercall for Hypercalls {
    fn make(&mut self, port: Port) {
        let wants = match port {
            Port::Call => {
                bump(&self.log.made);
                let handler = |call: &mut HostCall| {
                    self.log.served.borrow_mut().push(*call);
                    call.ret = i64::from(call.handle) * 3;
                    call.args[1] += 1;
                };
                self.channel.serve(&handler).unwrap();
                false
            }
            Port::Event => {
                bump(&self.log.made_for_events);
                self.channel.flush_events().unwrap()
            }
            other => panic!("{other:?}"),
        };
        self.log.interrupts.set(self.log.interrupts.get() + u32::from(wants));
    }

    fn wait(&mut self) -> bool {
        false
    }
}

struct Fixture {
    channel: Arc<Channel>,
    driver: Driver<Hypercalls>,
    log: Rc<Log>,
    memory: Arc<GuestMemory>,
    phys: PhysMap,
}

fn fixture() -> Fixture {
    let (memory, phys) = memory();
    let channel = Arc::new(Channel::new(memory.clone(), LAYOUT).unwrap());
    let log = Rc::new(Log::default());
    let driver =
        Driver::new(phys, LAYOUT, Hypercalls { channel: channel.clone(), log: log.clone() });
    Fixture { channel, driver, log, memory, phys }
}

fn call(handle: u32) -> HostCall {
    HostCall {
        op: Op::Read as u32,
        handle,
        args: [1, 2, 3, 4, 5, u64::from(handle)],
        ..HostCall::default()
    }
}

fn ready(token: u64, mask: u64) -> Event {
    Event { kind: EVENT_READY, a: token, b: mask, ..Event::default() }
}

#[test]
fn many_calls_are_answered() {
    let mut f = fixture();
    // More than a ring index can count.
    for i in 0..70_000u32 {
        let mut c = HostCall { segs: Gpa(u64::from(i) << 12), seg_count: i, ..call(i) };
        f.driver.call(&mut c);
        assert_eq!((c.ret, c.args), (i64::from(i) * 3, [1, 3, 3, 4, 5, u64::from(i)]));
        let served = f.log.served.borrow_mut().pop().unwrap();
        assert_eq!(
            (served.op, served.handle, served.segs.0, served.seg_count),
            (5, i, u64::from(i) << 12, i)
        );
    }
    assert_eq!(f.log.made.get(), 70_000);
    assert_eq!(f.driver.outstanding(), 0);
}

#[test]
fn deferred_calls_are_made_in_order_and_slots_may_run_out() {
    let mut f = fixture();
    let mut given = Vec::new();
    for i in 0..5000u32 {
        given.push(i);
        match i % 97 {
            96 => f.driver.call(&mut call(i)),
            50 => {
                f.driver.defer(&call(i));
                f.driver.flush();
                assert_eq!(f.driver.outstanding(), 0);
            }
            _ => f.driver.defer(&call(i)),
        }
        assert!(f.driver.outstanding() <= u32::from(CALL_SLOTS));
    }
    f.driver.flush();
    assert_eq!(f.log.served.borrow().iter().map(|c| c.handle).collect::<Vec<_>>(), given);
    // 97 calls take 2 hypercalls for the one half, 2 for the other (by want of slots, and by
    // order).
    assert!(f.log.made.get() <= 5000 / 97 * 4 + 4, "{} hypercalls", f.log.made.get());
}

#[test]
fn a_burst_of_events_comes_whole_and_in_order_with_one_interrupt() {
    let mut f = fixture();
    let mut interrupts = 0;
    for round in 0..30u64 {
        let count = 1 + round * 37;
        for i in 0..count {
            let asked = f.channel.post(&ready(round << 32 | i, i)).unwrap();
            assert_eq!(asked, i == 0, "event {i} of round {round}");
            interrupts += u32::from(asked);
        }
        for i in 0..count {
            assert_eq!(
                f.driver.next_event(),
                Some(EventRecord { kind: EVENT_READY, a: round << 32 | i, b: i })
            );
        }
        assert_eq!(f.driver.next_event(), None);
    }
    assert_eq!((interrupts, f.log.interrupts.get()), (30, 0));
    // What did not fit came in half queues.
    let overflow: u64 = (0..30).map(|r| (1 + r * 37u64).saturating_sub(64).div_ceil(32)).sum();
    assert!(
        u64::from(f.log.made_for_events.get()) <= overflow + 2,
        "{} hypercalls",
        f.log.made_for_events.get()
    );
}

#[test]
fn what_waits_is_told_once() {
    let mut f = fixture();
    for i in 0..64 {
        f.channel.post(&ready(i, 1)).unwrap();
    }
    // No buffer is left: these are kept.
    for round in 0..10_000 {
        for (token, mask) in [(7, 1), (8, 4), (7, 16)] {
            assert!(!f.channel.post(&ready(token, mask)).unwrap(), "{round}");
        }
        f.channel.post(&Event { kind: EVENT_TIMER, ..Event::default() }).unwrap();
    }
    f.channel.post(&Event { kind: EVENT_CONTROL, a: 1, b: 2, ..Event::default() }).unwrap();
    f.channel.post(&Event { kind: EVENT_SPACE_GONE, a: 7, ..Event::default() }).unwrap();
    f.channel.post(&Event { kind: EVENT_SPACE_GONE, a: 8, ..Event::default() }).unwrap();
    let got: Vec<_> =
        std::iter::from_fn(|| f.driver.next_event()).skip(64).map(|e| (e.kind, e.a, e.b)).collect();
    let space = |a| (EVENT_SPACE_GONE, a, 0);
    let expected =
        [(EVENT_READY, 7, 17), (EVENT_READY, 8, 4), (EVENT_TIMER, 0, 0), (EVENT_CONTROL, 1, 2)];
    assert_eq!(got, [&expected[..], &[space(7), space(8)]].concat());
    // What was reported is: the next report is new.
    assert!(f.channel.post(&ready(7, 1)).unwrap());
    f.channel.post(&Event { kind: EVENT_TIMER, ..Event::default() }).unwrap();
    assert_eq!(f.driver.next_event().map(|e| e.b), Some(1));
    assert_eq!(f.driver.next_event().map(|e| e.kind), Some(EVENT_TIMER));
}

#[test]
fn events_come_before_the_kernel_is_there() {
    let (memory, phys) = memory();
    let channel = Arc::new(Channel::new(memory.clone(), LAYOUT).unwrap());
    assert!(!channel.post(&ready(1, 2)).unwrap(), "nobody is there to be interrupted");
    let mut driver =
        Driver::new(phys, LAYOUT, Hypercalls { channel: channel.clone(), log: Rc::default() });
    // A booting kernel may have offered its buffers after the device looked.
    assert!(channel.flush_events().unwrap());
    assert_eq!(driver.next_event(), Some(EventRecord { kind: EVENT_READY, a: 1, b: 2 }));
}

#[test]
fn a_guest_that_takes_no_events_ends() {
    let f = fixture();
    let mut posted = 0;
    let error = loop {
        match f.channel.post(&ready(posted, 1)) {
            Ok(_) => posted += 1,
            Err(e) => break e,
        }
    };
    assert_eq!(posted as usize, pending::MAX_PENDING + 64);
    assert_eq!(
        error.to_string(),
        format!("the guest kernel does not take its events: {} wait", pending::MAX_PENDING)
    );
}

#[test]
fn a_handler_may_post_and_calls_do_not_wait_for_each_other() {
    let mut f = fixture();
    f.driver.defer(&call(1));
    f.driver.defer(&call(2));
    let (first, second) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
    let served = std::thread::scope(|s| {
        let other = s.spawn(|| {
            first.wait();
            // While call 1 is being handled.
            let count = f.channel.serve(&|call| assert_eq!(call.handle, 2)).unwrap();
            second.wait();
            count
        });
        let handler = |call: &mut HostCall| {
            assert_eq!(call.handle, 1);
            f.channel.post(&ready(5, 1)).unwrap();
            first.wait();
            second.wait();
        };
        (f.channel.serve(&handler).unwrap(), other.join().unwrap())
    });
    assert_eq!(served, (1, 1));
    f.driver.flush();
    assert_eq!(f.driver.outstanding(), 0, "their order does not matter");
    assert_eq!(f.driver.next_event().map(|e| e.a), Some(5));
}

#[test]
fn events_posted_by_another_thread_are_not_lost() {
    let mut f = fixture();
    const COUNT: u64 = 200_000;
    let interrupted = std::sync::atomic::AtomicU32::new(0);
    std::thread::scope(|s| {
        let channel = f.channel.clone();
        let interrupted = &interrupted;
        s.spawn(move || {
            for i in 0..COUNT {
                if channel.post(&ready(i, 1)).unwrap() {
                    interrupted.fetch_add(1, Ordering::Release);
                    // Like an interrupt, this lets the other side look.
                    std::thread::sleep(std::time::Duration::from_micros(1));
                }
            }
        });
        let mut next = 0;
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        let mut seen = 0;
        while next < COUNT {
            while let Some(event) = f.driver.next_event() {
                assert_eq!(event.a, next);
                next += 1;
            }
            // Halted: without an interrupt it would sleep for ever.
            while next < COUNT
                && interrupted.load(Ordering::Acquire) + f.log.interrupts.get() == seen
            {
                assert!(std::time::Instant::now() < end, "asleep with {next} of {COUNT} events");
                std::thread::sleep(std::time::Duration::from_micros(1));
            }
            seen = interrupted.load(Ordering::Acquire) + f.log.interrupts.get();
        }
        assert_eq!(f.driver.next_event(), None);
    });
}

#[test]
fn parameters_are_those_of_the_vcpu() {
    let f = fixture();
    for vcpu in [0, 1, MAX_VCPUS - 1] {
        let params = Params::new(f.phys, LAYOUT, vcpu);
        (0..PARAMS).for_each(|i| params.set(i, u64::from(vcpu) << 8 | i as u64));
        assert_eq!(f.channel.params(vcpu).unwrap(), [0, 1, 2, 3].map(|i| u64::from(vcpu) << 8 | i));
        f.channel.set_result(vcpu, u64::MAX).unwrap();
        assert_eq!((params.get(0), params.get(1)), (u64::MAX, u64::from(vcpu) << 8 | 1));
    }
    assert!(matches!(f.channel.params(MAX_VCPUS), Err(ChannelError::NoParams(MAX_VCPUS))));
}

#[test]
fn a_channel_lies_in_ram() {
    let (memory, _) = memory();
    for start in [0, 8, RAM_UNIT - CHANNEL_BYTES + PAGE_SIZE, RAM_UNIT, !0xfff] {
        let channel = Channel::new(memory.clone(), ChannelLayout { start: Gpa(start) });
        assert!(matches!(channel, Err(ChannelError::Place(at)) if at == start));
    }
    assert!(Channel::new(memory, ChannelLayout { start: Gpa(RAM_UNIT - CHANNEL_BYTES) }).is_ok());
}

/// What `serve` says of a call whose descriptors were changed: descriptor, its words.
fn broken(changes: &[(u16, Gpa, u32, u16, u16)]) -> String {
    let mut f = fixture();
    f.driver.defer(&call(1));
    for (index, gpa, len, flags, next) in changes {
        let at = LAYOUT.descriptors(QUEUE_CALL) + 16 * u64::from(*index);
        let tail = u64::from(*len) | u64::from(*flags) << 32 | u64::from(*next) << 48;
        f.memory.write(at, &gpa.0.to_le_bytes()).unwrap();
        f.memory.write(at + 8, &tail.to_le_bytes()).unwrap();
    }
    let refused = f.channel.serve(&|_| panic!("a broken call was handled"));
    refused.expect_err("a broken chain").to_string()
}

#[test]
fn each_descriptor_is_checked() {
    let (slots, bytes) = LAYOUT.call_slots();
    let answer = slots + u64::from(REQUEST_BYTES);
    let says = |changes: &[_], what: &str| {
        let text = broken(changes);
        assert!(
            text.starts_with(
                "the guest kernel broke the host-call channel: call queue: descriptor "
            ),
            "{text}"
        );
        assert!(text.ends_with(what), "{text} is not: {what}");
    };
    says(&[(0, slots, REQUEST_BYTES, DESC_F_NEXT, 64)], "64: there is no such one");
    says(&[(0, slots, REQUEST_BYTES - 8, DESC_F_NEXT, 1)], "0: its length is wrong");
    says(&[(0, slots, u32::MAX, DESC_F_NEXT, 1)], "0: its length is wrong");
    says(&[(0, slots, REQUEST_BYTES, 0, 1)], "0: the chain is too short");
    says(&[(0, slots, REQUEST_BYTES, DESC_F_NEXT | DESC_F_WRITE, 1)], "0: its direction is wrong");
    says(
        &[(0, slots, REQUEST_BYTES, DESC_F_NEXT | 4, 1)],
        "0: it is indirect or has unknown flags",
    );
    // A loop.
    says(&[(0, slots, REQUEST_BYTES, DESC_F_NEXT, 0)], "0: its direction is wrong");
    says(&[(1, answer, ANSWER_BYTES, DESC_F_NEXT | DESC_F_WRITE, 0)], "1: the chain is too long");
    says(&[(1, answer, ANSWER_BYTES, 0, 0)], "1: its direction is wrong");
    for gpa in [
        Gpa(0),
        slots - 1,
        slots + (bytes - 8),
        Gpa(RAM_UNIT - 8),
        Gpa(RAM_UNIT),
        Gpa(u64::MAX - 8),
    ] {
        says(&[(0, gpa, REQUEST_BYTES, DESC_F_NEXT, 1)], "0: its buffer lies outside of the slots");
        says(&[(1, gpa, ANSWER_BYTES, DESC_F_WRITE, 0)], "1: its buffer lies outside of the slots");
    }
}

#[test]
fn an_index_beyond_the_ring_is_refused() {
    let f = fixture();
    f.memory.write(LAYOUT.avail_ring(QUEUE_CALL) + 2, &65u16.to_le_bytes()).unwrap();
    let error = f.channel.serve(&|_| panic!("a call that is none")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the guest kernel broke the host-call channel: call queue: invalid available ring index \
        (more \
        descriptors to process than queue size)"
    );
    f.memory.write(LAYOUT.avail_ring(QUEUE_EVENT) + 2, &200u16.to_le_bytes()).unwrap();
    assert!(f.channel.post(&ready(1, 1)).unwrap_err().to_string().contains("event queue"));
}

#[test]
fn a_guest_that_offers_for_ever_is_served_in_turns() {
    let f = fixture();
    let mut driver = f.driver;
    driver.defer(&call(1));
    let avail = LAYOUT.avail_ring(QUEUE_CALL);
    let next = Cell::new(1u16);
    // Another vCPU offers the same chain again and again.
    let handler = |_: &mut HostCall| {
        next.set(next.get().wrapping_add(1));
        f.memory.write(avail + 2, &next.get().to_le_bytes()).unwrap();
    };
    assert_eq!(f.channel.serve(&handler).unwrap(), u32::from(QUEUE_SIZE));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn a_hostile_guest_does_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..3000)) {
        hostile::run(&bytes);
    }

    /// All of the channel is noise.
    #[test]
    fn noise_does_no_harm(
        seed in any::<u64>(),
        rest in prop::collection::vec(prop::sample::select(vec![8u8, 10, 11, 200]), 0..40),
    ) {
        let mut bytes = vec![1, 0, 0, 0xff, 0x2f];
        bytes.extend(seed.to_le_bytes());
        bytes.extend(rest);
        hostile::run(&bytes);
    }
}
