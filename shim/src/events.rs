//! Events for containerd, over its ttrpc socket.

use std::time::{Duration, SystemTime};

use containerd_shim_protos::protobuf::well_known_types::any::Any;
use containerd_shim_protos::protobuf::well_known_types::timestamp::Timestamp;
use containerd_shim_protos::protobuf::{Message, MessageField};
use containerd_shim_protos::shim::event::Envelope;
use containerd_shim_protos::shim::events::ForwardRequest;
use containerd_shim_protos::shim_async::{Client, EventsClient};
use containerd_shim_protos::ttrpc::context::{Context, with_duration};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;

use crate::log;

/// How long containerd may take to accept an event.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// How often an event is tried: containerd may be starting anew. It asks for the state of
/// everything then, so one that is lost for good does no harm.
const TRIES: u32 = 5;

/// Publishes events in order.
pub struct Events {
    namespace: String,
    queue: UnboundedSender<Envelope>,
}

impl Events {
    /// A publisher to containerd's ttrpc socket, and the task that ends, when the publisher has
    /// gone, with the last event.
    pub fn new(address: String, namespace: &str) -> (Self, JoinHandle<()>) {
        let (queue, receiver) = unbounded_channel();
        let task = tokio::spawn(forward(address, namespace.to_owned(), receiver));
        (Self { namespace: namespace.to_owned(), queue }, task)
    }

    /// Publishes an event. `name` is its type, as in `containerd.events.TaskCreate`.
    pub fn publish(&self, topic: &str, name: &str, event: &impl Message) {
        let value = event.write_to_bytes().unwrap_or_default();
        let event = Any { type_url: format!("containerd.events.{name}"), value, ..Any::new() };
        let envelope = Envelope {
            timestamp: MessageField::some(now()),
            namespace: self.namespace.clone(),
            topic: topic.to_owned(),
            event: MessageField::some(event),
            ..Envelope::new()
        };
        self.queue.send(envelope).ok();
    }
}

/// Now.
pub fn now() -> Timestamp {
    SystemTime::now().into()
}

async fn forward(address: String, namespace: String, mut queue: UnboundedReceiver<Envelope>) {
    while let Some(first) = queue.recv().await {
        // The connection lives as long as there is something to say: an idle one costs memory.
        let mut client = None;
        let mut next = Some(first);
        while let Some(envelope) = next {
            deliver(&address, &namespace, &mut client, envelope).await;
            next = queue.try_recv().ok();
        }
    }
}

async fn deliver(
    address: &str,
    namespace: &str,
    client: &mut Option<EventsClient>,
    envelope: Envelope,
) {
    let topic = envelope.topic.clone();
    let request =
        ForwardRequest { envelope: MessageField::some(envelope), ..ForwardRequest::new() };
    let mut last = String::new();
    for attempt in 0..TRIES {
        if attempt > 0 {
            tokio::time::sleep(Duration::from_secs(attempt.into())).await;
        }
        if client.is_none() {
            let address = if address.contains("://") {
                address.to_owned()
            } else {
                format!("unix://{address}")
            };
            match Client::connect(&address).await {
                Ok(connected) => *client = Some(EventsClient::new(connected)),
                Err(e) => {
                    last = e.to_string();
                    continue;
                }
            }
        }
        if let Some(connected) = client {
            match connected.forward(context(namespace), &request).await {
                Ok(_) => return,
                Err(e) => last = e.to_string(),
            }
            *client = None;
        }
    }
    log::warn(&format!("event {topic} was not delivered: {last}"));
}

fn context(namespace: &str) -> Context {
    let mut context = with_duration(ANSWER_TIMEOUT);
    context.add("containerd-namespace-ttrpc".to_owned(), namespace.to_owned());
    context
}
