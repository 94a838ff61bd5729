//! Wake-ups between polls. They only save time: polling alone guarantees that every row is seen.

use std::{sync::Arc, time::Duration};

use deadpool_postgres::Pool;
use tokio::{sync::Notify, task::JoinHandle};
use tokio_postgres::{
    AsyncMessage, Config, Socket,
    tls::{MakeTlsConnect, TlsConnect},
    types::Type,
};

use crate::{Error, ident, limits::LISTEN_PAUSE_MAX};

/// Wakes a reconciler. However often it is called meanwhile, one cycle follows.
#[derive(Debug, Clone, Default)]
pub struct Wake(Arc<Notify>);

impl Wake {
    /// Asks for a cycle now.
    pub fn wake(&self) {
        self.0.notify_one();
    }

    pub(super) async fn woken(&self) {
        self.0.notified().await;
    }

    /// Wakes at each NOTIFY on `channel`, by a direct connection to PostgreSQL (PgBouncer in transaction mode does not
    /// carry LISTEN). Connects again when it breaks, and wakes then, since something may have been missed. Ends when
    /// the handle is aborted.
    pub fn listen<T>(&self, config: Config, tls: T, channel: &str) -> Result<JoinHandle<()>, Error>
    where
        T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
        T::Stream: Send + 'static,
        T::TlsConnect: Send,
        <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
    {
        let listen = format!("LISTEN {}", ident::name("channel", channel)?);
        let wake = self.clone();
        Ok(tokio::spawn(async move {
            let mut pause = Duration::from_millis(100);
            loop {
                match wake.listen_once(&config, tls.clone(), &listen, &mut pause).await {
                    Ok(()) => tracing::debug!("wake-up listener disconnected; reconnecting"),
                    Err(error) => {
                        tracing::debug!(error = %Error::from(error), "cannot listen for wake-ups; will retry")
                    }
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LISTEN_PAUSE_MAX);
            }
        }))
    }

    async fn listen_once<T>(
        &self,
        config: &Config,
        tls: T,
        listen: &str,
        pause: &mut Duration,
    ) -> Result<(), tokio_postgres::Error>
    where
        T: MakeTlsConnect<Socket>,
    {
        let (client, mut connection) = config.connect(tls).await?;
        let messages = async {
            while let Some(message) = std::future::poll_fn(|cx| connection.poll_message(cx)).await {
                if let AsyncMessage::Notification(_) = message? {
                    self.wake();
                }
            }
            Ok(())
        };
        let listening = async {
            client.batch_execute(listen).await?;
            *pause = Duration::from_millis(100);
            self.wake();
            // The client is kept: the connection ends with it.
            std::future::pending::<Result<(), tokio_postgres::Error>>().await
        };
        tokio::select! {
            result = messages => result,
            result = listening => result,
        }
    }
}

/// Sends NOTIFY for new rows, at most once in an interval however often it is asked: each takes a lock that all of
/// PostgreSQL shares.
#[derive(Debug, Clone)]
pub struct Notifier(Arc<Notify>);

impl Notifier {
    /// Notifies on `channel` by a connection from the pool. Ends when the last clone of the notifier is gone.
    pub fn start(pool: Pool, channel: &str, every: Duration) -> Result<Self, Error> {
        ident::name("channel", channel)?;
        let asked = Arc::new(Notify::new());
        let weak = Arc::downgrade(&asked);
        let channel = channel.to_owned();
        tokio::spawn(async move {
            while let Some(asked) = weak.upgrade() {
                // Wakes from time to time to see whether a notifier is left.
                let rung = tokio::time::timeout(Duration::from_secs(1), asked.notified()).await;
                drop(asked);
                if rung.is_ok() {
                    if let Err(error) = notify(&pool, &channel).await {
                        tracing::debug!(%error, "cannot send a wake-up; reconcilers pick the rows up at their next poll");
                    }
                    tokio::time::sleep(every).await;
                }
            }
        });
        Ok(Self(asked))
    }

    /// There is something new. Call it after the commit.
    pub fn ring(&self) {
        self.0.notify_one();
    }
}

async fn notify(pool: &Pool, channel: &str) -> Result<(), Error> {
    let client = pool.get().await?;
    client.query_typed("SELECT pg_notify($1, '')", &[(&channel, Type::TEXT)]).await?;
    Ok(())
}
