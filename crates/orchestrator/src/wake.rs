//! Hints that there is new mail, within a process and between processes. They save time and promise nothing: polling
//! guarantees that everything is seen.

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

use crate::{limits::NOTIFY_EVERY, store::Store};

/// The longest pause between two attempts to listen.
const LISTEN_PAUSE_MAX: Duration = Duration::from_secs(30);

/// What wakes one partition.
#[derive(Debug, Default)]
pub struct Bells {
    /// There is mail.
    pub mail: Bell,
    /// There is something to send.
    pub outbox: Bell,
}

/// Rung by many, heard by everyone who listens.
#[derive(Debug, Default)]
pub struct Bell(watch::Sender<u64>);

impl Bell {
    fn ring(&self) {
        self.0.send_modify(|times| *times = times.wrapping_add(1));
    }

    /// Hears it from now on.
    pub fn listen(&self) -> watch::Receiver<u64> {
        self.0.subscribe()
    }
}

/// The partitions of this process, and those elsewhere that have mail.
#[derive(Debug, Default)]
pub struct Wakes {
    here: Mutex<HashMap<i32, Arc<Bells>>>,
    elsewhere: Mutex<BTreeSet<i32>>,
    ring: Notify,
}

impl Wakes {
    /// A partition is attended to in this process from now on.
    pub fn enter(&self, partition: i32) -> Arc<Bells> {
        let bells = Arc::<Bells>::default();
        self.here.lock().insert(partition, bells.clone());
        bells
    }

    /// A partition is no longer attended to by those who had these bells. Others may have entered meanwhile.
    pub fn leave(&self, partition: i32, bells: &Arc<Bells>) {
        let mut here = self.here.lock();
        if here.get(&partition).is_some_and(|present| Arc::ptr_eq(present, bells)) {
            here.remove(&partition);
        }
    }

    /// There is mail for these partitions.
    pub fn mail(&self, partitions: &[i32]) {
        let here = self.here.lock();
        for partition in partitions {
            match here.get(partition) {
                Some(bells) => bells.mail.ring(),
                None => {
                    self.elsewhere.lock().insert(*partition);
                    self.ring.notify_one();
                }
            }
        }
    }

    /// There is something to send for a partition of this process.
    pub fn outbox(&self, partition: i32) {
        if let Some(bells) = self.here.lock().get(&partition) {
            bells.outbox.ring();
        }
    }

    /// Something may have been missed.
    fn everyone(&self) {
        self.here.lock().values().for_each(|bells| bells.mail.ring());
    }

    /// Tells other processes of their mail, and listens to them. Never ends.
    pub async fn connect(&self, store: &Store, target: &Target) {
        tokio::join!(self.tell(store), self.listen(store, target));
    }

    async fn tell(&self, store: &Store) {
        let channel = store.channel();
        loop {
            self.ring.notified().await;
            let partitions: Vec<String> =
                std::mem::take(&mut *self.elsewhere.lock()).iter().map(ToString::to_string).collect();
            let told = async {
                let client = store.pool().get().await?;
                let parameters = [(&channel as _, Type::TEXT), (&partitions.join(",") as _, Type::TEXT)];
                client.query_typed("SELECT pg_notify($1, $2)", &parameters).await?;
                Ok::<(), solehold_sql::Error>(())
            };
            if let Err(error) = told.await {
                tracing::debug!(%error, "other processes were not told of their mail");
            }
            tokio::time::sleep(NOTIFY_EVERY).await;
        }
    }

    async fn listen(&self, store: &Store, target: &Target) {
        let listen = format!("LISTEN \"{}\"", store.channel());
        let mut pause = Duration::from_millis(100);
        loop {
            if let Err(error) = self.listen_once(target, &listen, &mut pause).await {
                let error = solehold_sql::Error::from(error);
                tracing::debug!(%error, "cannot listen for mail: it is polled for");
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
            Some(tls) => self.hear(config.connect(tls).await?, listen, pause).await,
            None => self.hear(config.connect(NoTls).await?, listen, pause).await,
        }
    }

    async fn hear<S, T>(
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
                if let AsyncMessage::Notification(note) = message? {
                    let partitions: Vec<i32> =
                        note.payload().split(',').filter_map(|n| n.parse().ok()).collect();
                    let here = self.here.lock();
                    let bells = partitions.iter().filter_map(|partition| here.get(partition));
                    bells.for_each(|bells| bells.mail.ring());
                }
            }
            Ok(())
        };
        let listening = async {
            client.batch_execute(listen).await?;
            *pause = Duration::from_millis(100);
            self.everyone();
            std::future::pending::<Result<(), tokio_postgres::Error>>().await
        };
        tokio::select! {
            result = messages => result,
            result = listening => result,
        }
    }
}
