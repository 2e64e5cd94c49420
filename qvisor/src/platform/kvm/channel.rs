//! qvisor's side of the host-call channel ([`qlib::channel`]): serves host calls that the kernel
//! offers on one virtqueue, and puts events into buffers that it offers on another.
//!
//! Every byte of the channel is hostile. Each descriptor is read once and must be exactly what the
//! driver makes of it: its length, its direction, its place among the slots, its place in the
//! chain; so nothing outside of the channel is read or written here. What does not fit ends the
//! sandbox ([`ChannelError`]), for a kernel that offers it has lost its mind.
//!
//! Any thread may call any function. No lock is held while a call is handled, so that calls of
//! several vCPUs do not wait for each other, and a handler may [`Channel::post`].
#![deny(unsafe_code)]

#[cfg(any(test, fuzzing))]
pub mod hostile;
mod pending;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use qlib::channel::{
    ANSWER_BYTES, CHANNEL_BYTES, ChannelLayout, DESC_F_NEXT, DESC_F_WRITE, EVENT_BYTES,
    EventRecord, MAX_VCPUS, PARAMS, QUEUE_CALL, QUEUE_EVENT, QUEUE_SIZE, REQUEST_BYTES,
    REQUEST_WORDS, answer_words, call_of,
};
use qlib::host::HostCall;
use qlib::platform::{EVENT_TRAP, Event};
use qlib::{Gpa, PAGE_SIZE};
use rustix::io::Errno;
use virtio_queue::desc::split::Descriptor;
use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use crate::sandbox::memory::{GuestMemory, MemoryError};
use crate::sys::ordered::{Mutex, place};
use pending::PendingEvents;

/// Why the channel cannot be used (any more). The sandbox must end.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The place given for it is none.
    #[error("the channel cannot lie at guest physical address {0:#x}: it takes whole pages of RAM")]
    Place(u64),
    /// Guest RAM cannot be described.
    #[error(transparent)]
    Ram(#[from] MemoryError),
    /// A ring makes no sense.
    #[error("the guest kernel broke the host-call channel: {queue} queue: {source}")]
    Ring {
        /// Which queue.
        queue: &'static str,
        /// What is wrong.
        source: virtio_queue::Error,
    },
    /// A descriptor is not what it should be.
    #[error(
        "the guest kernel broke the host-call channel: {queue} queue: descriptor {index}: {what}"
    )]
    Descriptor {
        /// Which queue.
        queue: &'static str,
        /// Which descriptor.
        index: u16,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The host has no memory for the channel.
    #[error("the channel's memory cannot be reached: {0}")]
    Memory(Errno),
    /// More events wait than a guest that takes them can have.
    #[error("the guest kernel does not take its events: {0} wait")]
    TooManyEvents(usize),
    /// Traps do not come through the channel.
    #[error("a trap was given to the channel")]
    Trap,
    /// A vCPU beyond [`MAX_VCPUS`].
    #[error("vCPU {0} has no parameter block")]
    NoParams(u32),
}

impl From<Errno> for ChannelError {
    fn from(errno: Errno) -> ChannelError {
        ChannelError::Memory(errno)
    }
}

/// The event queue, and what does not fit into it.
#[derive(Debug)]
struct Events {
    queue: Queue,
    pending: PendingEvents,
}

/// What a buffer of a queue must be.
struct Shape {
    name: &'static str,
    queue: u32,
    len: u32,
    flags: u16,
    /// Where it lies: start and length.
    area: (Gpa, u64),
}

/// The device.
#[derive(Debug)]
pub struct Channel {
    memory: Arc<GuestMemory>,
    /// `memory`'s RAM for virtio-queue.
    ram: GuestMemoryMmap<()>,
    layout: ChannelLayout,
    calls: Mutex<Queue, place::CallQueue>,
    events: Mutex<Events, place::EventQueue>,
}

const CALL: &str = "call";
const EVENT: &str = "event";

fn name(queue: u32) -> &'static str {
    if queue == QUEUE_CALL { CALL } else { EVENT }
}

fn ring_error(queue: u32) -> impl Fn(virtio_queue::Error) -> ChannelError {
    move |source| ChannelError::Ring { queue: name(queue), source }
}

fn make_queue(layout: ChannelLayout, number: u32) -> Result<Queue, virtio_queue::Error> {
    let mut queue = Queue::new(QUEUE_SIZE)?;
    queue.try_set_desc_table_address(GuestAddress(layout.descriptors(number).0))?;
    queue.try_set_avail_ring_address(GuestAddress(layout.avail_ring(number).0))?;
    queue.try_set_used_ring_address(GuestAddress(layout.used_ring(number).0))?;
    queue.set_event_idx(number == QUEUE_EVENT);
    queue.set_ready(true);
    Ok(queue)
}

/// The chain that the guest offered next: its first descriptor.
fn next_head(
    queue: &mut Queue,
    ram: &GuestMemoryMmap<()>,
) -> Result<Option<u16>, virtio_queue::Error> {
    Ok(queue.iter(ram)?.next().map(|chain| chain.head_index()))
}

impl Channel {
    /// A channel at `layout`, where the kernel has set up nothing yet and all bytes are zero.
    pub fn new(memory: Arc<GuestMemory>, layout: ChannelLayout) -> Result<Channel, ChannelError> {
        let start = layout.start;
        if !start.is_page_aligned()
            || start == Gpa(0)
            || memory.ram_slice(start, CHANNEL_BYTES).is_none()
        {
            return Err(ChannelError::Place(start.0));
        }
        let ram = memory.vm_memory()?;
        let calls = make_queue(layout, QUEUE_CALL).map_err(ring_error(QUEUE_CALL))?;
        let queue = make_queue(layout, QUEUE_EVENT).map_err(ring_error(QUEUE_EVENT))?;
        let events = Events { queue, pending: PendingEvents::default() };
        Ok(Channel { memory, ram, layout, calls: Mutex::new(calls), events: Mutex::new(events) })
    }

    /// Handles every call that is offered, at most [`QUEUE_SIZE`] of them; how many. For
    /// [`qlib::channel::Port::Call`].
    pub fn serve(&self, handler: &dyn Fn(&mut HostCall)) -> Result<u32, ChannelError> {
        let mut served = 0;
        while served < u32::from(QUEUE_SIZE) {
            // The guard is gone before the call is handled.
            let head =
                next_head(&mut self.calls.lock(), &self.ram).map_err(ring_error(QUEUE_CALL))?;
            let Some(head) = head else { break };
            let area = self.layout.call_slots();
            let shape = Shape {
                name: CALL,
                queue: QUEUE_CALL,
                len: REQUEST_BYTES,
                flags: DESC_F_NEXT,
                area,
            };
            let (request, next) = self.buffer(head, &shape)?;
            let (answer, _) =
                self.buffer(next, &Shape { len: ANSWER_BYTES, flags: DESC_F_WRITE, ..shape })?;

            let mut call = call_of(self.read_words::<REQUEST_WORDS>(request)?);
            handler(&mut call);
            self.write_words(answer, &answer_words(&call))?;
            let used = self.calls.lock().add_used(&self.ram, head, ANSWER_BYTES);
            used.map_err(ring_error(QUEUE_CALL))?;
            served += 1;
        }
        Ok(served)
    }

    /// Gives an event (but no trap) to the kernel, or keeps it until there is a buffer for it:
    /// readiness of one object is one event then. True if the kernel must be interrupted.
    pub fn post(&self, event: &Event) -> Result<bool, ChannelError> {
        if event.kind == EVENT_TRAP {
            return Err(ChannelError::Trap);
        }
        let mut events = self.events.lock();
        let record = EventRecord { kind: event.kind, a: event.a, b: event.b };
        events.pending.add(record).map_err(ChannelError::TooManyEvents)?;
        self.hand_over(&mut events)
    }

    /// Gives events that were kept to the kernel, as far as there are buffers. True if it must be
    /// interrupted. For [`qlib::channel::Port::Event`].
    pub fn flush_events(&self) -> Result<bool, ChannelError> {
        self.hand_over(&mut self.events.lock())
    }

    /// The parameters that vCPU `vcpu` gives with its hypercall.
    pub fn params(&self, vcpu: u32) -> Result<[u64; PARAMS], ChannelError> {
        self.read_words(self.block(vcpu)?)
    }

    /// Sets word 0 of that vCPU's parameters, as the result of its hypercall.
    pub fn set_result(&self, vcpu: u32, value: u64) -> Result<(), ChannelError> {
        self.write_words(self.block(vcpu)?, &[value])
    }

    fn block(&self, vcpu: u32) -> Result<Gpa, ChannelError> {
        if vcpu < MAX_VCPUS {
            Ok(self.layout.params(vcpu))
        } else {
            Err(ChannelError::NoParams(vcpu))
        }
    }

    /// Descriptor `index`, if it has the shape: where its buffer lies, and the next descriptor.
    fn buffer(&self, index: u16, shape: &Shape) -> Result<(Gpa, u16), ChannelError> {
        let wrong = |what| Err(ChannelError::Descriptor { queue: shape.name, index, what });
        if index >= QUEUE_SIZE {
            return wrong("there is no such one");
        }
        let at = self.layout.descriptors(shape.queue)
            + size_of::<Descriptor>() as u64 * u64::from(index);
        let descriptor: Descriptor = match self.ram.read_obj(GuestAddress(at.0)) {
            Ok(descriptor) => descriptor,
            Err(_) => return wrong("it cannot be read"),
        };
        if descriptor.flags() != shape.flags {
            return wrong(match descriptor.flags() {
                f if f & !(DESC_F_NEXT | DESC_F_WRITE) != 0 => {
                    "it is indirect or has unknown flags"
                }
                f if f & DESC_F_WRITE != shape.flags & DESC_F_WRITE => "its direction is wrong",
                f if f & DESC_F_NEXT != 0 => "the chain is too long",
                _ => "the chain is too short",
            });
        }
        if descriptor.len() != shape.len {
            return wrong("its length is wrong");
        }
        let (gpa, (start, len)) = (descriptor.addr().0, shape.area);
        let inside = gpa
            .checked_sub(start.0)
            .and_then(|o| o.checked_add(u64::from(shape.len)))
            .is_some_and(|e| e <= len);
        if !inside {
            return wrong("its buffer lies outside of the slots");
        }
        Ok((Gpa(gpa), descriptor.next()))
    }

    fn read_words<const N: usize>(&self, gpa: Gpa) -> Result<[u64; N], ChannelError> {
        let mut words = [[0u8; 8]; N];
        self.memory.read(gpa, words.as_flattened_mut())?;
        Ok(words.map(u64::from_le_bytes))
    }

    fn write_words<const N: usize>(&self, gpa: Gpa, words: &[u64; N]) -> Result<(), ChannelError> {
        Ok(self.memory.write(gpa, words.map(u64::to_le_bytes).as_flattened())?)
    }

    /// Puts kept events into the buffers that the kernel offers; if that leaves some, asks it for a
    /// hypercall.
    fn hand_over(&self, events: &mut Events) -> Result<bool, ChannelError> {
        let error = ring_error(QUEUE_EVENT);
        let Events { queue, pending } = events;
        let area = self.layout.event_slots();
        let shape =
            Shape { name: EVENT, queue: QUEUE_EVENT, len: EVENT_BYTES, flags: DESC_F_WRITE, area };
        let mut handed_over = false;
        while let Some(record) = pending.first() {
            let Some(head) = next_head(queue, &self.ram).map_err(&error)? else {
                if self.ask_for_buffers(queue, pending.len())? {
                    continue;
                }
                break;
            };
            let (buffer, _) = self.buffer(head, &shape)?;
            self.write_words(buffer, &record.to_words())?;
            queue.add_used(&self.ram, head, EVENT_BYTES).map_err(&error)?;
            pending.take_first();
            handed_over = true;
        }
        Ok(handed_over && queue.needs_notification(&self.ram).map_err(&error)?)
    }

    /// Asks for a hypercall when the kernel has offered buffers for `events` events, but for not
    /// more than half the queue at once. `true` when it has offered some before it could know.
    fn ask_for_buffers(&self, queue: &mut Queue, events: usize) -> Result<bool, ChannelError> {
        let wanted = events.clamp(1, usize::from(QUEUE_SIZE / 2)) as u16;
        let at = queue.next_avail().wrapping_add(wanted - 1);
        let error = ring_error(QUEUE_EVENT);
        let place = GuestAddress(self.layout.avail_event(QUEUE_EVENT).0);
        let stored = self.ram.store(at.to_le(), place, Ordering::Relaxed);
        stored.map_err(|e| error(virtio_queue::Error::GuestMemory(e)))?;
        // Either the kernel sees this, or what it has offered is seen here.
        fence(Ordering::SeqCst);
        let offered = queue.avail_idx(&self.ram, Ordering::Acquire).map_err(&error)?;
        Ok(offered.0 != queue.next_avail())
    }
}

const _: () = assert!(CHANNEL_BYTES.is_multiple_of(PAGE_SIZE));
