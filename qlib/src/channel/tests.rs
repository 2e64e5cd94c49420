//! The driver against a device that these tests play by hand, in order to break its promises.
//! Against the real one it is tested in qvisor.

use std::cell::RefCell;
use std::rc::Rc;
use std::vec::Vec;

use super::*;
use crate::host::Op;
use crate::phys::PhysMap;
use crate::phys::testing::TestRam;

const LAYOUT: ChannelLayout = ChannelLayout { start: Gpa(4 * PAGE_SIZE) };

/// A device that does as it is told.
#[derive(Default)]
struct Device {
    phys: Option<PhysMap>,
    made: Vec<Port>,
    waits_left: u32,
    used: u16,
    avail: u16,
    /// Answers all calls with their handle, when a hypercall is made.
    serves: bool,
    served: Vec<HostCall>,
}

impl Device {
    fn phys(&self) -> PhysMap {
        self.phys.unwrap()
    }

    fn put16(&self, gpa: Gpa, value: u16) {
        self.phys().write_bytes(gpa, &value.to_le_bytes()).unwrap();
    }

    fn get16(&self, gpa: Gpa) -> u16 {
        let mut bytes = [0; 2];
        self.phys().read_bytes(gpa, &mut bytes).unwrap();
        u16::from_le_bytes(bytes)
    }

    fn use_buffer(&mut self, queue: u32, head: u32, len: u32) {
        let ring = LAYOUT.used_ring(queue);
        let at = ring + 4 + 8 * u64::from(self.used % QUEUE_SIZE);
        self.phys().write_bytes(at, &head.to_le_bytes()).unwrap();
        self.phys().write_bytes(at + 4, &len.to_le_bytes()).unwrap();
        self.used = self.used.wrapping_add(1);
        self.put16(ring + 2, self.used);
    }

    fn descriptor(&self, queue: u32, index: u16) -> (Gpa, u32, u16, u16) {
        let at = LAYOUT.descriptors(queue) + 16 * u64::from(index);
        let tail = self.phys().read_u64(at + 8).unwrap();
        (
            Gpa(self.phys().read_u64(at).unwrap()),
            tail as u32,
            (tail >> 32) as u16,
            (tail >> 48) as u16,
        )
    }

    fn serve(&mut self) {
        let ring = LAYOUT.avail_ring(QUEUE_CALL);
        while self.avail != self.get16(ring + 2) {
            let head = self.get16(ring + 4 + 2 * u64::from(self.avail % QUEUE_SIZE));
            self.avail = self.avail.wrapping_add(1);
            let (request, len, flags, next) = self.descriptor(QUEUE_CALL, head);
            assert_eq!((len, flags), (REQUEST_BYTES, DESC_F_NEXT));
            let (answer, len, flags, _) = self.descriptor(QUEUE_CALL, next);
            assert_eq!((len, flags), (ANSWER_BYTES, DESC_F_WRITE));
            let words =
                core::array::from_fn(|i| self.phys().read_u64(request + 8 * i as u64).unwrap());
            let mut call = call_of(words);
            self.served.push(call);
            call.ret = i64::from(call.handle);
            call.args[5] = call.args[0] + 1;
            for (i, word) in answer_words(&call).into_iter().enumerate() {
                self.phys().write_u64(answer + 8 * i as u64, word).unwrap();
            }
            self.use_buffer(QUEUE_CALL, u32::from(head), ANSWER_BYTES);
        }
    }
}

#[derive(Clone)]
struct Hypercalls(Rc<RefCell<Device>>);

impl Hypercall for Hypercalls {
    fn make(&mut self, port: Port) {
        let mut device = self.0.borrow_mut();
        device.made.push(port);
        if device.serves {
            device.serve();
        }
    }

    fn wait(&mut self) -> bool {
        let mut device = self.0.borrow_mut();
        device.waits_left = device.waits_left.saturating_sub(1);
        device.waits_left > 0
    }
}

fn channel(serves: bool) -> (TestRam, Rc<RefCell<Device>>, Driver<Hypercalls>) {
    let ram = TestRam::new(16 * PAGE_SIZE);
    let device = Device { phys: Some(ram.map()), serves, ..Device::default() };
    let device = Rc::new(RefCell::new(device));
    let driver = Driver::new(ram.map(), LAYOUT, Hypercalls(device.clone()));
    (ram, device, driver)
}

fn call(op: Op, handle: u32) -> HostCall {
    let args = core::array::from_fn(|i| u64::from(handle) + i as u64);
    HostCall { op: op as u32, handle, args, segs: Gpa(0x1234), seg_count: 0, ret: -1 }
}

#[test]
fn ports_have_numbers_of_their_own() {
    for port in Port::ALL {
        assert_eq!(Port::from_u16(*port as u16), Some(*port));
    }
    assert_eq!(Port::from_u16(0x501), None);
}

#[test]
fn a_call_takes_its_answer() {
    let (_ram, device, mut driver) = channel(true);
    for i in 0..1000 {
        let mut c = HostCall { seg_count: i, ..call(Op::Read, i) };
        driver.call(&mut c);
        assert_eq!((c.ret, c.args[5]), (i64::from(i), u64::from(i) + 1));
        let served = device.borrow_mut().served.pop().unwrap();
        assert_eq!(
            (served.op, served.handle, served.segs, served.seg_count),
            (5, i, Gpa(0x1234), i)
        );
        assert_eq!(served.args, call(Op::Read, i).args);
    }
    assert_eq!(device.borrow().made.len(), 1000);
    assert_eq!(driver.outstanding(), 0);
}

#[test]
fn deferred_calls_ring_once_and_stay_in_order() {
    let (_ram, device, mut driver) = channel(true);
    driver.flush();
    assert!(device.borrow().made.is_empty(), "nothing is outstanding");
    for i in 0..5 {
        driver.defer(&call(Op::Close, i));
    }
    assert!(device.borrow().made.is_empty());
    driver.call(&mut call(Op::Open, 9));
    let handles = |d: &Device| d.served.iter().map(|c| c.handle).collect::<Vec<_>>();
    assert_eq!(handles(&device.borrow()), [0, 1, 2, 3, 4, 9]);
    assert_eq!((device.borrow().made.len(), driver.outstanding()), (1, 0));
    // More than there are slots for: it makes one by itself.
    for i in 0..100 {
        driver.defer(&call(Op::Close, i));
    }
    assert_eq!(device.borrow().made.len(), 1 + 3);
    driver.flush();
    driver.flush();
    assert_eq!((device.borrow().made.len(), driver.outstanding()), (1 + 4, 0));
    assert_eq!(handles(&device.borrow())[6..], (0..100).collect::<Vec<_>>());
}

#[test]
#[should_panic(expected = "the channel does not answer: 1 calls, the last of op 5")]
fn a_device_that_does_not_answer_is_no_hang() {
    let (_ram, device, mut driver) = channel(false);
    device.borrow_mut().waits_left = 3;
    driver.call(&mut call(Op::Read, 1));
}

#[test]
#[should_panic(expected = "the channel does not answer: 32 calls")]
fn slots_that_do_not_come_back_are_no_hang() {
    let (_ram, _device, mut driver) = channel(false);
    (0..33).for_each(|i| driver.defer(&call(Op::Close, i)));
}

#[test]
#[should_panic(expected = "call buffer 2, which it did not have")]
fn a_call_that_was_not_made_has_no_answer() {
    let (_ram, device, mut driver) = channel(false);
    driver.defer(&call(Op::Close, 1));
    device.borrow_mut().use_buffer(QUEUE_CALL, 2, ANSWER_BYTES);
    driver.flush();
}

#[test]
#[should_panic(expected = "wrote 0 bytes")]
fn an_answer_is_whole() {
    let (_ram, device, mut driver) = channel(false);
    driver.defer(&call(Op::Close, 1));
    device.borrow_mut().use_buffer(QUEUE_CALL, 0, 0);
    driver.flush();
}

#[test]
#[should_panic(expected = "has segments")]
fn a_call_with_segments_is_not_deferred() {
    let (_ram, _device, mut driver) = channel(true);
    driver.defer(&HostCall { seg_count: 1, ..call(Op::Write, 1) });
}

#[test]
fn events_are_taken_and_their_buffers_offered_again() {
    let (ram, device, mut driver) = channel(true);
    let avail = LAYOUT.avail_ring(QUEUE_EVENT);
    let used_event = avail + 4 + 2 * u64::from(QUEUE_SIZE);
    let used = |device: &Device| device.used;
    assert_eq!(device.borrow().get16(avail + 2), QUEUE_SIZE);
    assert_eq!(driver.next_event(), None);
    for round in 0..200u64 {
        let kind = round as u32;
        {
            let mut device = device.borrow_mut();
            assert_eq!(
                device.get16(used_event),
                used(&device),
                "an interrupt comes with the next event"
            );
            for i in 0..3 {
                let head = device.get16(avail + 4 + 2 * u64::from(device.used % QUEUE_SIZE));
                let (at, len, flags, _) = device.descriptor(QUEUE_EVENT, head);
                assert_eq!((len, flags), (EVENT_BYTES, DESC_F_WRITE));
                let record = EventRecord { kind, a: round, b: i };
                for (word, value) in record.to_words().into_iter().enumerate() {
                    ram.map().write_u64(at + 8 * word as u64, value).unwrap();
                }
                device.use_buffer(QUEUE_EVENT, u32::from(head), EVENT_BYTES);
            }
            if round == 100 {
                // The device waits for the second of these buffers.
                let next = device.get16(avail + 2).wrapping_add(1);
                device.put16(LAYOUT.avail_event(QUEUE_EVENT), next);
            }
        }
        assert!(driver.has_events());
        for b in 0..3 {
            assert_eq!(driver.next_event(), Some(EventRecord { kind, a: round, b }));
            let device = device.borrow();
            assert_eq!(
                device.get16(used_event),
                used(&device).wrapping_sub(3),
                "not while there are events to take"
            );
        }
        assert!(!driver.has_events());
        assert_eq!(driver.next_event(), None);
        assert_eq!(
            device.borrow().get16(avail + 2),
            used(&device.borrow()).wrapping_add(QUEUE_SIZE)
        );
        let made = device.borrow().made.clone();
        assert_eq!(made, if round < 100 { Vec::new() } else { [Port::Event].to_vec() });
    }
}

#[test]
fn parameters_of_vcpus_do_not_overlap() {
    let ram = TestRam::new(16 * PAGE_SIZE);
    let block = |vcpu| Params::new(ram.map(), LAYOUT, vcpu);
    for vcpu in 0..MAX_VCPUS {
        (0..PARAMS).for_each(|i| block(vcpu).set(i, u64::from(vcpu) * 10 + i as u64));
    }
    for vcpu in 0..MAX_VCPUS {
        (0..PARAMS).for_each(|i| assert_eq!(block(vcpu).get(i), u64::from(vcpu) * 10 + i as u64));
    }
    assert!(LAYOUT.params(MAX_VCPUS - 1).0 + 32 <= LAYOUT.start.0 + CHANNEL_BYTES);
}
