//! Notifies partition owners of new mail and new outbox rows, within a process and between processes (LISTEN/NOTIFY).
//! Notifications only save time: owners also poll, so that none is needed for correctness.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use solehold_engine::postgres::Target;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{Notify, watch},
};
use tokio_postgres::{AsyncMessage, Client, Connection, NoTls, types::Type};

use crate::{model::limits::NOTIFY_EVERY, store::Store};

/// The shortest and the longest pause between two attempts to listen.
const LISTEN_PAUSE_MIN: Duration = Duration::from_millis(100);
const LISTEN_PAUSE_MAX: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
pub struct PartitionSignals {
    pub mail: Signal,
    pub outbox: Signal,
}

/// Wakes all subscribers.
#[derive(Debug, Default)]
pub struct Signal(watch::Sender<u64>);

impl Signal {
    fn notify(&self) {
        self.0.send_modify(|count| *count = count.wrapping_add(1));
    }

    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.0.subscribe()
    }
}

/// The partitions that this process owns, and partitions of other processes that have new mail.
#[derive(Debug, Default)]
pub struct Notifier {
    here: Mutex<HashMap<i32, Arc<PartitionSignals>>>,
    elsewhere: Mutex<BTreeSet<i32>>,
    has_elsewhere: Notify,
}

impl Notifier {
    /// This process owns a partition from now on.
    pub fn register(&self, partition: i32) -> Arc<PartitionSignals> {
        let signals = Arc::<PartitionSignals>::default();
        self.here.lock().insert(partition, signals.clone());
        signals
    }

    /// The owner with these signals has given up its partition. This process may own it again already.
    pub fn deregister(&self, partition: i32, signals: &Arc<PartitionSignals>) {
        let mut here = self.here.lock();
        if here.get(&partition).is_some_and(|present| Arc::ptr_eq(present, signals)) {
            here.remove(&partition);
        }
    }

    /// There is new mail for these partitions.
    pub fn mail(&self, partitions: &[i32]) {
        let here = self.here.lock();
        for partition in partitions {
            match here.get(partition) {
                Some(signals) => signals.mail.notify(),
                None => {
                    self.elsewhere.lock().insert(*partition);
                    self.has_elsewhere.notify_one();
                }
            }
        }
    }

    /// There are new outbox rows of a partition of this process.
    pub fn outbox(&self, partition: i32) {
        if let Some(signals) = self.here.lock().get(&partition) {
            signals.outbox.notify();
        }
    }

    /// Sends notifications to other processes, and receives theirs. Never ends.
    pub async fn connect(&self, store: &Store, target: &Target) {
        tokio::join!(self.notify_others(store), self.listen(store, target));
    }

    async fn notify_others(&self, store: &Store) {
        let channel = store.channel();
        loop {
            self.has_elsewhere.notified().await;
            let partitions: Vec<String> =
                std::mem::take(&mut *self.elsewhere.lock()).iter().map(ToString::to_string).collect();
            let notified = async {
                let client = store.pool.get().await?;
                let parameters = [(&channel as _, Type::TEXT), (&partitions.join(",") as _, Type::TEXT)];
                client.query_typed("SELECT pg_notify($1, $2)", &parameters).await?;
                Ok::<(), solehold_sql::Error>(())
            };
            if let Err(error) = notified.await {
                tracing::debug!(%error, "cannot notify other processes of new mail; they find it by polling");
            }
            tokio::time::sleep(NOTIFY_EVERY).await;
        }
    }

    async fn listen(&self, store: &Store, target: &Target) {
        let listen = format!("LISTEN \"{}\"", store.channel());
        let mut pause = LISTEN_PAUSE_MIN;
        loop {
            if let Err(error) = self.listen_once(target, &listen, &mut pause).await {
                let error = solehold_sql::Error::from(error);
                tracing::debug!(%error, ?pause, "cannot listen for mail notifications; polling, will listen again");
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LISTEN_PAUSE_MAX);
        }
    }

    async fn listen_once(
        &self,
        target: &Target,
        listen: &str,
        pause: &mut Duration,
    ) -> Result<(), tokio_postgres::Error> {
        let Target { config, tls } = target;
        match tls.clone() {
            Some(tls) => self.receive(config.connect(tls).await?, listen, pause).await,
            None => self.receive(config.connect(NoTls).await?, listen, pause).await,
        }
    }

    async fn receive<S, T>(
        &self,
        (client, mut connection): (Client, Connection<S, T>),
        listen: &str,
        pause: &mut Duration,
    ) -> Result<(), tokio_postgres::Error>
    where
        S: AsyncRead + AsyncWrite + Unpin,
        T: AsyncRead + AsyncWrite + Unpin,
    {
        let messages = async {
            while let Some(message) = std::future::poll_fn(|cx| connection.poll_message(cx)).await {
                if let AsyncMessage::Notification(notification) = message? {
                    let partitions = notification.payload().split(',').filter_map(|n| n.parse::<i32>().ok());
                    let here = self.here.lock();
                    partitions.filter_map(|partition| here.get(&partition)).for_each(|it| it.mail.notify());
                }
            }
            Ok(())
        };
        let listening = async {
            client.batch_execute(listen).await?;
            *pause = LISTEN_PAUSE_MIN;
            // Notifications may have been missed until now.
            self.here.lock().values().for_each(|signals| signals.mail.notify());
            std::future::pending::<Result<(), tokio_postgres::Error>>().await
        };
        tokio::select! {
            result = messages => result,
            result = listening => result,
        }
    }
}
