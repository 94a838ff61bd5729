//! Moves messages over a pair of connections: drives the window by what the broker says, and the broker by what the
//! window says.
//!
//! It reads over one connection and publishes over the other. A broker that sends a whole backlog at once hears nothing
//! on that connection until it is done. So what was read is published and confirmed meanwhile, and while too much is
//! not confirmed, nothing more is read.

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
    figures::Figures,
};
use crate::{
    intake::{Intake, Message},
    window::Window,
};

/// How long the broker may say nothing before it has answered the subscription.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// How long what is published gets to be confirmed when the gate ends.
const SETTLE_WITHIN: Duration = Duration::from_secs(2);
/// Questions about different resources that are on their way at once.
const QUESTIONS_MAX: usize = 32;
/// Between two questions about one resource.
const ASK_AGAIN: Backoff = Backoff { first: Duration::from_millis(50), cap: Duration::from_secs(2) };

/// What is moved how.
pub(crate) struct Pump {
    pub intake: Intake,
    pub window: Window<ManualAck>,
    pub gate: Arc<Gate>,
    pub figures: Arc<Figures>,
    reader: AsyncClient,
    writer: AsyncClient,
    /// What was given to the writer and has no packet number yet.
    unnumbered: VecDeque<u64>,
    /// What was sent, by packet number.
    sent: HashMap<u16, u64>,
    acks: VecDeque<ManualAck>,
    questions: JoinSet<(ResourceKey, Token, Verdict)>,
    /// What is being asked about.
    asked: HashSet<ResourceKey>,
    may_ask: Arc<Semaphore>,
    /// How many messages the figures have as held back, and as unacknowledged.
    told: (usize, usize),
    is_ending: bool,
}

impl Drop for Pump {
    fn drop(&mut self) {
        // What is left comes again.
        self.tell((0, 0));
    }
}

impl Pump {
    pub fn new(
        intake: Intake,
        window: Window<ManualAck>,
        gate: Arc<Gate>,
        figures: Arc<Figures>,
        (reader, writer): (AsyncClient, AsyncClient),
    ) -> Self {
        Self {
            intake,
            window,
            gate,
            figures,
            reader,
            writer,
            unnumbered: VecDeque::new(),
            sent: HashMap::new(),
            acks: VecDeque::new(),
            questions: JoinSet::new(),
            asked: HashSet::new(),
            may_ask: Arc::new(Semaphore::new(QUESTIONS_MAX)),
            told: (0, 0),
            is_ending: false,
        }
    }

    /// Moves messages until a connection is lost, or the gate is to end. `connected` is called when messages flow.
    pub async fn run(
        &mut self,
        (reading, writing): (&mut EventLoop, &mut EventLoop),
        mut ending: watch::Receiver<bool>,
        connected: impl FnOnce(),
    ) -> Result<(), BrokerError> {
        let filters: Vec<String> = self.intake.patterns.iter().map(|pattern| pattern.filter()).collect();
        let wanted = filters.iter().map(|filter| SubscribeFilterInput::new(filter, QoS::AtLeastOnce));
        self.reader.subscribe_many(wanted.collect::<Vec<_>>()).await?;
        let (mut read, mut written) = (pin!(events(reading)), pin!(events(writing)));
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
                        // A broker may send a whole backlog before it answers: only silence is too late.
                        too_late.set(sleep(CONNECT_WITHIN));
                    }
                }
                Some(event) = written.next() => self.has_written(event?),
                () = &mut news => {
                    news = Box::pin(self.gate.changed());
                    self.reconsider();
                }
                Some(Ok(answer)) = self.questions.join_next() => self.answered(answer),
                _ = ending.wait_for(|ending| *ending), if !self.is_ending => self.is_ending = true,
                () = &mut too_late, if connected.is_some() && has_room => {
                    return Err(BrokerError::Silent(CONNECT_WITHIN));
                }
                () = over(&mut settled), if self.is_ending => return Ok(()),
            }
            self.give();
        }
        Ok(())
    }

    /// What became of what was published.
    fn has_written(&mut self, event: Event) {
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

    /// Whether the gate is to end, and nothing is on its way.
    fn has_ended(&self) -> bool {
        self.is_ending && self.window.is_settled() && self.acks.is_empty()
    }

    fn arrived(&mut self, publish: Publish) -> Result<(), BrokerError> {
        if self.is_ending {
            // The next gate gets it.
            return Ok(());
        }
        let ack = self.reader.prepare_ack(&publish);
        // A topic that is not UTF-8 cannot name a resource; a broker does not let one pass.
        let topic = String::from_utf8_lossy(&publish.topic).into_owned();
        let message = Message { topic, payload: publish.payload, is_retained: publish.retain };
        let fate = self.intake.fate(&message);
        let gate = &self.gate;
        self.window.arrive(ack, message, fate, &mut |resource, token| gate.judge(resource, token, None));
        self.ask();
        match self.window.is_overfull() {
            true => Err(BrokerError::Overfull { messages: self.window.unacknowledged() }),
            false => Ok(()),
        }
    }

    fn reconsider(&mut self) {
        if self.window.held() == 0 {
            return;
        }
        let gate = &self.gate;
        self.window.reconsider(&mut |resource, token| gate.judge(resource, token, None));
    }

    fn answered(&mut self, (resource, token, verdict): (ResourceKey, Token, Verdict)) {
        self.asked.remove(&resource);
        let gate = &self.gate;
        self.window
            .answered(&resource, token, verdict, &mut |resource, token| gate.judge(resource, token, None));
        self.ask();
    }

    /// Asks about what is held back and is not asked about yet.
    fn ask(&mut self) {
        if self.window.held() == 0 {
            return;
        }
        let new = self.window.waiting().filter(|(resource, _)| !self.asked.contains(*resource));
        let new: Vec<_> = new.map(|(resource, token)| (resource.clone(), token)).collect();
        for (resource, token) in new {
            self.asked.insert(resource.clone());
            let (gate, may_ask) = (self.gate.clone(), self.may_ask.clone());
            self.questions.spawn(async move {
                let verdict = decide(&gate, &may_ask, &resource, token).await;
                (resource, token, verdict)
            });
        }
    }

    /// Gives the connection what it has room for, and the figures what has become of messages.
    fn give(&mut self) {
        while self.unnumbered.len() < REQUESTS_MAX
            && let Some((number, publication)) = self.window.next_publication()
        {
            let options = PublishOptions::new(QoS::AtLeastOnce).retain(publication.is_retained);
            match self.writer.try_publish(publication.topic, publication.payload, options) {
                Ok(()) => self.unnumbered.push_back(number),
                // There is room, so the connection is about to be lost, and everything comes again.
                Err(error) => tracing::debug!(%error, "a message was not published"),
            }
        }
        while let Some(ack) = self.acks.pop_front().or_else(|| self.window.next_ack()) {
            if self.reader.try_manual_ack(ack.clone()).is_err() {
                self.acks.push_front(ack);
                break;
            }
        }
        self.tell((self.window.held(), self.window.unacknowledged()));
    }

    fn tell(&mut self, (held, unacknowledged): (usize, usize)) {
        self.figures.add(&self.window.take_counts());
        let moved = (held as i64 - self.told.0 as i64, unacknowledged as i64 - self.told.1 as i64);
        self.figures.moved(moved);
        self.told = (held, unacknowledged);
    }
}

/// What happens on a connection. A step that has begun is not dropped: a packet that is half written would be lost.
fn events(events: &mut EventLoop) -> impl Stream<Item = Result<Event, ConnectionError>> {
    stream::unfold(events, async |events: &mut EventLoop| Some((events.poll().await, events)))
}

/// Whether the broker accepted all subscriptions.
fn may_read(answers: &[SubscribeReasonCode], filters: &[String]) -> Result<(), BrokerError> {
    let refused = answers.iter().position(|code| *code == SubscribeReasonCode::Failure);
    refused.map_or(Ok(()), |at| Err(BrokerError::MayNotRead(filters[at].clone())))
}

/// Asks until there is an answer.
async fn decide(gate: &Gate, may_ask: &Semaphore, resource: &ResourceKey, token: Token) -> Verdict {
    let mut failures = 0;
    loop {
        // The semaphore is never closed.
        let permit = may_ask.acquire().await;
        let verdict = gate.decide(resource, token, None).await;
        drop(permit);
        if !matches!(verdict, Verdict::Undecidable(doubt) if doubt.may_pass()) {
            return verdict;
        }
        failures += 1;
        sleep(ASK_AGAIN.wait(failures, rand::random())).await;
    }
}

/// The time that is left to settle, from when this is first asked.
async fn over(settled: &mut Option<Pin<Box<Sleep>>>) {
    settled.get_or_insert_with(|| Box::pin(sleep(SETTLE_WITHIN))).await;
}
