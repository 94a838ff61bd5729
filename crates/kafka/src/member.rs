//! A group member that can be dropped without waiting for the broker.

use std::{ops::Deref, sync::mpsc, time::Duration};

use rdkafka::consumer::StreamConsumer;

use super::BrokerErrors;

/// How long a dropped member may take to leave its group.
const LEAVE_MAX: Duration = Duration::from_millis(300);

/// A consumer that leaves its group when it is dropped. librdkafka waits for the broker without a limit; this waits for
/// 300 ms, and then the broker notices by the session timeout.
pub struct Member(Option<StreamConsumer<BrokerErrors>>);

impl Member {
    pub fn new(consumer: StreamConsumer<BrokerErrors>) -> Self {
        Self(Some(consumer))
    }
}

impl Deref for Member {
    type Target = StreamConsumer<BrokerErrors>;

    fn deref(&self) -> &StreamConsumer<BrokerErrors> {
        self.0.as_ref().expect("it is there until it is dropped")
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let consumer = self.0.take();
        let (left, has_left) = mpsc::sync_channel::<()>(0);
        std::thread::spawn(move || {
            drop(consumer);
            drop(left);
        });
        let _ = has_left.recv_timeout(LEAVE_MAX);
    }
}
