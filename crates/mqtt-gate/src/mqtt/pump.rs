//! Forwards messages over a pair of connections: feeds packets of the broker to the window, and publications and
//! acknowledgements of the window to the broker.
//!
//! It reads from one connection and publishes on the other. A broker that sends a whole backlog at once reads nothing
//! from that connection until it is done. So messages are published and confirmed on the other one meanwhile, and while
//! too many are not confirmed, no more are read.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use futures_util::{Stream, StreamExt, stream};
use rumqttc::{
    AsyncClient, ConnectionError, Event, EventLoop, Incoming, ManualAck, Outgoing, Publish, PublishOptions,
    QoS, SubscribeFilterInput, SubscribeReasonCode,
};
use solehold_client::gate::{Gate, Verdict};
use solehold_clock::Backoff;
use solehold_core::{key::ResourceKey, time::Token};
use tokio::{
    sync::{Semaphore, watch},
    task::JoinSet,
    time::{Sleep, sleep},
};

use super::{
    broker::{BrokerError, REQUESTS_MAX},
    metrics::GateMetrics,
};
use crate::{
    intake::{Intake, Message},
    window::Window,
};

/// How long the broker may be silent before it has accepted the subscription.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// How long to wait for confirmations when the gate ends.
const SETTLE_WITHIN: Duration = Duration::from_secs(2);
/// Concurrent requests to the server, about different resources.
const REQUESTS_TO_SERVER_MAX: usize = 32;
/// Between two requests about one resource.
const RETRY: Backoff = Backoff { first: Duration::from_millis(50), cap: Duration::from_secs(2) };

/// A pair of connections and its window.
pub(crate) struct Pump {
    pub intake: Intake,
    pub window: Window<ManualAck>,
    pub gate: Arc<Gate>,
    pub metrics: Arc<GateMetrics>,
    reader: AsyncClient,
    writer: AsyncClient,
    /// Publications that the writer has and that have no packet number yet.
    unnumbered: VecDeque<u64>,
    /// Publications that were sent, by packet number.
    sent: HashMap<u16, u64>,
    acks: VecDeque<ManualAck>,
    requests: JoinSet<(ResourceKey, Token, Verdict)>,
    /// Resources with a request in progress.
    requested: HashSet<ResourceKey>,
    permits: Arc<Semaphore>,
    /// The numbers of messages that the metrics count as held back and as unacknowledged.
    reported_held: usize,
    reported_unacknowledged: usize,
    is_ending: bool,
}

impl Drop for Pump {
    fn drop(&mut self) {
        // The broker redelivers the rest.
        self.report(0, 0);
    }
}

impl Pump {
    pub fn new(
        intake: Intake,
        window: Window<ManualAck>,
        gate: Arc<Gate>,
        metrics: Arc<GateMetrics>,
        reader: AsyncClient,
        writer: AsyncClient,
    ) -> Self {
        Self {
            intake,
            window,
            gate,
            metrics,
            reader,
            writer,
            unnumbered: VecDeque::new(),
            sent: HashMap::new(),
            acks: VecDeque::new(),
            requests: JoinSet::new(),
            requested: HashSet::new(),
            permits: Arc::new(Semaphore::new(REQUESTS_TO_SERVER_MAX)),
            reported_held: 0,
            reported_unacknowledged: 0,
            is_ending: false,
        }
    }

    /// Forwards messages until a connection is lost or the gate ends. Calls `connected` once it is subscribed.
    pub async fn run(
        &mut self,
        reading: &mut EventLoop,
        writing: &mut EventLoop,
        mut ending: watch::Receiver<bool>,
        connected: impl FnOnce(),
    ) -> Result<(), BrokerError> {
        let filters: Vec<String> = self.intake.patterns.iter().map(|pattern| pattern.filter()).collect();
        let wanted = filters.iter().map(|filter| SubscribeFilterInput::new(filter, QoS::AtLeastOnce));
        self.reader.subscribe_many(wanted.collect::<Vec<_>>()).await?;
        let mut read = pin!(events(reading));
        let mut written = pin!(events(writing));
        let mut connected = Some(connected);
        let mut too_late = pin!(sleep(CONNECT_WITHIN));
        let mut news = Box::pin(self.gate.changed());
        let mut settled = None;
        while !self.has_ended() {
            let has_room = self.window.has_room();
            tokio::select! {
                Some(event) = read.next(), if has_room => {
                    match event? {
                        Event::Incoming(Incoming::Publish(publish)) => self.arrived(publish)?,
                        Event::Incoming(Incoming::SubAck(answer)) => {
                            may_read(&answer.return_codes, &filters)?;
                            connected.take().into_iter().for_each(|connected| connected());
                        }
                        _ => {}
                    }
                    if connected.is_some() {
                        // A broker may send a whole backlog before its answer: only silence is too late.
                        too_late.set(sleep(CONNECT_WITHIN));
                    }
                }
                Some(event) = written.next() => self.written(event?),
                () = &mut news => {
                    news = Box::pin(self.gate.changed());
                    self.reconsider();
                }
                Some(Ok(answer)) = self.requests.join_next() => self.answered(answer),
                _ = ending.wait_for(|ending| *ending), if !self.is_ending => self.is_ending = true,
                () = &mut too_late, if connected.is_some() && has_room => {
                    return Err(BrokerError::Silent(CONNECT_WITHIN));
                }
                () = over(&mut settled), if self.is_ending => return Ok(()),
            }
            self.flush();
        }
        Ok(())
    }

    fn written(&mut self, event: Event) {
        match event {
            Event::Incoming(Incoming::PubAck(ack)) => {
                if let Some(number) = self.sent.remove(&ack.pkid) {
                    self.window.confirmed(number);
                }
            }
            Event::Outgoing(Outgoing::Publish(packet)) => {
                if let Some(number) = self.unnumbered.pop_front() {
                    self.sent.insert(packet, number);
                }
            }
            _ => {}
        }
    }

    /// Whether the gate is ending, and every publication is confirmed.
    fn has_ended(&self) -> bool {
        self.is_ending && self.window.is_settled() && self.acks.is_empty()
    }

    fn arrived(&mut self, publish: Publish) -> Result<(), BrokerError> {
        if self.is_ending {
            // It is not acknowledged, so the next gate gets it.
            return Ok(());
        }
        let ack = self.reader.prepare_ack(&publish);
        // A topic that is not UTF-8 cannot name a resource; brokers reject it.
        let topic = String::from_utf8_lossy(&publish.topic).into_owned();
        let message = Message { topic, payload: publish.payload, is_retained: publish.retain };
        let fate = self.intake.fate(&message);
        let gate = &self.gate;
        self.window.arrive(ack, message, fate, &mut |resource, token| gate.judge(resource, token, None));
        self.request_verdicts();
        if self.window.is_overfull() {
            return Err(BrokerError::Overfull { messages: self.window.unacknowledged() });
        }
        Ok(())
    }

    fn reconsider(&mut self) {
        if self.window.held() == 0 {
            return;
        }
        let gate = &self.gate;
        self.window.reconsider(&mut |resource, token| gate.judge(resource, token, None));
    }

    fn answered(&mut self, (resource, token, verdict): (ResourceKey, Token, Verdict)) {
        self.requested.remove(&resource);
        let gate = &self.gate;
        self.window
            .answered(&resource, token, verdict, &mut |resource, token| gate.judge(resource, token, None));
        self.request_verdicts();
    }

    /// Requests verdicts on messages that are held back, one per resource.
    fn request_verdicts(&mut self) {
        if self.window.held() == 0 {
            return;
        }
        let new = self.window.waiting().filter(|(resource, _)| !self.requested.contains(*resource));
        let new: Vec<_> = new.map(|(resource, token)| (resource.clone(), token)).collect();
        for (resource, token) in new {
            self.requested.insert(resource.clone());
            let gate = self.gate.clone();
            let permits = self.permits.clone();
            self.requests.spawn(async move {
                let verdict = decide(&gate, &permits, &resource, token).await;
                (resource, token, verdict)
            });
        }
    }

    /// Publishes and acknowledges as much as the connections accept, and updates the metrics.
    fn flush(&mut self) {
        while self.unnumbered.len() < REQUESTS_MAX
            && let Some((number, publication)) = self.window.next_publication()
        {
            let options = PublishOptions::new(QoS::AtLeastOnce).retain(publication.is_retained);
            match self.writer.try_publish(publication.topic, publication.payload, options) {
                Ok(()) => self.unnumbered.push_back(number),
                // There is room, so the connection is about to be lost, and the broker will redeliver everything.
                Err(error) => tracing::debug!(%error, "cannot publish a message; it will be redelivered"),
            }
        }
        while let Some(ack) = self.acks.pop_front().or_else(|| self.window.next_ack()) {
            if self.reader.try_manual_ack(ack.clone()).is_err() {
                self.acks.push_front(ack);
                break;
            }
        }
        self.report(self.window.held(), self.window.unacknowledged());
    }

    fn report(&mut self, held: usize, unacknowledged: usize) {
        self.metrics.add(&self.window.take_counts());
        self.metrics.adjust(
            held as i64 - self.reported_held as i64,
            unacknowledged as i64 - self.reported_unacknowledged as i64,
        );
        self.reported_held = held;
        self.reported_unacknowledged = unacknowledged;
    }
}

/// The events of a connection. A poll is never cancelled: a packet that is half written would be lost.
fn events(events: &mut EventLoop) -> impl Stream<Item = Result<Event, ConnectionError>> {
    stream::unfold(events, async |events: &mut EventLoop| Some((events.poll().await, events)))
}

/// Whether the broker accepted all subscriptions.
fn may_read(answers: &[SubscribeReasonCode], filters: &[String]) -> Result<(), BrokerError> {
    let refused = answers.iter().position(|code| *code == SubscribeReasonCode::Failure);
    refused.map_or(Ok(()), |at| Err(BrokerError::MayNotRead(filters[at].clone())))
}

/// Requests a verdict until there is one.
async fn decide(gate: &Gate, permits: &Semaphore, resource: &ResourceKey, token: Token) -> Verdict {
    let mut failures = 0;
    loop {
        // The semaphore is never closed.
        let permit = permits.acquire().await;
        let verdict = gate.decide(resource, token, None).await;
        drop(permit);
        if !matches!(verdict, Verdict::Undecidable(doubt) if doubt.may_pass()) {
            return verdict;
        }
        failures += 1;
        sleep(RETRY.wait(failures, rand::random())).await;
    }
}

/// Ends [`SETTLE_WITHIN`] after the first call.
async fn over(settled: &mut Option<Pin<Box<Sleep>>>) {
    settled.get_or_insert_with(|| Box::pin(sleep(SETTLE_WITHIN))).await;
}
